"""Replaces an algorithm's numbers with tensors while its methods are traced.

Compiled functions take the step count and the `Tunable` settings as inputs, so that the function
need not be compiled again when these change.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, get_args

import numpy as np

from relaax_like.algorithm.algorithm import Algorithm
from relaax_like.algorithm.random import StatelessRandom
from relaax_like.config.plan import Plan
from relaax_like.config.schedule import TUNABLE, Schedule
from relaax_like.nn.lazy_tensorflow import tf

_DISCOUNT = "discount of the plan"
# One thread traces at a time: `Traced` changes attributes of the algorithm; and Python's parser,
# with which AutoGraph reads code, fails if threads use it at once (SystemError, CPython 3.11).
_lock = threading.RLock()


def make_concrete(function: Any, **signature: Any) -> Any:
    """Returns the concrete function of a `tf.function`; other threads that trace wait."""
    with _lock:
        return function.get_concrete_function(**signature)


class TracedSettings:
    """The numeric settings of an algorithm that compiled functions take as an input.

    Attributes:
      values: `[n] float32`, the discount of the plan and all `Tunable` settings that are not null.

    Args:
      config: of the algorithm.
      plan: of the Algorithm; None: no plan, and the discount is 1.
    """

    def __init__(self, config: Any, plan: Plan | None):
        numbers = {_DISCOUNT: 1.0 if plan is None else plan.discount}
        for name, field in type(config).model_fields.items():
            if _is_tunable(field):
                value = getattr(config, name)
                if value is not None:
                    numbers[name] = value
        self._names = tuple(numbers)
        self.values = np.array(list(numbers.values()), np.float32)

    def unpack(self, tensor: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the tensors by name."""
        return dict(zip(self._names, tf.unstack(tensor, len(self._names)), strict=True))


def _is_tunable(field: Any) -> bool:
    """Returns whether a field is marked as `Tunable`, also inside of `Tunable | None`."""
    marks = [*field.metadata]
    for part in get_args(field.annotation):
        marks += getattr(part, "__metadata__", ())
    return TUNABLE in marks


class TracedConfig:
    """A config whose tunable settings and schedules are tensors.

    Args:
      config: of the algorithm.
      values: tunable setting -> its tensor.
      global_t: environment steps, `[] int64`, for schedules.
    """

    def __init__(self, config: Any, values: Mapping[str, tf.Tensor], global_t: tf.Tensor):
        self._config = config
        self._values = values
        self._global_t = global_t

    def __getattr__(self, name: str) -> Any:
        if name in self._values:
            return self._values[name]
        value = getattr(self._config, name)
        if isinstance(value, Schedule):
            return compute_schedule(value, self._global_t)
        return value


class Traced:
    """Replaces an algorithm's settings and step count with tensors, within a `with` block.

        with Traced(algorithm, settings, tensor, global_t) as traced:
            traced.draw_for("actor", step)
            losses = algorithm.compute_losses(batch)

    Attributes:
      discount: of the plan, `[] float32`.

    Args:
      algorithm: its `config`, `global_t` and `random` are replaced within the block.
      settings: of the algorithm.
      values: their current values, as in `TracedSettings.values`.
      global_t: environment steps of the whole run, `[] int64`.
    """

    def __init__(
        self, algorithm: Algorithm, settings: TracedSettings, values: tf.Tensor, global_t: tf.Tensor
    ):
        self._algorithm = algorithm
        self._named = settings.unpack(values)
        self.discount = self._named.pop(_DISCOUNT)
        self._global_t = global_t

    def draw_for(self, name: str, step: tf.Tensor) -> None:
        """Starts a new series of random numbers for the algorithm; see `StatelessRandom`."""
        self._algorithm.random = StatelessRandom(self._algorithm.seed, name, step)

    def __enter__(self) -> Traced:
        _lock.acquire()
        self._config = self._algorithm.config
        self._algorithm.config = TracedConfig(self._config, self._named, self._global_t)
        self._algorithm.global_t = self._global_t
        return self

    def __exit__(self, *_: object) -> None:
        self._algorithm.config, self._algorithm.global_t = self._config, 0
        self._algorithm.random = None
        _lock.release()


def compute_schedule(schedule: Schedule, global_t: tf.Tensor) -> tf.Tensor:
    """Computes a schedule's value after `global_t` environment steps, `[] float32`."""
    done = tf.minimum(tf.cast(global_t, tf.float32) / schedule.steps, 1.0)
    return tf.cast(schedule.interpolate(done), tf.float32)
