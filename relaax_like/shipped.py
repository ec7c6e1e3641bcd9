"""The experiments, algorithms and environments of the package, found by name."""

import difflib
import os
from pathlib import Path

import relaax_like
from relaax_like.wire.errors import ConfigError

ALGORITHMS, ENVIRONMENTS = "algorithms", "environments"


def get_shipped_folder(kind: str) -> Path:
    """Returns the package's folder `algorithms` or `environments`."""
    package = Path(relaax_like.__file__).resolve().parent
    shipped = package / kind
    # In a wheel the folders are inside the package, in a checkout next to it.
    return shipped if shipped.is_dir() else package.parent / kind


def list_experiments() -> dict[str, Path]:
    """Returns the shipped experiments: shortest name -> file.

    The name is the file's without its suffix, or FOLDER/NAME if several folders have a file of that
    name.
    """
    files = sorted(get_shipped_folder(ALGORITHMS).glob("*/*.yaml"))
    stems = [file.stem for file in files]
    return {
        file.stem if stems.count(file.stem) == 1 else _get_full_name(file): file for file in files
    }


def find_experiment_file(path: str | Path) -> Path:
    """Finds an experiment's file: the path if it exists, or else the shipped file of that name.

    The path of a folder is also returned, for `read_yaml` to refuse.

    Args:
      path: a path, or the name of a shipped experiment, NAME or FOLDER/NAME.

    Raises:
      ConfigError: there is no such file; several shipped files have that name; or a shipped file
        and a folder in the working directory have it.
    """
    name, given = str(path), Path(path)
    # Unlike Path's, these do not raise if a name is too long or a permission is missing.
    if os.path.isfile(given):
        return given
    known = list_experiments()
    found = [file for file in known.values() if name in (file.stem, _get_full_name(file))]
    names = " or ".join(map(_get_full_name, found))
    if os.path.exists(given):
        if found:
            raise ConfigError(
                f"{name}: both a folder in the working directory and the name of a shipped "
                f"experiment; pass a YAML file, or {names} for the shipped one"
            )
        return given
    if len(found) > 1:
        raise ConfigError(f"{name}: several shipped experiments have this name; pass {names}")
    if not found:
        near = difflib.get_close_matches(name.removesuffix(".yaml"), known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(
            f"{name[:200]}: no such file, or no access to it, and no shipped experiment has that "
            f"name{hint} (`relaax examples` lists them)"
        )
    return found[0]


def _get_full_name(file: Path) -> str:
    return f"{file.parent.name}/{file.stem}"
