"""Settings of the algorithm with buffers."""

from relaax_like.algorithm import AlgorithmConfig, OnPolicy
from relaax_like.config import OptimizerConfig, make_adam


class Config(AlgorithmConfig):
    rate: float = 0.25
    batch_size: int = 32
    epochs: int = 2

    @property
    def optimizers(self) -> dict[str, OptimizerConfig]:
        return dict.fromkeys(("actor", "critic"), make_adam(1e-2, 1e-8))

    @property
    def plan(self) -> OnPolicy:
        return OnPolicy(
            rollout_steps=16, rollouts=8, batch_size=self.batch_size, epochs=self.epochs
        )
