"""impala with and without V-trace, where the policy that acts is a number of versions old.

    python -m benchmarks.lag [--seeds 0 1 2 3 4] [--lag 20] [--updates 1500]

Sixteen CartPole-v1 are played in this process by the values of so many updates ago. Each update is
of one rollout of 16 steps of all of them, with the settings of algorithms/impala/impala.yaml.
Columns: mean return of the last 100 episodes, and the mean over the whole training.
"""

import argparse
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from benchmarks.report import report
from relaax_like.algorithm.acting import make_actor
from relaax_like.config.algorithm_folder import find_algorithm, load_algorithm_module
from relaax_like.config.loader import load_experiment
from relaax_like.experience.rollout import Rollout
from relaax_like.learn.updates import CompiledUpdates

IMPALA = Path(__file__).parents[1] / "algorithms" / "impala" / "impala.yaml"
SLOTS = 16


class Players:
    """Environments that are stepped together, whose ended episodes begin again at once."""

    def __init__(self, seed: int):
        self._envs = [gymnasium.make("CartPole-v1") for _ in range(SLOTS)]
        self._seen = np.stack([e.reset(seed=1000 * seed + i)[0] for i, e in enumerate(self._envs)])
        self._sums = np.zeros(SLOTS)
        self.returns: list[float] = []

    def play(self, actor: Any, steps: int) -> Rollout:
        """Plays a rollout."""
        shape = (steps, SLOTS)
        inputs, following = np.zeros((2, *shape, 4), np.float32)
        alive = np.ones(shape, np.float32)
        log_prob = np.zeros(shape, np.float32)
        actions = np.zeros(shape, np.int64)
        for t in range(steps):
            inputs[t] = self._seen
            prediction = actor.act({"observation": self._seen.astype(np.float32)}, {})
            actions[t], log_prob[t] = prediction.actions["action"], prediction.log_prob
            for i, env in enumerate(self._envs):
                seen, _, terminated, truncated, _ = env.step(int(actions[t, i]))
                following[t, i] = seen
                self._sums[i] += 1
                if terminated or truncated:
                    alive[t, i] = 0.0 if terminated else -1.0
                    self.returns.append(float(self._sums[i]))
                    self._sums[i] = 0
                    seen = env.reset()[0]
                self._seen[i] = seen
        return Rollout(
            inputs={"observation": inputs},
            next_inputs={"observation": following},
            next_alive=alive,
            rewards=np.ones((*shape, 1), np.float32),
            actions={"action": actions},
            log_prob=log_prob,
            states={},
            versions=np.zeros(steps, np.int64),
        )


def train(vtrace: bool, lag: int, updates: int, seed: int) -> dict[str, Any]:
    """Returns the row of one training."""
    sets = [f"seed={seed}", f"algorithm.vtrace={vtrace}"]
    sets += ["algorithm.state_size=4", "algorithm.num_actions=2"]
    config: Any = load_experiment(IMPALA, sets).algorithm
    folder = find_algorithm("impala", Path())
    make_model = load_algorithm_module(folder, "model").make_model
    algorithm = load_algorithm_module(folder, "algorithm").make_algorithm(
        config, make_model(config, seed), seed
    )
    compiled = CompiledUpdates(algorithm, config.optimizers)
    actor = make_actor(make_model(config, seed), seed, config)
    players = Players(seed)
    old = deque([compiled.get_values()], maxlen=lag + 1)
    for number in range(updates):
        actor.set_values(old[0], number)
        rollout = players.play(actor, config.rollout_steps)
        arguments: Any = compiled.make_arguments(rollout, rollout.next_alive)
        compiled.update(global_t=number * SLOTS * config.rollout_steps, **arguments)
        old.append(compiled.get_values())
    return {
        "vtrace": vtrace,
        "lag": lag,
        "seed": seed,
        "steps": updates * SLOTS * config.rollout_steps,
        "last 100": float(np.mean(players.returns[-100:])),
        "all": float(np.mean(players.returns)),
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Trains with each seed, with and without."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--lag", type=int, default=20, help="versions; default: 20")
    parser.add_argument("--updates", type=int, default=1500, help="of each training")
    arguments = parser.parse_args(argv)
    rows = [
        train(vtrace, arguments.lag, arguments.updates, seed)
        for seed in arguments.seeds
        for vtrace in (True, False)
    ]
    report(f"impala, {arguments.lag} versions behind", rows)


if __name__ == "__main__":
    main()
