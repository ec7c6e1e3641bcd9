"""Acting: actions, log-probabilities and next memory for a batch of rows of many agents.

Acting in NumPy does not import TensorFlow.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from relaax_like.algorithm.exploration import Exploration
from relaax_like.algorithm.model import (
    Model,
    Specs,
    get_acting_names,
    get_learning_specs,
    get_variables,
    order_variables,
)
from relaax_like.algorithm.policy_outputs import PolicyOutputs
from relaax_like.algorithm.tracing import make_concrete
from relaax_like.config.places import (
    describe_assignment,
    describe_attribute,
    describe_error,
    describe_place,
    find_folder,
)
from relaax_like.core.prediction import Prediction
from relaax_like.nn.compiling import CompiledFunction
from relaax_like.nn.layers import Layer
from relaax_like.nn.lazy_tensorflow import tf
from relaax_like.nn.module import get_name
from relaax_like.wire.errors import ConfigError
from relaax_like.wire.spaces import Spaces

Arrays = Mapping[str, np.ndarray]

# Values are computed for so many rows at a time, which limits the memory for images.
_VALUE_ROWS = 256


class NumpyActor:
    """Runs a model's policy in NumPy, for models of our own layers without convolutions.

    `set_values` can be called from any thread; the new values take effect together, between two
    calls of `act`.

    Attributes:
      model: whose policy acts.
      global_t: environment steps of the whole run, for schedules; set by the owner.
      explores: whether its policy takes `explore`, and with it the ranks of the slots.

    Args:
      model: as the attribute.
      seed: of the random numbers.
      config: its schedules control exploration; None: no schedules.
      whole: whether all variables are needed, as by `value`, and not only those of `Model.acting`.

    Raises:
      ConfigError: `Model.acting` or `Model.groups` names an attribute that the model does not have,
        or `acting` one without variables; the error names the line.
    """

    def __init__(self, model: Model, seed: int, config: Any = None, whole: bool = False):
        self.model = model
        self.global_t = 0
        self._subset = _Subset(model, whole)
        self._outputs = PolicyOutputs(model)
        self._exploration = Exploration(model, config)
        self.explores = bool(self._exploration.names)
        self._random = np.random.default_rng(seed)
        self._layers = [module for module in model.submodules if isinstance(module, Layer)]
        variables = get_variables(model)
        self._names = [variable.name for variable in variables]
        initial = [variable.value for variable in variables]
        self._given: tuple[Sequence[np.ndarray], int] = (initial, 0)
        self._bound: object = None

    def set_values(self, values: Sequence[np.ndarray], version: int) -> None:
        """Sets the values of all variables, in manifest order; the caller must not change them."""
        self._given = (values, version)

    def expect_actions(self, spaces: Spaces) -> None:
        """Compares the policy's outputs with the environment's action spaces, by name.

        If the policy has not acted yet, its first call compares them.

        Raises:
          ConfigError: the policy can choose actions that the environment does not have; the error
            names the line.
        """
        self._outputs.expect(spaces)

    def get_state(self) -> dict[str, Any]:
        """Returns the state of the random generator, which `act` changes."""
        return {"generator": dict(self._random.bit_generator.state)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` returned."""
        self._random.bit_generator.state = state["generator"]

    def act(
        self,
        inputs: Arrays,
        states: Arrays,
        exploit: bool = False,
        ranks: np.ndarray | None = None,
        rated: bool = True,
    ) -> Prediction:
        """Chooses actions for `[B, ...]` inputs and states; the best ones if `exploit`.

        Args:
          inputs: by name.
          states: the memory, by name.
          exploit: whether to choose the best actions.
          ranks: `[B] float32`, entry "rank" of `explore`; None: zeros.
          rated: see `Request`.

        Returns:
          Actions and next memory by name, `[B, ...]`; the log-probability of all actions of a row
          together, `[B] float32`; and the version of the values.

        Raises:
          ConfigError: the prediction is NaN, because the policy reads variables that `Model.acting`
            does not name, or computes NaN; not checked after a call that has passed, nor with
            `whole`, nor if `acting` is empty. Or the first result of the policy is not as in
            `Model.policy`, or does not fit the spaces of `expect_actions`.
        """
        version = self._bind_newest()
        if self._exploration.names:
            explore = self._exploration.compute(self.global_t, _count_rows(inputs), ranks)
            result = self.model.policy(inputs, states, explore)
        else:
            result = self.model.policy(inputs, states)
        if not self._outputs.are_known:
            self._outputs.learn(result)
        distributions, next_states = result
        if exploit and not rated and self._subset.is_valid:
            best = {name: distribution.mode() for name, distribution in distributions.items()}
            unrated = np.zeros(_count_rows(inputs), np.float32)
            return Prediction(best, next_states, unrated, version)
        actions, log_prob = self._choose(distributions, exploit)
        prediction = Prediction(actions, next_states, log_prob, version)
        self._subset.validate(prediction)
        return prediction

    def _choose(self, distributions: Any, exploit: bool) -> tuple[dict[str, np.ndarray], Any]:
        """Returns actions, and the log-probability of all of a row together."""
        actions: dict[str, np.ndarray] = {}
        log_prob: Any = 0.0
        for name, distribution in distributions.items():
            if exploit:
                action = distribution.mode()
                part = distribution.log_prob(action)
            else:
                action, part = distribution.sample_with_log_prob(self._random)
            actions[name] = action
            log_prob = log_prob + part
        return actions, log_prob

    def value(self, inputs: Arrays, states: Arrays) -> np.ndarray:
        """Returns V, `[B] float32`, for `[B, ...]` inputs and the memory before them.

        The model must have a method `value`, like `ActorCritic`.
        """
        self._bind_newest()
        return self.model.value(inputs, states)  # type: ignore[attr-defined]

    def _bind_newest(self) -> int:
        """Makes the layers compute with the newest values; returns their version."""
        given = self._given
        if given is not self._bound:
            self._bind(given[0])
            self._bound = given
        return given[1]

    def _bind(self, values: Sequence[np.ndarray]) -> None:
        arrays = dict(zip(self._names, self._subset.mask(values), strict=True))
        for layer in self._layers:
            layer.arrays = {k: arrays[get_name(v)] for k, v in layer.get_variables().items()}


class CompiledActor:
    """Runs a model's policy as one compiled TensorFlow call, padded to powers of two.

    The padding keeps the number of compiled batch sizes small. Thread-safe.

    For the attributes, the arguments and the errors, see `NumpyActor`.
    """

    def __init__(self, model: Model, seed: int, config: Any = None, whole: bool = False):
        from relaax_like.algorithm.random import make_generator

        self.model = model
        self.global_t = 0
        self._subset = _Subset(model, whole)
        self._outputs = PolicyOutputs(model)
        self._exploration = Exploration(model, config)
        self.explores = bool(self._exploration.names)
        self._generator = make_generator(seed)
        self._inputs = to_tensor_specs(model.get_input_specs())
        self._states = to_tensor_specs(model.get_state_specs())
        self._variables = order_variables(model)
        self._lock = model.lock  # guards the variables and _version
        self._version = 0
        self._functions: dict[bool | str, Any] = {}
        self._names: tuple[list[str], list[str]] = ([], [])

    def set_values(self, values: Sequence[np.ndarray], version: int) -> None:
        """Sets the values of all variables, in manifest order, and their version."""
        with self._lock:
            for variable, value in zip(self._variables, self._subset.mask(values), strict=True):
                variable.assign(value)
            self._version = version

    def expect_actions(self, spaces: Spaces) -> None:
        """Compares the policy's outputs with the action spaces; see `NumpyActor`."""
        self._outputs.expect(spaces)

    def get_state(self) -> dict[str, Any]:
        """Returns the state of the random generator, which `act` changes."""
        return {"generator": self._generator.state.numpy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` returned."""
        self._generator.state.assign(state["generator"])

    def act(
        self,
        inputs: Arrays,
        states: Arrays,
        exploit: bool = False,
        ranks: np.ndarray | None = None,
        rated: bool = True,
    ) -> Prediction:
        """Chooses actions for `[B, ...]` inputs and states; see `NumpyActor.act`.

        Raises:
          ConfigError: see `NumpyActor.act`, `trace_policy` and `CompiledFunction`; or the policy
            fails while it is traced; the error names the line.
        """
        explore = self._exploration.compute(self.global_t, _count_rows(inputs), ranks)
        arrays = [*_take(inputs, self._inputs), *_take(states, self._states), *explore.values()]
        results, version = self._call(exploit, lambda: self._compile_policy(exploit), arrays)
        actions, next_states = self._names
        prediction = Prediction(
            dict(zip(actions, results, strict=False)),
            dict(zip(next_states, results[len(actions) :], strict=False)),
            results[-1],
            version,
        )
        self._subset.validate(prediction)
        return prediction

    def value(self, inputs: Arrays, states: Arrays) -> np.ndarray:
        """Returns V; see `NumpyActor.value`. The actor must have been made with `whole`.

        Raises:
          ConfigError: see `trace_policy` and `CompiledFunction`; or `value` fails while it is
            traced; the error names the line.
        """
        specs = to_tensor_specs(get_learning_specs(self.model))
        arrays = [*_take(inputs, specs), *_take(states, self._states)]

        def flat(*tensors: tf.Tensor) -> list[tf.Tensor]:
            given = dict(zip(specs, tensors, strict=False))
            memory = dict(zip(self._states, tensors[len(specs) :], strict=True))
            return [self.model.value(given, memory)]  # type: ignore[attr-defined]

        signature = [*specs.values(), *self._states.values()]
        parts = [
            self._call(
                "value",
                lambda: self._compile(flat, signature, "value"),
                [array[start : start + _VALUE_ROWS] for array in arrays],
            )[0][0]
            for start in range(0, len(arrays[0]), _VALUE_ROWS)
        ]
        return np.concatenate(parts)

    def _call(
        self, name: bool | str, compile_it: Callable[[], Any], arrays: Sequence[np.ndarray]
    ) -> tuple[list[np.ndarray], int]:
        """Calls a function, which is compiled once; returns its results and the values' version."""
        rows = len(arrays[0])
        padding = (1 << (rows - 1).bit_length()) - rows
        tensors = [tf.constant(_pad(array, padding)) for array in arrays]
        with self._lock:
            if name not in self._functions:
                self._functions[name] = compile_it()
            return [t.numpy()[:rows] for t in self._functions[name](*tensors)], self._version

    def _compile_policy(self, exploit: bool) -> Any:
        names = self._exploration.names
        rows = [tf.TensorSpec([None], tf.float32) for _ in names]
        specs = [*self._inputs.values(), *self._states.values(), *rows]

        def flat(*tensors: tf.Tensor) -> list[tf.Tensor]:
            rest = iter(tensors)
            inputs = {name: next(rest) for name in self._inputs}
            states = {name: next(rest) for name in self._states}
            explore = {name: next(rest) for name in names}
            return self._trace(inputs, states, [explore] if explore else [], exploit)

        return self._compile(flat, specs, "policy")

    def _compile(self, flat: Callable[..., Any], specs: Sequence[Any], method: str) -> Any:
        xla = self.model.xla
        function = trace_policy(self.model, flat, method, input_signature=specs, jit_compile=xla)
        trace = functools.partial(self._locate, functools.partial(make_concrete, function), method)
        return CompiledFunction(trace) if xla else trace()

    def _locate(self, trace: Callable[[], Any], method: str) -> Any:
        """Calls a function that traces a method of the model.

        Raises:
          ConfigError: the method fails; the error names the line.
        """
        try:
            return trace()
        except ConfigError:
            raise
        except Exception as error:
            kind = type(self.model)
            what = describe_error(error, find_folder(kind), describe_place(kind, method))
            raise ConfigError(what) from error

    def _trace(
        self, inputs: Any, states: Any, explore: list[Any], exploit: bool
    ) -> list[tf.Tensor]:
        result = self.model.policy(inputs, states, *explore)
        # AutoGraph would take time to convert it.
        tf.autograph.experimental.do_not_convert(self._outputs.learn)(result)
        distributions, next_states = result
        actions, log_prob = {}, 0.0
        for name, distribution in distributions.items():
            action = distribution.mode() if exploit else distribution.sample(self._generator)
            actions[name] = action
            log_prob += distribution.log_prob(action)
        self._names = (list(actions), list(next_states))
        return [*actions.values(), *next_states.values(), log_prob]


def trace_policy(
    model: Model, function: Callable[..., Any], method: str = "policy", **options: Any
) -> Any:
    """Returns a `tf.function` of a function that runs a model's policy; see `Model.autograph`.

    Args:
      model: whose policy is run.
      function: the function to trace.
      method: of the model, that is run instead of its policy.
      options: of `tf.function`.

    Raises:
      ConfigError: raised while the function is traced, if an `if`, a loop or an unpacking in the
        policy depends on the value of a tensor, but `autograph` is False; the error names the line.
    """

    def trace(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except tf.errors.OperatorNotAllowedInGraphError as error:
            raise ConfigError(
                f"{describe_place(type(model), method)}: an `if`, a loop or an unpacking "
                "depends on the value of a tensor, but autograph is False; "
                f"{describe_assignment(model, 'autograph', True)}, or use tf.where; to unpack a "
                "tensor, use tf.unstack"
            ) from error

    return tf.function(function if model.autograph else trace, autograph=model.autograph, **options)


class _Subset:
    """The variables that a policy is allowed to read: `Model.acting`. Others are NaN while it acts.

    So if the subset lacks a variable that the policy reads, the first prediction is refused,
    wherever the agents run; they never act with values that they did not receive.
    """

    def __init__(self, model: Model, whole: bool = False):
        self._model = model
        names = None if whole else get_acting_names(model)
        # In manifest order; None: the variable's own value.
        self._masks: list[np.ndarray | None] = []
        if names is not None:
            self._masks = [
                None if v.name in names else _make_nan(v.value) for v in get_variables(model)
            ]
        self.is_valid = names is None

    def mask(self, values: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Returns the values, with NaN for all variables that are not in the subset."""
        if not self._masks:
            return values
        pairs = zip(values, self._masks, strict=True)
        return [value if mask is None else mask for value, mask in pairs]

    def validate(self, prediction: Prediction) -> None:
        """Checks predictions until one has passed.

        Raises:
          ConfigError: a number is NaN; the policy has probably read a variable that is not in the
            subset.
        """
        if self.is_valid:
            return
        if _has_nan(prediction):
            model = self._model
            raise ConfigError(
                f"{describe_attribute(model, 'acting')}: `acting` is {tuple(model.acting)}, but "
                "`policy` reads variables of other attributes, or it computes NaN by itself (the "
                "first prediction is NaN); add these attributes to `acting`, or correct `policy`"
            )
        self.is_valid = True


Actor = NumpyActor | CompiledActor


def make_actor(model: Model, seed: int, config: Any = None, whole: bool = False) -> Actor:
    """Returns the fastest actor for a model; for the arguments, see `NumpyActor`.

    A model whose `policy` returns NumPy results for arrays, because it consists of our layers
    without convolutions, acts in NumPy; any other is compiled.

    Raises:
      ConfigError: see `NumpyActor`; or `Model.acting` lacks an attribute that `policy` reads: for
        zeros, the prediction is NaN in NumPy, but not with all variables.
      Exception: another error of `policy`, unless it could be due to NumPy arrays as inputs.
    """
    actor = NumpyActor(model, seed, config, whole)
    zeros = _make_zeros(model.get_input_specs()), _make_zeros(model.get_state_specs())
    try:
        prediction = actor.act(*zeros)
    except ConfigError:  # also a ValueError
        # Some policies are NaN for zeros with all variables, and for no real observation.
        prediction = NumpyActor(model, seed, config, whole=True).act(*zeros)
        if not _has_nan(prediction):
            raise
    except (AttributeError, TypeError, ValueError, tf.errors.OpError):
        return CompiledActor(model, seed, config, whole)
    arrays = [*prediction.actions.values(), *prediction.next_states.values(), prediction.log_prob]
    if all(isinstance(array, np.ndarray) for array in arrays):
        return actor
    return CompiledActor(model, seed, config, whole)


def _make_nan(value: np.ndarray) -> np.ndarray:
    """Returns NaN in the place of a value; zeros for integers, which can only be constants."""
    return np.full_like(value, np.nan if value.dtype.kind in "fV" else 0)


def _has_nan(prediction: Prediction) -> bool:
    parts = [*prediction.actions.values(), *prediction.next_states.values(), prediction.log_prob]
    return any(bool(np.isnan(np.asarray(part)).any()) for part in parts)


def _count_rows(inputs: Arrays) -> int:
    return len(next(iter(inputs.values())))


def _make_zeros(specs: Specs) -> dict[str, np.ndarray]:
    return {k: np.zeros((1, *p["shape"]), p.get("dtype", "float32")) for k, p in specs}


def to_tensor_specs(specs: Specs) -> dict[str, tf.TensorSpec]:
    """Returns name -> spec of tensors `[None, ...]`, for specs of a model."""
    return {
        name: tf.TensorSpec(
            [None, *props["shape"]],
            props.get("dtype", "float32"),
            name.replace(":", "_"),  # that of a mask; else TensorFlow warns
        )
        for name, props in specs
    }


def _take(arrays: Arrays, specs: Mapping[str, tf.TensorSpec]) -> list[np.ndarray]:
    return [np.asarray(arrays[name], s.dtype.as_numpy_dtype) for name, s in specs.items()]


def _pad(array: np.ndarray, rows: int) -> np.ndarray:
    if not rows:
        return array
    return np.concatenate([array, np.zeros((rows, *array.shape[1:]), array.dtype)])
