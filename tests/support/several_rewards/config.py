"""Settings of the algorithm with several rewards."""

from relaax_like.algorithm import AlgorithmConfig, OnPolicy


class Config(AlgorithmConfig):
    weight: float = 1.0
    learning_rate: float = 5e-2
    reward_discount: float | None = None
    rollouts: int | None = 4

    @property
    def plan(self) -> OnPolicy:
        return OnPolicy(
            rollout_steps=8,
            rollouts=self.rollouts,
            reward_discount=self.reward_discount,
            offline=self.rollouts is not None,
        )
