"""Model: a network and the specs of what goes in and out; it never trains."""

from __future__ import annotations

import abc
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from relaax_like.bridge.manifest import DEFAULT_GROUP, STATISTIC, Variable
from relaax_like.nn.lazy_tensorflow import tf
from relaax_like.nn.module import AnyVariable, Module, as_tf_variable, get_name
from relaax_like.nn.normalization import Normalizer

if TYPE_CHECKING:
    from relaax_like.nn.distributions import Distribution

# (name, properties): `shape` without the batch axis, and optionally `dtype` (float32).
Specs = Sequence[tuple[str, Mapping[str, Any]]]
# By name: a tf.Tensor each, or an np.ndarray where a model acts in NumPy.
Tensors = Mapping[str, Any]


class Model(Module, abc.ABC):
    """A network only: the same one serves algorithms with different objectives.

    class CartPoleModel(Model):
        def get_input_specs(self):
            return [("observation", dict(shape=[4]))]
        def get_action_specs(self):
            return [("action", dict(shape=[], dtype="int64"))]
        def policy(self, inputs, states):
            return {"action": Categorical(self.net(inputs["observation"]))}, states
    """

    # Whether XLA compiles it: on a processor it is quicker for all but convolutions.
    xla = True

    def __init__(self, name: str | None = None):
        super().__init__(name=name)
        # Held while the variables are set, and while a compiled prediction reads them.
        self.lock = threading.Lock()

    @abc.abstractmethod
    def get_input_specs(self) -> Specs:
        """Names and shapes of the observations that the network reads."""

    def get_state_specs(self) -> Specs:
        """Names and shapes of the short-term memory; none by default."""
        return []

    @abc.abstractmethod
    def get_action_specs(self) -> Specs:
        """Names and shapes of the actions."""

    def get_reward_specs(self) -> Specs:
        """Names and shapes of the rewards; one scalar named `reward` by default."""
        return [("reward", {"shape": [1]})]

    @abc.abstractmethod
    def policy(self, inputs: Tensors, states: Tensors) -> tuple[dict[str, Distribution], Tensors]:
        """Returns each action's distribution, keyed as the action specs, and the next states."""

    def get_group(self, name: str) -> str:
        """Names the variable group, and thereby the optimizer, of a trainable variable.

        Args:
          name: the variable's, as in the manifest: `policy.0.W`.
        """
        return DEFAULT_GROUP


def get_trainable_variables(model: Model) -> list[tf.Variable]:
    """Returns what is learned, in manifest order: group by group, else as in the model."""
    return [as_tf_variable(variable) for variable in _order_trainable(model)]


def get_normalizers(model: Model) -> list[Normalizer]:
    """Returns the layers that hold running statistics."""
    return [module for module in model.submodules if isinstance(module, Normalizer)]


def order_variables(model: Model) -> list[tf.Variable]:
    """Returns all variables in manifest order: what is learned, then running statistics."""
    return [as_tf_variable(variable) for variable in _order(model)]


def get_variables(model: Model) -> list[Variable]:
    """Returns all variables with their present values, in manifest order.

    A model of our own layers needs no TensorFlow for it.
    """
    return [
        Variable(get_name(v), v.numpy(), model.get_group(get_name(v)))
        if v.trainable
        else Variable(get_name(v), v.numpy(), kind=STATISTIC)
        for v in _order(model)
    ]


def _order_trainable(model: Model) -> list[AnyVariable]:
    by_group: dict[str, list[AnyVariable]] = {}
    for variable in model.find_variables():
        if variable.trainable:
            by_group.setdefault(model.get_group(get_name(variable)), []).append(variable)
    return [variable for group in by_group.values() for variable in group]


def _order(model: Model) -> list[AnyVariable]:
    statistics = [
        normalizer.get_variables()[part]
        for normalizer in get_normalizers(model)
        for part in ("count", "mean", "m2")
    ]
    return _order_trainable(model) + statistics
