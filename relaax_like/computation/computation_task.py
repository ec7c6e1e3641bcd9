"""ComputationTask: NumPy in, NumPy out; TensorFlow stays inside."""

import collections
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from relaax_like.bridge.manifest import Variable
from relaax_like.computation.algorithm import Algorithm
from relaax_like.computation.model import (
    Specs,
    get_normalizers,
    get_trainable_variables,
    get_variables,
    order_variables,
)
from relaax_like.computation.prediction import LOG_PROB
from relaax_like.wire.errors import InvalidInputError

Arrays = Mapping[str, np.ndarray]
# A gradient that is compiled for one shape takes half the time of one for all shapes, and a second
# to compile: shapes that have come so often are worth it, up to so many.
_WORTH_COMPILING = 20
_MAX_COMPILED = 16


class ComputationTask:
    """Runs one Algorithm for agents that know nothing of TensorFlow.

        task = ComputationTask(PolicyGradient(PolicyModel(config)))
        task.set_values(parameter_server.get_values())
        actions, _ = task.predict({"observation": observations})  # [B, 4] -> [B]
        gradients, costs = task.compute_gradients(...)
        task.set_values(parameter_server.push_pull(gradients))

    Not thread-safe; each agent has its own, or they take turns.
    """

    def __init__(self, algorithm: Algorithm):
        self._algorithm = algorithm
        model = algorithm.model
        self._input_specs = _to_signatures(model.get_input_specs())
        self._state_specs = _to_signatures(model.get_state_specs())
        self._action_specs = _to_signatures(model.get_action_specs())
        self._log_prob_spec = {LOG_PROB: tf.TensorSpec([None], tf.float32)}
        self._reward_specs = _to_signatures(model.get_reward_specs())
        self._alive_spec = {"alive": tf.TensorSpec([None], tf.float32)}
        self._fixed_axes = {
            part: {name: len(spec.shape) - 1 for name, spec in specs.items()}
            for part, specs in (
                ("inputs", self._input_specs),
                ("next_inputs", self._input_specs),
                ("states", self._state_specs),
                ("next_states", self._state_specs),
                ("next_alive", {}),
                ("actions", self._action_specs),
                ("next_actions", self._action_specs),
                ("rewards", self._reward_specs),
            )
        }
        self._trainable = get_trainable_variables(model)
        self._variables = order_variables(model)
        self._groups = [model.get_group(variable) for variable in self._trainable]
        # Guards the variables: no prediction sees half of a new set of values.
        self._lock = algorithm.lock
        self._compiled: dict[str, Callable[[list[tf.Tensor]], Any]] = {}
        self._gradients: dict[Any, Callable[..., Any]] = {}
        self._seen: collections.Counter[Any] = collections.Counter()
        self._assign = self._compile_assign()

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the model's inputs, without the batch axis."""
        return {name: tuple(spec.shape[1:]) for name, spec in self._input_specs.items()}

    @property
    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the model's memory, without the batch axis."""
        return {name: tuple(spec.shape[1:]) for name, spec in self._state_specs.items()}

    @property
    def statistics(self) -> tuple[str, ...]:
        """Inputs whose running statistics the model normalises with; each names its statistic."""
        return tuple(n.statistic for n in get_normalizers(self._algorithm.model))

    def get_variables(self) -> list[Variable]:
        """Returns the model's variables with their present values, in manifest order."""
        return get_variables(self._algorithm.model)

    def set_values(self, values: Sequence[np.ndarray]) -> None:
        """Sets all variables, in manifest order."""
        tensors = [
            tf.constant(value, v.dtype) for v, value in zip(self._variables, values, strict=True)
        ]
        with self._lock:
            self._assign(*tensors)

    def predict(
        self, inputs: Arrays, states: Arrays | None = None, exploit: bool = False
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Chooses actions for a batch.

        Args:
          inputs: by name, `[B, ...]`; those that no input spec names are left out.
          states: by name, `[B, ...]`; needed when the model has state specs.
          exploit: the best action instead of a drawn one.

        Returns:
          Actions and next states by name, `[B, ...]`.
        """
        tensors = [
            *_select(inputs, self._input_specs, "inputs").values(),
            *_select(states, self._state_specs, "states").values(),
        ]
        name = "exploit" if exploit else "predict"
        if name not in self._compiled:
            self._compiled[name] = self._compile(getattr(self._algorithm, name))
        with self._lock:
            return self._compiled[name](tensors)

    def compute_gradients(
        self,
        inputs: Arrays,
        next_inputs: Arrays,
        next_alive: Arrays,
        rewards: Arrays,
        actions: Arrays,
        next_actions: Arrays | None = None,
        states: Arrays | None = None,
        next_states: Arrays | None = None,
    ) -> tuple[list[np.ndarray], dict[str, float]]:
        """Computes the gradient of the costs that `Algorithm.learn` returns.

        A cost that bears the name of a variable group reaches that group alone; all others are
        added up and reach all groups.

        Args:
          inputs: observations at t, by name, `[B, ...]`.
          next_inputs: observations at t + 1.
          next_alive: `{"alive": [B, 1] float32}`: 1 goes on, 0 terminated, -1 cut off.
            All arrays but the states may have a time axis before the batch, `[T, B, ...]`, if the
            algorithm wants whole rollouts.
          rewards: by name, `[B, r] float32`.
          actions: by name, `[B, ...]`; with an entry `log_prob`, `[B] float32`, where the algorithm
            uses what they had under the policy that acted.
          next_actions: actions at t + 1, where the algorithm uses them.
          states: memory at t, where the model has one.
          next_states: memory at t + 1.

        Returns:
          One float32 array per trainable variable, in manifest order; and the costs by name.
        """
        action_specs = self._action_specs
        if LOG_PROB in actions:
            action_specs = {**action_specs, **self._log_prob_spec}
        batch = {
            "inputs": _select(inputs, self._input_specs, "inputs", any_axes=True),
            "next_inputs": _select(next_inputs, self._input_specs, "next_inputs", any_axes=True),
            "states": _select(states, self._state_specs, "states"),
            "next_states": {},
            "next_alive": _select(next_alive, self._alive_spec, "next_alive", any_axes=True),
            "actions": _select(actions, action_specs, "actions", any_axes=True),
            "next_actions": {},
            "rewards": _select(rewards, self._reward_specs, "rewards", any_axes=True),
        }
        if next_states:
            batch["next_states"] = _select(next_states, self._state_specs, "next_states")
        if next_actions is not None:
            batch["next_actions"] = _select(
                next_actions, self._action_specs, "next_actions", any_axes=True
            )
        tensors = [tensor for part in batch.values() for tensor in part.values()]
        return self._get_gradients(batch, tensors)(tensors)

    def _get_gradients(
        self, batch: Mapping[str, Any], tensors: Sequence[tf.Tensor]
    ) -> Callable[[list[tf.Tensor]], Any]:
        key: Any = tuple(tuple(tensor.shape) for tensor in tensors)
        if key not in self._gradients and self._algorithm.model.xla:
            self._seen[key] += 1
            if self._seen[key] == _WORTH_COMPILING and len(self._gradients) < _MAX_COMPILED:
                specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
                self._gradients[key] = self._compile_gradients(batch, specs, xla=True)
            if len(self._seen) > 10_000:  # lengths that hardly ever come again
                self._seen.clear()
        if key not in self._gradients:
            key = tuple(len(shape) for shape in key)
        if key not in self._gradients:
            # Only what the model's specs say is fixed.
            specs = []
            for part, parts in batch.items():
                for name, tensor in parts.items():
                    fixed = self._fixed_axes[part].get(name, 0)
                    free = [None] * (len(tensor.shape) - fixed)
                    shape = free + tensor.shape.as_list()[len(free) :]
                    specs.append(tf.TensorSpec(shape, tensor.dtype))
            self._gradients[key] = self._compile_gradients(batch, specs, xla=False)
        return self._gradients[key]

    def _compile(self, method: Callable[..., Any]) -> Callable[[list[tf.Tensor]], Any]:
        """Returns one compiled call of `algorithm.predict` or its like, on a flat list of tensors.

        A concrete function takes a third of the time of the `tf.function` that it comes from: there
        is no Python signature to match at each call.
        """
        specs = [*self._input_specs.values(), *self._state_specs.values()]
        names: list[list[str]] = []

        def flat(*tensors: tf.Tensor) -> list[tf.Tensor]:
            inputs = dict(zip(self._input_specs, tensors, strict=False))
            states = dict(zip(self._state_specs, tensors[len(inputs) :], strict=True))
            results = method(inputs, states)
            names[:] = [list(result) for result in results]
            return [tensor for result in results for tensor in result.values()]

        xla = self._algorithm.model.xla
        function = tf.function(flat, input_signature=specs, jit_compile=xla)
        concrete = function.get_concrete_function()

        def call(tensors: list[tf.Tensor]) -> Any:
            arrays = iter(concrete(*tensors))
            return tuple({name: next(arrays).numpy() for name in group} for group in names)

        return call

    def _compile_assign(self) -> Callable[..., Any]:
        """Returns one call that sets all variables: it costs less than a call for each."""

        def assign(*values: tf.Tensor) -> None:
            for variable, value in zip(self._variables, values, strict=True):
                variable.assign(value)

        specs = [tf.TensorSpec(v.shape, v.dtype) for v in self._variables]
        return tf.function(assign, input_signature=specs).get_concrete_function()

    def _compile_gradients(
        self, batch: Mapping[str, Any], specs: Sequence[tf.TensorSpec], xla: bool
    ) -> Callable[[list[tf.Tensor]], Any]:
        """Returns one compiled call from a batch with these names to gradients and costs.

        Both come out as one array each: every array that crosses the border costs as much as a
        small layer.
        """
        names: list[str] = []

        def flat(*tensors: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            rest = iter(tensors)
            parts = {part: {name: next(rest) for name in batch[part]} for part in batch}
            gradients, costs = self._trace_gradients(parts)
            names[:] = costs
            vector = tf.concat([tf.reshape(gradient, [-1]) for gradient in gradients], 0)
            return vector, tf.stack([tf.cast(cost, tf.float32) for cost in costs.values()])

        function = tf.function(flat, input_signature=specs, jit_compile=xla)
        concrete = function.get_concrete_function()
        shapes = [tuple(variable.shape) for variable in self._trainable]
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])

        def call(tensors: list[tf.Tensor]) -> tuple[list[np.ndarray], dict[str, float]]:
            vector, costs = concrete(*tensors)
            parts = np.split(vector.numpy(), ends[:-1])
            gradients = [part.reshape(s) for part, s in zip(parts, shapes, strict=True)]
            return gradients, dict(zip(names, costs.numpy().tolist(), strict=True))

        return call

    def _trace_gradients(self, batch: Mapping[str, Any]) -> tuple[list[tf.Tensor], dict[str, Any]]:
        groups: dict[str, list[tf.Variable]] = {}  # in manifest order
        for variable, group in zip(self._trainable, self._groups, strict=True):
            groups.setdefault(group, []).append(variable)
        with contextlib.ExitStack() as stack:
            # One tape per group: XLA cannot follow loops on a tape that is asked more than once.
            tapes = {g: tf.GradientTape(watch_accessed_variables=False) for g in groups}
            for group, tape in tapes.items():
                stack.enter_context(tape).watch(groups[group])
            costs = dict(self._algorithm.learn(**batch))
            common = [cost for name, cost in costs.items() if name not in groups]
            totals = {g: tf.add_n([*common, *([costs[g]] if g in costs else [])]) for g in groups}
        gradients: list[tf.Tensor] = []
        for group, tape in tapes.items():
            gradients += tape.gradient(totals[group], groups[group], unconnected_gradients="zero")
        clip = self._algorithm.max_gradient_norm
        if clip is not None:
            gradients, norm = tf.clip_by_global_norm(gradients, clip)
            costs["gradient norm"] = norm
        return gradients, costs


def _to_signatures(specs: Specs) -> dict[str, tf.TensorSpec]:
    return {
        name: tf.TensorSpec([None, *props["shape"]], props.get("dtype", "float32"), name)
        for name, props in specs
    }


def _select(
    arrays: Arrays | None,
    specs: Mapping[str, tf.TensorSpec],
    field: str,
    any_axes: bool = False,
) -> dict[str, tf.Tensor]:
    tensors = {}
    for name, spec in specs.items():
        if arrays is None or name not in arrays:
            raise InvalidInputError(
                f"{field}: {name} is missing, the model's specs name {', '.join(specs)}", name
            )
        array = np.asarray(arrays[name], spec.dtype.as_numpy_dtype)
        tail = array.shape[array.ndim - len(spec.shape) + 1 :] if any_axes else array.shape[1:]
        if array.ndim < len(spec.shape) or tail != tuple(spec.shape[1:]):
            raise InvalidInputError(
                f"{field}[{name}]: shape {list(array.shape)}, the model's specs say {spec.shape}",
                name,
            )
        tensors[name] = tf.constant(array)
    return tensors
