"""The tests that `make test` leaves out, and what is checked without them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
_ROW = r"[A-Z]+\d+(?:-[A-Z]*\d+)?"  # or a range: R18-R21
# A list can continue in the next line, also of a comment.
_COVERS = re.compile(rf"\b[Cc]overs ({_ROW}(?:(?: \([^)]*\))?,[\s#]+{_ROW})*)")


def find_rows(text: str) -> set[str]:
    """Returns the capability rows that a text names after "covers"."""
    rows = set()
    for found in _COVERS.findall(text):
        for letters, first, last in re.findall(r"([A-Z]+)(\d+)(?:-[A-Z]*(\d+))?", found):
            rows |= {f"{letters}{row}" for row in range(int(first), int(last or first) + 1)}
    return rows


def read_tests(source: str) -> Iterator[tuple[str, bool, set[str]]]:
    """Yields each test of a module: its name, whether it is slow, and the rows that it covers.

    Those that the module's docstring names are covered by each of its tests.
    """
    module, lines = ast.parse(source), source.splitlines()
    of_all = find_rows(ast.get_docstring(module) or "")
    for test in module.body:
        if isinstance(test, ast.FunctionDef) and test.name.startswith("test_"):
            decorators = [ast.unparse(one) for one in test.decorator_list]
            first = min([test.lineno, *(one.lineno for one in test.decorator_list)]) - 1
            while first and lines[first - 1].startswith("#"):
                first -= 1
            own = find_rows("\n".join(lines[first : test.end_lineno]))
            yield test.name, "pytest.mark.slow" in decorators, own | of_all


def test_rows_of_slow_tests_are_covered_by_others_too() -> None:
    tests = [one for path in TESTS.rglob("test_*.py") for one in read_tests(path.read_text())]
    slow = {name: rows for name, is_slow, rows in tests if is_slow}
    others = set().union(*(rows for _, is_slow, rows in tests if not is_slow))
    assert slow
    assert {name: rows - others for name, rows in slow.items() if rows - others} == {}


def test_rows_are_found_in_comments_docstrings_and_decorators() -> None:
    source = (
        '"""Tests. Covers R1."""\n'
        "# covers F2,\n# F3\n"
        "@pytest.mark.slow\n"
        "def test_a():\n"
        '    """Works. covers D4 (a word),\n    D5, R18-20"""\n'
        "def test_b():\n"
        "    pass  # covers J6\n"
    )
    assert list(read_tests(source)) == [
        ("test_a", True, {"R1", "F2", "F3", "D4", "D5", "R18", "R19", "R20"}),
        ("test_b", False, {"R1", "J6"}),
    ]
