"""The parts of TensorFlow, such as `tf.data`, whose code runs when they are first used.

Importing TensorFlow runs the code of all of them, more than half of its modules and a tenth of a
process's memory, and an algorithm uses hardly any.
"""

import contextlib
import functools
import importlib
import sys
import threading
import types
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

_PARTS = "tensorflow._api.v2"
# It defines what `+` and `[]` do, without being used by name.
_EAGER = "__operators__"
# Three classes of `tf.nn`, which alone need the previous Keras: hundreds of modules.
_CELL_WRAPPERS = "tensorflow.python.keras.layers.rnn_cell_wrapper_v2"
# One for all: the code of one part can use another one.
_lock = threading.RLock()
# The thread that runs the code of parts, once for each of them.
_loading: list[int] = []


class _LateLoader(Loader):
    def __init__(self, loader: Loader):
        self.loader: Loader | None = loader

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module)["__getattr__"] = functools.partial(_find, module, self)
        vars(module)["__dir__"] = functools.partial(_list, module, self)


class _LateFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        if package != _PARTS or name == _EAGER:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _LateLoader(spec.loader)
        return spec


@contextlib.contextmanager
def late_parts() -> Iterator[None]:
    """Within the block, importing TensorFlow does not run the code of its parts."""
    finder = _LateFinder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
    _set_packages(importing=False)


def _set_packages(importing: bool) -> None:
    """Chooses what `tf.lite` is: the part or, while parts are imported, the package of that name.

    TensorFlow's own order of imports has the same effect. Python puts a package there, too, when
    it is first imported; that has happened afterwards. To other threads, the package has the names
    of the part.
    """
    tensorflow = sys.modules["tensorflow"]
    for folder in Path(tensorflow.__file__ or "").parent.iterdir():
        part = sys.modules.get(f"{_PARTS}.{folder.name}")
        if part is not None:
            package = importlib.import_module(f"tensorflow.{folder.name}")
            vars(package).setdefault("__getattr__", functools.partial(_find_in_part, part))
            setattr(tensorflow, folder.name, package if importing else part)


def _find_in_part(part: types.ModuleType, name: str) -> Any:
    """Python calls it for a name that the package beside a part does not have."""
    if name.startswith("__") or threading.get_ident() in _loading:
        raise AttributeError(f"module {part.__name__!r} has no attribute {name!r}")
    return getattr(part, name)


def _find(module: types.ModuleType, late: _LateLoader, name: str) -> Any:
    """Python calls it for a name that the module does not have."""
    # Code that looks through all modules, as `inspect` does, asks for such names.
    if not name.startswith("__") or name == "__all__":
        _load(module, late)
    try:
        return vars(module)[name]
    except KeyError:
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}") from None


def _list(module: types.ModuleType, late: _LateLoader) -> list[str]:
    _load(module, late)
    return list(vars(module))


def _load(module: types.ModuleType, late: _LateLoader) -> None:
    with _lock:
        loader, late.loader = late.loader, None
        if loader is None:
            return
        _set_packages(importing=True)
        _loading.append(threading.get_ident())
        try:
            with _late_cell_wrappers():
                loader.exec_module(module)
        finally:
            _loading.pop()
            _set_packages(importing=bool(_loading))


@contextlib.contextmanager
def _late_cell_wrappers() -> Iterator[None]:
    """Within the block, these classes are functions that import them when called."""
    if _CELL_WRAPPERS in sys.modules:
        yield
        return

    def find(name: str) -> Any:
        return lambda *args, **kwargs: getattr(importlib.import_module(_CELL_WRAPPERS), name)(
            *args, **kwargs
        )

    module = types.ModuleType(_CELL_WRAPPERS)
    vars(module)["__getattr__"] = find
    sys.modules[_CELL_WRAPPERS] = module
    try:
        yield
    finally:
        if sys.modules.get(_CELL_WRAPPERS) is module:
            del sys.modules[_CELL_WRAPPERS]
