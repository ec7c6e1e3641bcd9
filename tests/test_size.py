"""The product does not grow, except by what a piece of work was allowed.

Code lines have neither comments nor docstrings, and at most 100 columns. Generated modules do not
count. What one piece of work did not use does not pass on to the next: its row starts with the
size that was measured then. Long functions and long lists of arguments have no allowance.
"""

import ast
import io
import itertools
import tokenize
from pathlib import Path
from typing import NamedTuple

from support.cluster import ROOT

FOLDERS = ("relaax_like", "environments/OpenAI_Gym", "algorithms")
MAX_COLUMNS = 100
MAX_FUNCTION_LINES = 50
MAX_ARGUMENTS = 9
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Size(NamedTuple):
    """What is counted: code lines, classes, functions of more than 50 lines and of more than nine
    arguments, `self` included. A function's lines are those from `def` to its end."""

    lines: int
    classes: int
    long_functions: int
    long_arguments: int


class Row(NamedTuple):
    """A piece of work: the size at its start, and the lines and classes that it can add."""

    work: str
    start: Size
    lines: int
    classes: int


# The last row is the one that holds.
ROWS = (
    Row("what real simulators broke", Size(53_847, 708, 65, 21), lines=1_300, classes=12),
    Row("doors", Size(55_131, 704, 65, 20), lines=2_000, classes=22),
    Row("the lighter house", Size(57_130, 725, 65, 20), lines=0, classes=0),
    # It only falls: what was reached so far is held.
    Row("the lighter house, so far", Size(54_409, 639, 8, 7), lines=0, classes=0),
    Row("the five documents", Size(54_409, 639, 8, 7), lines=1_500, classes=17),
    Row("several agents and masks", Size(55_733, 649, 8, 7), lines=1_600, classes=18),
    Row("speed", Size(57_333, 667, 8, 7), lines=300, classes=4),
    Row("slow simulators", Size(57_416, 669, 8, 7), lines=1_200, classes=14),
)


def test_the_product_is_no_larger_than_its_last_row_allows() -> None:
    size, row = measure(find_modules()), ROWS[-1]
    allowed = Size(
        row.start.lines + row.lines,
        row.start.classes + row.classes,
        row.start.long_functions,
        row.start.long_arguments,
    )
    over = {
        name: f"{found}, allowed {most}"
        for name, found, most in zip(Size._fields, size, allowed, strict=True)
        if found > most
    }
    assert over == {}, (
        f"{row.work}: what can it replace? An algorithm of its own is a row of its own"
    )


def test_a_row_starts_within_the_allowance_of_the_row_before_it() -> None:
    for before, row in itertools.pairwise(ROWS):
        assert row.start.lines <= before.start.lines + before.lines, row.work
        assert row.start.classes <= before.start.classes + before.classes, row.work
        assert row.start.long_functions <= before.start.long_functions, row.work
        assert row.start.long_arguments <= before.start.long_arguments, row.work


def test_no_line_of_code_is_longer_than_a_hundred_columns() -> None:
    assert [
        f"{path.relative_to(ROOT)}:{number}"
        for path in find_modules()
        for number, columns in _find_ends(path.read_text()).items()
        if columns > MAX_COLUMNS
    ] == []


def test_what_is_counted() -> None:
    arguments = ", ".join(f"x{number}" for number in range(MAX_ARGUMENTS))
    source = "\n".join(
        [
            '"""A module."""',
            "",
            "class A:",
            '    """A class.',
            "",
            '    """',
            f"    def few(self, {arguments[:-4]}):  # 9 with self",
            "        # A comment.",
            '        text = """a string that is no docstring',
            '        """',
            "        return text",
            "",
            f"    def many(self, {arguments}): return {{",
            "    }",
            "",
            "async def long():",
            *["    pass"] * MAX_FUNCTION_LINES,
        ]
    )
    assert measure_text(source) == Size(7 + 1 + MAX_FUNCTION_LINES, 1, 1, 1)


def find_modules() -> list[Path]:
    """Returns the modules that are counted."""
    return [
        path
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not path.stem.endswith(("_pb2", "_pb2_grpc"))
    ]


def measure(paths: list[Path]) -> Size:
    """Returns the size of some modules together."""
    return Size(*map(sum, zip(*(measure_text(path.read_text()) for path in paths), strict=True)))


def measure_text(source: str) -> Size:
    """Returns the size of one module."""
    nodes = list(ast.walk(ast.parse(source)))
    functions = [node for node in nodes if isinstance(node, _FUNCTIONS)]
    return Size(
        lines=len(_find_ends(source)),
        classes=sum(isinstance(node, ast.ClassDef) for node in nodes),
        long_functions=sum(
            (node.end_lineno or 0) - node.lineno + 1 > MAX_FUNCTION_LINES for node in functions
        ),
        long_arguments=sum(_count_arguments(node.args) > MAX_ARGUMENTS for node in functions),
    )


def _count_arguments(arguments: ast.arguments) -> int:
    return len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)


def _find_ends(source: str) -> dict[int, int]:
    """Returns number -> last column of each line of code; comments behind it do not count."""
    ends: dict[int, int] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            ends |= dict.fromkeys(range(token.start[0], token.end[0]), 0)
            ends[token.end[0]] = token.end[1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for one in node.body:
                if _is_text(one):
                    for number in range(one.lineno, (one.end_lineno or 0) + 1):
                        ends.pop(number, None)
    return ends


def _is_text(node: ast.stmt) -> bool:
    """Whether it is a docstring, of a module, a class, a function or an attribute."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
