"""GradientTask: the gradients of an update whose optimizer steps a parameter server takes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from relaax_like.algorithm.algorithm import Algorithm
from relaax_like.algorithm.parts import Parts
from relaax_like.algorithm.phases import Phase
from relaax_like.algorithm.tracing import Traced
from relaax_like.config.places import describe_place
from relaax_like.core.prediction import TASK
from relaax_like.learn.computation_task import (
    ComputationTask,
    Gradient,
    find_nearest,
    flatten,
    unflatten,
)
from relaax_like.nn.runtime import tf
from relaax_like.wire.errors import ConfigError


class GradientTask(ComputationTask):
    """A ComputationTask that computes one gradient for each phase of an update.

        task = GradientTask(algorithm)
        for gradient in task.compute_phases(**batch, global_t=4096):
            task.set_values(parameter_server.push_pull(gradient.arrays, gradient.groups))

    Attributes:
      wants_rows: whether gradients come with the results of each row.

    Args:
      algorithm: what to learn.
      compile_in_background: see `ComputationTask`.
      task: see `ComputationTask`.

    Raises:
      ConfigError: phases or frozen groups do not fit the model's groups.
    """

    def __init__(
        self, algorithm: Algorithm, *, compile_in_background: bool = False, task: str = TASK
    ):
        super().__init__(algorithm, compile_in_background=compile_in_background, task=task)
        self.wants_rows = False
        self._phases = find_phases(algorithm, list(self._group_variables()))

    def compute_phases(self, global_t: int = 0, **batch: Any) -> Iterator[Gradient]:
        """Yields the gradient of each phase that is due, one after another.

        Each is computed when it is asked for, at the values of that moment. `prepare` is called
        once, before the first one. A phase with `every=n` is due in every n-th call; the costs of
        its groups are left out in the others.

        Args:
          global_t: environment steps of the whole run, for schedules.
          batch: as for `compute_gradients`.

        Raises:
          ConfigError: the algorithm's code fails while it is compiled; names the line.
        """
        parts = self._make_batch(**batch)
        self._num_gradients += 1
        if not self._algorithm.phases:
            groups = self._order(self._phases[0]) if self._algorithm.frozen else None
            yield self._compute("gradients", parts, self._make_compile(groups, False), global_t)
            return
        prepared = self._compute("prepare", parts, self._compile_prepare, global_t)
        number = self._num_gradients
        due = [i for i, phase in enumerate(self._phases) if number % phase.every == 0]
        groups_due = {group for index in due for group in self._phases[index].groups}
        waiting = {g for phase in self._phases for g in phase.groups if g not in groups_due}
        for index in due:
            compile_phase = self._make_compile(self._order(self._phases[index]), True)
            gradient = self._compute(f"phase {index}", prepared, compile_phase, global_t)
            numbers = {name: y for name, y in gradient.numbers.items() if name not in waiting}
            yield replace(gradient, numbers=numbers, is_last=index == due[-1])

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
        """Returns one compiled call from a batch with these names to what phases learn from."""
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


def find_phases(algorithm: Algorithm, groups: Sequence[str]) -> Sequence[Phase]:
    """Returns the phases of an update.

    Raises:
      ConfigError: they do not step each group that is trained once; names the line.
    """
    known = ", ".join(groups)
    for group in algorithm.frozen:
        if group not in groups:
            place = describe_place(type(algorithm), "frozen")
            raise ConfigError(
                f"{place}: frozen: {group!r} is not a variable group{find_nearest(group, groups)}; "
                f"the groups are {known}"
            )
    trained = algorithm.trained_groups
    if not algorithm.phases:
        return [Phase(*trained)]
    place = describe_place(type(algorithm), "phases")
    stepped = [group for phase in algorithm.phases for group in phase.groups]
    for group in stepped:
        if group not in trained:
            raise ConfigError(
                f"{place}: phases: {group!r} is not a variable group that is trained"
                f"{find_nearest(group, trained)}; those are {', '.join(trained)}"
            )
    for group in trained:
        if stepped.count(group) != 1:
            raise ConfigError(
                f"{place}: phases: the variable group {group!r} is in {stepped.count(group)} "
                "phases, expected one; or list it in frozen"
            )
    if all(phase.every > 1 for phase in algorithm.phases):
        raise ConfigError(f"{place}: phases: none runs in every update; give one of them every=1")
    return algorithm.phases
