"""Settings of the tutorial's policy gradient."""

from pydantic import Field

from relaax_like.config import AlgorithmConfig, hyper, validate_discrete, validate_vector
from relaax_like.wire import ACTION, OBSERVATION, Box, Discrete, Spaces


class Config(AlgorithmConfig):
    """Settings of policy_gradient_tutorial: the keys of the YAML's `algorithm` section."""

    state_size: int = Field(default=4, ge=1)
    """Number of values in one observation, flattened."""
    action_size: int = Field(default=1, ge=1, le=1)
    """Number of network outputs: 1, the probability of action 0 out of two actions."""
    layer_size: int = Field(default=200, ge=1, alias="hidden_layer_size")
    """Units of the hidden layer."""
    gamma: hyper.Gamma = 0.99
    """Discount factor per step."""
    learning_rate: hyper.LearningRate = 1e-2
    """Learning rate of Adam."""

    @property
    def GAMMA(self) -> float:
        """The tutorial's name for gamma."""
        return self.gamma

    @property
    def observation_spaces(self) -> Spaces:
        """One flat vector."""
        return {OBSERVATION: Box(dtype="float32", shape=(self.state_size,))}

    @property
    def action_spaces(self) -> Spaces:
        """One discrete action."""
        return {ACTION: Discrete(n=2)}

    def validate_spaces(self, observation_spaces: Spaces, action_spaces: Spaces) -> None:
        """Refuses environments with spaces that this network does not support.

        Raises:
          InvalidInputError: such a space; the error says what differs, and the cure.
        """
        validate_vector(observation_spaces, self.state_size)
        validate_discrete(action_spaces, 2)
