"""Settings that all actor-critic algorithms share: spaces and networks."""

from typing import Self

from pydantic import Field, model_validator

from relaax_like.config.algorithm import AlgorithmConfig
from relaax_like.config.network import NetworkConfig
from relaax_like.config.spaces import (
    validate_continuous,
    validate_discrete,
    validate_image,
    validate_vector,
)
from relaax_like.wire.spaces import Box, Discrete, Space, Spaces


class ActorCriticConfig(AlgorithmConfig):
    """Fields are read from the keys of the YAML's `algorithm` section."""

    # Numbers in one observation, flattened.
    state_size: int = Field(default=4, ge=1)
    # Observations are images of this [height, width, channels], uint8; instead of state_size.
    image: tuple[int, int, int] | None = None
    # Discrete actions to choose from; exactly one of num_actions and action_size is set.
    num_actions: int | None = Field(default=None, ge=2)
    # Components of a continuous action.
    action_size: int | None = Field(default=None, ge=1)
    # Layers of the policy, and of the value function.
    network: NetworkConfig = NetworkConfig()
    # True: the two share all layers but the last one.
    shared_network: bool = False
    # Continuous actions: logarithm of the standard deviation at the start.
    log_std_init: float = 0.0
    # Bring observations to mean 0 and deviation 1, by what all agents have seen.
    normalize_observations: bool = False

    @model_validator(mode="after")
    def _validate_spaces(self) -> Self:
        if (self.num_actions is None) == (self.action_size is None):
            raise ValueError(
                "set exactly one of num_actions (discrete) and action_size (continuous)"
            )
        if self.image is not None and (min(self.image) < 1 or self.normalize_observations):
            raise ValueError(
                f"image: {list(self.image)} with normalize_observations "
                f"{self.normalize_observations}; expected [height, width, channels] of 1 or more, "
                "without normalize_observations (images are scaled to [0, 1])"
            )
        if self.network.begins_with_convolution and self.image is None:
            raise ValueError(
                "network: its first layer is a convolution, but observations are no images; set "
                "image: [height, width, channels], or use dense layers"
            )
        if self.image is not None and not self.network.begins_with_convolution:
            raise ValueError(
                "image: the network's first layer is no convolution; begin layers with nature, "
                "a3c, impala or {conv: ...}"
            )
        return self

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of what the network sees: the newest observations, joined on the last axis."""
        if self.image is not None:
            return (*self.image[:2], self.image[2] * self.observation_history)
        return (self.state_size * self.observation_history,)

    @property
    def action_space(self) -> Space:
        """The leaf that the network's outputs describe."""
        if self.num_actions is not None:
            return Discrete(n=self.num_actions)
        assert self.action_size is not None
        return Box(dtype="float32", shape=(self.action_size,))

    def validate_spaces(self, observation_spaces: Spaces, action_spaces: Spaces) -> None:
        """Refuses environments that this network does not fit."""
        if self.image is None:
            validate_vector(observation_spaces, self.state_size)
        else:
            validate_image(observation_spaces, self.image)
        if self.num_actions is not None:
            validate_discrete(action_spaces, self.num_actions)
        else:
            assert self.action_size is not None
            validate_continuous(action_spaces, self.action_size)
