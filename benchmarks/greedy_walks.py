"""Tables of values: training runs, and where their greedy policy leads, computed exactly.

    python -m benchmarks.greedy_walks algorithms/q_learning/q_learning.yaml --seeds 101 102
    python -m benchmarks.greedy_walks algorithms/sarsa/sarsa.yaml

For environments with a table of transitions that are not random, such as Taxi-v4 and
CliffWalking-v1: from each possible start state, the greedy policy is followed to the episode's end,
for at most 200 steps. A JSON line per seed is appended to benchmarks/results/NAME.jsonl, NAME being
that of the YAML file, as soon as it is there. What is there is not repeated.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import relaax_like
from benchmarks.learning import RESULTS, append_row, read_rows, run_experiment
from benchmarks.report import report
from relaax_like.config.loader import load_experiment

MAX_STEPS = 200
# States of CliffWalking-v1 from which a step down falls off the cliff.
BESIDE_CLIFF = frozenset(range(25, 35))


def walk(transitions: Any, actions: Sequence[int], state: int) -> tuple[float, set[int]]:
    """Follows a policy from a state.

    Args:
      transitions: state -> action -> [(probability, next state, reward, terminated)].
      actions: of each state.
      state: the first one.

    Returns:
      The sum of the rewards, and all states on the way.

    Raises:
      ValueError: a transition is random.
    """
    total, seen = 0.0, {state}
    for _ in range(MAX_STEPS):
        outcomes = transitions[state][actions[state]]
        if len(outcomes) != 1:
            raise ValueError(f"state {state}: {len(outcomes)} outcomes of an action, expected 1")
        [(_, state, reward, terminated)] = outcomes
        total += reward
        seen.add(state)
        if terminated:
            break
    return total, seen


def evaluate(run_dir: Path, env: str) -> dict[str, Any]:
    """Returns the greedy policy's exact results from all start states of an environment."""
    policy = relaax_like.load(run_dir)
    model: Any = gymnasium.make(env).unwrapped
    actions = [int(policy.act(state)) for state in range(model.observation_space.n)]
    walks = [walk(model.P, actions, int(s)) for s in np.flatnonzero(model.initial_state_distrib)]
    returns = [total for total, _ in walks]
    row = {
        "starts": len(walks),
        "greedy_mean": float(np.mean(returns)),
        "greedy_min": min(returns),
    }
    if env.startswith("CliffWalking"):
        row["beside_cliff"] = any(seen & BESIDE_CLIFF for _, seen in walks)
    return row


def main(argv: Sequence[str] | None = None) -> None:
    """Runs what is missing and shows all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=range(101, 111))
    args = parser.parse_args(argv)
    environment = load_experiment(args.config).environment
    assert environment is not None
    assert environment.env is not None
    path = RESULTS / f"{args.config.stem}.jsonl"
    rows = []
    for seed in args.seeds:
        key = {"config": str(args.config), "seed": seed}
        row = next((row for row in read_rows(path) if key.items() <= row.items()), None)
        if row is None:
            with tempfile.TemporaryDirectory() as folder:
                run = run_experiment(args.config, Path(folder), [f"seed={seed}"], command=["train"])
                found = evaluate(Path(folder), environment.env)
            row = {**key, "steps": run.steps, **found, "wall_sec": round(run.wall_sec, 1)}
            append_row(path, row)
        rows.append({name: value for name, value in row.items() if name != "machine"})
    report(f"greedy walks, {args.config}", rows)


if __name__ == "__main__":
    main()
