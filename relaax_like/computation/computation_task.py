"""ComputationTask: NumPy in, NumPy out; TensorFlow stays inside."""

import collections
import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from relaax_like.bridge.manifest import Variable
from relaax_like.computation.algorithm import Algorithm
from relaax_like.computation.model import (
    Specs,
    Tensors,
    get_normalizers,
    get_trainable_variables,
    get_variables,
    order_variables,
)
from relaax_like.computation.prediction import LOG_PROB
from relaax_like.nn.module import get_name
from relaax_like.wire.errors import InvalidInputError

Arrays = Mapping[str, np.ndarray]
# The arguments of `Algorithm.learn`, by name.
Batch = Mapping[str, Mapping[str, tf.Tensor]]
CompileForm = Callable[[Batch, Sequence[tf.TensorSpec], bool], Callable[..., Any]]
# A gradient that is compiled for one shape takes half the time of one for all shapes, and a second
# to compile: shapes that have come so often are worth it, up to so many.
_WORTH_COMPILING = 100
_MAX_COMPILED = 16
_COMPILER_NICE = 10
# Beside the costs where gradients are clipped: the norm before that.
GRADIENT_NORM = "gradient norm"


class ComputationTask:
    """Runs one Algorithm for agents that know nothing of TensorFlow.

        task = ComputationTask(PolicyGradient(PolicyModel(config)))
        task.set_values(parameter_server.get_values())
        actions, _ = task.predict({"observation": observations})  # [B, 4] -> [B]
        gradients, costs = task.compute_gradients(...)
        task.set_values(parameter_server.push_pull(gradients))

    Not thread-safe; each agent has its own, or they take turns.

    Args:
      algorithm: what to predict and learn.
      compile_in_background: gradients of a shape that comes often get a quicker form,
        whose compiling takes a second: True goes on meanwhile. When the form is there then depends
        on the clock, and with it the last digits: not for runs that are to be repeatable.
    """

    def __init__(self, algorithm: Algorithm, *, compile_in_background: bool = False):
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
        self._groups = [model.get_group(get_name(variable)) for variable in self._trainable]
        # Guards the variables: no prediction sees half of a new set of values.
        self._lock = model.lock
        self._compiled: dict[str, Callable[[list[tf.Tensor]], Any]] = {}
        self._compiled_for_batch: dict[Any, Callable[..., Any]] = {}
        self._seen: collections.Counter[Any] = collections.Counter()
        self._compile_in_background = compile_in_background
        self._compiling = threading.Lock()
        self._compilers: list[threading.Thread] = []
        self._closing = False
        self._variables_by_dtype: dict[tf.DType, list[tf.Variable]] = {}
        for variable in self._variables:
            self._variables_by_dtype.setdefault(variable.dtype, []).append(variable)
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

    def get_seen(self) -> list[list[Any]]:
        """Returns the forms and shapes that have come, and how often: what was compiled for them.

        A gradient that is compiled for its shape may differ in the last bit from one that is not.
        """
        return [[list(key), count] for key, count in self._seen.items()]

    def set_seen(self, seen: Sequence[Sequence[Any]]) -> None:
        """Has the same shapes compiled as where `get_seen` was called, when they come next."""
        for key, count in seen:
            form, *shapes = key
            self._seen[(form, *map(tuple, shapes))] = min(count, _WORTH_COMPILING - 1)

    def get_variables(self) -> list[Variable]:
        """Returns the model's variables with their present values, in manifest order."""
        return get_variables(self._algorithm.model)

    def set_values(self, values: Sequence[np.ndarray]) -> None:
        """Sets all variables, in manifest order."""
        by_dtype: dict[tf.DType, list[np.ndarray]] = {
            dtype: [] for dtype in self._variables_by_dtype
        }
        for variable, value in zip(self._variables, values, strict=True):
            if value.shape != tuple(variable.shape):
                raise InvalidInputError(
                    f"{variable.name}: shape {list(value.shape)}, expected {variable.shape}"
                )
            by_dtype[variable.dtype].append(value.reshape(-1))
        vectors = [tf.constant(np.concatenate(parts), d) for d, parts in by_dtype.items()]
        with self._lock:
            self._assign(*vectors)

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
        extras: Arrays | None = None,
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
          extras: what no spec names but the algorithm uses, float32, the same first axes.

        Returns:
          One float32 array per trainable variable, in manifest order; and the costs by name.
        """
        batch = self._make_batch(
            inputs,
            next_inputs,
            next_alive,
            rewards,
            actions,
            next_actions,
            states,
            next_states,
            extras,
        )
        return self._get_compiled("gradients", batch, self._compile_gradients)(flatten(batch))

    def _make_batch(
        self,
        inputs: Arrays,
        next_inputs: Arrays,
        next_alive: Arrays,
        rewards: Arrays,
        actions: Arrays,
        next_actions: Arrays | None = None,
        states: Arrays | None = None,
        next_states: Arrays | None = None,
        extras: Arrays | None = None,
    ) -> Batch:
        """Returns the arguments of `Algorithm.learn`, checked; see `compute_gradients`."""
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
        if extras:
            batch["extras"] = {
                name: tf.constant(array, tf.float32) for name, array in extras.items()
            }
        return batch

    def _count_leading_axes(self, batch: Batch) -> int:
        """Returns 1 for a batch `[B, ...]`, 2 for rollouts `[T, k, ...]`."""
        name, tensor = next(iter(batch["inputs"].items()))
        return len(tensor.shape) - self._fixed_axes["inputs"][name]

    def _get_compiled(
        self, form: Any, batch: Batch, compile_form: CompileForm, worth: int = _WORTH_COMPILING
    ) -> Callable[..., Any]:
        """Returns what `compile_form` made for batches like this one.

        Args:
          form: names it.
          batch: of `_make_batch`.
          compile_form: called with batch, signatures of its tensors, and whether XLA compiles it.
          worth: how often a shape must have come to be compiled for it alone.
        """
        tensors = flatten(batch)
        key: Any = (form, *(tuple(tensor.shape) for tensor in tensors))
        if key not in self._compiled_for_batch and self._algorithm.model.xla:
            self._seen[key] += 1
            if self._seen[key] == worth and len(self._compiled_for_batch) < _MAX_COMPILED:
                specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
                if self._compile_in_background:
                    self._start_compiling(key, lambda: compile_form(batch, specs, True), tensors)
                else:
                    self._compiled_for_batch[key] = compile_form(batch, specs, True)
            if len(self._seen) > 10_000:  # lengths that hardly ever come again
                self._seen.clear()
        if key not in self._compiled_for_batch:
            key = (form, *(len(shape) for shape in key[1:]))
        if key not in self._compiled_for_batch:
            # Only what the model's specs say is fixed.
            specs = []
            leading = self._count_leading_axes(batch)
            for part, parts in batch.items():
                for name, tensor in parts.items():
                    if part == "extras":
                        free = [None] * leading
                    else:
                        fixed = self._fixed_axes[part].get(name, 0)
                        free = [None] * (len(tensor.shape) - fixed)
                    shape = free + tensor.shape.as_list()[len(free) :]
                    specs.append(tf.TensorSpec(shape, tensor.dtype))
            self._compiled_for_batch[key] = compile_form(batch, specs, False)
        return self._compiled_for_batch[key]

    def _start_compiling(
        self, key: Any, compile_form: Callable[[], Callable[..., Any]], tensors: list[tf.Tensor]
    ) -> None:
        def compile_and_try() -> None:
            with self._compiling:  # one after another: agents need the processor, too
                if self._closing:
                    return
                form = compile_form()
                if hasattr(os, "setpriority"):  # from here on it takes what others leave it
                    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _COMPILER_NICE)
                form(tensors)  # the first call compiles; nobody looks at what it computes
                self._compiled_for_batch[key] = form

        self._compilers = [thread for thread in self._compilers if thread.is_alive()]
        self._compilers.append(
            threading.Thread(target=compile_and_try, name="compiling", daemon=True)
        )
        self._compilers[-1].start()

    def close(self) -> None:
        """Waits for what is being compiled: a process must not end in the middle of it."""
        self._closing = True
        for thread in self._compilers:
            thread.join()

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
        function = self._trace(flat, specs, xla)
        concrete = function.get_concrete_function()

        def call(tensors: list[tf.Tensor]) -> Any:
            arrays = iter(concrete(*tensors))
            return tuple({name: next(arrays).numpy() for name in group} for group in names)

        return call

    def _compile_assign(self) -> Callable[..., Any]:
        """Returns one call that sets all variables, from one flat vector for each dtype.

        What crosses the border costs by the array: so it takes a third of the time.
        """
        by_dtype = self._variables_by_dtype

        def assign(*vectors: tf.Tensor) -> None:
            for variables, vector in zip(by_dtype.values(), vectors, strict=True):
                parts = tf.split(vector, [variable.shape.num_elements() for variable in variables])
                for variable, part in zip(variables, parts, strict=True):
                    variable.assign(tf.reshape(part, variable.shape))

        specs = [tf.TensorSpec([None], dtype) for dtype in by_dtype]
        return tf.function(assign, input_signature=specs).get_concrete_function()

    def _compile_gradients(
        self, batch: Batch, specs: Sequence[tf.TensorSpec], xla: bool
    ) -> Callable[[list[tf.Tensor]], Any]:
        """Returns one compiled call from a batch with these names to gradients and costs.

        Both come out as one array each: every array that crosses the border costs as much as a
        small layer.
        """
        names: list[str] = []

        def flat(*tensors: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            gradients, costs = self._trace_gradients(self._prepare(unflatten(batch, tensors)))
            names[:] = costs
            vector = tf.concat([tf.reshape(gradient, [-1]) for gradient in gradients], 0)
            return vector, tf.stack([tf.cast(cost, tf.float32) for cost in costs.values()])

        function = self._trace(flat, specs, xla)
        concrete = function.get_concrete_function()
        shapes = [tuple(variable.shape) for variable in self._trainable]
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])

        def call(tensors: list[tf.Tensor]) -> tuple[list[np.ndarray], dict[str, float]]:
            vector, costs = concrete(*tensors)
            parts = np.split(vector.numpy(), ends[:-1])
            gradients = [part.reshape(s) for part, s in zip(parts, shapes, strict=True)]
            return gradients, dict(zip(names, costs.numpy().tolist(), strict=True))

        return call

    def _trace(
        self, function: Callable[..., Any], signature: Sequence[tf.TensorSpec], xla: bool = False
    ) -> Any:
        return tf.function(
            function,
            input_signature=signature,
            jit_compile=xla,
            autograph=self._algorithm.autograph,
        )

    def _prepare(self, batch: Batch) -> Batch:
        """Adds what the algorithm computes once for a whole batch."""
        extras = self._algorithm.prepare(**batch)
        return {**batch, "extras": extras} if extras else batch

    def _trace_gradients(
        self, batch: Batch, only: str | None = None
    ) -> tuple[list[tf.Tensor], dict[str, Any]]:
        """Returns gradients of all variable groups, or of one, in manifest order; and the costs."""
        groups = self._group_variables()
        wanted = groups if only is None else {only: groups[only]}
        with contextlib.ExitStack() as stack:
            # One tape per group: XLA cannot follow loops on a tape that is asked more than once.
            tapes = {g: tf.GradientTape(watch_accessed_variables=False) for g in wanted}
            for group, tape in tapes.items():
                stack.enter_context(tape).watch(wanted[group])
            costs = dict(self._algorithm.learn(**batch))
            common = [cost for name, cost in costs.items() if name not in groups]
            _validate_costs(costs, common, wanted)
            totals = {g: tf.add_n([*common, *([costs[g]] if g in costs else [])]) for g in wanted}
        gradients: list[tf.Tensor] = []
        for group, tape in tapes.items():
            gradients += tape.gradient(totals[group], wanted[group], unconnected_gradients="zero")
        return self._clip(gradients, list(wanted), costs), costs

    def _clip(
        self, gradients: list[tf.Tensor], groups: Sequence[str], costs: dict[str, Any]
    ) -> list[tf.Tensor]:
        """Scales gradients down where the algorithm says so; adds the norms to the costs."""
        clip = self._algorithm.max_gradient_norm
        if clip is None:
            return gradients
        if not isinstance(clip, Mapping):
            gradients, costs[GRADIENT_NORM] = tf.clip_by_global_norm(gradients, clip)
            return gradients
        clipped: list[tf.Tensor] = []
        for group in groups:
            own = gradients[len(clipped) :][: len(self._group_variables()[group])]
            if clip.get(group) is not None:
                own, costs[f"{GRADIENT_NORM} {group}"] = tf.clip_by_global_norm(own, clip[group])
            clipped += own
        return clipped

    def _group_variables(self) -> dict[str, list[tf.Variable]]:
        """Returns the trainable variables of each group, in manifest order."""
        groups: dict[str, list[tf.Variable]] = {}
        for variable, group in zip(self._trainable, self._groups, strict=True):
            groups.setdefault(group, []).append(variable)
        return groups


def flatten(batch: Batch) -> list[tf.Tensor]:
    """Returns all tensors of a batch, one after another."""
    return [tensor for part in batch.values() for tensor in part.values()]


def unflatten(batch: Batch, tensors: Sequence[tf.Tensor]) -> Batch:
    """Returns tensors under the names that they have in a batch."""
    rest = iter(tensors)
    return {part: {name: next(rest) for name in parts} for part, parts in batch.items()}


def _validate_costs(costs: Tensors, common: Sequence[tf.Tensor], groups: Iterable[str]) -> None:
    missing = [group for group in groups if group not in costs and not common]
    if missing:
        # A ValueError comes out of a trace as it is.
        raise ValueError(
            f"no cost reaches variable group {missing[0]!r}: learn returned "
            f"{', '.join(costs) or 'none'}; return a cost of that name, or one that is not "
            "named after a group, which reaches all groups"
        )


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
                f"{field}: {name} is missing; the model's specs name {', '.join(specs)}", name
            )
        array = np.asarray(arrays[name], spec.dtype.as_numpy_dtype)
        tail = array.shape[array.ndim - len(spec.shape) + 1 :] if any_axes else array.shape[1:]
        if array.ndim < len(spec.shape) or tail != tuple(spec.shape[1:]):
            raise InvalidInputError(
                f"{field}[{name}]: shape {list(array.shape)}, but the model's specs say "
                f"{spec.shape}",
                name,
            )
        tensors[name] = tf.constant(array)
    return tensors
