"""docs/rows.md: each row leads to tests that name it, and no row is left out."""

import itertools
import re

import pytest
from support.cluster import ROOT
from test_slow import find_rows

PAGE = ROOT / "docs" / "rows.md"
LINE = re.compile(r"^\| ([A-Z]\d+) \|(.*)\|(.*)\|$", re.MULTILINE)
LINK = re.compile(r"\[(\w+)\]\((\S+)\)")
LETTERS = "FRDPJ"  # in the order of the page
MISSING: tuple[str, ...] = ()  # numbers that the list of capabilities leaves out

ROWS = LINE.findall(PAGE.read_text("utf-8"))


def test_each_row_is_there_once_in_order() -> None:
    named = [row for row, _, _ in ROWS]
    wanted = []
    for letter, rows in itertools.groupby(named, lambda row: row[0]):
        last = int([*rows][-1][1:])
        wanted += [f"{letter}{n}" for n in range(1, last + 1) if f"{letter}{n}" not in MISSING]
    assert named == wanted
    assert "".join(letter for letter, _ in itertools.groupby(named, lambda row: row[0])) == LETTERS


def test_each_row_that_a_test_names_is_there() -> None:
    tests = (ROOT / "tests").rglob("test_*.py")
    named = set().union(*(find_rows(path.read_text("utf-8")) for path in tests))
    listed = {row for row, _, _ in ROWS}
    assert {row for row in named if row[0] in LETTERS and row[1:].isdigit()} - listed == set()
    assert listed - named == set()


@pytest.mark.parametrize(("row", "links"), [(row, links) for row, _, links in ROWS])
def test_each_row_leads_to_tests_that_name_it(row: str, links: str) -> None:
    found = LINK.findall(links)
    assert 1 <= len(found) <= 3
    for name, target in found:
        path = PAGE.parent / target
        assert (path.stem, path.suffix) == (name, ".py")
        assert row in find_rows(path.read_text("utf-8")), target


def test_a_row_says_in_few_words_what_it_is() -> None:
    assert [row for row, what, _ in ROWS if not 2 <= len(what.split()) <= 16] == []
