"""CompiledUpdates: compiled forms of `Algorithm.learn` that include the optimizer steps."""

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaax_like.algorithm.algorithm import Algorithm
from relaax_like.algorithm.batch import Tensors
from relaax_like.algorithm.model import get_targets, get_unit_norms
from relaax_like.algorithm.parts import Parts, flatten, make_batch, unflatten
from relaax_like.algorithm.phases import Phase
from relaax_like.algorithm.tracing import Traced, make_concrete
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.config.places import describe_place
from relaax_like.core.manifest import PUSHED
from relaax_like.core.moments import Moments
from relaax_like.core.prediction import ONLY_NAME
from relaax_like.learn.compiled_algorithm import CompiledAlgorithm, make_reader, to_int64
from relaax_like.learn.draw import Draw
from relaax_like.learn.gradients import find_phases
from relaax_like.learn.minibatches import (
    Cut,
    find_first,
    fit_draw,
    plan_cut,
    shuffle,
)
from relaax_like.nn.compiling import get_compile_cache
from relaax_like.nn.module import as_tf_variable, get_kind, get_name
from relaax_like.nn.optimizers import Optimizer
from relaax_like.nn.runtime import tf
from relaax_like.nn.target import Target
from relaax_like.wire.errors import ConfigError, InvalidInputError, RelaaxError

logger = logging.getLogger(__name__)

# Traced: global_t, settings and the tensors of a minibatch to metrics, [m] float32, whether to
# stop, [], and the results of each row.
Step = Callable[..., tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]]


class NotFiniteError(RelaaxError):
    """The data to learn from, or a gradient, contain NaN or infinity; they were not used.

    Also raised for a gradient whose sum of magnitudes overflows.

    Attributes:
      metrics: the costs by name, if they were computed; those that are not finite show the origin.
    """

    def __init__(self, message: str, metrics: Mapping[str, float] | None = None):
        self.metrics = dict(metrics or {})
        super().__init__(message)


@dataclass(frozen=True)
class UpdateResult:
    """The results of some updates.

    Attributes:
      costs: means over the updates of costs and metrics, each before its update.
      updates: number of updates.
      rows: the newest result of each row, by name, with the leading axes of the batch; NaN for rows
        that were in no update. {} unless the algorithm returns some.
    """

    costs: dict[str, float]
    updates: int
    rows: dict[str, np.ndarray]


@dataclass(frozen=True)
class OptimizerState:
    """The state of the optimizers.

    Attributes:
      steps: group -> optimizer steps so far.
      slots: group -> `[s, n] float32`, with the layout of a parameter server's snapshot.
      slot_names: group -> names of the rows of its slots.
    """

    steps: Mapping[str, int]
    slots: Mapping[str, np.ndarray]
    slot_names: Mapping[str, tuple[str, ...]]


class CompiledUpdates(CompiledAlgorithm):
    """A CompiledAlgorithm that also owns the optimizers of its variables.

        compiled = CompiledUpdates(algorithm, config.optimizers)
        learned = compiled.update(Draw(batch_size=256, epochs=4, seed=7), **rollout, global_t=4096)
        publish(compiled.get_flat(), compiled.export_optimizers())

    Costs, gradients, clipping, optimizer steps, targets and the algorithm's methods are one
    compiled graph. Predictions that read the same variables wait until a call is over. A gradient
    that is not finite changes nothing, no other one is applied after it, and NotFiniteError is
    raised; what earlier phases of the same update have changed stays.

    Several of them can learn for one Model, each with an Algorithm of its own. They share its
    optimizers: a step of either counts as one of the group's.

    Attributes:
      updating: held from an update to its publication, by all that learn for the same Model.

    Args:
      algorithm: defines the costs to minimise.
      optimizers: one for each variable group of the model.
      name: see `CompiledAlgorithm`.
      other: another one of the same Model, whose optimizers it shares; None: it has its own.
      others_train: variable groups that others of the same Model train, too.

    Raises:
      ConfigError: the model has no trainable variables, or optimizers, phases, frozen groups or a
        `Target` do not fit its groups; there are others, and no group that only this one trains in
        each update, by which its updates are counted; see `CompiledAlgorithm` for other causes.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        optimizers: Mapping[str, OptimizerConfig],
        name: str = ONLY_NAME,
        other: "CompiledUpdates | None" = None,
        others_train: Collection[str] = (),
    ):
        super().__init__(algorithm, name=name)
        groups = self._group_variables()
        _validate_groups("optimizers", optimizers, groups)
        self._phases = find_phases(algorithm, list(groups))
        self._optimizers = {
            group: Optimizer(optimizers[group], variables) for group, variables in groups.items()
        }
        self._updates = tf.Variable(0, trainable=False, dtype=tf.int64, name="updates")
        self._steps = {
            group: tf.Variable(0, trainable=False, dtype=tf.int64, name=f"steps/{group}")
            for group in groups
        }
        self.updating = threading.RLock()
        if other is not None:
            self._optimizers, self._steps = other._optimizers, other._steps
            self.updating = other.updating
        self._read_state = make_reader(self._read_optimizers)
        self._counted = self._find_counted(groups, others_train)
        self._unit_norms = get_unit_norms(algorithm.model)
        targets = get_targets(algorithm.model)
        self._targets = [(self._find_group(target), target) for target in targets]
        self._has_compiled = False

    def _find_counted(self, groups: Collection[str], others_train: Collection[str]) -> list[str]:
        """Returns the variable groups whose optimizer steps count the updates."""
        if not others_train:
            return list(groups)
        always = [group for phase in self._phases if phase.every == 1 for group in phase.groups]
        counted = [group for group in always if group not in others_train]
        if not counted:
            raise ConfigError(
                f"{describe_place(type(self._algorithm), 'learn')}: {self.name} shares its Model "
                f"with others that train all of its variable groups ({', '.join(always)}), so its "
                "updates cannot be counted; give it a group that others have in `frozen`, or set "
                "learner.placement: agent"
            )
        return counted

    def count_updates(self, steps: Mapping[str, int]) -> int:
        """Returns the number of updates that lead to these optimizer steps of each group."""
        return max((steps[group] for group in self._counted), default=0)

    def _find_group(self, target: Any) -> str:
        """Returns the variable group of a target's source."""
        model = self._algorithm.model
        groups = sorted(
            {model.get_group(get_name(v)) for v in target.sources if get_kind(v) in PUSHED}
        )
        if len(groups) != 1:
            cure = "make one Target for each group" if groups else "add a layer to the source"
            raise ConfigError(
                f"{describe_place(type(model), '__init__')}: the source of a Target has trainable "
                f"variables of {len(groups)} variable groups ({', '.join(groups) or 'none'}), "
                "expected one, because a Target counts the optimizer steps of its group; "
                f"{cure}"
            )
        return groups[0]

    def update(self, draw: Draw | None = None, *, global_t: int = 0, **batch: Any) -> UpdateResult:
        """Makes one update of each minibatch, in one call.

        The updates end early after an update for which the algorithm's `stop` returns True. A shape
        is compiled when it first occurs, which takes seconds: use few shapes.

        Args:
          draw: how minibatches are drawn; None: one update from all of the batch.
          global_t: environment steps of all clients together, for schedules.
          batch: as for `compute_gradients`; all of the same length.

        Raises:
          ConfigError: the algorithm's code fails while it is compiled; the error names the line.
          InvalidInputError: an array is missing or has a shape other than its spec, or see
            `fit_draw`.
          NotFiniteError: a gradient had NaN or infinity; what was updated before it stays.
        """
        tensors = self._make_batch(**batch)
        axes = self._count_leading_axes(tensors)
        made, _, _ = fit_draw(draw, tensors, axes)

        def compile_updates(batch: Parts, specs: Sequence[tf.TensorSpec], xla: bool) -> Any:
            return self._compile_updates(batch, specs, xla, axes, made)

        form = ("updates", made.minibatch_of, made.batch_size, made.seed is None)
        call = self._get_compiled(form, tensors, compile_updates, worth=1)
        numbers = [to_int64(number or 0) for number in (made.epochs, made.seed, made.count)]
        with self._lock:
            return call([to_int64(global_t), self._setting_values, *numbers, *flatten(tensors)])

    def set_statistic(self, name: str, moments: Moments) -> None:
        """Sets a running statistic of the model; `name` is one of `statistics`."""
        normalizer = self._normalizers[name]
        with self._lock:
            normalizer.count.assign(moments.count)
            normalizer.mean.assign(moments.mean)
            normalizer.m2.assign(moments.m2)

    def export_optimizers(self) -> OptimizerState:
        """Returns a copy of the optimizers' state; read-only."""
        with self._lock:
            steps, *slots = map(np.asarray, self._read_state())
        return OptimizerState(
            steps=dict(zip(self._steps, steps.tolist(), strict=True)),
            slots=dict(zip(self._optimizers, slots, strict=True)),
            slot_names={g: o.slot_names for g, o in self._optimizers.items()},
        )

    def _read_optimizers(self) -> list[tf.Tensor]:
        """Returns the optimizer steps of all groups, and then each group's slots."""
        slots = [optimizer.slots.read_value() for optimizer in self._optimizers.values()]
        return [tf.stack([*self._steps.values()]), *slots]

    def import_optimizers(self, state: OptimizerState) -> None:
        """Restores a state: with the same values, the next update is bit-identical.

        Raises:
          InvalidInputError: slots or steps are of other groups, optimizers or models; nothing has
            changed.
        """
        for group, optimizer in self._optimizers.items():
            slots, came = state.slots.get(group), "missing"
            if slots is not None:
                names = list(state.slot_names.get(group, ()))
                came = f"{slots.dtype} of {list(slots.shape)} with the names {names}"
            expected = (
                f"float32 of {list(optimizer.slots.shape)} with the names "
                f"{list(optimizer.slot_names)}"
            )
            if came != expected:
                raise InvalidInputError(
                    f"slots of group {group}: {came}, expected {expected}; configure the same "
                    "optimizer and model as when they were saved",
                    group,
                )
            if group not in state.steps:
                raise InvalidInputError(
                    f"steps of group {group}: missing, expected the number of its optimizer steps",
                    group,
                )
        with self._lock:
            for group, optimizer in self._optimizers.items():
                optimizer.slots.assign(state.slots[group])
                self._steps[group].assign(state.steps[group])
            self._updates.assign(self.count_updates(state.steps))

    def _compile_updates(
        self,
        batch: Parts,
        specs: Sequence[tf.TensorSpec],
        xla: bool,
        leading_axes: int,
        draw: Draw,
    ) -> Callable[[list[tf.Tensor]], UpdateResult]:
        names, common = _Names(), self._common_specs
        # Traced before the loops that call them, which must know the number of metrics.
        prepare = self._trace_prepare(batch, specs)
        whole_batch = prepare.structured_outputs
        cut = plan_cut(whole_batch, leading_axes, draw.minibatch_of)
        step = self._trace_step(whole_batch, cut, draw.batch_size, names)

        def flat(*inputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
            global_t, settings, epochs, seed, count, *tensors = inputs
            whole = cut.flatten(flatten(prepare(global_t, settings, *tensors)))
            count = tf.cast(count, tf.int32)
            # By the mask of the original batch: after `prepare`, more rows can be invalid.
            original = unflatten(batch, tensors)
            sums, updates, rows = _trace_epochs(
                lambda chosen: step(global_t, settings, *cut.take(whole, chosen)),
                names,
                cut,
                whole,
                find_first(original, draw.minibatch_of, cut.count(whole), count),
                count,
                epochs,
                draw.batch_size,
                None if draw.seed is None else seed,
            )
            leading = tf.shape(tensors[0])[:leading_axes]
            return sums, updates, [tf.reshape(row, leading) for row in rows]

        signature = [*common, *[tf.TensorSpec([], tf.int64)] * 3, *specs]
        concrete = self._compile_function(flat, signature, xla, self._explain_compiling)
        if xla:
            self._note_compiling()

        def call(tensors: list[tf.Tensor]) -> UpdateResult:
            sums, updates, rows = concrete(*tensors)
            return names.describe(sums.numpy(), int(updates.numpy()), rows)

        return call

    def _trace_prepare(self, batch: Parts, specs: Sequence[tf.TensorSpec]) -> Any:
        def flat(global_t: tf.Tensor, settings: tf.Tensor, *tensors: tf.Tensor) -> Parts:
            with Traced(self._algorithm, self._settings, settings, global_t) as traced:
                return self._prepare(unflatten(batch, tensors), traced, self._updates + 1)

        return make_concrete(self._trace(flat, [*self._common_specs, *specs]))

    def _note_compiling(self) -> None:
        """Logs that the first call will compile the update."""
        if not self._has_compiled:
            self._has_compiled = True
            cached = "" if get_compile_cache() is None else ", or loading it"
            logger.info("compiling the update%s (once)", cached)

    def _trace_step(self, batch: Parts, cut: Cut, batch_size: int, names: "_Names") -> Step:
        """Returns the function that makes one update; tracing it fills `names`."""

        def step(
            global_t: tf.Tensor, settings: tf.Tensor, *tensors: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
            algorithm = self._algorithm
            number = self._updates.read_value() + 1
            with Traced(algorithm, self._settings, settings, global_t) as traced:
                made = make_batch(unflatten(batch, tensors), traced.discount)
                numbers, rows, finite = self._trace_phases(made, traced, number, global_t, names)
                self._updates.assign_add(tf.cast(finite, tf.int64))
                stop = algorithm.stop(numbers)
            names.numbers, names.rows = list(numbers), list(rows)
            vector = tf.stack(
                [tf.cast(n, tf.float32) for n in (*numbers.values(), tf.logical_not(finite))]
            )
            return vector, tf.logical_or(stop, tf.logical_not(finite)), list(rows.values())

        shapes = [
            cut.shape_of_minibatch(tf.TensorSpec(tensor.shape, tensor.dtype), i, batch_size)
            for i, tensor in enumerate(flatten(batch))
        ]
        traced: Step = make_concrete(self._trace(step, [*self._common_specs, *shapes]))
        return traced

    def _trace_phases(
        self,
        batch: Any,
        traced: Traced,
        number: tf.Tensor,
        global_t: tf.Tensor,
        names: "_Names",
    ) -> tuple[dict[str, tf.Tensor], Tensors, tf.Tensor]:
        """Updates the groups of each phase that is due, while gradients are finite.

        Returns:
          Costs and metrics: each group's cost as computed in its phase, all others as computed in
          the first phase; the results of each row, from the first phase; and whether all gradients
          were finite, `[] bool`.
        """
        numbers: dict[str, tf.Tensor] = {}
        rows: Tensors = {}
        finite = tf.constant(True)
        for index, phase in enumerate(self._phases):
            traced.draw_for("+".join(phase.groups), number)

            def run(phase: Phase = phase, finite: tf.Tensor = finite) -> Any:
                own, results, finite = self._run_phase(batch, phase, global_t, finite)
                new = {n: y for n, y in own.items() if n in phase.groups or n not in numbers}
                return new, results, finite

            if phase.every == 1:
                own, results, finite = run()
            else:
                own, results, finite = self._run_if_due(run, number, phase, finite)
            if index == 0:
                rows = results
            numbers.update(own)
            names.every.update(dict.fromkeys(own, phase.every))
        return numbers, rows, finite

    def _run_phase(
        self, batch: Any, phase: Phase, global_t: tf.Tensor, finite: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], Tensors, tf.Tensor]:
        gradients, losses = self._trace_gradients(batch, phase.groups)
        finite = tf.logical_and(finite, _is_finite(gradients))
        rest = iter(gradients)
        for group in phase.groups:
            own = [next(rest) for _ in self._group_variables()[group]]
            steps = self._steps[group]
            step = steps.read_value() + 1
            self._optimizers[group].apply(own, step, global_t, finite)
            for buffer in self._get_buffers(group).values():
                buffer.assign(tf.where(finite, next(rest), buffer))
            steps.assign(tf.where(finite, step, step - 1))
            for variable in self._unit_norms[group]:
                weights = variable.read_value()
                variable.assign(tf.where(finite, _scale_to_unit_norm(weights), weights))
            for source, target in self._targets:
                if source == group:
                    _mix(target, step, finite)
        costs = {group: losses.costs[group] for group in phase.groups}
        numbers = {**{g: c for g, c in losses.costs.items() if g not in costs}, **losses.metrics}
        return {**costs, **numbers}, losses.rows, finite

    def _run_if_due(
        self, run: Callable[[], Any], number: tf.Tensor, phase: Phase, finite: tf.Tensor
    ) -> Any:
        """Runs a phase in every n-th update; in the others its numbers are zeros."""
        seen: list[Any] = []

        def due() -> list[tf.Tensor]:
            own, results, still_finite = run()
            seen[:] = [list(own), results]
            return [*[tf.cast(own[name], tf.float32) for name in own], still_finite]

        # The number of results is known from tracing: the other branch returns as many zeros.
        graph = tf.function(due, autograph=False).get_concrete_function()
        size = len(seen[0])
        out = tf.cond(
            tf.equal(number % phase.every, 0),
            lambda: list(graph()),
            lambda: [*[tf.constant(0.0)] * size, finite],
        )
        return dict(zip(seen[0], out[:size], strict=True)), {}, out[size]


class _Names:
    """The names of the flat results of a compiled update.

    Attributes:
      numbers: costs and metrics.
      rows: results of each row.
      every: number that is only computed in every n-th update -> n.
    """

    def __init__(self) -> None:
        self.numbers: list[str] = []
        self.rows: list[str] = []
        self.every: dict[str, int] = {}

    def describe(self, sums: np.ndarray, updates: int, rows: Sequence[tf.Tensor]) -> UpdateResult:
        """Returns means by name.

        Raises:
          NotFiniteError: the last number, that of failed updates, is not 0.
        """
        counts = [max(updates // self.every.get(name, 1), 1) for name in self.numbers]
        means = (sums[:-1] / np.array(counts, np.float32)).tolist() if counts else []
        costs = dict(zip(self.numbers, means, strict=True))
        if sums[-1]:
            listed = ", ".join(f"{name} {value:g}" for name, value in costs.items())
            raise NotFiniteError(
                f"a gradient contains NaN or infinity, or is too large, with costs {listed}; it "
                "was not applied",
                costs,
            )
        named = {name: row.numpy() for name, row in zip(self.rows, rows, strict=True)}
        return UpdateResult(costs, updates, named)


def _mix(target: Target[Any], step: tf.Tensor, wanted: tf.Tensor) -> None:
    """Copies or mixes a target after an optimizer step of its source's group."""
    if target.every is not None:
        wanted = tf.logical_and(wanted, tf.equal(step % target.every, 0))
    for copy, source in zip(target.copies, target.sources, strict=True):
        own, new = as_tf_variable(copy), as_tf_variable(source).read_value()
        if target.tau is not None:
            new = target.tau * new + (1.0 - target.tau) * own
        own.assign(tf.where(wanted, new, own))


def _scale_to_unit_norm(weights: tf.Tensor) -> tf.Tensor:
    """Divides `[..., n]` by the norms of the n units' weights; units of zeros stay as they are."""
    axes = list(range(len(weights.shape) - 1))
    norms = tf.sqrt(tf.reduce_sum(weights * weights, axes, keepdims=True))
    return weights / tf.where(norms > 0, norms, 1.0)


def _trace_epochs(
    step: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]],
    names: _Names,
    cut: Cut,
    whole: Sequence[tf.Tensor],
    first: tf.Tensor,
    count: tf.Tensor,
    epochs: tf.Tensor,
    batch_size: int,
    seed: tf.Tensor | None,
) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
    """Calls a step with the indices of each minibatch; without a seed they are in order.

    Returns:
      The sum of its metrics `[m] float32`; the number of calls, `[] int64`; and the newest results
      of each row, NaN where there are none.
    """
    length = cut.count(whole)
    most, minibatches = length // batch_size, count // batch_size
    axes = 1 if cut.axes[0] == 0 else 2

    def run_epoch(epoch: tf.Tensor, *carried: tf.Tensor) -> tuple[tf.Tensor, ...]:
        if seed is None:
            order = tf.range(length)
        else:
            order = shuffle(length, tf.stack([seed, epoch]), first)
        order = tf.reshape(order[: most * batch_size], [most, batch_size])

        def run_minibatch(i: tf.Tensor, *carried: tf.Tensor) -> tuple[tf.Tensor, ...]:
            sums, updates, *rows, stopped = carried
            metrics, stop, results = step(order[i])
            rows = [cut.put(old, order[i], new) for old, new in zip(rows, results, strict=True)]
            return i + 1, sums + metrics, updates + 1, *rows, tf.logical_or(stopped, stop)

        _, *carried = _loop(minibatches, run_minibatch, (0, *carried))
        return epoch + 1, *carried

    zero = tf.constant(0, tf.int64)
    nothing = tf.fill(tf.shape(whole[0])[:axes], float("nan"))
    rows = [tf.ensure_shape(nothing, whole[0].shape[:axes]) for _ in names.rows]
    start = (zero, tf.zeros([len(names.numbers) + 1]), zero, *rows, tf.constant(False))
    _, sums, updates, *rows, _ = _loop(epochs, run_epoch, start)
    return sums, updates, rows


def _loop(times: tf.Tensor, body: Callable[..., Any], start: Sequence[Any]) -> Any:
    """Repeats the body until the first variable reaches `times`, or the last one is true."""

    def goes_on(i: tf.Tensor, *carried: tf.Tensor) -> tf.Tensor:
        return tf.logical_and(i < times, tf.logical_not(carried[-1]))

    # Sequentially: each update starts from the result of the previous one.
    return tf.while_loop(goes_on, body, start, parallel_iterations=1)


def _is_finite(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    # A sum is finite only if all its terms are; one that overflows is as bad. XLA finds the joined
    # gradient again in the optimizer's step; a sum of each tensor would be four kernels more.
    flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)
    return tf.math.is_finite(tf.reduce_sum(tf.abs(flat)))


def _validate_groups(field: str, named: Sequence[str] | Mapping[str, Any], groups: Any) -> None:
    if sorted(named) != sorted(groups):
        raise ConfigError(
            f"{field}: {', '.join(named) or 'none'}, expected one for each variable group of the "
            f"model: {', '.join(groups)}; correct relaax-parameter-server.{field}, or {field} of "
            "the algorithm's Config"
        )
