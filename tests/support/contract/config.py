"""Settings; the schedule says whether an action explores."""

from pathlib import Path
from typing import Any

from relaax_like.algorithm import (
    AlgorithmConfig,
    Episodes,
    Linear,
    OnPolicy,
    Replay,
    Schedule,
    Tunable,
)
from relaax_like.config import OptimizerConfig, make_adam


class Config(AlgorithmConfig):
    factor: Tunable = 2.0
    epsilon: Schedule = Linear(1.0, 0.0, steps=256)
    learning_rate: float = 1e-2
    rows_file: Path | None = None

    @property
    def optimizers(self) -> dict[str, OptimizerConfig]:
        return dict.fromkeys(("actor", "critic", "fixed"), make_adam(self.learning_rate, 1e-8))

    @property
    def plan(self) -> Any:
        return Replay(  # if replay
            capacity=256,  # if replay
            batch_size=8,  # if replay
            updates_per_step=0.25,  # if replay
            warm_up_steps=64,  # if replay
            updates_at_once=4,  # if replay
            n_step=2,  # if replay
        )  # if replay
        return Episodes(episodes=4, rollout_steps=8)  # if episodes
        return OnPolicy(
            rollout_steps=8,
            rollouts=4,
            epochs=3,
            next_actions=True,  # if next actions
            offline=True,
        )
