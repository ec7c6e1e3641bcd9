"""Settings of the algorithm with targets."""

from relaax_like.algorithm import AlgorithmConfig, Linear, OnPolicy, Schedule, Tunable
from relaax_like.config import OptimizerConfig, make_adam


class Config(AlgorithmConfig):
    noise: Tunable = 0.1
    epsilon: Schedule = Linear(1.0, 0.1, steps=600)
    learning_rate: float = 1e-2

    @property
    def optimizers(self) -> dict[str, OptimizerConfig]:
        return dict.fromkeys(("actor", "critic"), make_adam(self.learning_rate, 1e-8))

    @property
    def plan(self) -> OnPolicy:
        return OnPolicy(rollout_steps=16, rollouts=8, batch_size=32, epochs=2)
