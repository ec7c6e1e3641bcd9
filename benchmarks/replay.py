"""The replay table: microseconds per insertion and per minibatch, beside a plain NumPy ring.

    python -m benchmarks.replay                          # ours, and the ring
    PEER/bin/python benchmarks/peers/replay_cpprb.py     # cpprb, in an environment of its own

Steps are Pendulum's: three float32 numbers, one float32 action. Tables hold 1 M steps and are full.
Segments are of one slot and as many steps as the block says; those of the ring and of cpprb come
with `next_obs`, as their interface asks for, ours store each observation once. A minibatch of ours
also has ids, ages, versions and `log_prob`. "priorities" is one `update_priorities` of a minibatch.
"""

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.report import report
from relaax_like.experience.rollout import Rollout
from relaax_like.replay import Prioritized, RowSpec, Storage, Table, Transitions, Uniform

CAPACITY = 1_000_000
BLOCKS = (1, 64, 1024)
SIZES = (64, 256)
EPISODE = 200


def time_best(function: Callable[[], object], seconds: float = 1.0) -> float:
    """Returns the microseconds of one call, the best of 50 rounds: the machine has other users."""
    start = time.perf_counter()
    function()
    calls = max(1, int(seconds / 50 / max(time.perf_counter() - start, 1e-6)))
    best = float("inf")
    for _ in range(50):
        start = time.perf_counter()
        for _ in range(calls):
            function()
        best = min(best, (time.perf_counter() - start) / calls)
    return 1e6 * best


class Segments:
    """Segments of one slot that continue one another, with a truncation after 200 steps."""

    def __init__(self, steps: int, seed: int = 0):
        random = np.random.default_rng(seed)
        self._steps = steps
        self._observations = random.standard_normal((steps + 1, 1, 3)).astype(np.float32)
        self._actions = random.standard_normal((steps, 1, 1)).astype(np.float32)
        self._rewards = random.standard_normal((steps, 1, 1)).astype(np.float32)
        self._zeros = np.zeros((steps, 1), np.float32)
        self._versions = np.zeros(steps, np.int64)
        self._total = 0
        # Made before the clock runs: as many as end at the same step of an episode.
        number = np.lcm(steps, EPISODE) // steps
        self._next_alive = []
        for i in range(number):
            rows = (i * steps + np.arange(steps)) % EPISODE
            alive = np.where(rows == EPISODE - 1, -1.0, 1.0).astype(np.float32)
            self._next_alive.append(alive[:, None])
        self._places = [
            (i * steps // EPISODE, i * steps % EPISODE, number * steps // EPISODE)
            for i in range(number)
        ]

    def make(self) -> Rollout:
        """Returns the next one."""
        lap, place = divmod(self._total, len(self._next_alive))
        self._total += 1
        episode, step, episodes = self._places[place]
        return Rollout(
            inputs={"observation": self._observations[:-1]},
            next_inputs={"observation": self._observations[1:]},
            next_alive=self._next_alive[place],
            rewards=self._rewards,
            actions={"action": self._actions},
            log_prob=self._zeros,
            states={},
            versions=self._versions,
            starts=np.array([[7, lap * episodes + episode, step]]),
        )


class Ring:
    """What one would write first: five arrays, slices in, rows out."""

    def __init__(self, capacity: int):
        shapes = {"obs": 3, "act": 1, "rew": 1, "next_obs": 3, "done": 1}
        self._columns = {n: np.zeros((capacity, size), np.float32) for n, size in shapes.items()}
        self._capacity = capacity
        self._next = 0
        self._random = np.random.default_rng(0)

    def insert(self, **arrays: np.ndarray) -> None:
        """Writes rows."""
        number = len(arrays["rew"])
        rows = np.arange(self._next, self._next + number) % self._capacity
        for name, array in arrays.items():
            self._columns[name][rows] = array
        self._next += number

    def sample(self, size: int) -> dict[str, np.ndarray]:
        """Returns rows."""
        rows = self._random.integers(0, self._capacity, size)
        return {name: array[rows] for name, array in self._columns.items()}


def make_table(prioritized: bool, size: int, n_step: int = 1) -> Table:
    """Returns a full table."""
    segments = Segments(1000)
    storage = Storage(RowSpec.from_rollout(segments.make()), CAPACITY)
    selector = Prioritized() if prioritized else Uniform()
    table = Table(storage, Transitions(n_step), selector, minibatch_size=size)
    segments = Segments(1000)
    while table.counts.rows < CAPACITY - 2_000:
        table.insert(segments.make())
    for _ in range(10):
        table.insert(segments.make())
    if prioritized:
        random = np.random.default_rng(0)
        for _ in range(1_000):
            ids = table.sample(4)
            assert ids is not None
            table.update_priorities(ids.ids, random.standard_normal(ids.ids.shape))
    return table


def fill(block: int) -> dict[str, np.ndarray]:
    """Returns rows for a ring."""
    sizes = {"obs": 3, "act": 1, "rew": 1, "next_obs": 3, "done": 1}
    return {name: np.ones((block, size), np.float32) for name, size in sizes.items()}


def measure_table(name: str, prioritized: bool, n_step: int = 1) -> dict[str, Any]:
    """Returns one row."""
    row: dict[str, Any] = {"table": name}
    for size in SIZES:
        table = make_table(prioritized, size, n_step)
        row[f"sample {size} us"] = time_best(table.sample)
        if prioritized:
            batch = table.sample()
            assert batch is not None
            errors = np.random.default_rng(0).standard_normal(batch.ids.shape)
            row[f"priorities {size} us"] = time_best(
                functools.partial(table.update_priorities, batch.ids, errors)
            )
        else:
            row[f"priorities {size} us"] = 0.0
    for block in BLOCKS:
        segments = Segments(block)
        made = iter([segments.make() for _ in range(200_000 if block == 1 else 40_000)])
        row[f"insert {block} us"] = time_best(lambda: table.insert(next(made)))  # noqa: B023
    return row


def measure_ring() -> dict[str, Any]:
    """Returns one row."""
    ring = Ring(CAPACITY)
    row: dict[str, Any] = {"table": "NumPy ring"}
    for size in SIZES:
        row[f"sample {size} us"] = time_best(functools.partial(ring.sample, size))
        row[f"priorities {size} us"] = 0.0
    for block in BLOCKS:
        row[f"insert {block} us"] = time_best(functools.partial(ring.insert, **fill(block)))
    return row


def main() -> None:
    """Measures each table after the other."""
    report(
        "replay",
        [
            measure_table("uniform", False),
            measure_table("uniform, 3 steps", False, 3),
            measure_table("prioritized", True),
            measure_table("prioritized, 3 steps", True, 3),
            measure_ring(),
        ],
    )


if __name__ == "__main__":
    main()
