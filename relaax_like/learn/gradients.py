"""GradientTask: the gradients of updates whose optimizers run in a parameter server."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from relaax_like.algorithm.algorithm import Algorithm
from relaax_like.algorithm.parts import Parts, flatten, unflatten
from relaax_like.algorithm.phases import Phase
from relaax_like.algorithm.tracing import Traced
from relaax_like.config.places import describe_attribute, describe_place
from relaax_like.core.prediction import TASK
from relaax_like.learn.computation_task import (
    CHOSEN,
    ComputationTask,
    Gradient,
    find_nearest,
    to_int64,
)
from relaax_like.learn.draw import Draw
from relaax_like.learn.minibatches import (
    find_first,
    fit_draw,
    plan_cut,
    shuffle,
)
from relaax_like.nn.runtime import tf
from relaax_like.wire.errors import ConfigError


class GradientTask(ComputationTask):
    """A ComputationTask that computes one gradient for each phase of each update.

        task = GradientTask(algorithm)
        for gradient in task.compute_updates(**batch, global_t=4096):
            task.set_values(parameter_server.push_pull(gradient.arrays, gradient.groups))

    Attributes:
      wants_rows: whether gradients include the results of each row.

    Args:
      algorithm: what to learn.
      compile_in_background, clips, task: see `ComputationTask`.

    Raises:
      ConfigError: the model has no trainable variables, or phases or frozen groups do not fit its
        groups; see `ComputationTask` for other causes.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        *,
        compile_in_background: bool = False,
        clips: bool = True,
        task: str = TASK,
    ):
        super().__init__(
            algorithm, compile_in_background=compile_in_background, clips=clips, task=task
        )
        self.wants_rows = False
        self._phases = find_phases(algorithm, list(self._group_variables()))

    def compute_updates(
        self, draw: Draw | None = None, *, global_t: int = 0, **batch: Any
    ) -> Iterator[Gradient]:
        """Yields the gradients of each minibatch, for the same updates as those of LearningTask.

        Each one is computed on demand, with the values at that time. `prepare` is called once,
        before the first one; for minibatches in the order of the batch, once for each of them. Each
        minibatch has one gradient for each phase that is due; a phase with `every=n` is due in
        every n-th minibatch, and the costs of its groups are left out in the others. The gradients
        end early after a minibatch for which the algorithm's `stop` returns True.

        Args:
          draw: as for `LearningTask.update`, which draws the same minibatches.
          global_t: environment steps of the whole run, for schedules.
          batch: as for `compute_gradients`.

        Raises:
          ConfigError: the algorithm's code fails while it is compiled, or its `stop` fails; the
            error names the line.
          InvalidInputError: an array is missing or has another shape than its spec, or see
            `fit_draw`.
        """
        parts = self._make_batch(**batch)
        axes = self._count_leading_axes(parts)
        made, cut, length = fit_draw(draw, parts, axes)
        count, unit = made.count or length, made.minibatch_of
        leading = parts["next_alive"]["alive"].shape[:axes]
        is_whole = made.epochs == 1 and made.minibatch == length and not cut.rows
        if made.seed is None or is_whole:
            made, first = replace(made, seed=None), None
        else:
            first = find_first(parts, unit, length, count)
            self._num_gradients += 1  # the number of the first update
            parts = self._compute("prepare", parts, self._compile_prepare, global_t)
            self._num_gradients -= 1
            cut = plan_cut(parts, axes, unit)
        rows: dict[str, np.ndarray] = {}
        updates = made.epochs * (count // made.minibatch)
        for chosen in draw_minibatches(length, count, made.minibatch, made.seed, first):
            updates -= 1
            if made.seed is None:
                one = unflatten(parts, cut.take(flatten(parts), chosen))
            else:
                one = {**parts, CHOSEN: {unit: tf.constant(chosen)}}
            for gradient in self._compute_update(one, global_t, updates == 0):
                for name, results in gradient.rows.items():
                    whole = rows.setdefault(name, np.full(leading, np.nan, results.dtype))
                    cut.put_array(whole, chosen, results)
                yield replace(gradient, rows=rows)
            if gradient.is_last:
                return

    def _compute_update(
        self, parts: Parts, global_t: int, is_end: bool = True
    ) -> Iterator[Gradient]:
        """Yields the gradient of each phase that is due in one update.

        Args:
          parts: an unprepared batch; or a prepared one, with the indices of the minibatch.
          global_t: environment steps of the whole run.
          is_end: whether no other update of the batch follows.
        """
        self._num_gradients += 1
        if not self._algorithm.phases and CHOSEN not in parts:
            groups = self._order(self._phases[0]) if self._algorithm.frozen else None
            gradient = self._compute(
                "gradients", parts, self._make_compile(groups, False), global_t
            )
            is_last = is_end or self._stops(gradient.numbers, global_t)
            yield replace(gradient, is_last=is_last)
            return
        what = "phase"
        if CHOSEN in parts:
            what = f"{next(iter(parts[CHOSEN]))} of phase"
        else:
            parts = self._compute("prepare", parts, self._compile_prepare, global_t)
        number = self._num_gradients
        due = [i for i, phase in enumerate(self._phases) if number % phase.every == 0]
        groups_due = {group for index in due for group in self._phases[index].groups}
        waiting = {g for phase in self._phases for g in phase.groups if g not in groups_due}
        numbers: dict[str, float] = {}
        for index in due:
            has_all = not self._algorithm.phases and not self._algorithm.frozen
            groups = None if has_all else self._order(self._phases[index])
            compile_phase = self._make_compile(groups, True)
            gradient = self._compute(f"{what} {index}", parts, compile_phase, global_t)
            own = {name: y for name, y in gradient.numbers.items() if name not in waiting}
            numbers = merge_numbers(numbers, own, gradient.groups)
            ends_update = index == due[-1]
            # As in a compiled update, costs of phases that are not due are zeros.
            seen = {**dict.fromkeys(waiting, 0.0), **numbers}
            is_last = ends_update and (is_end or self._stops(seen, global_t))
            rows = gradient.rows if index == due[0] else {}
            yield replace(
                gradient, numbers=own, rows=rows, is_last=is_last, ends_update=ends_update
            )

    def _stops(self, numbers: Mapping[str, float], global_t: int) -> bool:
        """Returns whether the algorithm skips the remaining updates of this batch."""
        if type(self._algorithm).stop is Algorithm.stop:
            return False
        return self._call_stop(numbers, global_t)

    def _order(self, phase: Phase) -> list[str]:
        """Returns the groups of a phase in manifest order."""
        return [group for group in self._group_variables() if group in phase.groups]

    def _make_compile(
        self, groups: Sequence[str] | None, prepared: bool
    ) -> Callable[[Parts, Sequence[tf.TensorSpec], bool], Callable[..., Any]]:
        return lambda batch, specs, xla: self._compile_gradients(
            batch, specs, xla, groups, prepared, self.wants_rows
        )

    def _compile_prepare(
        self, batch: Parts, specs: Sequence[tf.TensorSpec], xla: bool
    ) -> Callable[[list[tf.Tensor]], Parts]:
        """Returns one compiled call that prepares a batch with these names for the phases."""
        names: dict[str, list[str]] = {}

        def flat(
            global_t: tf.Tensor, settings: tf.Tensor, number: tf.Tensor, *tensors: tf.Tensor
        ) -> list[tf.Tensor]:
            with Traced(self._algorithm, self._settings, settings, global_t) as traced:
                parts = self._prepare(unflatten(batch, tensors), traced, number)
            names.update({part: list(tensors) for part, tensors in parts.items()})
            return flatten(parts)

        concrete = self._compile_function(
            flat, [*self._gradient_specs, *specs], xla, self._explain_compiling
        )

        def call(tensors: list[tf.Tensor]) -> Parts:
            rest = iter(concrete(*tensors))
            return {part: {name: next(rest) for name in own} for part, own in names.items()}

        return call


def merge_numbers(
    numbers: Mapping[str, float], own: Mapping[str, float], groups: Sequence[str]
) -> dict[str, float]:
    """Adds the numbers of a phase to those of the previous phases.

    Costs come from the groups' own phases, all other numbers from the first phase that has them.

    Args:
      numbers: of the previous phases.
      own: numbers of the phase.
      groups: variable groups that the phase updates.
    """
    costs = {name: number for name, number in own.items() if name in groups}
    return {**own, **numbers, **costs}


def draw_minibatches(
    length: int, count: int, minibatch: int, seed: int | None, first: tf.Tensor | None
) -> Iterator[np.ndarray]:
    """Yields the rows or slots of one minibatch after another, epoch after epoch, indefinitely.

    Args:
      length: number of rows or slots.
      count: how many of them are drawn in each epoch, at least `minibatch`; those that do not fill
        a minibatch are left out.
      minibatch: number of rows or slots in a minibatch.
      seed: of the orders; None: in the order of the batch.
      first: `[length] bool`, the `count` rows or slots that are drawn; see `find_first`. Without a
        seed it is not used.

    Yields:
      Indices, `[minibatch] int32`.
    """
    for epoch in itertools.count():
        order = np.arange(length, dtype=np.int32)
        if (
            seed is not None and minibatch < length
        ):  # all of them stay in order, as in a compiled update
            drawn = tf.stack([to_int64(seed), to_int64(epoch)])
            order = shuffle(tf.constant(length), drawn, first).numpy()
        for start in range(0, count // minibatch * minibatch, minibatch):
            yield order[start : start + minibatch]


def find_phases(algorithm: Algorithm, groups: Sequence[str]) -> Sequence[Phase]:
    """Returns the phases of an update.

    Raises:
      ConfigError: the phases do not update each trained group exactly once, or none of them runs in
        every update, or `frozen` names an unknown group, or all groups, or there are no groups; the
        error names the line.
    """
    if not groups:
        place = describe_place(type(algorithm.model), "__init__")
        raise ConfigError(f"{place}: the model has no trainable variables; add a layer to it")
    known = ", ".join(groups)
    for group in algorithm.frozen:
        if group not in groups:
            place = describe_attribute(algorithm, "frozen")
            raise ConfigError(
                f"{place}: frozen: {group!r} is not a variable group{find_nearest(group, groups)}; "
                f"the groups are {known}"
            )
    trained = algorithm.trained_groups
    if not trained:
        place = describe_attribute(algorithm, "frozen")
        raise ConfigError(
            f"{place}: frozen: it lists all variable groups ({known}), so nothing would be "
            "trained; remove at least one of them"
        )
    if not algorithm.phases:
        return [Phase(*trained)]
    place = describe_attribute(algorithm, "phases")
    stepped = [group for phase in algorithm.phases for group in phase.groups]
    for group in stepped:
        if group not in trained:
            raise ConfigError(
                f"{place}: phases: {group!r} is not a variable group that is trained"
                f"{find_nearest(group, trained)}; the trained groups are {', '.join(trained)}"
            )
    for group in trained:
        number = stepped.count(group)
        if number != 1:
            cure = "remove it from all but one" if number else "add it to one, or list it in frozen"
            raise ConfigError(
                f"{place}: phases: the variable group {group!r} is in {number} phases, expected "
                f"one; {cure}"
            )
    if all(phase.every > 1 for phase in algorithm.phases):
        numbers = ", ".join(str(phase.every) for phase in algorithm.phases)
        raise ConfigError(
            f"{place}: phases: every is {numbers}, so no phase runs in every update; set every=1 "
            "in one of them"
        )
    return algorithm.phases
