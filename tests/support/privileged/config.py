"""Settings of the algorithm that learns from what its policy does not see."""

from relaax_like.algorithm import AlgorithmConfig, OnPolicy


class Config(AlgorithmConfig):
    learning_rate: float = 5e-2
    rollouts: int | None = 4

    @property
    def plan(self) -> OnPolicy:
        return OnPolicy(rollout_steps=8, rollouts=self.rollouts, offline=self.rollouts is not None)
