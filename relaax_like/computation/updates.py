"""LearningTask: the forms of `Algorithm.learn` that take the optimizer steps themselves."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict, Unpack

import numpy as np
import tensorflow as tf

from relaax_like.bridge.moments import Moments
from relaax_like.computation.algorithm import Algorithm
from relaax_like.computation.computation_task import (
    GRADIENT_NORM,
    Arrays,
    Batch,
    ComputationTask,
    flatten,
    unflatten,
)
from relaax_like.computation.model import get_normalizers
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.config.update_plan import Axis
from relaax_like.nn.layers import merge_steps
from relaax_like.nn.optimizers import Optimizer
from relaax_like.wire.errors import ConfigError, InvalidInputError, RelaaxError

logger = logging.getLogger(__name__)

# Compiling takes about so many times as long as tracing: 4 to 8 times, measured with the networks
# of algorithms/ppo.
_COMPILING_TO_TRACING = 6
# Traced: global_t and the tensors of a minibatch to metrics, [m] float32, and whether to stop, [].
Step = Callable[..., tuple[tf.Tensor, tf.Tensor]]


class NotFiniteError(RelaaxError):
    """What is to be learned from, or a gradient, has NaN or infinity; the update was not made.

    Attributes:
      metrics: the costs by name, as far as it came to them; those that are not finite tell where it
        came from.
    """

    def __init__(self, message: str, metrics: Mapping[str, float] | None = None):
        self.metrics = dict(metrics or {})
        super().__init__(message)


class Arguments(TypedDict):
    """What an update learns from: the arguments of `ComputationTask.compute_gradients`."""

    inputs: Arrays
    next_inputs: Arrays
    next_alive: Arrays
    rewards: Arrays
    actions: Arrays
    next_actions: NotRequired[Arrays | None]
    states: NotRequired[Arrays | None]
    next_states: NotRequired[Arrays | None]
    extras: NotRequired[Arrays | None]


@dataclass(frozen=True)
class OptimizerState:
    """What the optimizers remember.

    Attributes:
      updates: made so far; each was one step of every variable group.
      slots: group -> `[s, n] float32`, laid out as the slots of a parameter server's snapshot.
      slot_names: group -> what the rows of its slots hold.
    """

    updates: int
    slots: Mapping[str, np.ndarray]
    slot_names: Mapping[str, tuple[str, ...]]


class LearningTask(ComputationTask):
    """A ComputationTask that also owns the optimizers of its variables.

        task = LearningTask(algorithm, config.optimizers)
        costs = task.update(**batch, global_t=4096)
        means, updates = task.update_epochs(**rollout, epochs=4, minibatch=256, seed=7)
        publish(task.get_values(), task.export_optimizers())

    Costs, gradients, clipping, optimizer steps and the algorithm's hooks are one compiled graph.
    Predictions that read the same variables wait until a call is over. An update whose gradient is
    not finite changes nothing, and none follows it: NotFiniteError tells.

    Args:
      algorithm: whose costs are minimised.
      optimizers: one for each variable group of the model.

    Raises:
      ConfigError: optimizers or the algorithm's `learn_order` name other groups than the model.
    """

    def __init__(self, algorithm: Algorithm, optimizers: Mapping[str, OptimizerConfig]):
        super().__init__(algorithm)
        groups = self._group_variables()
        _validate_groups("optimizers", optimizers, groups)
        if algorithm.learn_order:
            _validate_groups("learn_order", algorithm.learn_order, groups)
        self._optimizers = {
            group: Optimizer(optimizers[group], variables) for group, variables in groups.items()
        }
        self._updates = tf.Variable(0, trainable=False, dtype=tf.int64, name="updates")
        self._has_compiled = False
        self._normalizers = {n.statistic: n for n in get_normalizers(algorithm.model)}

    def update(self, global_t: int = 0, **batch: Unpack[Arguments]) -> dict[str, float]:
        """Makes one update.

        Args:
          global_t: environment steps of all clients together; schedules go by it.
          batch: as for `compute_gradients`.

        Returns:
          The costs by name, before the update; with `learn_order`, each group's own cost at the
          values that it met, all others at those that the first group met.

        Raises:
          NotFiniteError: the gradient had NaN or infinity; nothing has changed.
        """
        tensors = self._make_batch(**batch)
        call = self._get_compiled("update", tensors, self._compile_update)
        with self._lock:
            return call(_to_int64(global_t), *flatten(tensors))

    def update_epochs(
        self,
        *,
        epochs: int,
        minibatch: int,
        seed: int,
        axis: Axis = "rows",
        global_t: int = 0,
        count: int | None = None,
        **batch: Unpack[Arguments],
    ) -> tuple[dict[str, float], int]:
        """Makes one update per minibatch, for some epochs, in one call.

        Each epoch goes through the batch in an order of its own. What is left over after as many
        whole minibatches as there are is left out; in the next epoch that will be others. It ends
        early, after the update for which the algorithm's `stop` said so.

        A shape is compiled when it first comes, which takes seconds: keep batches to few shapes.

        Args:
          epochs: 1 or more.
          minibatch: rows, or slots, in one update.
          seed: of the orders: the same seed, values and batch give the same result.
          axis: "rows": a batch `[B, ...]` is cut along its first axis; rollouts `[T, k, ...]` are
            taken apart into T * k rows before that, and `learn` gets `[minibatch, ...]`. "slots":
            rollouts `[T, k, ...]` are cut along k, their steps stay together, and so does the
            memory before them; `learn` gets `[T, minibatch, ...]`.
          global_t: environment steps of all clients together; schedules go by it.
          count: rows or slots that minibatches are made of, the first ones; those behind them fill
            the batch up to a shape that is compiled already. None: all.
          batch: as for `compute_gradients`; all of the same length.

        Returns:
          The mean costs over all updates made, each before its update; and how many there were.

        Raises:
          InvalidInputError: lengths that do not fit together, or a minibatch larger than the batch.
          NotFiniteError: a gradient had NaN or infinity; the updates before it stay.
        """
        tensors = self._make_batch(**batch)
        leading_axes = self._count_leading_axes(tensors)
        length = _validate_lengths(tensors, _plan_cut(tensors, leading_axes, axis), minibatch)
        count = length if count is None else count
        if not minibatch <= count <= length:
            raise InvalidInputError(
                f"count: {count}, expected {minibatch} (one minibatch) to {length} (the batch)",
                "count",
            )
        if epochs < 1:
            raise InvalidInputError(f"epochs: {epochs}, expected 1 or more", "epochs")

        def compile_epochs(batch: Batch, specs: Sequence[tf.TensorSpec], xla: bool) -> Any:
            return self._compile_epochs(batch, specs, xla, leading_axes, axis, minibatch)

        form = ("epochs", axis, minibatch)
        call = self._get_compiled(form, tensors, compile_epochs, worth=1)
        numbers = [_to_int64(number) for number in (epochs, seed, global_t, count)]
        with self._lock:
            return call(*numbers, *flatten(tensors))

    def get_values(self) -> list[np.ndarray]:
        """Returns copies of all variables, in manifest order, as `set_values` takes them."""
        with self._lock:
            return [np.asarray(variable.numpy()) for variable in self._variables]

    def get_statistic(self, name: str) -> Moments:
        """Returns a running statistic of the model."""
        normalizer = self._normalizers[name]
        with self._lock:
            return Moments(
                float(normalizer.count.numpy()), normalizer.mean.numpy(), normalizer.m2.numpy()
            )

    def set_statistic(self, name: str, moments: Moments) -> None:
        """Sets a running statistic of the model."""
        normalizer = self._normalizers[name]
        with self._lock:
            normalizer.count.assign(moments.count)
            normalizer.mean.assign(moments.mean)
            normalizer.m2.assign(moments.m2)

    def export_optimizers(self) -> OptimizerState:
        """Returns a copy of what the optimizers remember."""
        with self._lock:
            return OptimizerState(
                updates=int(self._updates.numpy()),
                slots={g: o.slots.numpy() for g, o in self._optimizers.items()},
                slot_names={g: o.slot_names for g, o in self._optimizers.items()},
            )

    def import_optimizers(self, state: OptimizerState) -> None:
        """Goes on from there: with the same values the next update is the same, bit for bit.

        Raises:
          InvalidInputError: slots of other groups or optimizers; nothing has changed.
        """
        for group, optimizer in self._optimizers.items():
            slots = state.slots.get(group)
            came = None if slots is None else (str(slots.dtype), slots.shape)
            names = tuple(state.slot_names.get(group, ()))
            expected = ("float32", tuple(optimizer.slots.shape))
            if names != optimizer.slot_names or came != expected:
                raise InvalidInputError(
                    f"slots of group {group}: {list(names)}, {came}, expected "
                    f"{list(optimizer.slot_names)}, {expected}; configure the optimizer and the "
                    "model that they come from",
                    group,
                )
        with self._lock:
            for group, optimizer in self._optimizers.items():
                optimizer.slots.assign(state.slots[group])
            self._updates.assign(state.updates)

    def _compile_update(self, batch: Batch, specs: Sequence[tf.TensorSpec], xla: bool) -> Any:
        names: list[str] = []

        def flat(global_t: tf.Tensor, *tensors: tf.Tensor) -> tf.Tensor:
            prepared = self._prepare(unflatten(batch, tensors))
            return self._make_step(prepared, names)(global_t, *flatten(prepared))[0]

        signature = [tf.TensorSpec([], tf.int64), *specs]
        function = self._trace(flat, signature, xla)
        concrete = function.get_concrete_function()

        def call(*tensors: tf.Tensor) -> dict[str, float]:
            return _name_metrics(names, concrete(*tensors).numpy())

        return call

    def _compile_epochs(
        self,
        batch: Batch,
        specs: Sequence[tf.TensorSpec],
        xla: bool,
        leading_axes: int,
        axis: Axis,
        minibatch: int,
    ) -> Any:
        names: list[str] = []
        began = time.perf_counter()

        # Traced before the loops that call them: those must know how many metrics there are.
        def flat_prepare(*tensors: tf.Tensor) -> Batch:
            return self._prepare(unflatten(batch, tensors))

        prepare = self._trace(flat_prepare, specs).get_concrete_function()
        whole_batch = prepare.structured_outputs
        cut = _plan_cut(whole_batch, leading_axes, axis)
        shapes = [
            cut.shape_of_minibatch(tf.TensorSpec(tensor.shape, tensor.dtype), i, minibatch)
            for i, tensor in enumerate(flatten(whole_batch))
        ]
        signature = [tf.TensorSpec([], tf.int64), *shapes]
        step = self._trace(self._make_step(whole_batch, names), signature).get_concrete_function()

        def flat(
            epochs: tf.Tensor,
            seed: tf.Tensor,
            global_t: tf.Tensor,
            count: tf.Tensor,
            *tensors: tf.Tensor,
        ) -> tuple[tf.Tensor, tf.Tensor]:
            whole = cut.flatten(flatten(prepare(*tensors)))
            sums, updates = _trace_epochs(
                lambda chosen: step(global_t, *cut.take(whole, chosen)),
                len(names) + 1,
                cut.count(whole),
                tf.cast(count, tf.int32),
                epochs,
                minibatch,
                seed,
            )
            return sums / tf.cast(updates, tf.float32), updates

        signature = [tf.TensorSpec([], tf.int64)] * 4 + list(specs)
        function = self._trace(flat, signature, xla)
        concrete = function.get_concrete_function()
        if xla and not self._has_compiled:  # by the first call
            self._has_compiled = True
            seconds = 1 + _COMPILING_TO_TRACING * (time.perf_counter() - began)
            logger.info("compiling the update (once, about %.0f s)", seconds)

        def call(*tensors: tf.Tensor) -> tuple[dict[str, float], int]:
            means, updates = concrete(*tensors)
            return _name_metrics(names, means.numpy()), int(updates.numpy())

        return call

    def _make_step(self, batch: Batch, names: list[str]) -> Step:
        """Returns one update, to be traced; that fills `names` with those of the metrics."""

        def step(global_t: tf.Tensor, *tensors: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            algorithm = self._algorithm
            algorithm.global_t = global_t
            version = self._updates.read_value() + 1
            metrics, finite = self._trace_steps(unflatten(batch, tensors), version, global_t)
            self._updates.assign_add(tf.cast(finite, tf.int64))
            algorithm.after_update(version)
            names[:] = metrics
            numbers = [*metrics.values(), tf.logical_not(finite)]
            vector = tf.stack([tf.cast(number, tf.float32) for number in numbers])
            return vector, tf.logical_or(algorithm.stop(metrics), tf.logical_not(finite))

        return step

    def _trace_steps(
        self, batch: Batch, version: tf.Tensor, global_t: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Steps all variable groups whose gradients are finite.

        Returns:
          The metrics; and whether all gradients were finite, `[] bool`.
        """
        if not self._algorithm.learn_order:
            gradients, metrics = self._trace_gradients(batch)
            finite = _is_finite(gradients)
            rest = iter(gradients)
            for group, variables in self._group_variables().items():
                own = [next(rest) for _ in variables]
                self._optimizers[group].apply(own, version, global_t, finite)
            return metrics, finite
        own_costs: dict[str, tf.Tensor] = {}
        others: dict[str, tf.Tensor] = {}
        finite = tf.constant(True)
        for group in self._algorithm.learn_order:
            gradients, costs = self._trace_gradients(batch, only=group)
            finite = tf.logical_and(finite, _is_finite(gradients))
            self._optimizers[group].apply(gradients, version, global_t, finite)
            if group in costs:
                own_costs[group] = costs[group]
            if GRADIENT_NORM in costs:
                own_costs[f"{GRADIENT_NORM} {group}"] = costs.pop(GRADIENT_NORM)
            others = others or costs  # of the first group; later ones are not even computed
        return {**others, **own_costs}, finite


@dataclass(frozen=True)
class _Cut:
    """How minibatches are taken out of the flat list of a batch's tensors.

    Attributes:
      axes: of each tensor, along which it is cut.
      rows: whether tensors `[T, k, ...]` are to be made `[T * k, ...]` before that.
    """

    axes: tuple[int, ...]
    rows: bool

    def flatten(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        if not self.rows:
            return list(tensors)
        return [merge_steps(tensor) for tensor in tensors]

    def count(self, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        return tf.shape(tensors[0])[self.axes[0]]

    def take(self, tensors: Sequence[tf.Tensor], chosen: tf.Tensor) -> list[tf.Tensor]:
        if tensors[0].shape[self.axes[0]] == chosen.shape[0]:  # all: in whatever order
            return list(tensors)
        return [tf.gather(t, chosen, axis=a) for t, a in zip(tensors, self.axes, strict=True)]

    def shape_of_minibatch(self, spec: tf.TensorSpec, index: int, minibatch: int) -> tf.TensorSpec:
        shape = spec.shape.as_list()[1 if self.rows else 0 :]
        shape[self.axes[index]] = minibatch
        return tf.TensorSpec(shape, spec.dtype)


def _plan_cut(batch: Batch, leading_axes: int, axis: Axis) -> _Cut:
    if axis == "slots" and leading_axes < 2:
        raise InvalidInputError(
            'axis: "slots", but the batch has no time axis; expected rollouts [T, k, ...], or '
            'axis "rows"',
            "axis",
        )
    if axis == "rows" and leading_axes > 1 and (batch["states"] or batch["next_states"]):
        raise InvalidInputError(
            'axis: "rows", but the memory of a rollout [T, k, ...] is only known at its '
            'start; use axis "slots"',
            "axis",
        )
    along = {"rows": 0, "slots": 1}[axis]
    memory = ("states", "next_states")
    axes = [0 if part in memory else along for part, tensors in batch.items() for _ in tensors]
    return _Cut(tuple(axes), rows=axis == "rows" and leading_axes > 1)


def _validate_lengths(batch: Batch, cut: _Cut, minibatch: int) -> int:
    """Checks what a gather compiled by XLA would not notice; returns the rows or slots."""
    names = [f"{part}[{name}]" for part, tensors in batch.items() for name in tensors]
    sizes = [
        tuple(tensor.shape[:2] if cut.rows else tensor.shape[axis : axis + 1])
        for tensor, axis in zip(flatten(batch), cut.axes, strict=True)
    ]
    for name, size in zip(names, sizes, strict=True):
        if size != sizes[0]:
            what = "steps and slots" if cut.rows else "rows or slots"
            raise InvalidInputError(
                f"{name}: {list(size)} {what}, expected {list(sizes[0])} like {names[0]}", name
            )
    length = math.prod(sizes[0])
    if not 1 <= minibatch <= length:
        raise InvalidInputError(
            f"minibatch: {minibatch}, expected 1 to {length} (the size of the batch)",
            "minibatch",
        )
    return length


def _trace_epochs(
    step: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]],
    num_metrics: int,
    length: tf.Tensor,
    count: tf.Tensor,
    epochs: tf.Tensor,
    minibatch: int,
    seed: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Calls a step with the indices of each minibatch.

    Returns:
      The sum of its metrics `[m] float32`, and how often it was called, `[] int64`.
    """
    most, minibatches = length // minibatch, count // minibatch

    def run_epoch(epoch: tf.Tensor, *carried: tf.Tensor) -> tuple[tf.Tensor, ...]:
        order = shuffle(length, tf.stack([seed, epoch]), count)
        order = tf.reshape(order[: most * minibatch], [most, minibatch])

        def run_minibatch(
            i: tf.Tensor, sums: tf.Tensor, updates: tf.Tensor, stopped: tf.Tensor
        ) -> tuple[tf.Tensor, ...]:
            metrics, stop = step(order[i])
            return i + 1, sums + metrics, updates + 1, tf.logical_or(stopped, stop)

        _, *carried = _loop(minibatches, run_minibatch, (0, *carried))
        return epoch + 1, *carried

    zero = tf.constant(0, tf.int64)
    start = (zero, tf.zeros([num_metrics]), zero, tf.constant(False))
    _, sums, updates, _ = _loop(epochs, run_epoch, start)
    return sums, updates


def _loop(times: tf.Tensor, body: Callable[..., Any], start: Sequence[Any]) -> Any:
    """Counts the first variable up to `times`, or until the last one is true."""

    def goes_on(i: tf.Tensor, *carried: tf.Tensor) -> tf.Tensor:
        return tf.logical_and(i < times, tf.logical_not(carried[-1]))

    # One after another: each update begins with what the one before it has left.
    return tf.while_loop(goes_on, body, start, parallel_iterations=1)


def shuffle(length: tf.Tensor, seed: tf.Tensor, count: tf.Tensor | None = None) -> tf.Tensor:
    """Returns 0 .. length - 1 in an order that depends on the seed alone, `[length] int32`.

    Sorted by random keys: XLA does not know TensorFlow's stateless shuffle.

    Args:
      length: how many.
      seed: two numbers.
      count: those below it come first; None: all are equal.
    """
    keys = tf.random.stateless_uniform([length], seed, None, None, tf.int32, alg="philox")
    if count is not None:
        # A real key as large as that stands before them, too: the sort is stable.
        keys = tf.where(tf.range(length) < count, keys, tf.int32.max)
    return tf.argsort(keys, stable=True)


def _is_finite(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    # A sum is finite only if all its terms are; one that overflows is as bad.
    return tf.math.is_finite(tf.add_n([tf.reduce_sum(tf.abs(tensor)) for tensor in tensors]))


def _name_metrics(names: Sequence[str], numbers: np.ndarray) -> dict[str, float]:
    """Returns the metrics of updates by name.

    Raises:
      NotFiniteError: the last number, the share of updates that could not be made, is not 0.
    """
    metrics = dict(zip(names, numbers[:-1].tolist(), strict=True))
    if numbers[-1]:
        costs = ", ".join(f"{name} {value:g}" for name, value in metrics.items())
        raise NotFiniteError(
            f"a gradient is not finite: {costs}; the update was not applied", metrics
        )
    return metrics


def _to_int64(number: int) -> tf.Tensor:
    return tf.constant(number & 0x7FFFFFFFFFFFFFFF, tf.int64)


def _validate_groups(field: str, named: Sequence[str] | Mapping[str, Any], groups: Any) -> None:
    if sorted(named) != sorted(groups):
        raise ConfigError(
            f"{field}: {', '.join(named) or 'none'}, expected each variable group of the model "
            f"once: {', '.join(groups)}"
        )
