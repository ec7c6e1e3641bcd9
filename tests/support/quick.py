"""Checks what changed: format, lint, types, and the tests of changed files. Three minutes at most.

    python -P tests/support/quick.py [--since COMMIT] [--list]

Changed is what differs from the commit where this branch left main, or from the last commit where
nothing does; files that git does not know yet count. These tests are run, the first ones first:

1. test modules that changed;
2. test modules that mirror a changed module: tests/wire/test_tls.py for relaax_like/wire/tls.py;
3. test modules that import a changed module, name another changed file, or are in the folder of a
   changed conftest.py;
4. all others in the folder that mirrors a changed module's, where 2 found none.

Tests of whole clusters, of faults and of the fuzzer are run only if they changed themselves. No
test begins after 140 s. The modules that were left out are named; `make check` runs what CI runs.
"""

import argparse
import ast
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What has begun by then has 40 s left.
_BEGIN_SEC = 140.0
_UNTIL = "RELAAX_QUICK_UNTIL"
# Of a run of pytest, which imports all of them before the first test.
_MODULES = 12
_SLOW = ("system", "fault", "fuzz")
_LATE = "make quick has no time left"


def find_changed(root: Path, since: str | None = None) -> list[Path]:
    """Returns the changed files, relative to the checkout; deleted ones are among them."""
    untracked = _git(root, "ls-files", "--others", "--exclude-standard")
    for commit in [since] if since else [_find_base(root), "HEAD~1"]:
        changed = {*_git(root, "diff", "--name-only", "--no-renames", commit), *untracked}
        if changed:
            return sorted(map(Path, changed))
    return []


def _find_base(root: Path) -> str:
    for main in ("origin/main", "main"):
        if _git(root, "rev-parse", "--verify", "--quiet", main):
            return _git(root, "merge-base", "HEAD", main)[0]
    return "HEAD"


def _git(root: Path, *arguments: str) -> list[str]:
    done = subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, text=True, check=False
    )
    return done.stdout.splitlines()


def select_tests(root: Path, changed: Iterable[Path]) -> list[Path]:
    """Returns the test modules of changed files, in the order in which they are worth running."""
    tests = [test.relative_to(root) for test in (root / "tests").rglob("test_*.py")]
    found: dict[Path, int] = {}

    def add(path: Path, rank: int) -> None:
        found[path] = min(rank, found.get(path, rank))

    modules: dict[str, Path] = {}
    others: set[bytes] = set()
    for path in changed:
        if path.suffix != ".py":
            others.add(path.name.encode())
        elif _is_test(path):
            if path in tests:
                add(path, 0)
        elif path.name == "conftest.py" and path.parts[0] == "tests":
            for test in tests:
                if test.is_relative_to(path.parent):
                    add(test, 2)
        else:
            modules[_get_module(path)] = path
    for test in tests if modules or others else ():
        source = (root / test).read_bytes()
        if not modules.keys().isdisjoint(_read_imports(source)) or any(o in source for o in others):
            add(test, 2)
    for path in modules.values():
        mirrors = _find_mirrors(path, tests)
        for test in mirrors:
            add(test, 1 if len(mirrors) == 1 else 3)
    return sorted(
        (t for t, rank in found.items() if rank == 0 or t.parts[1] not in _SLOW),
        key=lambda t: (found[t], t),
    )


def _is_test(path: Path) -> bool:
    return path.parts[0] == "tests" and path.name.startswith("test_")


def _get_module(path: Path) -> str:
    parts = path.with_suffix("").parts
    # Tests import theirs from the folder `tests`.
    parts = parts[1:] if parts[0] == "tests" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _find_mirrors(path: Path, tests: Sequence[Path]) -> list[Path]:
    """Returns the test module of a module, or all of its folder's where it has none."""
    top, *folders = path.parts[:-1] or ("",)
    name = path.stem
    if top == "relaax_like" and folders:
        folder = Path("tests", *folders)
    elif top in ("algorithms", "environments") and folders:
        folder, name = Path("tests", top), folders[0]
    else:
        return []
    own = folder / f"test_{name}.py"
    if own in tests:
        return [own]
    # A package in a package can have its tests beside those of the outer one.
    beside = [[test for test in tests if test.parent == one] for one in (folder, *folder.parents)]
    return next((found for found in beside if found), [])


def _read_imports(source: bytes) -> set[str]:
    """Returns the modules that are imported, and the names from them, which can be modules, too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begins no test too late; this module is a plugin of each worker of pytest-xdist."""
    if time.time() > float(os.environ[_UNTIL]):
        pytest.skip(_LATE)


class LeftOut:
    """A plugin of pytest's main process: collects the modules with tests that did not begin."""

    def __init__(self) -> None:
        self.modules: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and _LATE in str(report.longrepr):
            self.modules.add(report.nodeid.partition("::")[0])


def main(arguments: Sequence[str]) -> int:
    """Runs the checks; returns the exit status."""
    began = time.time()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--since", help="commit; default: where this branch left main")
    parser.add_argument("--list", action="store_true", help="print the test modules and end")
    options = parser.parse_args(arguments)
    tests = [str(test) for test in select_tests(ROOT, find_changed(ROOT, options.since))]
    if options.list:
        print(*tests, sep="\n")
        return 0
    if status := subprocess.run(["make", "lint", "types"], cwd=ROOT, check=False).returncode:
        return status
    if not tests:
        print("quick: no tests of what changed")
        return 0
    os.environ[_UNTIL] = str(began + _BEGIN_SEC)
    sys.path.insert(0, str(ROOT / "tests"))  # of the workers, too
    left_out = LeftOut()
    status = 0
    for start in range(0, len(tests), _MODULES):
        modules = tests[start : start + _MODULES]
        if time.time() > began + _BEGIN_SEC:
            left_out.modules.update(modules)
            continue
        print(f"quick: modules {start + 1} to {start + len(modules)} of {len(tests)}", flush=True)
        how = ["-n2", "--dist=loadfile", "--no-loadscope-reorder", "-p", "support.quick"]
        status = max(status, int(pytest.main([*how, *modules], plugins=[left_out])))
    print(f"quick: {time.time() - began:.0f} s; `make check` runs what CI runs")
    if left_out.modules:
        print("quick: no time was left for all tests of", *sorted(left_out.modules), sep="\n  ")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
