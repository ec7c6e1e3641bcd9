"""An algorithm folder in which each feature of the contract has lines of its own.

`write_folder` copies the folder without the lines of features that are not wanted. A line belongs
to a feature by its comment, `# if NAME`.
"""

import re
from collections.abc import Set
from pathlib import Path

_FOLDER = Path(__file__).parent
FILES = ("algorithm.py", "config.py", "model.py", "slots.py")
_FEATURE = re.compile(r"  # if ([a-z_ ]+)$")


def write_folder(folder: Path, features: Set[str]) -> None:
    """Writes an algorithm folder that has these features, and no others."""
    folder.mkdir()
    known = set()
    for name in FILES:
        kept = []
        for line in (_FOLDER / name).read_text().splitlines():
            match = _FEATURE.search(line)
            known |= {match[1]} if match else set()
            if match is None or match[1] in features:
                kept.append(line)
        (folder / name).write_text("\n".join(kept) + "\n")
    assert features <= known, f"no lines for {sorted(features - known)}"


def find_line(folder: Path, code: str) -> str:
    """Returns `FILE:LINE` of the first line with that code in a folder that was written."""
    for name in FILES:
        for number, line in enumerate((folder / name).read_text().splitlines(), 1):
            if code in line:
                return f"{name}:{number}"
    raise AssertionError(f"no {code} in {folder}")
