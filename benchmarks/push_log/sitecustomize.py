"""Notes all pushes of a process in a file; see `benchmarks.goodput`.

Python imports this module at its start where its folder is on PYTHONPATH.
"""

import importlib.abc
import importlib.machinery
import os
import sys
from typing import Any

_MODULE = "relaax_like.bridge.stub"


class _Finder(importlib.abc.MetaPathFinder):
    """Wraps the stub's calls once its module has been loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None
        assert spec.loader is not None
        load = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            from benchmarks.goodput import note_pushes

            note_pushes(module.ParameterServerStub)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if os.environ.get("RELAAX_PUSH_LOG"):
    sys.meta_path.insert(0, _Finder())
