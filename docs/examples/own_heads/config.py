"""Settings of Q-learning with heads of its own."""

from pydantic import Field

from relaax_like.algorithm import Linear, OnPolicy, Schedule
from relaax_like.config import EncoderConfig, validate_discrete
from relaax_like.wire.spaces import Spaces


class Config(EncoderConfig):
    """Adds keys to state_size, image, observations, network and normalize_observations."""

    num_actions: int = Field(default=2, ge=2)
    """Actions to choose from."""
    gamma: float = Field(default=0.9, ge=0, le=1)
    """Discount per step."""
    learning_rate: float = 1e-2
    """Learning rate of Adam."""
    epsilon: Schedule = Linear(1.0, 0.05, steps=10_000)
    """Share of actions that are drawn at random."""

    @property
    def plan(self) -> OnPolicy:
        """One update from 16 complete rollouts of 12 steps, as a memory needs it."""
        return OnPolicy(
            rollout_steps=12,
            rollouts=16,
            minibatch_of="rollouts",
            discount=self.gamma,
            update_norm=self.normalize_observations,
        )

    def validate_spaces(self, observation_spaces: Spaces, action_spaces: Spaces) -> None:
        super().validate_spaces(observation_spaces, action_spaces)
        validate_discrete(action_spaces, self.num_actions)
