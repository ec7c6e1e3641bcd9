"""docs/algorithms.md shows what the examples say, and the minimal algorithm learns."""

import ast
import re

import numpy as np
import pytest
from support.cluster import ROOT

import relaax_like

PAGE = (ROOT / "docs" / "algorithms.md").read_text("utf-8")
EXCERPTS = re.findall(r"```python\n# (docs/examples/\S+)\n(.*?)```", PAGE, re.DOTALL)
MINIMAL = ROOT / "docs" / "examples" / "minimal"


def test_the_page_shows_all_examples():
    shown = {path for path, _ in EXCERPTS}
    there = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "docs" / "examples").rglob("*.py")
        if path.name != "__init__.py"
    }
    assert shown == there


@pytest.mark.parametrize(("path", "excerpt"), EXCERPTS, ids=lambda value: value[:40])
def test_an_excerpt_is_what_its_file_says(path, excerpt):
    assert excerpt in (ROOT / path).read_text("utf-8")


def test_the_minimal_algorithm_needs_few_names():
    names = set()
    for path in MINIMAL.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("relaax_like"):
                names.update(alias.name for alias in node.names)
    assert 8 <= len(names) <= 12, names


def test_the_minimal_algorithm_learns(tmp_path):
    """Returns at the start are about 20."""
    sets = [f"run_dir={tmp_path}", "algorithm.max_global_step=60000", "seed=1"]
    result = relaax_like.train(MINIMAL / "minimal.yaml", sets)
    assert result.global_t >= 60_000
    assert np.isfinite(result.mean_return)
    assert result.mean_return > 60
