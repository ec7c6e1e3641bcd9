"""CompiledAlgorithm: NumPy in, NumPy out, with TensorFlow hidden inside."""

import collections
import contextlib
import difflib
import functools
import logging
import math
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from relaax_like.algorithm.acting import to_tensor_specs
from relaax_like.algorithm.algorithm import Algorithm
from relaax_like.algorithm.batch import Batch, Losses, Reduction
from relaax_like.algorithm.exploration import Exploration
from relaax_like.algorithm.flare import FlareAlgorithm
from relaax_like.algorithm.model import (
    Tensors,
    get_buffers,
    get_learning_specs,
    get_normalizers,
    get_reward_columns,
    get_trainable_variables,
    get_variables,
    order_variables,
)
from relaax_like.algorithm.parts import (
    MASK,
    Parts,
    add_next_actions,
    flatten,
    make_batch,
    unflatten,
)
from relaax_like.algorithm.random import make_generator
from relaax_like.algorithm.tracing import Traced, TracedSettings, make_concrete
from relaax_like.config.places import (
    describe_assignment,
    describe_attribute,
    describe_error,
    describe_place,
    find_folder,
)
from relaax_like.config.plan import Unit, get_own_plan
from relaax_like.core.manifest import Variable, make_manifest
from relaax_like.core.moments import Moments
from relaax_like.core.prediction import LOG_PROB, ONLY_NAME
from relaax_like.experience.rollout import Rollout
from relaax_like.learn.minibatches import plan_cut
from relaax_like.nn.compiling import CompiledFunction, call_directly
from relaax_like.nn.device import uses_gpu
from relaax_like.nn.module import get_name
from relaax_like.nn.runtime import tf
from relaax_like.wire.errors import ConfigError, InvalidInputError, RelaaxError

logger = logging.getLogger(__name__)

Arrays = Mapping[str, np.ndarray]
CompileForm = Callable[[Parts, Sequence[tf.TensorSpec], bool], Callable[..., Any]]
# A gradient that is compiled for one shape takes half the time of one for all shapes, but a second
# to compile. A shape is compiled when it has occurred this many times, up to this many shapes.
_WORTH_COMPILING = 100
_MAX_COMPILED = 16
_COMPILER_NICE = 10
# Part of a batch of which only some rows or slots are learned from: their indices.
CHOSEN = "chosen"
# Name of a number returned with the costs if gradients are clipped: the norm before clipping.
GRADIENT_NORM = "gradient norm"


@dataclass(frozen=True)
class Gradient:
    """The gradient of a batch, or of one phase of a minibatch.

    Attributes:
      groups: variable groups to which it belongs, as in a push; (): all.
      flat: `[n] float32`, of the trainable variables of these groups, in manifest order; behind
        those of each group are the new values of its buffers. With several learners, this
        learner's part of it, before clipping: their sum is the gradient.
      shapes: of these variables.
      numbers: costs and metrics by name; with several learners, of their joint batch.
      rows: results of each row by name, with the leading axes of the batch, NaN for rows of no
        minibatch so far; {} if not requested.
      ends_update: whether no other phase of the update follows.
      is_last: whether no other gradient of the batch follows.
      sums: `[m] float64`, with several learners: sums over the rows of this one.
      compute_numbers: with several learners: returns `numbers` from the sums of all of them.
    """

    groups: tuple[str, ...]
    flat: np.ndarray
    shapes: Sequence[tuple[int, ...]]
    numbers: dict[str, float]
    rows: dict[str, np.ndarray]
    ends_update: bool = True
    is_last: bool = True
    sums: np.ndarray | None = None
    compute_numbers: Callable[[np.ndarray], dict[str, float]] | None = None

    @property
    def arrays(self) -> list[np.ndarray]:
        """One array per variable: views of `flat`."""
        arrays, end = [], 0
        for shape in self.shapes:
            start, end = end, end + math.prod(shape)
            arrays.append(self.flat[start:end].reshape(shape))
        return arrays


class CompiledAlgorithm:
    """Runs one Algorithm for agents that do not use TensorFlow.

        compiled = CompiledAlgorithm(PolicyGradient(PolicyModel(config)))
        compiled.set_values(parameter_server.get_values())
        actions, _ = compiled.predict({"observation": observations})  # [B, 4] -> [B]
        gradients, costs = compiled.compute_gradients(...)
        compiled.set_values(parameter_server.push_pull(gradients))

    Not thread-safe; each agent has its own, or they use it alternately.

    Args:
      algorithm: defines what to predict and learn.
      compile_in_background: gradients of a frequent shape are compiled to a faster form, which
        takes a second. True: the slower form is used meanwhile, except on a GPU. Then the first use
        of the faster form, and so the last digits of results, depend on the clock; pass False for
        runs that must be repeatable.
      clips: whether gradients are clipped according to the algorithm.
      name: of the Algorithm, for which the config can have a plan.

    Attributes:
      name: the argument.
      statistics: names of the model's running statistics: of inputs, and of returns to scale
        rewards.
      num_gradients: number of the newest gradient or update, which determines its random numbers.

    Raises:
      ConfigError: the config has plans by name, but none for this one, or `groups` of the model has
        an unknown attribute; the error names the line.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        *,
        compile_in_background: bool = False,
        clips: bool = True,
        name: str = ONLY_NAME,
    ):
        self._algorithm = algorithm
        self._clips = clips
        model = algorithm.model
        self.name = name
        self.num_gradients = 0
        # Metrics of single phases, as in an update where the phase is not due.
        self._zeros: dict[str, float] = {}
        self._specify(algorithm.config)
        self._no_steps = to_int64(0)
        # Guards the variables: no prediction sees a partly updated set of values.
        self._lock = model.lock
        self._normalizers = {n.statistic: n for n in get_normalizers(model)}
        self.statistics = tuple(self._normalizers)
        self._generator = make_generator(algorithm.seed)
        self._exploration = Exploration(model, algorithm.config)
        self._compiled: dict[bool, Callable[[list[tf.Tensor]], Any]] = {}
        self._compiled_for_batch: dict[Any, Callable[..., Any]] = {}
        self._seen: collections.Counter[Any] = collections.Counter()
        self._begun: set[Any] = set()  # shapes whose separate compilation has begun
        self._compile_in_background = compile_in_background
        self._compiling = threading.Lock()
        self._compilers: list[threading.Thread] = []
        self._closing = False
        self._assign = self._compile_assign()
        self._read = make_reader(lambda: [self._pack()])

    def _specify(self, config: Any) -> None:
        """Reads what the model and the plan say about all compiled functions."""
        model = self._algorithm.model
        self._input_specs = to_tensor_specs(model.get_input_specs())
        learning_specs = to_tensor_specs(get_learning_specs(model))
        self._state_specs = to_tensor_specs(model.get_state_specs())
        action_specs = to_tensor_specs(model.get_action_specs())
        # The parts of a batch that are not `extras`, in the order of its tensors.
        self._specs = {
            "inputs": learning_specs,
            "next_inputs": learning_specs,
            "states": self._state_specs,
            "next_states": self._state_specs,
            "next_alive": {"alive": tf.TensorSpec([None], tf.float32)},
            "actions": action_specs,
            "next_actions": action_specs,
            "rewards": to_tensor_specs(model.get_reward_specs()),
        }
        plan = get_own_plan(config, self.name)
        self._settings = TracedSettings(config, plan)
        self._setting_values = tf.constant(self._settings.values)
        # Inputs of all compiled functions: global_t and the settings.
        self._common_specs = [
            tf.TensorSpec([], tf.int64),
            tf.TensorSpec(self._settings.values.shape, tf.float32),
        ]
        # Gradients also have a number, which determines their random numbers.
        self._gradient_specs = [*self._common_specs, tf.TensorSpec([], tf.int64)]
        self._wants_next_actions = plan is not None and plan.next_actions
        self._trainable = get_trainable_variables(model)
        self._variables = order_variables(model)
        self._buffers = get_buffers(model)
        self._groups = [model.get_group(get_name(variable)) for variable in self._trainable]
        self._manifest = make_manifest(get_variables(model))
        self._runs = self._find_runs()

    def split_rewards(self, rewards: np.ndarray) -> dict[str, np.ndarray]:
        """Splits rewards `[..., r]` into those of each name, `[..., n]`, as views.

        Raises:
          ConfigError: the model's reward specs are not valid; the error names the line.
        """
        columns = get_reward_columns(self._algorithm.model)
        return {name: rewards[..., part] for name, part in columns.items()}

    def make_arguments(self, rollout: Rollout, next_alive: np.ndarray) -> dict[str, Arrays]:
        """Returns the arguments of `compute_gradients` and updates; shares the rollout's arrays.

        Args:
          rollout: its valid rows are the first ones of each slot; see `experience.holes`.
          next_alive: `[T, k]`, the rollout's, with the ends at which recursions must stop.

        Raises:
          ConfigError: see `split_rewards`.
        """
        extras = dict(rollout.extras)
        if rollout.valid is not None:
            extras[MASK] = rollout.valid.astype(np.float32)
        return {
            "inputs": rollout.inputs,
            "next_inputs": rollout.next_inputs,
            "next_alive": {"alive": next_alive},
            "rewards": self.split_rewards(rollout.rewards),
            # Includes the probability under the policy that acted, which might be older.
            "actions": {**rollout.actions, LOG_PROB: rollout.log_prob},
            "states": rollout.states,
            "extras": extras,
        }

    def review(self, numbers: Mapping[str, Any], updates: int) -> None:
        """See `Algorithm.review`."""
        self._algorithm.review(numbers, updates)

    def validate_one_reward(self, need: str) -> None:
        """Checks that the model has one reward of one number.

        Args:
          need: what requires it, for the error.

        Raises:
          ConfigError: the model has more rewards, or one of several numbers, or its reward specs
            are not valid; the error names the line.
        """
        model = self._algorithm.model
        columns = get_reward_columns(model)
        if max(part.stop for part in columns.values()) > 1:
            place = describe_place(type(model), "get_reward_specs")
            sizes = (f"{name} [{part.stop - part.start}]" for name, part in columns.items())
            cure = "define one reward of shape [1]"
            if getattr(self._algorithm.config, "rewards", None) is not None:
                cure = "remove rewards from the settings"
            raise ConfigError(f"{place}: the rewards are {', '.join(sizes)}, but {need}; {cure}")

    @property
    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the model's memory, without the batch axis."""
        return {name: tuple(spec.shape[1:]) for name, spec in self._state_specs.items()}

    def get_statistic(self, name: str) -> Moments:
        """Returns a running statistic of the model; `name` is one of `statistics`."""
        normalizer = self._normalizers[name]
        with self._lock:
            return Moments(
                float(normalizer.count.numpy()), normalizer.mean.numpy(), normalizer.m2.numpy()
            )

    def get_seen(self) -> list[list[Any]]:
        """Returns the forms and shapes seen so far, and how many times, as compiling depends on it.

        Each is counted up to the number of times at which it is compiled separately.
        A gradient that is compiled for its shape can differ in the last bit from one that is not.
        """
        return [[list(key), count] for key, count in self._seen.items()]

    def set_seen(self, seen: Sequence[Sequence[Any]]) -> None:
        """Restores `get_seen`: shapes that were compiled are compiled when they next occur."""
        for key, count in seen:
            form, *shapes = key
            self._seen[(form, *map(tuple, shapes))] = count

    def get_variables(self) -> list[Variable]:
        """Returns the model's variables with their current values, in manifest order."""
        return get_variables(self._algorithm.model)

    def set_values(self, values: Sequence[np.ndarray]) -> None:
        """Sets all variables, in manifest order.

        Raises:
          InvalidInputError: the number of arrays, or the shape of an array, is not the model's.
        """
        self.set_flat(self._manifest.pack(values))

    def set_flat(self, flat: np.ndarray) -> None:
        """Sets all variables from a flat vector; see `get_flat`."""
        with self._lock:
            self._assign(tf.constant(flat))

    def get_values(self) -> list[np.ndarray]:
        """Returns copies of all variables, in manifest order, for `set_values`; read-only."""
        return self._manifest.unpack(self.get_flat())

    def get_flat(self) -> np.ndarray:
        """Returns a copy of all variables as a flat vector, `[n] uint8`, read-only.

        It has the layout of `make_manifest`.
        """
        with self._lock:
            return np.asarray(self._read()[0])

    def predict(
        self,
        inputs: Arrays,
        states: Arrays | None = None,
        exploit: bool = False,
        global_t: int = 0,
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Chooses actions for a batch.

        Args:
          inputs: by name, `[B, ...]`; those without an input spec are ignored.
          states: by name, `[B, ...]`; required if the model has state specs.
          exploit: choose the best action instead of drawing one.
          global_t: environment steps of the whole run, for schedules.

        Returns:
          Actions and next states by name, `[B, ...]`.

        Raises:
          InvalidInputError: an array is missing, or has a shape other than its spec.
          Exception: in the first call with this `exploit`, the code of algorithm or model fails, or
            cannot be compiled.
        """
        named = _select(inputs, self._input_specs, "inputs")
        rows = len(next(iter(named.values())))
        tensors = [
            *named.values(),
            *_select(states, self._state_specs, "states").values(),
            *map(tf.constant, self._exploration.compute(global_t, rows).values()),
        ]
        if exploit not in self._compiled:
            self._compiled[exploit] = self._compile(exploit)
        steps = to_int64(global_t) if global_t else self._no_steps
        with self._lock:
            return self._compiled[exploit]([steps, self._setting_values, *tensors])

    def compute_gradients(
        self, *, global_t: int = 0, **batch: Arrays | None
    ) -> tuple[list[np.ndarray], dict[str, float]]:
        """Computes the gradient of the costs that `Algorithm.learn` returns.

        The parts of a batch, each by name:

        - `inputs`: observations at t, `[B, ...]`.
        - `next_inputs`: observations at t + 1.
        - `next_alive`: `{"alive": [B] float32}`, also `[B, 1]` for single steps: 1 continues, 0
          terminated, -1 truncated.
        - `rewards`: `[B, r] float32`.
        - `actions`: `[B, ...]`; with an entry `log_prob`, `[B] float32`, if the algorithm uses
          their log-probability under the policy that acted.
        - `next_actions`: actions at t + 1, if the algorithm uses them.
        - `states`: memory at t, if the model has one.
        - `next_states`: memory at t + 1 of single steps, if the algorithm uses
          `Batch.next_memory`, or, in FLARE's form, another one than its policy's.
        - `extras`: additional arrays that the algorithm uses, float32, with the same first axes.

        All arrays except the states can have a time axis before the batch, `[T, B, ...]`, if the
        algorithm needs complete rollouts.

        Args:
          global_t: environment steps of the whole run, for schedules.
          batch: the parts.

        Returns:
          One float32 array per trainable variable, in manifest order (zeros for frozen groups), and
          the new value of each buffer; and costs and metrics by name.

        Raises:
          ConfigError: the algorithm has phases, which need several gradients; or its code fails
            during compilation, as it would each time; the error names the line.
          InvalidInputError: an array is missing, or has a shape other than its spec.
        """
        if self._algorithm.phases:
            place = describe_attribute(self._algorithm, "phases")
            raise ConfigError(
                f"{place}: phases: compute_gradients computes one gradient for all variable "
                "groups, but this algorithm needs one for each phase; if agent.py calls it, derive "
                "Agent from BatchAgent there, or remove agent.py"
            )
        parts = self._make_batch(**batch)
        self.num_gradients += 1
        call = self._get_compiled("gradients", parts, self._compile_gradients)
        number = to_int64(self.num_gradients)
        gradient = call([to_int64(global_t), self._setting_values, number, *flatten(parts)])
        return gradient.arrays, gradient.numbers

    def _make_batch(self, extras: Arrays | None = None, **arrays: Arrays | None) -> Parts:
        """Returns the parts of `compute_gradients` as tensors, by part and name.

        Raises:
          InvalidInputError: an array, other than those of `extras`, is missing or has a shape other
            than its spec.
          TypeError: there is no such part.
        """
        if unknown := arrays.keys() - self._specs.keys():
            known = ", ".join((*self._specs, "extras"))
            raise TypeError(f"{min(unknown)}: a batch has no such part; its parts are {known}")
        batch: dict[str, dict[str, tf.Tensor]] = {}
        for part, specs in self._specs.items():
            given = arrays.get(part)
            if (given is None and part == "next_actions") or (not given and part == "next_states"):
                batch[part] = {}
                continue
            if part == "actions" and LOG_PROB in (given or ()):
                specs = {**specs, LOG_PROB: tf.TensorSpec([None], tf.float32)}
            batch[part] = _select(given, specs, part, any_axes=not part.endswith("states"))
        if extras:
            batch["extras"] = {
                name: tf.constant(array, tf.float32) for name, array in extras.items()
            }
        return batch

    def _count_fixed_axes(self, part: str, name: str) -> int:
        """Returns the number of axes of a tensor that the model's specs define."""
        spec = self._specs.get(part, {}).get(name)
        return 0 if spec is None else len(spec.shape) - 1

    def _count_leading_axes(self, batch: Parts) -> int:
        """Returns 1 for a batch `[B, ...]`, 2 for rollouts `[T, k, ...]`."""
        name, tensor = next(iter(batch["inputs"].items()))
        return len(tensor.shape) - self._count_fixed_axes("inputs", name)

    def _get_compiled(
        self, form: Any, batch: Parts, compile_form: CompileForm, worth: int = _WORTH_COMPILING
    ) -> Callable[..., Any]:
        """Returns the result of `compile_form` for batches like this one.

        Args:
          form: name of the compiled form.
          batch: from `_make_batch`.
          compile_form: called with batch, signatures of its tensors, and whether XLA compiles it.
          worth: number of times that a shape must have occurred to be compiled separately.

        Raises:
          ConfigError: the algorithm's code fails while it is traced; the error names the line.
        """
        tensors = flatten(batch)
        key: Any = (form, *(tuple(tensor.shape) for tensor in tensors))
        if key not in self._compiled_for_batch and self._algorithm.model.xla:
            self._seen[key] = min(self._seen[key] + 1, worth)
            is_worth = self._seen[key] == worth and key not in self._begun
            if is_worth and len(self._compiled_for_batch) < _MAX_COMPILED:
                self._begun.add(key)
                specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
                if self._compile_in_background and not uses_gpu():
                    self._start_compiling(
                        key, lambda: self._build(compile_form, batch, specs, True), tensors
                    )
                else:
                    self._compiled_for_batch[key] = self._build(compile_form, batch, specs, True)
            if len(self._seen) > 10_000:  # lengths that will hardly ever occur again
                self._seen.clear()
        if key not in self._compiled_for_batch:
            key = (form, *(len(shape) for shape in key[1:]))
        if key not in self._compiled_for_batch:
            # Only the axes in the model's specs are fixed.
            specs = []
            leading = self._count_leading_axes(batch)
            for part, parts in batch.items():
                for name, tensor in parts.items():
                    if part == "extras":
                        free = [None] * leading
                    else:
                        free = [None] * (len(tensor.shape) - self._count_fixed_axes(part, name))
                    shape = free + tensor.shape.as_list()[len(free) :]
                    specs.append(tf.TensorSpec(shape, tensor.dtype))
            self._compiled_for_batch[key] = self._build(compile_form, batch, specs, False)
        return self._compiled_for_batch[key]

    def _build(
        self, compile_form: CompileForm, batch: Parts, specs: Sequence[tf.TensorSpec], xla: bool
    ) -> Callable[..., Any]:
        try:
            return compile_form(batch, specs, xla)
        except ConfigError:
            raise
        except Exception as error:
            raise self._locate(error, "learn") from error

    def _call_stop(self, numbers: Mapping[str, float], global_t: int) -> bool:
        """Returns whether the algorithm skips the remaining updates of a batch.

        Raises:
          ConfigError: its `stop` fails; the error names the line.
        """
        tensors = {name: tf.constant(number, tf.float32) for name, number in numbers.items()}
        try:
            with Traced(self._algorithm, self._settings, self._setting_values, to_int64(global_t)):
                return bool(self._algorithm.stop(tensors))
        except RelaaxError:
            raise
        except Exception as error:
            raise self._locate(error, "stop") from error

    def _locate(self, error: Exception, method: str) -> ConfigError:
        """Returns the error to raise if a method of the algorithm fails; it names the line."""
        owner = type(self._algorithm)
        return ConfigError(describe_error(error, find_folder(owner), describe_place(owner, method)))

    def _explain_compiling(self, error: Exception) -> Exception:
        """Returns the error to raise when XLA fails to compile `learn`; others unchanged."""
        if not isinstance(error, tf.errors.InvalidArgumentError | tf.errors.UnimplementedError):
            return error
        place = describe_place(type(self._algorithm), "learn")
        return ConfigError(
            f"{place}: XLA cannot compile learn or prepare: {str(error).splitlines()[0]}; use "
            f"other operations, or {describe_assignment(self._algorithm.model, 'xla', False)}"
        )

    def _start_compiling(
        self, key: Any, compile_form: Callable[[], Callable[..., Any]], tensors: list[tf.Tensor]
    ) -> None:
        def compile_and_try() -> None:
            with self._compiling:  # one after another: agents need the CPU, too
                if self._closing:
                    return
                try:
                    form = compile_form()
                    if hasattr(os, "setpriority"):  # from now on it only uses spare CPU time
                        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _COMPILER_NICE)
                    form(
                        [to_int64(0), self._setting_values, to_int64(0), *tensors]
                    )  # the first call compiles
                except ConfigError as error:
                    logger.warning("continuing with the slower form of a gradient: %s", error)
                    return
                self._compiled_for_batch[key] = form

        self._compilers = [thread for thread in self._compilers if thread.is_alive()]
        self._compilers.append(
            threading.Thread(target=compile_and_try, name="compiling", daemon=True)
        )
        self._compilers[-1].start()

    def close(self) -> None:
        """Waits until background compilation ends: a process must not exit during it."""
        self._closing = True
        for thread in self._compilers:
            thread.join()

    def _compile(self, exploit: bool) -> Callable[[list[tf.Tensor]], Any]:
        """Returns one compiled call that predicts, for a flat list of tensors.

        A concrete function takes a third of the time of its `tf.function`, because it does not
        match a Python signature at each call.
        """
        rows = tf.TensorSpec([None], tf.float32)
        explore_specs = dict.fromkeys(self._exploration.names, rows)
        specs = {**self._input_specs, **self._state_specs, **explore_specs}
        names: list[list[str]] = []

        def flat(global_t: tf.Tensor, settings: tf.Tensor, *tensors: tf.Tensor) -> list[tf.Tensor]:
            rest = iter(tensors)
            inputs, states, explore = (
                {name: next(rest) for name in part}
                for part in (self._input_specs, self._state_specs, explore_specs)
            )
            with Traced(self._algorithm, self._settings, settings, global_t):
                self._algorithm.random = self._generator
                results = self._act(inputs, states, explore, exploit)
            names[:] = [list(result) for result in results]
            return [tensor for result in results for tensor in result.values()]

        xla = self._algorithm.model.xla
        concrete = self._compile_function(flat, [*self._common_specs, *specs.values()], xla)

        def call(tensors: list[tf.Tensor]) -> Any:
            arrays = iter(concrete(*tensors))
            return tuple({name: next(arrays).numpy() for name in group} for group in names)

        return call

    def _act(
        self, inputs: Tensors, states: Tensors, explore: Tensors, exploit: bool
    ) -> tuple[Tensors, Tensors]:
        algorithm = self._algorithm
        if isinstance(algorithm, FlareAlgorithm):
            return (algorithm.exploit if exploit else algorithm.predict)(inputs, states)
        policies, states = algorithm.model.policy(inputs, states, *([explore] if explore else []))
        random = algorithm.random
        return {n: p.mode() if exploit else p.sample(random) for n, p in policies.items()}, states

    def _compile_assign(self) -> Callable[..., Any]:
        """Returns one call that sets all variables, from the flat vector.

        Passing data to TensorFlow has a cost per array, so this takes a third of the time.
        """

        def assign(flat: tf.Tensor) -> None:
            for place, variables in self._runs:
                vector = _from_bytes(flat[place], variables[0].dtype)
                parts = tf.split(vector, [variable.shape.num_elements() for variable in variables])
                for variable, part in zip(variables, parts, strict=True):
                    variable.assign(tf.reshape(part, variable.shape))

        specs = [tf.TensorSpec([self._manifest.total_bytes], tf.uint8)]
        function = tf.function(assign, input_signature=specs, autograph=False)
        return call_directly(function.get_concrete_function())

    def _pack(self) -> tf.Tensor:
        """Returns the flat vector of all variables; see `get_flat`."""
        parts, end = [], 0
        for place, variables in self._runs:
            if place.start > end:
                parts.append(tf.zeros([place.start - end], tf.uint8))
            parts.append(_to_bytes(concatenate(variables)))
            end = place.stop
        return tf.concat(parts, 0)

    def _find_runs(self) -> list[tuple[slice, list[tf.Variable]]]:
        """Returns where the flat vector has variables of one dtype without padding between them."""
        runs: list[tuple[slice, list[tf.Variable]]] = []
        for variable, segment in zip(self._variables, self._manifest.segments, strict=True):
            start, end = segment.offset, segment.offset + segment.num_bytes
            if runs and runs[-1][0].stop == start and runs[-1][1][0].dtype == variable.dtype:
                place, variables = runs[-1]
                runs[-1] = slice(place.start, end), [*variables, variable]
            else:
                runs.append((slice(start, end), [variable]))
        return runs

    def _compile_gradients(
        self,
        batch: Parts,
        specs: Sequence[tf.TensorSpec],
        xla: bool,
        groups: Sequence[str] | None = None,
        prepared: bool = False,
        with_rows: bool = False,
    ) -> Callable[[list[tf.Tensor]], Gradient]:
        """Returns one compiled call from a batch with these names to gradients and costs.

        They are one array each: each that leaves TensorFlow costs as much as a small layer.

        Args:
          batch: defines the tensors' names; its part `CHOSEN`, if any, which rows to learn from.
          specs, xla: of its tensors, and whether XLA compiles it.
          groups: variable groups of the gradient; None: all.
          prepared: whether `prepare` was called for the batch.
          with_rows: whether to return results of each row.
        """
        names, names_of_rows = list[str](), list[str]()
        # As in a complete update, so that both draw the same random numbers.
        series = "+".join(self._group_variables() if groups is None else groups)

        def flat(
            global_t: tf.Tensor, settings: tf.Tensor, number: tf.Tensor, *tensors: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
            with Traced(self._algorithm, self._settings, settings, global_t) as traced:
                parts = unflatten(batch, tensors)
                if not prepared:
                    parts = self._prepare(parts, traced, number)
                made = self._make_minibatch(parts, traced, series, number)
                gradients, losses = self._trace_gradients(made, groups)
            numbers = {**losses.costs, **losses.metrics}
            results = losses.rows if with_rows else {}
            names[:], names_of_rows[:] = numbers, results
            stacked = tf.stack([tf.cast(cost, tf.float32) for cost in numbers.values()])
            return concatenate(gradients), stacked, list(results.values())

        signature = [*self._gradient_specs, *specs]
        concrete = self._compile_function(flat, signature, xla, self._explain_compiling)
        shapes = self._find_shapes(groups)

        def call(tensors: list[tf.Tensor]) -> Gradient:
            vector, costs, rows = concrete(*tensors)
            named = dict(zip(names, costs.numpy().tolist(), strict=True))
            results = {n: row.numpy() for n, row in zip(names_of_rows, rows, strict=True)}
            return Gradient(tuple(groups or ()), vector.numpy(), shapes, named, results)

        return call

    def _find_shapes(self, groups: Sequence[str] | None) -> list[tuple[int, ...]]:
        """Returns the shapes in a gradient of some groups, in manifest order; None: of all."""
        return [
            tuple(variable.shape)
            for group, variables in self._group_variables().items()
            for variable in (*variables, *self._get_buffers(group).values())
            if groups is None or group in groups
        ]

    def _make_minibatch(
        self,
        parts: Parts,
        traced: Traced,
        series: str,
        number: tf.Tensor,
        reduction: Reduction | None = None,
    ) -> Batch:
        """Returns the chosen rows or slots; random numbers are those of a series and a number."""
        if CHOSEN in parts:
            whole = {part: tensors for part, tensors in parts.items() if part != CHOSEN}
            ((unit, chosen),) = parts[CHOSEN].items()
            cut = plan_cut(whole, self._count_leading_axes(whole), cast(Unit, unit))
            parts = unflatten(whole, cut.take(cut.flatten(flatten(whole)), chosen))
        traced.draw_for(series, number)
        return make_batch(parts, traced.discount, reduction)

    def _compile_function(
        self,
        function: Callable[..., Any],
        signature: Sequence[tf.TensorSpec],
        xla: bool,
        explain: Callable[[Exception], Exception] | None = None,
    ) -> Callable[..., Any]:
        """Returns one function; with `xla`, its first call compiles it, see `CompiledFunction`."""
        traced = self._trace(function, signature, xla)
        if xla:
            return CompiledFunction(functools.partial(make_concrete, traced), explain)
        return cast(Callable[..., Any], make_concrete(traced))

    def _trace(
        self, function: Callable[..., Any], signature: Sequence[tf.TensorSpec], xla: bool = False
    ) -> Any:
        return tf.function(
            function,
            input_signature=signature,
            jit_compile=xla,
            autograph=self._algorithm.autograph,
        )

    def _prepare(
        self,
        parts: Parts,
        traced: Traced,
        number: tf.Tensor,
        reduction: Reduction | None = None,
    ) -> Parts:
        """Adds the results that the algorithm computes once for a complete batch."""
        if self._wants_next_actions and not parts["next_actions"]:
            parts = add_next_actions(parts)
        traced.draw_for("prepare", number)
        prepared = self._algorithm.prepare(make_batch(parts, traced.discount, reduction))
        for name, value in prepared.items():
            if not tf.is_tensor(value) and not isinstance(value, np.ndarray):
                raise ConfigError(
                    f"{describe_place(type(self._algorithm), 'prepare')}: prepare returned a "
                    f"{type(value).__name__} as {name!r}, expected a tensor with the axes of the "
                    "batch; of a distribution, return the parameters"
                )
        extras = {**parts.get("extras", {}), **prepared}
        return {**parts, "extras": extras} if extras else parts

    def _trace_gradients(
        self, batch: Batch, groups: Sequence[str] | None = None
    ) -> tuple[list[tf.Tensor], Losses]:
        """Computes the gradients of variable groups.

        Args:
          batch: to learn from.
          groups: variable groups; None: all.

        Returns:
          Gradients group by group, in the order of `groups` (None: of the manifest), within a group
          in manifest order, and then the new values of its buffers; for frozen groups zeros and the
          old values. And costs and metrics, including the norms before clipping.
        """
        by_group = self._group_variables()
        wanted = list(by_group) if groups is None else list(groups)
        trained = [group for group in wanted if group not in self._algorithm.frozen]
        with contextlib.ExitStack() as stack:
            # One tape per group: XLA does not support loops on a tape that is used repeatedly.
            tapes = {g: tf.GradientTape(watch_accessed_variables=False) for g in trained}
            for group, tape in tapes.items():
                stack.enter_context(tape).watch(by_group[group])
            losses = self._algorithm.compute_losses(batch)
            mistake = _find_mistake(self._algorithm, losses, list(by_group), self._buffers)
            if mistake:
                place = describe_place(type(self._algorithm), "learn")
                raise ConfigError(f"{place}: {mistake}")
        self._zeros = dict.fromkeys(losses.list_metrics(None).keys() - losses.metrics.keys(), 0.0)
        metrics = {n: tf.stop_gradient(metric) for n, metric in losses.list_metrics(groups).items()}
        gradients = {
            group: tape.gradient(losses.costs[group], by_group[group], unconnected_gradients="zero")
            for group, tape in tapes.items()
        }
        clipped, norms = self._clip(gradients)
        flat: list[tf.Tensor] = []
        for group in wanted:
            flat += clipped.get(group, [tf.zeros_like(v) for v in by_group[group]])
            for name, buffer in self._get_buffers(group).items():
                is_set = group in trained
                flat.append(tf.identity(losses.updates[name] if is_set else buffer))
        return flat, Losses(losses.costs, losses.rows, {**metrics, **norms})

    def _clip(
        self, gradients: dict[str, list[tf.Tensor]]
    ) -> tuple[dict[str, list[tf.Tensor]], dict[str, tf.Tensor]]:
        """Clips gradients according to the algorithm; also returns the norms before clipping."""
        clip = self._algorithm.max_gradient_norm if self._clips else None
        if clip is None:
            return gradients, {}
        if not isinstance(clip, Mapping):
            flat = [gradient for own in gradients.values() for gradient in own]
            flat, norm = tf.clip_by_global_norm(flat, clip)
            rest = iter(flat)
            return {g: [next(rest) for _ in own] for g, own in gradients.items()}, {
                GRADIENT_NORM: norm
            }
        norms = {}
        for group, own in gradients.items():
            if clip.get(group) is not None:
                clipped, norms[f"{GRADIENT_NORM} {group}"] = tf.clip_by_global_norm(
                    own, clip[group]
                )
                gradients = {**gradients, group: clipped}
        return gradients, norms

    def _get_buffers(self, group: str) -> Mapping[str, tf.Variable]:
        """Returns the buffers of a variable group by name, in manifest order."""
        return self._buffers.get(group, {})

    def _group_variables(self) -> dict[str, list[tf.Variable]]:
        """Returns the trainable variables of each group, in manifest order."""
        groups: dict[str, list[tf.Variable]] = {}
        for variable, group in zip(self._trainable, self._groups, strict=True):
            groups.setdefault(group, []).append(variable)
        return groups


@tf.autograph.experimental.do_not_convert  # AutoGraph would warn about code that it cannot convert
def _find_mistake(
    algorithm: Algorithm,
    losses: Any,
    groups: Sequence[str],
    buffers: Mapping[str, Mapping[str, tf.Variable]],
) -> str:
    """Returns what is wrong with the result of `learn`; "" if it is valid."""
    if not isinstance(losses, Losses):
        return f"learn returned {type(losses).__name__}, expected Losses"
    for name in losses.costs:
        if name not in groups:
            return (
                f"a cost for {name!r}, which is not a variable group{find_nearest(name, groups)}; "
                f"the groups are {', '.join(groups)}. Numbers to record belong in metrics"
            )
    for name in algorithm.trained_groups:
        if name not in losses.costs:
            near = find_nearest(name, losses.costs)
            return (
                f"no cost for the variable group {name!r}{near}; return one, or list the group in "
                "frozen"
            )
    for name, metric in losses.metrics.items():
        if isinstance(metric, Mapping) and name not in groups:
            return (
                f"metrics under {name!r}, which is not a variable group"
                f"{find_nearest(name, groups)}; the groups are {', '.join(groups)}"
            )
    for name, metric in losses.list_metrics(None).items():
        if name in losses.costs:
            return f"{name!r} is a cost and a metric; rename the metric"
        shape = tf.convert_to_tensor(metric).shape
        if shape.rank:
            return (
                f"the metric {name!r} has the shape {shape}, expected a number; "
                "batch.mean returns the mean over the rows of the batch"
            )
    trained = {
        name: buffer
        for group in algorithm.trained_groups
        for name, buffer in buffers.get(group, {}).items()
    }
    return _find_update_mistake(
        losses.updates, trained, [n for own in buffers.values() for n in own]
    )


def _find_update_mistake(
    updates: Tensors, trained: Mapping[str, tf.Variable], known: Sequence[str]
) -> str:
    """Returns what is wrong with the new values of buffers; "" if they are valid."""
    for name in updates:
        if name not in known:
            return (
                f"an update of {name!r}, which is not a buffer{find_nearest(name, known)}; make it "
                "with Parameter(name, initial, kind='buffer')"
            )
    for name, buffer in trained.items():
        if name not in updates:
            near = find_nearest(name, updates)
            return f"no update of the buffer {name!r}{near}; return its new value in updates"
        new = tf.convert_to_tensor(updates[name])
        if new.dtype != buffer.dtype or not new.shape.is_compatible_with(buffer.shape):
            return (
                f"the update of the buffer {name!r} is {new.dtype.name} of shape {new.shape}, "
                f"expected {buffer.dtype.name} of shape {buffer.shape}"
            )
    return ""


def find_nearest(name: str, known: Iterable[str]) -> str:
    """Returns a hint to the most similar name; "" if there is none."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def concatenate(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the elements of all tensors as one vector."""
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


def _to_bytes(vector: tf.Tensor) -> tf.Tensor:
    if vector.dtype == tf.bool:
        return tf.cast(vector, tf.uint8)
    return tf.reshape(tf.bitcast(vector, tf.uint8), [-1])


def _from_bytes(flat: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    if dtype == tf.bool:
        return tf.cast(flat, tf.bool)
    return tf.bitcast(tf.reshape(flat, [-1, dtype.size] if dtype.size > 1 else [-1]), dtype)


def make_reader(read: Callable[[], list[tf.Tensor]]) -> Callable[[], Sequence[tf.Tensor]]:
    """Returns one call for what reads many variables; a call for each takes 30 times as long."""
    function = tf.function(read, input_signature=[], autograph=False)
    return call_directly(function.get_concrete_function())


def to_int64(number: int) -> tf.Tensor:
    """Returns a number as a scalar; only its lowest 63 bits if it is negative or too large."""
    return tf.constant(number & 0x7FFFFFFFFFFFFFFF, tf.int64)


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
                f"{field}: {name} is missing; pass a dict with {', '.join(specs)}",
                name,
            )
        array = np.asarray(arrays[name], spec.dtype.as_numpy_dtype)
        tail = array.shape[array.ndim - len(spec.shape) + 1 :] if any_axes else array.shape[1:]
        if array.ndim < len(spec.shape) or tail != tuple(spec.shape[1:]):
            where = "" if field == "next_alive" else " as in the model's specs"
            raise InvalidInputError(
                f"{field}[{name}]: shape {list(array.shape)}, expected {spec.shape}{where}", name
            )
        tensors[name] = tf.constant(array)
    return tensors
