"""A small policy that a learner really trains: linear regression, SGD with momentum, in NumPy."""

import itertools
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

WEIGHTS = np.array([2.0, -3.0, 0.5])
BIAS = 1.25


def make_rows(number: int, batch_size: int) -> list[dict[str, Any]]:
    """Makes batch `number`: rows of y = WEIGHTS x + BIAS, without noise, each of two env steps."""
    inputs = np.random.default_rng(number).normal(size=(batch_size, 3))
    return [
        {
            "x": x,
            "y": float(WEIGHTS @ x) + BIAS,
            "replay_buffer_idx": index,
            "replay_unique_id": f"{number}-{index}",
            "env_steps": 2,
        }
        for index, x in enumerate(inputs)
    ]


class Regression:
    """Learns `weights` `[3]` and `bias` `[]`; with momentum, so that its state is more than those.

    The mean squared error's gradient for a batch of B rows is 2/B sum (w x + b - y) (x, 1).
    """

    def __init__(self, learning_rate: float = 0.05, momentum: float = 0.5):
        self._learning_rate = learning_rate
        self._momentum = momentum
        self.values = np.zeros(4)
        self.velocity = np.zeros(4)

    def data_preprocess(self, data: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
        x = np.stack([np.append(row["x"], 1.0) for row in data])
        return x, np.array([row["y"] for row in data])

    def forward(self, data: tuple[np.ndarray, np.ndarray]) -> dict[str, Any]:
        x, y = data
        errors = x @ self.values - y
        gradient = 2 / len(y) * errors @ x
        self.velocity = self._momentum * self.velocity - self._learning_rate * gradient
        self.values = self.values + self.velocity
        return {
            "loss": np.float32(np.mean(errors**2)),
            "priority": np.abs(errors),
            "[histogram]errors": errors,
            "[scalars]weights": {"first": self.values[0], "last": self.values[2]},
        }

    def state_dict(self) -> dict[str, np.ndarray]:
        return {"values": self.values, "sgd/velocity": self.velocity}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        self.values = state["values"].copy()
        self.velocity = state["sgd/velocity"].copy()


class RowSource:
    """A `get_data`: batch 0, 1, 2, ... of `make_rows`; thread-safe."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def __call__(self, batch_size: int, /) -> list[dict[str, Any]]:
        with self._lock:
            number = next(self._numbers)
        return make_rows(number, batch_size)
