"""How well the shipped experiments learn: shown beside them, and kept as rows. covers J19"""

import json
import re
import sys
from collections.abc import Iterator

import pytest
from support.cluster import ROOT

sys.path.append(str(ROOT))

from benchmarks import offline

ALGORITHMS = ROOT / "algorithms"
# All but those that only `relaax check-algorithm` trains.
EXPERIMENTS = [path for path in sorted(ALGORITHMS.glob("*/*.yaml")) if path.stem != "check"]
# Their results stand in a page alone.
WITHOUT_ROWS = {
    *("bc/bc", "policy_gradient/policy_gradient", "policy_gradient_tutorial/policy_gradient"),
    *("ppo/browser", "ppo/pong", "sac/fetch_reach"),
}


def name_experiments() -> Iterator[str]:
    """Yields the experiment of each row in benchmarks/results, if it has one."""
    for file in (ROOT / "benchmarks" / "results").glob("*.jsonl"):
        for row in map(json.loads, file.read_text("utf-8").splitlines()):
            if "config" in row:
                yield re.sub(r"^algorithms/|\.yaml$", "", row["config"])
            elif file.stem == "offline":
                path = offline.ALGORITHMS[row["algorithm"]]
                yield path.relative_to(ALGORITHMS).with_suffix("").as_posix()
            elif row.get("program") == "ours":
                yield file.stem.replace("ppo_", "ppo/", 1)


def test_rows_of_each_experiment_are_kept() -> None:
    shipped = {path.relative_to(ALGORITHMS).with_suffix("").as_posix() for path in EXPERIMENTS}
    assert shipped - set(name_experiments()) == WITHOUT_ROWS


@pytest.mark.parametrize("folder", sorted({path.parent.name for path in EXPERIMENTS}))
def test_results_stand_beside_each_experiment(folder: str) -> None:
    text = (ALGORITHMS / folder / "README.md").read_text("utf-8")
    results = re.search(r"^## Results\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert results is not None
    assert "|---|" in results[1] or re.search(r"\]\(\S+#", results[1])  # a table, here or there
    files = [path.name for path in EXPERIMENTS if path.parent.name == folder]
    assert [name for name in files if not re.search(rf"\b{name}\b", text)] == []
