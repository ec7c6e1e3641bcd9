"""Whether tests notice small mistakes in the learning loop, the store and the slots.

    python -m benchmarks.mutants --out mutants.jsonl           # 60 mutants; continues a file
    python -m benchmarks.mutants --out mutants.jsonl --show    # what has been found so far

A mutant is a copy of this tree with one change: another comparison, operator, number or condition,
a missing `not`, result or call. They are drawn with a fixed seed, 20 from each room. Each is run
against the tests that `make quick` picks for its file, the first ones first, until one fails or
60 s are over: caught, or a survivor, which is listed with its line.
"""

import argparse
import ast
import collections
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.report import report

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests"))
select_tests = importlib.import_module("support.quick").select_tests
SEED, PER_ROOM, LIMIT_SEC = 20_261_128, 20, 60.0
ROOMS = {
    "learning loop": ("relaax_like/learn/*.py",),
    "store": ("relaax_like/parameter_server/**/*.py",),
    "slots": (
        "relaax_like/agent/*.py",
        "relaax_like/rlx_server/*slots.py",
        "relaax_like/rlx_server/session.py",
        "relaax_like/experience/rollout.py",
    ),
}
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
}
# What only writes or traces is not tested.
_BESIDE = ("logger", "_LOG", "tracing", "failpoints", "warnings")


class _Mutator(ast.NodeTransformer):
    """Counts the places that can be changed, and changes that of a number.

    Attributes:
      count: places so far.
      what: description of the change; "": there was none.
    """

    def __init__(self, chosen: int = -1):
        self.count = 0
        self.what = ""
        self._chosen = chosen

    def _is_chosen(self, node: Any, what: str) -> bool:
        self.count += 1
        if self.count - 1 != self._chosen:
            return False
        self.what = f"line {node.lineno}: {what}: {ast.unparse(node)[:100]}"
        return True

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        kind = type(node.ops[0])
        if kind in _COMPARISONS and self._is_chosen(node, "another comparison"):
            node.ops[0] = _COMPARISONS[kind]()
            return node
        return self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        if self._is_chosen(node, "and, or"):
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            return node
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        kind = type(node.op)
        if kind in _OPERATORS and self._is_chosen(node, "another operator"):
            node.op = _OPERATORS[kind]()
            return node
        return self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        if isinstance(node.op, ast.Not) and self._is_chosen(node, "no `not`"):
            return node.operand
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        value = node.value
        if isinstance(value, bool):
            if self._is_chosen(node, "another flag"):
                return ast.copy_location(ast.Constant(not value), node)
        elif isinstance(value, int | float) and self._is_chosen(node, "another number"):
            return ast.copy_location(ast.Constant(value + 1), node)
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        if self._is_chosen(node, "the opposite condition"):
            node.test = ast.UnaryOp(ast.Not(), node.test)
            return node
        return self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> ast.AST:
        if node.value is not None and self._is_chosen(node, "no result"):
            node.value = ast.Constant(None)
            return node
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if not isinstance(node.value, ast.Call):
            return node if isinstance(node.value, ast.Constant) else self.generic_visit(node)
        if ast.unparse(node.value.func).partition(".")[0] in _BESIDE:
            return node
        if self._is_chosen(node, "no call"):
            return ast.copy_location(ast.Pass(), node)
        return self.generic_visit(node)


def count_places(source: str) -> int:
    """Returns how many mutants a module has."""
    mutator = _Mutator()
    mutator.visit(ast.parse(source))
    return mutator.count


def mutate(source: str, number: int) -> tuple[str, str]:
    """Returns a module with the change of this number, and what it is."""
    mutator = _Mutator(number)
    tree = ast.fix_missing_locations(mutator.visit(ast.parse(source)))
    return ast.unparse(tree), mutator.what


def draw(seed: int = SEED, per_room: int = PER_ROOM) -> Iterator[tuple[str, Path, int]]:
    """Yields room, module and number of each mutant, all places of a room alike."""
    for room, patterns in ROOMS.items():
        paths = sorted({path for pattern in patterns for path in ROOT.glob(pattern)})
        places = [(path, n) for path in paths for n in range(count_places(path.read_text()))]
        for path, number in random.Random(f"{seed} {room}").sample(places, per_room):
            yield room, path.relative_to(ROOT), number


def run(path: Path, number: int) -> dict[str, Any]:
    """Runs one mutant; returns what it was, and which test has failed, "" if none."""
    text, what = mutate((ROOT / path).read_text(), number)
    tests = [str(test) for test in select_tests(ROOT, [path])]
    with tempfile.TemporaryDirectory() as temporary:
        tree = Path(temporary) / "tree"
        ignore = shutil.ignore_patterns(".git", ".venv", "build", "results", "__pycache__")
        shutil.copytree(ROOT, tree, ignore=ignore, symlinks=True)
        (tree / path).write_text(text)
        command = [sys.executable, "-P", "-m", "pytest", "-x", "-q", "-n2", "--dist=loadfile"]
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        process = subprocess.Popen(
            [*command, "--no-loadscope-reorder", "-p", "no:cacheprovider", *tests],
            cwd=tree,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=LIMIT_SEC)
            status, ended = process.returncode, True
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            status, ended = 0, False
    failed = [line.split()[1] for line in output.splitlines() if line.startswith(("FAILED", "ERR"))]
    caught = failed[0] if failed else f"status {status}" if status not in (0, 5) else ""
    return {"what": what, "caught": caught, "ended": ended, "modules": len(tests)}


def main() -> None:
    """Runs the mutants that the file does not have yet, and prints the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="file of results, JSON lines")
    parser.add_argument("--show", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    lines = arguments.out.read_text().splitlines() if arguments.out.exists() else []
    found = {(row["path"], row["number"]): row for row in map(json.loads, lines)}
    for room, path, number in draw():
        if arguments.show or (str(path), number) in found:
            continue
        row = {"room": room, "path": str(path), "number": number, **run(path, number)}
        found[str(path), number] = row
        with arguments.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{path} {row['what']} -> {row['caught'] or 'survived'}", flush=True)
    rooms = collections.Counter(row["room"] for row in found.values())
    caught = collections.Counter(row["room"] for row in found.values() if row["caught"])
    rows = [{"room": room, "mutants": rooms[room], "caught": caught[room]} for room in rooms]
    report("mutants", rows)
    for row in found.values():
        if not row["caught"]:
            print(f"survived: {row['path']} {row['what']}")


if __name__ == "__main__":
    main()
