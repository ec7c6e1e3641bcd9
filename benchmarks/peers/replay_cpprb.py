"""cpprb in the places of `benchmarks.replay`: microseconds per insertion and per minibatch.

    python -m venv PEER && PEER/bin/pip install cpprb
    PEER/bin/python benchmarks/peers/replay_cpprb.py

Needs nothing of relaax_like. Each observation is stored once (`next_of`), as ours are.
"""

import json
import time
from collections.abc import Callable
from typing import Any

import cpprb
import numpy as np

CAPACITY = 1_000_000
BLOCKS = (1, 64, 1024)
SIZES = (64, 256)


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


def fill(block: int) -> dict[str, np.ndarray]:
    """Returns rows."""
    sizes = {"obs": 3, "act": 1, "rew": 1, "next_obs": 3, "done": 1}
    return {name: np.ones((block, size), np.float32) for name, size in sizes.items()}


def measure(prioritized: bool, compressed: bool) -> dict[str, Any]:
    """Returns one row."""
    env: dict[str, Any] = {"obs": {"shape": 3}, "act": {"shape": 1}, "rew": {}, "done": {}}
    options: dict[str, Any] = {"next_of": "obs"} if compressed else {}
    if not compressed:
        env["next_obs"] = {"shape": 3}
    kind = cpprb.PrioritizedReplayBuffer if prioritized else cpprb.ReplayBuffer
    buffer = kind(CAPACITY, env, **options)
    rows = fill(1000)
    for _ in range(CAPACITY // 1000 + 1):
        buffer.add(**rows)
    name = ("prioritized" if prioritized else "uniform") + (", next_of" if compressed else "")
    row: dict[str, Any] = {"table": f"cpprb {name}"}
    for size in SIZES:
        row[f"sample {size} us"] = time_best(lambda: buffer.sample(size))  # noqa: B023
        row[f"priorities {size} us"] = 0.0
        if prioritized:
            indexes = buffer.sample(size)["indexes"]
            errors = np.random.default_rng(0).random(size)
            update = lambda: buffer.update_priorities(indexes, errors)  # noqa: B023, E731
            row[f"priorities {size} us"] = time_best(update)
    for block in BLOCKS:
        rows = fill(block)
        row[f"insert {block} us"] = time_best(lambda: buffer.add(**rows))  # noqa: B023
    return row


def main() -> None:
    """Measures uniform and prioritized buffers, with observations once and twice."""
    for prioritized in (False, True):
        for compressed in (False, True):
            row = measure(prioritized, compressed)
            rounded = {k: round(v, 1) if isinstance(v, float) else v for k, v in row.items()}
            print(json.dumps({"benchmark": "replay_cpprb", **rounded}))


if __name__ == "__main__":
    main()
