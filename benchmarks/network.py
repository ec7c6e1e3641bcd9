"""Steps until a threshold: over the network, compared with one process.

    python -m benchmarks.campaign benchmarks/campaigns/network.yaml    # makes the runs
    python -m benchmarks.network                                       # compares them

For each file the ratio of the mean steps, network to one process, and its 90 % interval: 10 000
bootstrap samples of the seeds of both.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.campaign import CHECKOUT, load_rows
from benchmarks.report import report

CAMPAIGN = CHECKOUT / "benchmarks" / "campaigns" / "network.yaml"
_SAMPLES = 10_000


def summarize(name: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns a row: how many runs have reached the threshold, and after how many steps."""
    steps = [run["steps"] for run in runs]
    reached = sum("reached the target" in run["finished"] for run in runs)
    return {
        "runs": name,
        "reached": f"{reached} of {len(runs)}",
        "mean steps": float(np.mean(steps)),
        "each": ", ".join(f"{number:,}" for number in steps),
    }


def compare(one: Sequence[int], other: Sequence[int]) -> tuple[float, float, float]:
    """Returns the ratio of the means, other to one, and its 90 % interval."""
    random = np.random.default_rng(0)
    means = [random.choice(steps, (_SAMPLES, len(steps))).mean(1) for steps in (one, other)]
    low, high = np.percentile(means[1] / means[0], (5, 95))
    return float(np.mean(other) / np.mean(one)), float(low), float(high)


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the runs that are there, and the ratios."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args(argv)
    table, steps = [], {}
    for row in load_rows(CAMPAIGN):
        runs = [run for seed in row.seeds if (run := row.find(seed)) is not None]
        if not runs:
            continue
        clients = "".join(text for text in row.set if text.startswith("environment.clients"))
        where = "one process" if row.command == "train" else clients or "network"
        name = Path(row.config).stem
        table.append(summarize(f"{name}, {where}", runs))
        steps[name, where] = [run["steps"] for run in runs]
    report("steps until the threshold", table)
    for name in dict.fromkeys(name for name, _ in steps):
        if (name, "network") in steps:
            ratio = compare(steps[name, "one process"], steps[name, "network"])
            print("{}: {:.3f}, 90 % interval {:.3f} to {:.3f}".format(name, *ratio))


if __name__ == "__main__":
    main()
