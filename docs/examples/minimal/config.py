"""Settings of the minimal algorithm."""

from relaax_like.algorithm import AlgorithmConfig, OnPolicy


class Config(AlgorithmConfig):
    """Keys of the YAML's `algorithm` section, with their defaults."""

    gamma: float = 0.95
    """Discount per step."""
    learning_rate: float = 1e-2
    """Learning rate of Adam."""

    @property
    def plan(self) -> OnPolicy:
        """One update from 8 rollouts of 64 steps."""
        return OnPolicy(rollout_steps=64, rollouts=8, discount=self.gamma)
