"""Module: the base of layers, networks and models; it finds the variables in them.

It replaces `tf.Module`, which would load TensorFlow in processes that do not need it. It finds the
same variables in the same order, on which manifests and snapshots depend; a test verifies that.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from relaax_like.core.manifest import BUFFER, CONSTANT, TRAINABLE
from relaax_like.nn.lazy_tensorflow import tf

# A LayerVariable or a tf.Variable: both have `name`, `trainable` and `numpy()`.
AnyVariable = Any

_making = threading.Lock()  # concurrent threads must get the same tf.Variable


class LayerVariable:
    """A variable of a layer: an array, until its tf.Variable is used.

    Attributes:
      name: as in the manifest.
      kind: as in the manifest, see `core.manifest.Variable`.
      trainable: whether the kind is "trainable".
      unit_norm: whether it is scaled to unit norm after each optimizer step.

    Args:
      name: as the attribute.
      initial: the initial value; copied.
      kind, unit_norm: as the attributes.
    """

    def __init__(
        self, name: str, initial: np.ndarray, kind: str = TRAINABLE, unit_norm: bool = False
    ):
        self.name = name
        self.kind = kind
        self.unit_norm = unit_norm
        self.trainable = kind == TRAINABLE
        self._value: np.ndarray | tf.Variable = np.array(initial)

    @property
    def tf_variable(self) -> tf.Variable:
        """The tf.Variable, always the same one; it holds the value from the first use on."""
        with _making:
            if isinstance(self._value, np.ndarray):
                # Not in the graph that is being traced, whose tf.function would raise an error
                # ("lifting"), and not with the name of its scope.
                with tf.init_scope(), tf.name_scope(""):
                    self._value = tf.Variable(
                        self._value,
                        trainable=self.trainable,
                        name=self.name,
                        experimental_enable_variable_lifting=False,
                    )
                    self._value.kind, self._value.unit_norm = self.kind, self.unit_norm
        return self._value

    def numpy(self) -> np.ndarray:
        """Returns a copy of the current value."""
        value = self._value
        return value.copy() if isinstance(value, np.ndarray) else value.numpy()


class Module:
    """Finds variables and modules in its attributes, also in nested lists, tuples and dicts.

        class Critic(Module):
            def __init__(self):
                super().__init__()
                self.layers = [Dense("0", 4, 64, seed=1), Dense("1", 64, 1, seed=2)]

    Each object is found once: first those in the module's own attributes, in the order of the
    attributes' names, then those in its modules, one after another. A `tf.Module` is searched in
    the same way; but a `tf.Module` does not find the variables of a Module.

    Attributes:
      name: the argument; by default the name of the class.
    """

    def __init__(self, name: str | None = None):
        self.name = name or type(self).__name__
        # If TensorFlow is loaded, variables will be made: the settings must be made before that.
        if "tensorflow" in sys.modules:
            from relaax_like.nn import runtime  # noqa: F401

    @property
    def submodules(self) -> tuple[Any, ...]:
        """All modules in this one, including those derived from `tf.Module`."""
        return tuple(leaf for leaf in _walk(self, {id(self)}) if _is_module(leaf))

    @property
    def variables(self) -> tuple[tf.Variable, ...]:
        """All variables, trainable or not, as tf.Variables; for the order, see the class."""
        return tuple(as_tf_variable(variable) for variable in self.find_variables())

    @property
    def trainable_variables(self) -> tuple[tf.Variable, ...]:
        """The trainable variables; see `variables`."""
        return tuple(as_tf_variable(v) for v in self.find_variables() if v.trainable)

    def find_variables(self) -> list[AnyVariable]:
        """Returns all variables; those of layers without conversion to tf.Variables."""
        return [leaf for leaf in _walk(self, {id(self)}) if is_variable(leaf)]

    def get_attributes(self) -> Mapping[str, Any]:
        """Returns the attributes to search, by name."""
        return vars(self)


def is_variable(value: object) -> bool:
    """Returns whether a value is a LayerVariable or a tf.Variable."""
    return isinstance(value, LayerVariable) or _is_of_tensorflow(value, "Variable")


def as_tf_variable(variable: AnyVariable) -> tf.Variable:
    """Returns the tf.Variable of a LayerVariable; returns a tf.Variable unchanged."""
    return variable.tf_variable if isinstance(variable, LayerVariable) else variable


def get_name(variable: AnyVariable) -> str:
    """Returns a variable's name in the manifest; TensorFlow's own names end with ":0"."""
    return variable.name.split(":")[0]


def get_kind(variable: AnyVariable) -> str:
    """Returns a variable's kind in the manifest; "": it is not trainable, and of no other kind."""
    return getattr(variable, "kind", TRAINABLE if variable.trainable else "")


def declare(variable: tf.Variable, kind: str) -> tf.Variable:
    """Declares what a tf.Variable with `trainable=False` is, and returns it.

        self.scale = declare(tf.Variable(2.0, trainable=False, name="scale"), "constant")

    Args:
      variable: of a model; a layer declares its own ones by `Layer._declare`.
      kind: "buffer": set to what `Losses.updates` has after each optimizer step of its variable
        group; "constant": never changed.

    Raises:
      ValueError: the variable is trainable, or there is no such kind.
    """
    if kind not in (BUFFER, CONSTANT) or variable.trainable:
        raise ValueError(
            f"declare: {get_name(variable)} has trainable={variable.trainable} and kind {kind!r}; "
            f"expected trainable=False and one of the kinds {BUFFER!r}, {CONSTANT!r}"
        )
    variable.kind = kind
    return variable


def _is_module(value: object) -> bool:
    return isinstance(value, Module) or _is_of_tensorflow(value, "Module")


def _is_of_tensorflow(value: object, kind: str) -> bool:
    """Returns whether a value is, say, a tf.Module; False if TensorFlow is not loaded."""
    tensorflow = sys.modules.get("tensorflow")
    # Another thread might be importing it at the same time.
    return isinstance(value, getattr(tensorflow, kind, ()))


def _walk(module: Any, seen: set[int]) -> Iterator[Any]:
    """Yields the objects in all attributes, each once, in the order of `tf.Module`."""
    if isinstance(module, Module):
        attributes = module.get_attributes()
    else:
        ignored = module._TF_MODULE_IGNORED_PROPERTIES
        attributes = {k: v for k, v in vars(module).items() if k not in ignored}
    submodules = []
    for name in sorted(attributes):
        for leaf in _flatten(attributes[name]):
            # A layer's variable can also be stored elsewhere, as its tf.Variable.
            key = id(leaf._value if isinstance(leaf, LayerVariable) else leaf)
            if key not in seen:
                seen.add(key)
                yield leaf
                if _is_module(leaf):
                    submodules.append(leaf)
    for submodule in submodules:
        yield from _walk(submodule, seen)


def _flatten(value: Any) -> Iterator[Any]:
    """Yields the elements of lists, tuples and dicts, at any depth; dicts by key."""
    if isinstance(value, Mapping):
        for key in sorted(value):
            yield from _flatten(value[key])
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for part in value:
            yield from _flatten(part)
    else:
        yield value
