"""Folders of code that a YAML file names: algorithms and environments, shipped or the user's.

Code is loaded only from shipped folders and from installed packages that provide algorithms, by
name, and from folders whose path is in the local YAML file; a name is never a path.
"""

import difflib
import hashlib
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import re
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from relaax_like.config.algorithm import AlgorithmConfig
from relaax_like.config.places import describe_error
from relaax_like.extras import describe_missing
from relaax_like.shipped import ALGORITHMS, ENVIRONMENTS, get_shipped_folder
from relaax_like.wire.errors import ConfigError

PACKAGE = "relaax_algorithms"
# Entry points of a distribution that provides algorithms: name -> package with a `config.py`.
ENTRY_POINTS = "relaax.algorithms"
# Files of an environment's folder: the program, a client; and the module with `make_slots`.
MAIN, SLOTS = "main", "slots.py"
# File of an algorithm's folder: code that replaces the loop of `relaax train`.
TRAINER = "trainer.py"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")
_lock = threading.RLock()  # guards the creation of packages in sys.modules


def find_algorithm(name_or_path: str | Path, base_dir: Path = Path()) -> Path:
    """Finds an algorithm's folder.

    Args:
      name_or_path: a name means a folder of algorithms/, or a package that an installed
        distribution provides as the entry point `relaax.algorithms` of that name; a `Path`, or text
        that begins with "." or contains "/" or a backslash, means the user's own folder.
      base_dir: folder that a relative path is relative to.

    Returns:
      The absolute path of a folder that has a `config.py`.

    Raises:
      ConfigError: there is no such algorithm, its folder has no `config.py`, or an installed
        package that contains it cannot be imported.
    """
    if not _is_path(name_or_path):
        return _find_named(str(name_or_path))
    folder = resolve_path(base_dir / name_or_path)
    # Unlike Path's, these functions do not raise if a name is too long or a permission is missing.
    if not os.path.isfile(folder / "config.py"):
        what = "contains no config.py" if os.path.isdir(folder) else "no such folder"
        raise ConfigError(
            f"{folder}: {what}, or no access to it; expected an algorithm folder: correct the path "
            "or the permissions, or add config.py"
        )
    return folder


def _find_named(name: str) -> Path:
    """Finds a shipped algorithm, or one that an installed distribution provides."""
    shipped = get_shipped_folder(ALGORITHMS)
    offered = {}
    if not os.path.isfile(shipped / name / "config.py"):
        points = importlib.metadata.entry_points(group=ENTRY_POINTS)
        offered = {point.name: point for point in points}
    if name not in offered:
        return _find_built_in("algorithm", shipped, name, "config.py", offered)
    package = offered[name].value
    try:
        spec = importlib.util.find_spec(package)
    except Exception as error:  # from the package that contains it, which is imported
        lost = error.name if isinstance(error, ModuleNotFoundError) else None
        if lost is None or not f"{package}.".startswith(f"{lost}."):
            raise ConfigError(
                f"the algorithm {name!r} is registered as the package {package!r} (entry point "
                f"{ENTRY_POINTS}), which cannot be imported: {type(error).__name__}: {error}; "
                "repair or remove the distribution that registers it"
            ) from error
        spec = None
    places = [] if spec is None else [*(spec.submodule_search_locations or ())]
    for place in places:
        if (Path(place) / "config.py").is_file():
            return Path(place).resolve()
    raise ConfigError(
        f"the algorithm {name!r} is registered as the package {package!r} (entry point "
        f"{ENTRY_POINTS}), but there is no such package with a config.py; correct the entry point "
        "or add config.py, or, if the distribution is not yours, update or remove it"
    )


def find_environment(name_or_path: str | Path, base_dir: Path = Path()) -> Path:
    """Finds an environment's program.

    Args:
      name_or_path: a name means a folder of environments/; for paths, see `find_algorithm`.
      base_dir: folder that a relative path is relative to.

    Returns:
      The absolute path of a file: `main` of a shipped folder, or the user's own program. If the
      path is a folder, `main` in it, or `slots.py` if there is only that, which is enough for
      commands that run environments in their own process.

    Raises:
      ConfigError: there is no such program.
    """
    if not _is_path(name_or_path):
        root = get_shipped_folder(ENVIRONMENTS)
        return _find_built_in("environment", root, name_or_path, MAIN) / MAIN
    program = resolve_path(base_dir / name_or_path)
    if os.path.isdir(program):
        for name in (MAIN, SLOTS):
            if os.path.isfile(program / name):
                return program / name
    if os.path.isfile(program):
        return program
    what = "not an environment folder" if os.path.isdir(program) else "no such file"
    raise ConfigError(
        f"{program}: {what}, or no access to it; expected an environment's program, or a folder "
        f"with a file {MAIN} (a program) or {SLOTS} (with make_slots)"
    )


def resolve_path(path: Path) -> Path:
    """Returns the absolute path without links.

    Unlike Path's method, it does not raise for a link to itself, or a name with a NUL character.
    """
    try:
        return Path(os.path.realpath(path))
    except ValueError:
        return path.absolute()


def load_folder_module(folder: Path, module: str) -> ModuleType:
    """Loads one module of a folder of code, an algorithm's or an environment's.

    The folder becomes a package, so `from .model import Model` works inside it; a second call
    returns the same module. Runs the folder's code.

    Args:
      folder: contains the module.
      module: name of the file without its suffix.

    Raises:
      ConfigError: there is no such file, it imports a library that is not installed, or it fails
        while it is loaded.
    """
    file = folder / f"{module}.py"
    if not _NAME.fullmatch(module) or not file.is_file():
        hint = " (`relaax run` works without it)" if f"{module}.py" == SLOTS else ""
        raise ConfigError(
            f"{folder}: this folder has no {module}.py; add it, or name another folder{hint}"
        )
    try:
        with _lock:
            package = _make_package(folder.resolve())
        return importlib.import_module(f"{package}.{module}")
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and (line := describe_missing(error.name)):
            raise ConfigError(line) from None
        raise ConfigError(describe_error(error, folder.resolve(), str(folder))) from error


def load_algorithm_module(folder: Path, module: str) -> ModuleType:
    """Loads "config", "agent", "model", ... of an algorithm's folder; see `load_folder_module`."""
    return load_folder_module(folder, module)


def load_config_class(folder: Path) -> type[AlgorithmConfig]:
    """Returns the `Config` class that an algorithm's folder exports.

    Raises:
      ConfigError: config.py cannot be loaded, or has no `Config`, or one that is not a subclass of
        `AlgorithmConfig`.
    """
    config = getattr(load_algorithm_module(folder, "config"), "Config", None)
    if not (isinstance(config, type) and issubclass(config, AlgorithmConfig)):
        what = "no Config" if config is None else f"Config is {repr(config)[:200]}"
        raise ConfigError(
            f"{folder / 'config.py'}: {what}, expected a class Config that derives from "
            "relaax_like.config.algorithm.AlgorithmConfig; define it"
        )
    return config


def _is_path(name_or_path: str | Path) -> bool:
    text = str(name_or_path)
    return isinstance(name_or_path, Path) or text.startswith(".") or "/" in text or "\\" in text


def _find_built_in(
    kind: str, root: Path, name: str | Path, must_have: str, others: Iterable[str] = ()
) -> Path:
    known = sorted(p.parent.name for p in root.glob(f"*/{must_have}") if p.is_file())
    if name in known:
        return root / name
    known = sorted({*known, *others})
    near = difflib.get_close_matches(str(name), known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    key, check = "program", ""
    if kind == "algorithm":
        key, check = "name", ", or pass its path to `relaax check-algorithm`"
    raise ConfigError(
        f"unknown {kind} {str(name)[:80]!r}{hint} (known: {', '.join(known) or 'none'}; for a "
        f"folder of your own, set {kind}.path instead of {kind}.{key} in the file{check}; jobs can "
        "only use known names)"
    )


def _package_name(folder: Path) -> str:
    if folder.parent == get_shipped_folder(ALGORITHMS).resolve():
        return folder.name
    # The digest distinguishes a user's folder from a shipped one of the same name.
    digest = hashlib.sha256(str(folder).encode()).hexdigest()[:8]
    return re.sub(r"\W", "_", folder.name, flags=re.ASCII) + "_" + digest


def _make_package(folder: Path) -> str:
    """Adds the folder to sys.modules as a package, once, and returns its full name."""
    if PACKAGE not in sys.modules:
        _add_package(PACKAGE, None)
    name = f"{PACKAGE}.{_package_name(folder)}"
    if name not in sys.modules:
        _add_package(name, folder)
    return name


def _add_package(name: str, folder: Path | None) -> None:
    init = folder / "__init__.py" if folder else None
    locations = [str(folder)] if folder else []
    if init is not None and init.is_file():
        spec = importlib.util.spec_from_file_location(
            name, init, submodule_search_locations=locations
        )
    else:
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = locations
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # A folder might have been written just before (tests, generated code).
    importlib.invalidate_caches()
    if spec.loader is not None:
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
