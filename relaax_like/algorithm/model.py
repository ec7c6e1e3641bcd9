"""Model: a network and the specs of its inputs and outputs; it never trains."""

from __future__ import annotations

import abc
import functools
import operator
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from relaax_like.config.places import describe_attribute, describe_place
from relaax_like.core.manifest import (
    BUFFER,
    CONSTANT,
    DEFAULT_GROUP,
    PUSHED,
    TARGET,
    Follow,
    Variable,
)
from relaax_like.nn.distributions import restrict
from relaax_like.nn.lazy_tensorflow import tf
from relaax_like.nn.module import AnyVariable, Module, as_tf_variable, get_kind, get_name
from relaax_like.nn.normalization import Normalizer
from relaax_like.nn.target import Target
from relaax_like.wire.errors import ConfigError
from relaax_like.wire.spaces import ACTION, MASK

if TYPE_CHECKING:
    from relaax_like.nn.distributions import Distribution

# (name, properties): `shape` without the batch axis, and optionally `dtype` (float32).
Specs = Sequence[tuple[str, Mapping[str, Any]]]
# Name -> tf.Tensor, or np.ndarray if a model acts in NumPy.
Tensors = Mapping[str, Any]


class Model(Module, abc.ABC):
    """A network without an objective, so that one model serves several algorithms.

        class CartPoleModel(Model):
            def get_input_specs(self):
                return [("observation", dict(shape=[4]))]
            def get_action_specs(self):
                return [("action", dict(shape=[], dtype="int64"))]
            def policy(self, inputs, states):
                return {"action": Categorical(self.net(inputs["observation"]))}, states

    Attributes:
      xla: whether XLA compiles the model. On a CPU, XLA is faster for all layers but convolutions.
      autograph: whether `policy` has an `if` or a loop that depends on the value of a tensor, when
        agents act with it or it is exported; False halves the tracing time. For learning, see
        `Algorithm.autograph`.
      acting: attributes whose variables `policy` reads; agents pull only these. Empty: all.
      groups: variable group -> attributes whose variables it contains. All other variables are in
        the group "default".
      lock: held while the variables are set, and while a compiled prediction reads them.
      masks: leaf of discrete actions that comes with a mask -> number of choices of each component;
        from the settings. Then `get_input_specs` also has the masks, and the distributions that
        `policy` returns are restricted to legal choices, whatever the model itself does.
    """

    xla = True
    autograph = True
    acting: Sequence[str] = ()
    groups: Mapping[str, Sequence[str]] = {}
    masks: Mapping[str, tuple[int, ...]] = {}

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        for name, wrap in (("policy", _restrict_policy), ("get_input_specs", _add_masks)):
            if name in cls.__dict__:
                setattr(cls, name, wrap(cls.__dict__[name]))

    def __init__(self, name: str | None = None):
        super().__init__(name=name)
        self.lock = threading.Lock()

    def restrict(self, values: Any, inputs: Tensors, action: str = ACTION) -> Any:
        """Returns values of discrete choices, with minus infinity for those that are not legal.

        For targets such as the value of the best legal action. Without masks, the values unchanged.

        Args:
          values: `[..., n] float32`, those of component 0, then of component 1, and so on.
          inputs: observations by name, with masks `[..., n]`.
          action: name of the action.
        """
        mask = inputs.get(MASK + action)
        return values if mask is None else restrict(values, mask, self.masks[action])

    @abc.abstractmethod
    def get_input_specs(self) -> Specs:
        """Returns names and shapes of the observations that the network reads."""

    def get_state_specs(self) -> Specs:
        """Returns names and shapes of the short-term memory; by default none."""
        return []

    @abc.abstractmethod
    def get_action_specs(self) -> Specs:
        """Returns names and shapes of the actions."""

    def get_privileged_specs(self) -> Specs:
        """Returns names and shapes of observations used only for learning; by default none.

        A critic can read them with the others, in `batch.inputs` and `batch.next_inputs`, as in
        Pinto et al. 2018 (asymmetric actor critic, https://arxiv.org/abs/1710.06542). The policy
        acts without them, so clients that only act need not send them.
        """
        return []

    def get_reward_specs(self) -> Specs:
        """Returns names and shapes of the rewards; by default one number named `reward`.

        The environment sends `[r]` rewards for each action: those of the first name, then those of
        the second, and so on. Each shape is `[n]`, and r is the sum.
        """
        return [("reward", {"shape": [1]})]

    @abc.abstractmethod
    def policy(
        self, inputs: Tensors, memory: Tensors, *args: Any, **kwargs: Any
    ) -> tuple[dict[str, Distribution], Tensors]:
        """Returns each action's distribution, by the action specs' names, and the next memory.

        `policy(self, inputs, memory)`, or with exploration `policy(self, inputs, memory, explore)`.

        Args:
          inputs: observations by name, `[B, ...]`.
          memory: short-term memory by name, `[B, ...]`.
          explore: name -> `[B]`: the values of the config's schedules; and "rank", a number in
            [0, 1) for each slot of a client, the same throughout the run; 0 where slots are not
            known, as in `CompiledAlgorithm.predict` and in exported policies.
        """

    def get_group(self, name: str) -> str:
        """Returns the variable group, and thereby the optimizer, of a variable.

        Buffers are set at each optimizer step of their group.

        By default, `groups` determines it.

        Args:
          name: the variable's, as in the manifest: `policy.0.W`.

        Raises:
          ConfigError: `groups` names an attribute that the model does not have; the error names the
            line.
        """
        for group, attributes in self.groups.items():
            for attribute in attributes:
                if not hasattr(self, attribute):
                    raise ConfigError(
                        f"{describe_attribute(self, 'groups')}: `groups` contains {attribute!r}, "
                        "but the model has no attribute of that name; correct `groups`"
                    )
                if name in _find_names(getattr(self, attribute)):
                    return group
        return DEFAULT_GROUP


def _restrict_policy(policy: Any) -> Any:
    """Makes a policy return distributions without illegal actions."""

    @functools.wraps(policy)
    def restricted(self: Model, inputs: Tensors, memory: Tensors, *rest: Any, **named: Any) -> Any:
        result = policy(self, inputs, memory, *rest, **named)
        if not self.masks:
            return result
        distributions, after = result
        return {
            name: one.restrict(inputs[MASK + name]) if MASK + name in inputs else one
            for name, one in distributions.items()
        }, after

    return restricted


def _add_masks(get_input_specs: Any) -> Any:
    """Adds the specs of the masks."""

    @functools.wraps(get_input_specs)
    def get(self: Model) -> Specs:
        specs = get_input_specs(self)
        if not self.masks:
            return specs
        known = {name for name, _ in specs}
        masks = {MASK + leaf: sum(sizes) for leaf, sizes in self.masks.items()}
        return [
            *specs,
            *((k, {"shape": [n], "dtype": "bool"}) for k, n in masks.items() if k not in known),
        ]

    return get


def _find_names(part: Any) -> set[str]:
    """Returns the names of the variables of a module, a variable, or a list of them."""
    holder = Module()
    holder.part = part  # type: ignore[attr-defined]
    return {get_name(variable) for variable in holder.find_variables()}


def validate_model(model: Model) -> None:
    """Checks that a model was initialized, its variables, and that its specs have the right form.

    Raises:
      ConfigError: `__init__` does not call that of `Model`; nothing is declared of a variable that
        is not trainable; a buffer is in a group that is not trained; see `Model.get_group`; or a
        method returns invalid specs; the error names the line.
    """
    kind = type(model)
    if not hasattr(model, "lock"):
        raise ConfigError(
            f"{describe_place(kind, '__init__')}: __init__ of class {kind.__name__} does not call "
            "that of Model; begin it with super().__init__()"
        )
    _order(model)
    for method in (
        "get_input_specs",
        "get_privileged_specs",
        "get_state_specs",
        "get_action_specs",
        "get_reward_specs",
    ):
        mistake = _find_mistake(getattr(model, method)())
        if mistake:
            raise ConfigError(
                f"{describe_place(kind, method)}: {method} returned {mistake}; return a list such "
                'as [("name", {"shape": [4], "dtype": "float32"})]'
            )


def _find_mistake(specs: Any) -> str:
    """Returns what is wrong with specs, as the object of a sentence; "" if they are valid."""
    if not isinstance(specs, Sequence) or isinstance(specs, str):
        return f"{specs!r:.200}, expected a list"
    for spec in specs:
        if not (
            isinstance(spec, Sequence)
            and len(spec) == 2
            and isinstance(spec[0], str)
            and isinstance(spec[1], Mapping)
            and "shape" in spec[1]
        ):
            return f"{spec!r:.200}, expected a name and a dict with the key 'shape'"
        shape, dtype = spec[1]["shape"], spec[1].get("dtype", "float32")
        if not _is_shape(shape):
            return f"the shape {shape!r:.200} of {spec[0]!r}, expected a list of integers"
        if not _is_dtype(dtype):
            return f"the dtype {dtype!r:.200} of {spec[0]!r}, expected one such as 'int64'"
    return ""


def _is_shape(shape: Any) -> bool:
    try:
        return all(operator.index(length) >= 0 for length in shape)
    except TypeError:
        return False


def _is_dtype(dtype: Any) -> bool:
    try:  # It can be one of TensorFlow's.
        return np.dtype(getattr(dtype, "as_numpy_dtype", dtype)).kind in "biufV"
    except TypeError:
        return False


def find_sharing(models: Mapping[str, Model]) -> dict[str, tuple[str, ...]]:
    """Returns name -> all names that have the same Model, in order; often only that one."""
    return {
        name: tuple(other for other, its in models.items() if its is model)
        for name, model in models.items()
    }


def get_learning_specs(model: Model) -> Specs:
    """Returns names and shapes of all observations in a batch; those of the policy come first."""
    return [*model.get_input_specs(), *model.get_privileged_specs()]


def get_reward_columns(model: Model) -> dict[str, slice]:
    """Returns where the rewards of each name are in `[..., r]` rewards.

    Raises:
      ConfigError: there are no rewards, or a shape is not `[n]`; the error names the line.
    """
    columns: dict[str, slice] = {}
    start = 0
    for name, properties in model.get_reward_specs():
        shape = tuple(properties["shape"])
        if len(shape) != 1 or shape[0] < 1:
            raise ConfigError(
                f"{describe_place(type(model), 'get_reward_specs')}: reward {name!r} has shape "
                f"{list(shape)}, expected [n] with n of 1 or more; correct it"
            )
        columns[name] = slice(start, start + shape[0])
        start += shape[0]
    if not columns:
        raise ConfigError(
            f"{describe_place(type(model), 'get_reward_specs')}: no rewards, expected at least "
            "one; correct it"
        )
    return columns


def get_trainable_variables(model: Model) -> list[tf.Variable]:
    """Returns the trainable variables in manifest order: group by group, as in the model.

    Raises:
      ConfigError: see `Model.get_group`.
    """
    return [as_tf_variable(variable) for variable in _order_trainable(model)]


def get_groups(model: Model) -> tuple[str, ...]:
    """Returns the variable groups, in manifest order.

    Raises:
      ConfigError: see `Model.get_group`.
    """
    return tuple(dict.fromkeys(model.get_group(get_name(v)) for v in _order_trainable(model)))


def get_buffers(model: Model) -> dict[str, dict[str, tf.Variable]]:
    """Returns variable group -> name -> buffer, in manifest order.

    Raises:
      ConfigError: see `Model.get_group`.
    """
    buffers: dict[str, dict[str, tf.Variable]] = {}
    for variable in model.find_variables():
        if get_kind(variable) == BUFFER:
            name = get_name(variable)
            buffers.setdefault(model.get_group(name), {})[name] = as_tf_variable(variable)
    return buffers


def get_unit_norms(model: Model) -> dict[str, list[tf.Variable]]:
    """Returns variable group -> the variables that are scaled to unit norm after its steps.

    Raises:
      ConfigError: see `Model.get_group`.
    """
    found: dict[str, list[tf.Variable]] = {group: [] for group in get_groups(model)}
    for variable in model.find_variables():
        if getattr(variable, "unit_norm", False):
            found[model.get_group(get_name(variable))].append(as_tf_variable(variable))
    return found


def get_targets(model: Model) -> list[Target[Any]]:
    """Returns the model's `Target` modules."""
    return [module for module in model.submodules if isinstance(module, Target)]


def get_acting_names(model: Model) -> frozenset[str] | None:
    """Returns the names of the variables that `Model.acting` allows `policy` to read; None: all.

    Raises:
      ConfigError: `Model.acting` names an attribute that the model does not have, or one without
        variables; the error names the line.
    """
    if not model.acting:
        return None
    names: set[str] = set()
    for attribute in model.acting:
        found = _find_names(getattr(model, attribute, None))
        if not found:
            raise ConfigError(
                f"{describe_attribute(model, 'acting')}: `acting` contains {attribute!r}, but "
                "the model has no attribute of that name with variables; correct `acting`"
            )
        names |= found
    return frozenset(names)


def get_normalizers(model: Model) -> list[Normalizer]:
    """Returns the layers that hold running statistics."""
    return [module for module in model.submodules if isinstance(module, Normalizer)]


def order_variables(model: Model) -> list[tf.Variable]:
    """Returns all variables in manifest order.

    These are trainable variables and buffers, running statistics, targets, constants.

    Raises:
      ConfigError: see `validate_model`.
    """
    return [as_tf_variable(variable) for variable in _order(model)]


def get_variables(model: Model) -> list[Variable]:
    """Returns all variables with their current values, in manifest order.

    For a model of our own layers, this does not need TensorFlow.

    Raises:
      ConfigError: see `validate_model`.
    """
    follows = {
        id(variable): Follow(get_name(source), target.every, target.tau)
        for target in get_targets(model)
        for variable, source in zip(target.copies, target.sources, strict=True)
    }
    return [_describe(model, variable, follows.get(id(variable))) for variable in _order(model)]


def _describe(model: Model, variable: AnyVariable, follow: Follow | None) -> Variable:
    name, value = get_name(variable), variable.numpy()
    if follow is not None:
        return Variable(name, value, kind=TARGET, follow=follow)
    kind = get_kind(variable)
    group = model.get_group(name) if kind in PUSHED else DEFAULT_GROUP
    own = Follow(name) if getattr(variable, "unit_norm", False) else None
    return Variable(name, value, group, kind, own)


def _order_trainable(model: Model) -> list[AnyVariable]:
    return [variable for variable in _order_pushed(model) if variable.trainable]


def _order_pushed(model: Model) -> list[AnyVariable]:
    """Returns trainable variables and buffers, group by group; the buffers of each group last."""
    by_group: dict[str, list[AnyVariable]] = {}
    variables = model.find_variables()
    for variable in variables:
        if variable.trainable:
            by_group.setdefault(model.get_group(get_name(variable)), []).append(variable)
    for variable in variables:
        if get_kind(variable) == BUFFER:
            name = get_name(variable)
            group = model.get_group(name)
            if group not in by_group:
                raise ConfigError(
                    f"{describe_place(type(model), '__init__')}: the buffer {name!r} is in the "
                    f"variable group {group!r}, which has no trainable variable, so that no "
                    "optimizer step would set it; put it into a group that is trained, with "
                    "`groups`, or declare it constant"
                )
            by_group[group].append(variable)
    return [variable for group in by_group.values() for variable in group]


def _order(model: Model) -> list[AnyVariable]:
    variables = model.find_variables()
    for variable in variables:
        if not get_kind(variable):
            name = get_name(variable)
            raise ConfigError(
                f"{describe_place(type(model), '__init__')}: the variable {name!r} is not "
                "trainable, and nothing else is declared of it, so that it would be lost when the "
                "run is resumed; declare it a buffer, which learn sets with Losses(updates=...), "
                f"or a constant: Parameter({name!r}, initial, kind='buffer' or 'constant'), or "
                "relaax_like.nn.declare(variable, kind)"
            )
    constants = [variable for variable in variables if get_kind(variable) == CONSTANT]
    statistics = [
        normalizer.get_variables()[part]
        for normalizer in get_normalizers(model)
        for part in ("count", "mean", "m2")
    ]
    return _order_pushed(model) + statistics + _find_targets(model) + constants


def _find_targets(model: Model) -> list[AnyVariable]:
    return [variable for target in get_targets(model) for variable in target.copies]
