"""Copies of our algorithms whose code has a mistake."""

import shutil
from pathlib import Path

from support.cluster import ROOT


def copy_broken(folder: Path, name: str, file: str, function: str, statement: str) -> str:
    """Copies an algorithm's folder, and adds a line at the beginning of a function.

    Args:
      folder: where the copy is made; must not exist.
      name: of the algorithm.
      file: that has the function.
      function: its name; the first one of that name is changed.
      statement: the line.

    Returns:
      `FILE:LINE` of the new line.
    """
    shutil.copytree(
        ROOT / "algorithms" / name, folder, ignore=shutil.ignore_patterns("__pycache__")
    )
    lines = (folder / file).read_text().splitlines()
    start = f"def {function}("
    at = next(number for number, line in enumerate(lines) if line.strip().startswith(start))
    indent = lines[at].index(start) + 4
    lines[at + 1 : at + 1] = [" " * indent + statement]
    (folder / file).write_text("\n".join(lines))
    return f"{folder / file}:{at + 2}"
