"""`tf`: TensorFlow, imported at its first use.

Importing it takes seconds and half a gigabyte, which a process that only builds a model, or acts in
NumPy, does not need. Modules that such a process loads import `tf` from here, do not use it at
module or class level, and do not evaluate annotations:

    from __future__ import annotations

    from relaax_like.nn.lazy_tensorflow import tf

All others of this package import `tf` from `relaax_like.nn.runtime`.
"""

import types
from typing import TYPE_CHECKING, Any

__all__ = ["tf"]


class _LazyTensorFlow(types.ModuleType):
    """Looks up missing attributes in TensorFlow, and stores them."""

    def __getattr__(self, name: str) -> Any:
        from relaax_like.nn.runtime import tf as tensorflow

        value = getattr(tensorflow, name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = _LazyTensorFlow("tensorflow")
