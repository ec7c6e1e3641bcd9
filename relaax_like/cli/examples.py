"""`relaax examples`: the experiments, algorithms and environments that come with the package."""

import os
import re
import shutil
from pathlib import Path

from relaax_like.shipped import (
    ALGORITHMS,
    ENVIRONMENTS,
    get_shipped_folder,
    list_experiments,
)
from relaax_like.wire.errors import ConfigError

_NOT_COPIED = shutil.ignore_patterns("__pycache__")


def list_examples() -> int:
    """Prints the shipped experiments, and the names of the algorithms and environments."""
    experiments = list_experiments()
    width = max(map(len, experiments))
    print("experiments: relaax train NAME")
    for name, file in experiments.items():
        print(f"    {name:{width}}  {_describe(file)}")
    for kind in (ALGORITHMS, ENVIRONMENTS):
        folder = get_shipped_folder(kind)
        names = sorted(readme.parent.name for readme in folder.glob("*/README.md"))
        print(f"{kind}: {', '.join(names)}\n    in {folder}")
    print("`relaax examples --copy DIR` copies all of them, so that you can read and change them.")
    return 0


def copy_examples(target: Path) -> int:
    """Copies all shipped algorithms and environments into a folder.

    Overwrites nothing; if writing fails, a partial copy can remain.

    Args:
      target: the folder; created if it does not exist.

    Raises:
      ConfigError: `algorithms` or `environments` already exists there, or cannot be written.
    """
    copies = {get_shipped_folder(kind): target / kind for kind in (ALGORITHMS, ENVIRONMENTS)}
    for copy in copies.values():
        if os.path.lexists(copy):  # unlike Path's, it does not raise if the system refuses a name
            raise ConfigError(
                f"--copy {target}: {copy} already exists, and nothing is overwritten; choose "
                "another folder"
            )
    try:
        for folder, copy in copies.items():
            shutil.copytree(folder, copy, ignore=_NOT_COPIED)
            print(f"{copy}, from {folder}")
    except OSError as error:
        # copytree puts the reasons of all files into one error.
        reason = error.strerror or error.args[0][0][2]
        raise ConfigError(
            f"--copy {target}: copying failed: {reason}; remove what was copied and free disk "
            "space, or choose another, writable folder"
        ) from None
    print(
        "The `name` in a copied file still selects the shipped algorithm; write `path: ./` "
        "instead to train with the copied one."
    )
    return 0


def _describe(file: Path) -> str:
    """Returns the first sentence of the comment that a file begins with."""
    lines = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("# "):
            break
        lines.append(line[2:])
    return re.split(r"(?<=\.) ", " ".join(" ".join(lines).split()), maxsplit=1)[0]
