"""Random numbers in compiled functions: stateless ones, and a generator with a state."""

from __future__ import annotations

import zlib
from typing import Any

from relaax_like.nn.lazy_tensorflow import tf


class StatelessRandom:
    """Draws that depend only on a seed, a name, a step, and their order in the traced function.

    It has the methods of `tf.random.Generator` that distributions use. Because there is no state, a
    resumed run draws what an uninterrupted one would have drawn.

    Args:
      seed: of the run.
      name: of the series of draws, such as a variable group.
      step: `[] int64`, a different number for each call of the compiled function.
    """

    def __init__(self, seed: int, name: str, step: tf.Tensor):
        self._seed = seed
        self._name = name
        self._step = tf.cast(step, tf.int64)
        self._draws = 0

    def normal(self, shape: Any, mean: float = 0.0, stddev: float = 1.0) -> tf.Tensor:
        """Draws from a normal distribution, `[*shape] float32`."""
        draws = tf.random.stateless_normal(shape, self._make_seed(), alg="philox")
        return mean + stddev * draws

    def uniform(
        self, shape: Any, minval: Any = 0, maxval: Any = None, dtype: Any = None
    ) -> tf.Tensor:
        """Draws from [minval, maxval), `[0, 1)` by default.

        Args:
          shape: of the result.
          minval: smallest number.
          maxval: above the largest number; required for integers.
          dtype: a float or integer dtype; None: float32.
        """
        dtype = tf.float32 if dtype is None else dtype
        if maxval is None and dtype == tf.float32:
            maxval = 1.0
        seed = self._make_seed()
        return tf.random.stateless_uniform(shape, seed, minval, maxval, dtype, alg="philox")

    def _make_seed(self) -> tf.Tensor:
        self._draws += 1
        name = zlib.crc32(f"{self._seed}/{self._name}/{self._draws}".encode())
        return tf.stack([tf.constant(name, tf.int64), self._step])


def make_generator(seed: int) -> tf.random.Generator:
    """Returns a source of random numbers with a state; any integer is a valid seed."""
    return tf.random.Generator.from_seed(seed & 0x7FFFFFFFFFFFFFFF, alg="philox")
