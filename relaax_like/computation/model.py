"""Model: a network and the specs of what goes in and out; it never trains."""

import abc
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from relaax_like.bridge.manifest import DEFAULT_GROUP, STATISTIC, Variable
from relaax_like.nn import runtime  # noqa: F401 - settings, before anything is computed
from relaax_like.nn.distributions import Distribution
from relaax_like.nn.normalization import Normalizer

# (name, properties): `shape` without the batch axis, and optionally `dtype` (float32).
Specs = Sequence[tuple[str, Mapping[str, Any]]]
Tensors = Mapping[str, tf.Tensor]


class Model(tf.Module, abc.ABC):
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

    def get_group(self, variable: tf.Variable) -> str:
        """Names the variable group, and thereby the optimizer, of a trainable variable."""
        return DEFAULT_GROUP


def get_trainable_variables(model: Model) -> list[tf.Variable]:
    """Returns what is learned, in manifest order: group by group, else as in the model."""
    variables = model.trainable_variables
    groups = list(dict.fromkeys(model.get_group(v) for v in variables))
    return sorted(variables, key=lambda v: groups.index(model.get_group(v)))


def get_normalizers(model: Model) -> list[Normalizer]:
    """Returns the layers that hold running statistics."""
    return [module for module in model.submodules if isinstance(module, Normalizer)]


def order_variables(model: Model) -> list[tf.Variable]:
    """Returns all variables in manifest order: what is learned, then running statistics."""
    statistics = [v for n in get_normalizers(model) for v in (n.count, n.mean, n.m2)]
    return get_trainable_variables(model) + statistics


def get_variables(model: Model) -> list[Variable]:
    """Returns all variables with their present values, in manifest order."""
    return [
        Variable(v.name.split(":")[0], v.numpy(), model.get_group(v))
        if v.trainable
        else Variable(v.name.split(":")[0], v.numpy(), kind=STATISTIC)
        for v in order_variables(model)
    ]
