"""Does it help to compensate, bound or average stale gradients? A small network, simulated delays.

    python -m benchmarks.staleness [--seeds 0 1 2]

Sixteen workers teach one network of 20-32-10 units (NumPy) what a fixed random network of that
shape says of random points: softmax cross-entropy, batches of 32, plain SGD at the parameter server
(the real one, in process), 4 000 pushes. A worker pulls, computes its gradient, and pushes it when
as many pushes of others have been applied as its delay says: 1 to 31, drawn again each time. `none`
has no delay. The figure is the loss over 2 000 fresh points after so many pushes: the mean over the
seeds, the least and the greatest. Learning rate and lambda were chosen with seeds 10 and 11.
"""

import argparse
import heapq
import itertools
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.report import report
from relaax_like.bridge.in_process import InProcessClient
from relaax_like.config.combine import CombineConfig
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.core.manifest import Variable, make_manifest
from relaax_like.core.metrics import NullMetrics
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.store import Store

SIZES = (20, 32, 10)
BATCH = 32
WORKERS = 16
MAX_DELAY = 31
LEARNING_RATE = 0.5
PUSHES = 4_000
SHOWN = (500, 1_000, 2_000, 4_000)

Weights = Sequence[np.ndarray]

METHODS: dict[str, tuple[int, CombineConfig]] = {
    "none": (0, CombineConfig()),
    "fifo": (MAX_DELAY, CombineConfig()),
    "dc 0.05": (MAX_DELAY, CombineConfig(method="dc", dc_history=64)),
    "dc 2": (MAX_DELAY, CombineConfig(method="dc", dc_lambda=2.0, dc_history=64)),
    "bound 15, drop": (MAX_DELAY, CombineConfig(max_staleness=15)),
    "bound 15, compensate 2": (
        MAX_DELAY,
        CombineConfig(max_staleness=15, when_stale="compensate", dc_lambda=2.0, dc_history=64),
    ),
    "avg of 4": (MAX_DELAY, CombineConfig(method="avg", num_gradients=4)),
}


def make_weights(random: np.random.Generator, scale: float) -> list[np.ndarray]:
    """Returns W1, b1, W2, b2."""
    weights: list[np.ndarray] = []
    for fan_in, fan_out in itertools.pairwise(SIZES):
        matrix = random.normal(size=(fan_in, fan_out)) * scale / np.sqrt(fan_in)
        weights += [matrix.astype(np.float32), np.zeros(fan_out, np.float32)]
    return weights


def compute_log_probs(weights: Weights, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the hidden layer [n, 32] and log-probabilities [n, 10]."""
    hidden = np.tanh(x @ weights[0] + weights[1])
    logits = hidden @ weights[2] + weights[3]
    logits = logits - logits.max(1, keepdims=True)
    return hidden, logits - np.log(np.exp(logits).sum(1, keepdims=True))


def compute_gradients(weights: Weights, x: np.ndarray, labels: np.ndarray) -> list[np.ndarray]:
    """Returns the gradient of the mean cross-entropy."""
    hidden, log_probs = compute_log_probs(weights, x)
    error = np.exp(log_probs)
    error[np.arange(len(x)), labels] -= 1
    error /= len(x)
    back = (error @ weights[2].T) * (1 - hidden**2)
    gradients = [x.T @ back, back.sum(0), hidden.T @ error, error.sum(0)]
    return [gradient.astype(np.float32) for gradient in gradients]


class Teacher:
    """Draws points and labels."""

    def __init__(self, seed: int):
        self._random = np.random.default_rng([seed, 1])
        self._weights = make_weights(self._random, 3.0)

    def draw(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns x [count, 20] float32 and labels [count]."""
        x = self._random.normal(size=(count, SIZES[0])).astype(np.float32)
        probs = np.exp(compute_log_probs(self._weights, x)[1])
        labels = (probs.cumsum(1) > self._random.random((count, 1))).argmax(1)
        return x, labels


def run(max_delay: int, config: CombineConfig, seed: int) -> list[float]:
    """Returns the loss after each number of pushes in SHOWN."""
    teacher = Teacher(seed)
    points, labels = teacher.draw(2_000)
    start = make_weights(np.random.default_rng([seed, 2]), 1.0)
    manifest = make_manifest([Variable(f"v{i}", value) for i, value in enumerate(start)])
    sgd = OptimizerConfig(name="sgd", learning_rate=LEARNING_RATE)
    store = Store(manifest, manifest.pack(start), {"default": sgd})
    delays = np.random.default_rng([seed, 3])
    losses = []
    with ParameterServer(store, metrics=NullMetrics(), combine=config) as server:
        workers = [InProcessClient(server, f"worker {i}") for i in range(WORKERS)]
        # When each worker pushes next, in pushes; and what it will push.
        due: list[tuple[float, int]] = []
        gradients: list[list[np.ndarray]] = []
        for index, worker in enumerate(workers):
            gradients.append(compute_gradients(worker.get_values(), *teacher.draw(BATCH)))
            heapq.heappush(due, (index, index))
        for number in range(1, PUSHES + 1):
            at, index = heapq.heappop(due)
            worker = workers[index]
            if not max_delay:  # with the weights of this very moment
                gradients[index] = compute_gradients(worker.get_values(), *teacher.draw(BATCH))
            values = worker.push_pull(gradients[index])
            gradients[index] = compute_gradients(values, *teacher.draw(BATCH))
            delay = delays.integers(1, max_delay + 1) if max_delay else WORKERS
            heapq.heappush(due, (at + delay, index))
            if number in SHOWN:
                log_probs = compute_log_probs(worker.get_values(), points)[1]
                losses.append(-float(log_probs[np.arange(len(points)), labels].mean()))
    return losses


def main(argv: Sequence[str] = ()) -> None:
    """Runs all methods with all seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2))
    seeds = parser.parse_args(argv).seeds
    logging.disable(logging.WARNING)  # of dropped pushes
    rows: list[dict[str, Any]] = []
    for name, (delay, config) in METHODS.items():
        curves = np.array([run(delay, config, seed) for seed in seeds])
        row: dict[str, Any] = {"method": name}
        for column, pushes in enumerate(SHOWN):
            losses = curves[:, column]
            row[f"{pushes} pushes"] = f"{losses.mean():.3f} ({losses.min():.3f}-{losses.max():.3f})"
        rows.append(row)
    report(f"staleness, seeds {' '.join(map(str, seeds))}", rows)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
