"""Experience in process: microseconds per rollout through a Collector, and per step of a Buffer.

    python -m benchmarks.collector

Rollouts are CartPole's: four float32 numbers, one action. A batch is one whole rollout, which is
not copied; eight rollouts side by side, as from eight agents; or parts of them. Each row tells the
time of one `add`, and of the `get_training_data` that follows when a batch is whole.
"""

from collections.abc import Callable

import numpy as np

from benchmarks.codec import time_call
from benchmarks.report import report
from relaax_like.experience.buffer import Buffer
from relaax_like.experience.collector import Collector
from relaax_like.experience.rollout import Rollout

SIZES = ((8, 32), (64, 128))  # slots, steps
STEPS = 2048
EPISODE = 200


def make_rollout(slots: int, steps: int) -> Rollout:
    """Returns a rollout of zeros of CartPole's shapes."""
    observations = np.zeros((steps + 1, slots, 4), np.float32)
    return Rollout(
        inputs={"observation": observations[:-1]},
        next_inputs={"observation": observations[1:]},
        next_alive=np.ones((steps, slots), np.float32),
        rewards=np.ones((steps, slots, 1), np.float32),
        actions={"action": np.zeros((steps, slots), np.int64)},
        log_prob=np.zeros((steps, slots), np.float32),
        states={},
        versions=np.zeros(steps, np.int64),
    )


def make_rounds(slots: int, steps: int, columns: int) -> Callable[[], None]:
    """Returns a function that adds as many rollouts as columns fill whole batches, and takes."""
    collector = Collector(steps, columns, capacity=columns + slots)
    rollout = make_rollout(slots, steps)
    rollouts = np.lcm(slots, columns) // slots

    def run() -> None:
        for _ in range(rollouts):
            collector.add(rollout)
            while collector.get_training_data() is not None:
                pass

    return run


def push_steps() -> Buffer:
    """Pushes and ends episodes."""
    buffer = Buffer(0.99, 0.95)
    state, action = np.zeros(4, np.float32), np.int64(0)
    for step in range(1, STEPS + 1):
        buffer.push(state, action, 1.0, 0.5)
        if step % EPISODE == 0 or step == STEPS:
            buffer.end_trajectory()
    return buffer


def push_trajectories() -> Buffer:
    """Pushes the same in complete episodes."""
    buffer = Buffer(0.99, 0.95)
    for start in range(0, STEPS, EPISODE):
        steps = min(EPISODE, STEPS - start)
        numbers = np.ones(steps, np.float32)
        buffer.push_trajectory(
            np.zeros((steps, 4), np.float32), np.zeros(steps, np.int64), numbers, numbers
        )
    return buffer


def main() -> None:
    """Measures the Collector, then the Buffer."""
    rows = []
    for slots, steps in SIZES:
        for columns in (slots, 8 * slots, 3 * slots // 2):
            rollouts = np.lcm(slots, columns) // slots
            microseconds = time_call(make_rounds(slots, steps, columns)) / rollouts
            rows.append(
                {
                    "rollout": f"{slots} slots x {steps} steps",
                    "columns of a batch": columns,
                    "us per rollout": microseconds,
                    "million env steps/s": slots * steps / microseconds,
                }
            )
    report("collector", rows)
    buffer = push_steps()
    rng = np.random.default_rng(0)
    calls: dict[str, Callable[[], object]] = {
        "push and end_trajectory": push_steps,
        "push_trajectory": push_trajectories,
        "sample(256)": lambda: list(buffer.sample(256, rng=rng)),
        "sample(4, recurrent=True)": lambda: list(buffer.sample(4, recurrent=True, rng=rng)),
        "pad": buffer.pad,
        "a + b": lambda: buffer + buffer,
    }
    report(
        "buffer",
        [
            {"call": f"{name}, {STEPS} steps", "ns per step": 1e3 * time_call(call) / STEPS}
            for name, call in calls.items()
        ],
    )


if __name__ == "__main__":
    main()
