"""Compares what this working tree computes with what another commit computes, bit for bit.

    python tests/golden/compare.py COMMIT [CASE ...]

Checks the commit out beside this tree, runs the golden cases in both (each by its own
tests/golden/cases.py; by ours where the commit has none, or with --ours), and prints the
differences of the states. Exit status 0: there are none; 1: some differ.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support.compare import compare  # noqa: E402

# An installation in place of this tree must not fill in for modules that the other tree lacks.
_RUN = """
import runpy, sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(tree: Path, folder: Path, cases: list[str]) -> None:
    """Runs cases with the package of a tree."""
    program = tree / "tests" / "golden" / "cases.py"
    environment = {**os.environ, "PYTHONPATH": str(tree), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", _RUN, str(program), str(folder), *cases]
    subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.DEVNULL)


def read_result(path: Path) -> dict[str, np.ndarray]:
    """Reads the arrays of a run."""
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def compare_folders(one: Path, other: Path) -> str:
    """Returns the differences of two folders of results as text."""
    names = sorted({path.name for folder in (one, other) for path in folder.glob("*.npz")})
    parts = []
    for name in names:
        if not ((one / name).exists() and (other / name).exists()):
            parts.append(f"{name}: only in the {'first' if (one / name).exists() else 'second'}")
            continue
        a, b = read_result(one / name), read_result(other / name)
        parts.append(compare(a, b, name.removesuffix(".npz")))
    return "\n".join(part for part in parts if part)


def main() -> int:
    """Compares; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit", metavar="COMMIT", help="what to compare this tree with")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="default: all")
    parser.add_argument("--ours", action="store_true", help="run this tree's cases in both")
    arguments = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory() as temporary:
        tree = Path(temporary) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", tree, arguments.commit], check=True)
        try:
            theirs = tree / "tests" / "golden"
            if arguments.ours or not theirs.is_dir():
                shutil.copytree(ROOT / "tests" / "golden", theirs, dirs_exist_ok=True)
            folders = Path(temporary) / "other", Path(temporary) / "ours"
            for where, folder in zip((tree, ROOT), folders, strict=True):
                run(where, folder, arguments.cases)
        finally:
            subprocess.run([*git, "remove", "--force", tree], check=True)
        differences = compare_folders(*folders)
    print(differences or f"no differences from {arguments.commit}")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
