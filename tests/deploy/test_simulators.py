"""Each simulator that `deploy/simulators` plays is described in `environments/SIMULATORS.md`."""

import tomllib

import pytest
from support.cluster import ROOT

ROWS = tomllib.loads((ROOT / "deploy" / "simulators" / "rows.toml").read_text())
LINES = (ROOT / "environments" / "SIMULATORS.md").read_text().splitlines()


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_described_with_its_versions_and_command(name: str) -> None:
    (line,) = [line for line in LINES if line.startswith(f"| {name} |")]
    for package in ROWS[name]["packages"]:
        assert package.replace("==", " ") in line
    assert f"; {ROWS[name].get('python', '3.11')} |" in line
    assert f"| `{ROWS[name]['command']}` |" in line
    assert {*ROWS[name]} <= {"packages", "command", "module", "settings", "python"}


def test_only_rows_are_described_as_played() -> None:
    start, end = LINES.index("## Played"), LINES.index("## Not played")
    table = [line.split("|")[1].strip() for line in LINES[start:end] if line.startswith("| ")]
    assert sorted(ROWS) == table[1:]
