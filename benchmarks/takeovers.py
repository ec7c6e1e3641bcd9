"""On-policy learning of CartPole-v1 while a controller overrides a part of the policy's actions.

    python -m benchmarks.takeovers [--algorithm ppo] [--seeds 3 4 5] [--steps 300000]

Both servers run as processes; a client steps eight environments. A safety controller overrides a
fifth of the policy's right actions, those that push the pole back, by the opposite, and this costs
6. A policy that takes such steps for its own learns to avoid right actions. Each seed is trained
twice: the client sends what was executed, or it does not.

Columns: `sent`; the mean length of the last 100 episodes of training, with the controller, and the
part of their steps that was overridden; the mean length of 100 fresh greedy episodes without the
controller, of which 475 counts as solved. The length is CartPole's own return. With the controller,
a policy that always chooses the right action reaches about 215.
"""

import argparse
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.cluster import run_servers
from benchmarks.report import report
from relaax_like.client import RlxClient
from relaax_like.wire.spaces import Box, Discrete

ALGORITHMS = Path(__file__).parents[1] / "algorithms"
SLOTS, EPISODES = 8, 100
OVERRIDDEN, COST = 0.2, 6.0
# Schedules of the shipped files run over so many steps.
_BUDGET = 150_000
_SPACES = Box(dtype="float32", shape=(4,)), Discrete(n=2)
# Position, velocity, angle, angular velocity: the side to which all of them lean.
_LEANING = np.array([0.1, 0.2, 1.0, 1.0])


def main(argv: Sequence[str] | None = None) -> None:
    """Measures all rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--algorithm", default="ppo", choices=["a2c", "ppo"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[3, 4, 5])
    parser.add_argument("--steps", type=int, default=300_000)
    arguments = parser.parse_args(argv)
    rows = [
        measure(arguments.algorithm, seed, arguments.steps, sends)
        for seed in arguments.seeds
        for sends in (True, False)
    ]
    report("takeovers", rows)


def measure(algorithm: str, seed: int, steps: int, sends: bool) -> dict[str, Any]:
    """Trains once, then plays greedy episodes; returns a row."""
    sets = [f"seed={seed}", f"algorithm.max_global_step={max(_BUDGET, 2 * steps)}"]
    with run_servers(ALGORITHMS / algorithm / f"{algorithm}.yaml", *sets) as address:
        length, overridden = train(address, seed, steps, sends)
        greedy = play(address, seed)
    return {
        "algorithm": algorithm,
        "seed": seed,
        "sent": "yes" if sends else "no",
        "last 100": length,
        "overridden": f"{overridden:.0%}",
        "greedy, 100": greedy,
    }


class Slots:
    """Eight environments whose next episodes begin by themselves."""

    def __init__(self, seed: int):
        self._environments = [gym.make("CartPole-v1") for _ in range(SLOTS)]
        self.seen = np.stack(
            [one.reset(seed=1_000 * seed + i)[0] for i, one in enumerate(self._environments)]
        )

    def step(self, actions: Any) -> dict[str, np.ndarray]:
        """Returns what `RlxClient.step` takes."""
        results = [one.step(a) for one, a in zip(self._environments, actions, strict=True)]
        final, rewards, terminated, truncated = (
            np.array([result[i] for result in results]) for i in range(4)
        )
        truncated &= ~terminated
        self.seen = final.copy()
        for slot in np.flatnonzero(terminated | truncated):
            self.seen[slot] = self._environments[slot].reset()[0]
        return {
            "observations": self.seen,
            "rewards": rewards,
            "terminated": terminated,
            "truncated": truncated,
            "final_observations": final,
        }


def train(address: str, seed: int, steps: int, sends: bool) -> tuple[float, float]:
    """Plays with the controller.

    Returns:
      Mean length of the last episodes; the part of their steps that was overridden.
    """
    random, slots = np.random.default_rng(seed), Slots(seed)
    counts, changed = np.zeros(SLOTS), np.zeros(SLOTS)
    newest: deque[tuple[float, float]] = deque(maxlen=EPISODES)
    with RlxClient(address, *_SPACES, slots=SLOTS, name="takeovers") as client:
        actions: Any = client.step(slots.seen).actions
        for _ in range(0, steps, SLOTS):
            right = (slots.seen @ _LEANING > 0).astype(np.int64)
            overridden = (actions == right) & (random.uniform(size=SLOTS) < OVERRIDDEN)
            executed = np.where(overridden, 1 - actions, actions)
            step = slots.step(executed)
            step["rewards"] = step["rewards"] - COST * overridden
            counts, changed = counts + 1, changed + overridden
            for slot in np.flatnonzero(step["terminated"] | step["truncated"]):
                newest.append((counts[slot], changed[slot]))
                counts[slot] = changed[slot] = 0
            actions = client.step(**step, executed=executed if sends else None).actions
    length, number = np.mean(newest, 0)
    return float(length), float(number / length)


def play(address: str, seed: int) -> float:
    """Returns the mean length of greedy episodes without the controller."""
    slots, lengths = Slots(seed + 500), np.zeros(SLOTS)
    with RlxClient(address, *_SPACES, slots=SLOTS, name="greedy", exploit=True) as client:
        return float(np.mean(list(_play(client, slots, lengths))))


def _play(client: RlxClient, slots: Slots, lengths: np.ndarray) -> Iterator[float]:
    """Yields lengths of episodes, equally many of each slot: short ones must not prevail."""
    wanted = np.full(SLOTS, EPISODES // SLOTS)
    wanted[: EPISODES % SLOTS] += 1
    actions: Any = client.step(slots.seen).actions
    while wanted.any():
        step = slots.step(actions)
        lengths += 1
        for slot in np.flatnonzero(step["terminated"] | step["truncated"]):
            if wanted[slot]:
                wanted[slot] -= 1
                yield lengths[slot]
            lengths[slot] = 0
        actions = client.step(**step).actions


if __name__ == "__main__":
    main()
