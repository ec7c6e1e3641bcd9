"""A learner with hooks, whose data a thread gets while it trains: `python base_learner.py`."""

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from relaax_like.learn.base_learner import BaseLearner
from relaax_like.learn.hooks import LearnerHook, register_learner_hook

GOAL = np.array([2.0, -1.0])


class LineFit:
    """Finds `a` and `b` of y = a x + b, by gradient descent."""

    def __init__(self) -> None:
        self.line = np.zeros(2)

    def data_preprocess(self, data: list[np.ndarray]) -> np.ndarray:
        """Stacks points `[2]` to `[B, 2]`."""
        return np.stack(data)

    def forward(self, data: np.ndarray) -> dict[str, float]:
        """Makes one step; returns log variables."""
        inputs = np.stack([data[:, 0], np.ones(len(data))], 1)
        errors = inputs @ self.line - data[:, 1]
        self.line -= 0.1 * errors @ inputs / len(data)
        return {"loss": float(np.mean(errors**2))}

    def state_dict(self) -> dict[str, np.ndarray]:
        """Returns what a checkpoint contains."""
        return {"line": self.line}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Restores it."""
        self.line = state["line"]


class StopHook(LearnerHook):
    """Ends the training when the loss is small."""

    def __call__(self, engine: BaseLearner) -> None:
        """Looks at the newest log variables."""
        if engine.log_buffer.get("loss", 1.0) < 1e-6:
            engine.request_stop()


register_learner_hook("stop", StopHook)


def get_points(number: int) -> list[np.ndarray]:
    """Draws points of the line."""
    xs = np.random.default_rng().normal(size=number)
    return [np.array([x, GOAL[0] * x + GOAL[1]]) for x in xs]


def main(folder: Path) -> BaseLearner:
    """Trains, and leaves a checkpoint in FOLDER/ckpt."""
    # Before log_show_after_iter (priority 20), which empties the log variables.
    stop = {"type": "stop", "position": "after_iter", "priority": 10}
    hooks = {"done": stop, "save_ckpt_after_run": True}
    config = {"max_iterations": 5_000, "dataloader": {"batch_size": 32}, "hook": hooks}
    learner = BaseLearner(config, exp_dir=folder)
    learner.policy = LineFit()
    learner.get_data = get_points
    learner.setup_dataloader()
    learner.start()
    learner.close()
    print(f"{learner.last_iter} iterations: {learner.policy.state_dict()['line']}")
    return learner


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "line"))
