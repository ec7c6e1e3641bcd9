"""Settings."""

from pydantic import Field

from relaax_like.config.algorithm import AlgorithmConfig
from relaax_like.config.plan import OnPolicy, Replay
from relaax_like.config.spaces import validate_discrete, validate_vector
from relaax_like.wire.spaces import Spaces


class Config(AlgorithmConfig):
    """Fields are read from the keys of the YAML's `algorithm` section."""

    goal_steps: int = Field(default=4, ge=1)
    """Environment steps for which a goal holds."""
    rollout_steps: dict[str, int] = Field(default={"goal": 4, "control": 8})
    """Rows in one gradient, by name: goals of one slot; steps of each slot."""
    rollouts: dict[str, int] | None = None
    """Rollouts of one slot in an update, by name; null: single gradients beside the agents."""
    replayed: tuple[str, ...] = ()
    """Algorithms that learn from a replay table instead."""
    batch_size: int = Field(default=16, ge=1)
    updates_per_step: float = Field(default=0.5, gt=0)
    """Updates per row of a table."""
    learning_rate: float = Field(default=0.05, ge=0)

    @property
    def plan(self) -> dict[str, OnPolicy | Replay] | None:
        """One update of each iteration, by name."""
        if self.rollouts is None:
            return None
        return {
            name: OnPolicy(rollout_steps=self.rollout_steps[name], rollouts=rollouts)
            for name, rollouts in self.rollouts.items()
        } | {name: self._replay(name) for name in self.replayed}

    def _replay(self, name: str) -> Replay:
        return Replay(
            capacity=500,
            batch_size=self.batch_size,
            warm_up_steps=32,
            updates_per_step=self.updates_per_step,
            updates_at_once=8,
            rollout_steps=self.rollout_steps[name],
        )

    def validate_spaces(self, observation_spaces: Spaces, action_spaces: Spaces) -> None:
        """Two numbers in, two actions out."""
        validate_vector(observation_spaces, 2)
        validate_discrete(action_spaces, 2)
