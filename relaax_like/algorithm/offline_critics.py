"""OfflineCritics: several values of the same normalised observation and action."""

from __future__ import annotations

from collections.abc import Mapping

from relaax_like.algorithm.batch import Tensors
from relaax_like.config.offline import OfflineConfig
from relaax_like.nn.lazy_tensorflow import tf
from relaax_like.nn.module import Module
from relaax_like.nn.networks import make_network
from relaax_like.nn.normalization import Normalizer


class OfflineCritics(Module):
    """Values of one vector and one continuous action.

    Args:
      config: describes the observation, the action, and the layers of each network.
      seed: of the initial values.
      number: of critics.
      normalizers: of the observation, those of the actor's encoder; {}: it is not normalised.
    """

    def __init__(
        self,
        config: OfflineConfig,
        seed: int,
        number: int,
        normalizers: Mapping[str, Normalizer],
    ):
        super().__init__()
        space = config.action_space
        self._low, self._width = space.low, space.high - space.low
        [(self._name, [size])] = config.input_shapes.items()
        self.normalizers = dict(normalizers)
        self.networks = [
            make_network(
                f"critic{i}", config.network, (size + len(self._low),), 1, seed=seed + 1000 * i
            )
            for i in range(1, number + 1)
        ]

    def __call__(self, inputs: Tensors, action: tf.Tensor) -> tf.Tensor:
        """Returns the values, `[..., number] float32`.

        Args:
          inputs: the observation by name, `[..., size]`.
          action: `[..., d]`, within the bounds; it is scaled to [-1, 1] first. Further axes are
            allowed before the last one, `[..., n, d]`: then there are n values of each observation,
            `[..., n, number]`.
        """
        x = inputs[self._name]
        if self._name in self.normalizers:
            x = self.normalizers[self._name](x)
        scaled = 2.0 * (action - self._low) / self._width - 1.0
        if len(scaled.shape) > len(x.shape):
            x = tf.repeat(x[..., None, :], scaled.shape[-2], axis=-2)
        joined = tf.concat([x, scaled], -1)
        return tf.concat([network(joined) for network in self.networks], -1)
