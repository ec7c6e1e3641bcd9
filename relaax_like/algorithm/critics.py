"""Critics, and an actor without randomness, for off-policy algorithms with one action."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from relaax_like.algorithm.encoder import Encoder
from relaax_like.algorithm.model import Model, Specs, Tensors
from relaax_like.config.continuous import ACTOR, CRITIC, ContinuousConfig
from relaax_like.config.encoder import EncoderConfig
from relaax_like.config.network import DenseConfig, NetworkConfig
from relaax_like.nn.action_heads import make_noisy_policy, squash_to_box
from relaax_like.nn.arrays import Values
from relaax_like.nn.batch_norm import BatchNorm, Norming
from relaax_like.nn.layers import ACTIVATIONS, Dense, LayerNorm, concatenate
from relaax_like.nn.lazy_tensorflow import tf
from relaax_like.nn.module import Module
from relaax_like.nn.networks import make_network
from relaax_like.nn.normalization import Normalizer
from relaax_like.nn.target import Target
from relaax_like.wire.errors import ConfigError


@dataclass(frozen=True)
class Regularization:
    """What a `RegularNetwork` adds to its hidden layers.

    Attributes:
      norm: normalisation before the activation: "layer"; "batch", also of the network's input; or
        "", none. The batch norm is that of Bhatt et al. 2024, https://arxiv.org/abs/1902.05605.
      dropout: fraction of the units that are left out, at random, where `random` is given. Both:
        Hiraoka et al. 2022, https://arxiv.org/abs/2110.02034, section 3.1.
      unit_norm: whether the weights of each unit have the norm 1, for use with a norm; see
        `Dense.keep_unit_norm`.
    """

    norm: Literal["", "layer", "batch"] = ""
    dropout: float = 0.0
    unit_norm: bool = False


_PLAIN = Regularization()


class Critics(Module):
    """Several networks that each estimate the value of an action, given vector observations.

    Attributes:
      networks: one for each critic.
      normalizers: as the argument; {} for None.

    Args:
      config: describes the observation, the action, and the layers of each network.
      seed: of the initial values.
      number: of critics.
      regular: of hidden layers.
      normalizers: of observations by name, those of the actor's encoder; others are not normalised.
      outputs: numbers that each critic returns; 1: the value.

    Raises:
      ConfigError: a layer does not fit the input, or is not dense, although `regular` is set.
    """

    def __init__(
        self,
        config: ContinuousConfig,
        seed: int,
        number: int,
        regular: Regularization = _PLAIN,
        normalizers: Mapping[str, Normalizer] | None = None,
        outputs: int = 1,
    ):
        super().__init__()
        self.normalizers = dict(normalizers or {})
        space = config.action_space
        self._low, self._width = space.low, space.high - space.low
        self._names = sorted(config.input_shapes)
        size = sum(config.input_shapes[name][0] for name in self._names)
        sizes = (size + len(self._low), outputs)
        self.networks = _make_networks(config, sizes, seed, number, regular)
        self._outputs = outputs

    def __call__(
        self,
        inputs: Tensors,
        action: tf.Tensor,
        random: Any = None,
        norming: Norming | None = None,
    ) -> tf.Tensor:
        """Returns the values, `[..., number] float32`, or `[..., number, outputs]`.

        Args:
          inputs: observations by name, `[..., size]`.
          action: `[..., d]`, within the bounds; it is scaled to [-1, 1] first. Or `[..., n, d]`, n
            actions for each observation, where n is known when the function is traced; then the
            result is `[..., n, number]`.
          random: draws which units are left out (`Algorithm.random`); None: all units are used.
          norming: of the training, for batch norms; None: they use their moving statistics.
        """
        return self._compute(self._join(inputs, action), random, norming)

    def compute_jointly(
        self, steps: Sequence[tuple[Tensors, tf.Tensor]], norming: Norming
    ) -> list[tf.Tensor]:
        """Returns the values of several batches, which batch norms normalise as one.

        Args:
          steps: inputs and actions of each batch, as in a call.
          norming: of the training.
        """
        x = tf.stack([self._join(*step) for step in steps], -2)
        return tf.unstack(self._compute(x, None, norming), len(steps), axis=len(x.shape) - 2)

    def compute_first(self, inputs: Tensors, action: tf.Tensor) -> tf.Tensor:
        """Returns the value of the first critic alone, `[...]`; arguments as in a call."""
        return self.networks[0](self._join(inputs, action))[..., 0]

    def _compute(self, x: tf.Tensor, random: Any, norming: Norming | None) -> tf.Tensor:
        values = _compute(self.networks, x, random, norming)
        return tf.concat(values, -1) if self._outputs == 1 else tf.stack(values, -2)

    def _join(self, inputs: Tensors, action: tf.Tensor) -> tf.Tensor:
        scaled = 2.0 * (action - self._low) / self._width - 1.0
        x = join_inputs(inputs, self._names, self.normalizers)
        if len(scaled.shape) > len(x.shape):
            x = tf.repeat(x[..., None, :], scaled.shape[-2], axis=-2)
        return tf.concat([x, scaled], -1)


def join_inputs(
    inputs: Tensors, names: Sequence[str], normalizers: Mapping[str, Normalizer]
) -> Values:
    """Returns observations side by side, `[..., size]`, normalised where there is a normalizer."""
    return concatenate(
        [normalizers[n](inputs[n]) if n in normalizers else inputs[n] for n in names]
    )


def _make_networks(
    config: EncoderConfig, sizes: tuple[int, int], seed: int, number: int, regular: Regularization
) -> list[Any]:
    """Makes the networks of critics; `sizes`: of their input and output."""

    def make(i: int) -> Any:
        name, own_seed = f"critic{i}", seed + 1000 * i
        if regular != _PLAIN:
            return RegularNetwork(name, config.network, sizes, own_seed, regular)
        return make_network(name, config.network, sizes[:1], sizes[1], seed=own_seed)

    return [make(i) for i in range(1, number + 1)]


def _compute(
    networks: Sequence[Any], x: tf.Tensor, random: Any, norming: Norming | None = None
) -> list[tf.Tensor]:
    return [
        network(x, random, norming) if isinstance(network, RegularNetwork) else network(x)
        for network in networks
    ]


class DiscreteCritics(Module):
    """Several networks that each estimate the value of every discrete action.

    Observations are vectors.

    Args:
      config: describes the observation and the layers of each network.
      actions: number of actions.
      seed, number, regular, normalizers: see `Critics`, also for the attributes and the errors.
    """

    def __init__(
        self,
        config: EncoderConfig,
        actions: int,
        seed: int,
        number: int,
        regular: Regularization = _PLAIN,
        normalizers: Mapping[str, Normalizer] | None = None,
    ):
        super().__init__()
        self.normalizers = dict(normalizers or {})
        self._names = sorted(config.input_shapes)
        size = sum(config.input_shapes[name][0] for name in self._names)
        self.networks = _make_networks(config, (size, actions), seed, number, regular)

    def __call__(self, inputs: Tensors, random: Any = None) -> tf.Tensor:
        """Returns the values, `[..., actions, number] float32`; see `Critics`."""
        x = join_inputs(inputs, self._names, self.normalizers)
        return tf.stack(_compute(self.networks, x, random), -1)


class RegularNetwork(Module):
    """Dense layers, each followed by dropout, normalisation and the activation; linear outputs.

    Computes in NumPy for arrays.

    Args:
      name: of the network; its variables are named as those of `make_network`, with `norm0` and so
        on for the normalisations, and `norm` for that of the input.
      config: its layers, all of them dense, and their activation.
      sizes: numbers of inputs, the length of the last axis of x, and of outputs.
      seed: of the initial values.
      regular: of the hidden layers.
      gain: factor of the initial weights of the outputs.

    Raises:
      ConfigError: a layer is not dense.
    """

    def __init__(
        self,
        name: str,
        config: NetworkConfig,
        sizes: tuple[int, int],
        seed: int,
        regular: Regularization,
        gain: float = 1.0,
    ):
        super().__init__()
        self._dropout = regular.dropout
        self._activation = ACTIVATIONS[config.activation]
        self.hidden: list[Dense] = []
        self.norms: list[Any] = []
        inputs, outputs = sizes
        make_norm = {"layer": LayerNorm, "batch": BatchNorm}.get(regular.norm)
        self.norm = BatchNorm(f"{name}.norm", inputs) if regular.norm == "batch" else None
        for index, layer in enumerate(config.layers):
            if not isinstance(layer, DenseConfig):
                raise ConfigError(
                    f"network.layers[{index}]: {layer}, expected a number of units, because "
                    "networks with normalisation or dropout consist of dense layers; list only "
                    "numbers of units, or turn both off"
                )
            dense = Dense(
                f"{name}.{index}",
                inputs,
                layer.units,
                seed=seed + index,
                initializer="orthogonal",
                gain=2**0.5,
                use_bias=regular.norm != "batch",  # which would cancel it
            )
            self.hidden.append(dense.keep_unit_norm() if regular.unit_norm else dense)
            if make_norm is not None:
                self.norms.append(make_norm(f"{name}.norm{index}", layer.units))
            inputs = layer.units
        options: dict[str, Any] = {"initializer": "orthogonal", "gain": gain}
        self.out = Dense(f"{name}.out", inputs, outputs, seed=seed + 100, **options)

    def __call__(self, x: Values, random: Any = None, norming: Norming | None = None) -> Values:
        """Maps `[..., inputs]` to `[..., outputs]`; for the other arguments, see `Critics`."""
        if self.norm is not None:
            x = self.norm(x, norming)
        for index, dense in enumerate(self.hidden):
            x = dense(x)
            if random is not None and self._dropout > 0:
                kept = random.uniform(tf.shape(x)) >= self._dropout
                x = tf.where(kept, x / (1.0 - self._dropout), 0.0)
            if self.norms:
                norm = self.norms[index]
                x = norm(x, norming) if isinstance(norm, BatchNorm) else norm(x)
            x = self._activation(x)
        return self.out(x)


class DeterministicActor(Module):
    """Maps an observation to an action within the bounds; in NumPy for arrays.

    Args:
      config: describes the observation, the action and the layers.
      seed: of the initial values.

    Raises:
      ConfigError: see `Encoder`.
    """

    def __init__(self, config: ContinuousConfig, seed: int):
        super().__init__()
        self._space = config.action_space
        self.encoder = Encoder(config, seed=seed, name="actor")
        size = len(self._space.low)
        self.head = Dense("policy", self.encoder.features, size, seed=seed + 1, gain=0.01)

    def __call__(self, inputs: Tensors) -> Any:
        """Returns `[..., d] float32`, squashed by tanh."""
        return squash_to_box(self._space, self.head(self.encoder(inputs, {})[0]))


class DeterministicModel(Model):
    """An actor without randomness, critics, and targets of both; the networks of DDPG and TD3.

    Agents add the noise `exploration_noise` to the action.

    Attributes:
      space: of the action.
      actor, critics: the networks.
      target_actor, target_critics: their targets.
      actor_type: class of the actor.

    Args:
      config: describes the observation, the action, and the layers of each network.
      seed: of the initial values.
      critics: number of critics.
      target_every: number of the critics' optimizer steps between two updates of their target; the
        target of the actor is updated after each step of the actor.

    Raises:
      ConfigError: see `Encoder` and `Critics`.
    """

    autograph = False
    acting: Sequence[str] = ("actor",)
    groups: Mapping[str, Sequence[str]] = {CRITIC: ("critics",), ACTOR: ("actor",)}
    actor_type: type[DeterministicActor] = DeterministicActor

    def __init__(self, config: ContinuousConfig, seed: int, critics: int, target_every: int = 1):
        super().__init__()
        self.space = config.action_space
        self.actor = self.actor_type(config, seed)
        self.critics = Critics(config, seed, critics, normalizers=self.actor.encoder.normalizers)
        self.target_actor = Target(self.actor, tau=config.tau)
        self.target_critics = Target(self.critics, tau=config.tau, every=target_every)

    def get_input_specs(self) -> Specs:
        """Returns the specs of the observations."""
        return self.actor.encoder.get_input_specs()

    def get_action_specs(self) -> Specs:
        """Returns the spec of the continuous action."""
        return [("action", {"shape": list(self.space.shape)})]

    def policy(
        self, inputs: Tensors, memory: Tensors, explore: Tensors
    ) -> tuple[dict[str, Any], Tensors]:
        """Returns the policy, which adds noise to drawn actions, and the memory unchanged."""
        policy = make_noisy_policy(self.space, self.actor(inputs), explore["exploration_noise"])
        return {"action": policy}, memory
