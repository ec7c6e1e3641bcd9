"""Takes from the client, and from its tests, what Windows lacks.

Python imports this before anything else if PYTHONPATH names its folder, as do the processes that a
test starts. The standard library, other packages and servers keep everything: the first two have
forms of their own for Windows, and servers run on Linux. Paths and the C library stay those of
Linux, so this shows what a module names, not how Windows behaves.
"""

import builtins
import functools
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from platform_names import find_missing

_ROOT = Path(__file__).parents[3]
_CONCERNED = tuple(
    f"{_ROOT}/{path}"
    for path in (
        *("relaax_like/client/", "relaax_like/wire/", "tests/client/", "tests/wire/"),
        *("relaax_like/__init__.py", "relaax_like/extras.py"),
        "tests/support/without_posix/check_hiding.py",
    )
)
_CHANGED = {("os", "name"): "nt", ("sys", "platform"): "win32"}
_import = builtins.__import__


class _OnWindows(ModuleType):
    """A module of the standard library without the names that Windows lacks."""

    _module: ModuleType

    def __init__(self, module: ModuleType) -> None:
        super().__init__(module.__name__, module.__doc__)
        super().__setattr__("_module", module)

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        return vars(self._module)  # where pytest's monkeypatch looks

    def __getattr__(self, name: str) -> Any:
        if name in find_missing(self.__name__, "win32"):
            raise AttributeError(f"{self.__name__!r} has no {name!r} on Windows")
        return _CHANGED.get((self.__name__, name), getattr(self._module, name))

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._module, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._module, name)


@functools.cache
def _take_names(name: str) -> ModuleType:
    missing = find_missing(name, "win32")
    if "*" in missing:
        raise ModuleNotFoundError(f"No module named {name!r} on Windows", name=name)
    module = sys.modules[name]
    return _OnWindows(module) if missing or any(name == one for one, _ in _CHANGED) else module


def _is_concerned(file: object) -> bool:
    return isinstance(file, str) and file.startswith(_CONCERNED)


def _import_on_windows(
    name: str,
    globals: Mapping[str, object] | None = None,
    locals: Mapping[str, object] | None = None,
    fromlist: Any = (),
    level: int = 0,
) -> ModuleType:
    module = _import(name, globals, locals, fromlist, level)
    concerned = level == 0 and _is_concerned((globals or {}).get("__file__"))
    return _take_names(module.__name__) if concerned else module


def _refuse_proc(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not str(arguments[0]).startswith("/proc"):
        return
    frame, library = sys._getframe(1), os.path.dirname(os.__file__) + os.sep
    while frame.f_back is not None and frame.f_code.co_filename.startswith((library, "<frozen")):
        frame = frame.f_back
    if _is_concerned(frame.f_code.co_filename):
        raise FileNotFoundError(2, "No such file on Windows", arguments[0])


builtins.__import__ = _import_on_windows
sys.addaudithook(_refuse_proc)
