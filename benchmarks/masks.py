"""Steps until Taxi-v4 is played well: with masks of legal actions, compared with none.

    python -m benchmarks.campaign benchmarks/campaigns/masks.yaml    # makes the runs
    python -m benchmarks.masks                                       # compares them

The ratio of the mean steps, with masks to without, has a 90 % interval as in `benchmarks.network`.
A run that does not reach the threshold counts as its budget.
"""

import argparse
from collections.abc import Sequence

from benchmarks.campaign import CHECKOUT, load_rows
from benchmarks.network import compare, summarize
from benchmarks.report import report

CAMPAIGN = CHECKOUT / "benchmarks" / "campaigns" / "masks.yaml"


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the runs that are there, and the ratios."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args(argv)
    table, steps = [], {}
    for row in load_rows(CAMPAIGN):
        runs = [run for seed in row.seeds if (run := row.find(seed)) is not None]
        if runs:
            name, masks = row.config.parent.name, "without" if row.set else "with"
            table.append(summarize(f"{name}, {masks} masks", runs))
            steps[name, masks] = [run["steps"] for run in runs]
    report("steps until the threshold", table)
    for name in dict.fromkeys(name for name, _ in steps):
        if (name, "without") in steps:
            ratio = compare(steps[name, "without"], steps[name, "with"])
            print("{}: {:.3f}, 90 % interval {:.3f} to {:.3f}".format(name, *ratio))


if __name__ == "__main__":
    main()
