"""Encoder: maps observations, as described by the settings, to features for your own heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from relaax_like.algorithm.model import Specs, Tensors
from relaax_like.config.encoder import EncoderConfig
from relaax_like.nn.arrays import Values
from relaax_like.nn.layers import make_one_hot
from relaax_like.nn.module import Module
from relaax_like.nn.networks import Branch, make_network
from relaax_like.nn.normalization import Normalizer
from relaax_like.wire.spaces import OBSERVATION


class Encoder(Module):
    """Normalises the observations, joins those of several leaves, and computes the network.

        class QModel(Model):
            def __init__(self, config, seed):  # config: an EncoderConfig
                super().__init__()
                self.encoder = Encoder(config, seed=seed)
                self.head = Dense("q", self.encoder.features, config.num_actions, seed=seed)

            def get_input_specs(self):
                return self.encoder.get_input_specs()

            def get_state_specs(self):
                return self.encoder.get_state_specs()

            def get_action_specs(self):
                return [("action", {"shape": [], "dtype": "int64"})]

            def policy(self, inputs, memory, explore):
                features, memory = self.encoder(inputs, memory)
                q = self.head(features)
                return {"action": make_epsilon_greedy(q, explore["epsilon"])}, memory

    Acts in NumPy, unless there are images. A `Target` of an encoder uses the running statistics of
    that encoder.

    Attributes:
      features: number of features.
      network: the layers.
      normalizers: of the leaves that are normalised.

    Args:
      config: describes the observations and the layers.
      seed: of the initial values.
      name: first part of the variables' names, and name of the encoder's memory.
      normalizers: those of another encoder of the model, to share them; None: makes new ones.

    Raises:
      ConfigError: see `get_inputs`; or a convolution does not fit the input.
    """

    def __init__(
        self,
        config: EncoderConfig,
        *,
        seed: int,
        name: str = "encoder",
        normalizers: Mapping[str, Normalizer] | None = None,
    ):
        super().__init__(name=name)
        self._config = config
        self._num_values = config.num_values
        self.normalizers = dict(make_normalizers(config) if normalizers is None else normalizers)
        self.network = make_network(name, config.network, get_inputs(config), None, seed=seed)
        self.features = self.network.features

    def get_input_specs(self) -> Specs:
        """Returns the specs of the observation, leaf by leaf, for `Model.get_input_specs`."""
        return make_input_specs(self._config)

    def get_state_specs(self) -> Specs:
        """Returns the spec of the encoder's memory, for `Model.get_state_specs`; [] without one."""
        size = self.network.state_size
        return [(self.name, {"shape": [size]})] if size else []

    def __call__(
        self, inputs: Tensors, memory: Tensors, begins: Values | None = None
    ) -> tuple[Values, dict[str, Values]]:
        """Computes one step for each row, or the steps of rollouts one after another.

        In NumPy for arrays, in TensorFlow for tensors; see `Network`.

        Args:
          inputs: observations by name, `[..., *shape]`; other names are ignored.
          memory: by name: before the step, `[..., size]`; with `begins` before the first step,
            `[B, size]`. Other names are ignored.
          begins: `batch.begins`, if the inputs are `[T, B, *shape]`; None: each row is a separate
            step.

        Returns:
          The features `[..., features]`, and the memory after each step, name -> `[..., size]`; {}
          without a memory.
        """
        x = read_observations(self._config, self.normalizers, self._num_values, inputs)
        before = memory[self.name] if self.network.state_size else None
        features, after = self.network(x, before, begins)
        return features, {} if after is None else {self.name: after}


def make_input_specs(config: EncoderConfig) -> Specs:
    """Returns the specs of one observation, leaf by leaf: flat, an image, or integers from 0."""
    dtypes = dict.fromkeys(config.images, "uint8") | dict.fromkeys(config.num_values, "int64")
    return [
        (leaf, {"shape": shape, "dtype": dtypes.get(leaf, "float32")})
        for leaf, shape in config.input_shapes.items()
    ]


def get_inputs(config: EncoderConfig) -> tuple[int, ...] | dict[str, Branch]:
    """Returns the description of the observations for `make_network`.

    Raises:
      ConfigError: the settings do not define observations, actions, or mirror images that they
        need.
    """
    config.require_spaces()
    shapes = config.input_shapes
    shapes |= {leaf: (sum(sizes),) for leaf, sizes in config.num_values.items()}
    if config.observations is None:
        return shapes[OBSERVATION]
    return {leaf: Branch(shapes[leaf], own.layers) for leaf, own in config.observations.items()}


def make_normalizers(config: EncoderConfig) -> dict[str, Normalizer]:
    """Makes the normalizers of all leaves that are normalised; images and integers are not."""
    if not config.has_normalizer:
        return {}
    shapes = config.input_shapes
    return {leaf: Normalizer(leaf, shapes[leaf]) for leaf in sorted(config.vectors)}


def read_observations(
    config: EncoderConfig,
    normalizers: Mapping[str, Normalizer],
    num_values: Mapping[str, Sequence[int]],
    inputs: Mapping[str, Values],
) -> Values:
    """Returns the networks' inputs: normalised, integers as one-hot; several leaves by name.

    Args:
      config: of the model.
      normalizers: of the leaves that are normalised.
      num_values: `config.num_values`, which is too slow to compute in each step.
      inputs: observations by name.
    """
    seen = {}
    for leaf in (OBSERVATION,) if config.observations is None else config.observations:
        x = inputs[leaf]
        if leaf in normalizers:
            x = normalizers[leaf](x)
        elif leaf in num_values:
            x = make_one_hot(x, num_values[leaf])
        seen[leaf] = x
    return seen[OBSERVATION] if config.observations is None else seen
