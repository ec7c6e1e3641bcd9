"""LearningPolicy: the policy of a BaseLearner, with a complete iteration in one compiled call."""

import shlex
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from relaax_like.config.plan import LearningPlan, Replay
from relaax_like.core.moments import Moments
from relaax_like.core.records import Lease
from relaax_like.learn.training_error import (
    count_leading_axes,
    describe_place,
    find_not_finite,
    save_training_error,
)
from relaax_like.learn.update_policy import UpdatePolicy, count_env_steps
from relaax_like.learn.updates import CompiledUpdates, NotFiniteError, OptimizerState
from relaax_like.wire.errors import InvalidInputError


class LearningPolicy(UpdatePolicy[CompiledUpdates]):
    """A CompiledUpdates with the plan of its iterations; see `UpdatePolicy`.

        policy = LearningPolicy(compiled, plan, seed)
        policy.load(parameter_server.lease())
        log_vars = policy.forward(policy.data_preprocess(training_data))
        values, optimizers = policy.get_flat(), policy.get_optimizers()

    Attributes:
      global_t: environment steps, for schedules. It increases by the steps learned from (not with a
        plan `Replay`), and a publisher sets it to the steps counted.

    Args:
      compiled: owns model and optimizers.
      plan: of an iteration.
      seed: of the orders of minibatches; a plan `Replay` does not use it.
      run_dir: folder for `training_error.npz`, which is written if numbers are not finite; None:
        not written.

    Raises:
      ConfigError: see `UpdatePolicy`.
    """

    global_t: int = 0

    def __init__(
        self, compiled: CompiledUpdates, plan: LearningPlan, seed: int, run_dir: Path | None = None
    ):
        super().__init__(compiled, plan, seed)
        self.global_t = 0
        self._run_dir = run_dir
        self._names = [variable.name for variable in compiled.get_variables()]
        self._prenormalizes = self._must_prenormalize()

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Held from an update to its publication; see `CompiledUpdates.updating`."""
        return self._compiled.updating

    def load(self, lease: Lease) -> None:
        """Resumes from the state of a parameter server.

        Raises:
          InvalidInputError: the state belongs to another model or optimizer.
        """
        self._compiled.set_flat(lease.values)
        self._set_optimizers(lease.slots, lease.slot_names, lease.steps)
        self.global_t = lease.global_t
        self._prenormalizes = self._must_prenormalize()

    def forward(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Makes the updates of one iteration.

        Args:
          arguments: from `data_preprocess`.

        Returns:
          The means of costs and metrics over the updates, and `updates`, the number of these; only
          `updates`, 0, if the iteration only feeds the running statistics.

        Raises:
          ConfigError: the algorithm's code fails, as it would each time.
          InvalidInputError: the iteration has too few valid rows for one minibatch; or see
            `CompiledUpdates.update`.
          NotFiniteError: a gradient had NaN or infinity; the updates before it stay.
        """
        env_steps = 0 if isinstance(self._plan, Replay) else count_env_steps(arguments)
        if self._prenormalizes:
            self._feed_statistics(arguments)
            self.global_t += env_steps
            self._prenormalizes = self._must_prenormalize()
            self.rows = {}
            return {"updates": 0}
        try:
            learned = self._compiled.update(
                self._make_draw(arguments), global_t=self.global_t, **arguments
            )
        except NotFiniteError as error:
            raise self._explain(str(error), arguments, error.metrics) from None
        self._updates += learned.updates
        self.global_t += env_steps
        self.rows = {name: self._restore(row) for name, row in learned.rows.items()}
        if self._plan.update_norm:
            self._feed_statistics(arguments)
        return {**learned.costs, "updates": learned.updates}

    def get_values(self) -> list[np.ndarray]:
        """Returns copies of all variables, in manifest order."""
        return self._compiled.get_values()

    def get_flat(self) -> np.ndarray:
        """Returns a copy of all variables as a flat vector; see `CompiledAlgorithm.get_flat`."""
        return self._compiled.get_flat()

    def get_optimizers(self) -> OptimizerState:
        """Returns a copy of the optimizers' state."""
        return self._compiled.export_optimizers()

    def state_dict(self) -> dict[str, np.ndarray]:
        """Returns values, optimizers and counts as named arrays."""
        optimizers = self.get_optimizers()
        return {
            **{f"value/{n}": v for n, v in zip(self._names, self.get_values(), strict=True)},
            **{f"slots/{group}": slots for group, slots in optimizers.slots.items()},
            **{f"steps/{group}": np.array(n) for group, n in optimizers.steps.items()},
            "updates": np.array(self._compiled.count_updates(optimizers.steps)),
            "global_t": np.array(self.global_t),
        }

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Restores what `state_dict` returned.

        Raises:
          InvalidInputError: an array is missing, or has the shape of another model or optimizer.
        """
        known = self._compiled.export_optimizers()
        needed = [*(f"value/{n}" for n in self._names), *(f"slots/{g}" for g in known.slots)]
        for name in (*needed, *(f"steps/{g}" for g in known.steps), "global_t"):
            if name not in state:
                raise InvalidInputError(
                    f"policy state: {name}: missing; load a checkpoint of the same model and "
                    "optimizer",
                    name,
                )
        slots = {group: state[f"slots/{group}"] for group in known.slots}
        steps = {group: int(state[f"steps/{group}"]) for group in known.steps}
        self._set_optimizers(slots, known.slot_names, steps)  # refuses other models, too
        self._compiled.set_values([state[f"value/{name}"] for name in self._names])
        self.global_t = int(state["global_t"])
        self._prenormalizes = self._must_prenormalize()

    def _add_statistic(self, name: str, moments: Moments) -> None:
        self._compiled.set_statistic(name, self._compiled.get_statistic(name).merge(moments))

    def _validate(self, arguments: Mapping[str, Any]) -> None:
        self._validate_finite(arguments)

    def _validate_finite(self, arguments: Mapping[str, Any]) -> None:
        if find_not_finite(_name_arrays(arguments)):
            raise self._explain(
                "an iteration contains NaN or infinity; it was not learned from", arguments
            )

    def _explain(
        self, what: str, arguments: Mapping[str, Any], metrics: Mapping[str, float] | None = None
    ) -> NotFiniteError:
        """Writes the arrays, and returns an error that names the file and the first bad number.

        Args:
          what: the problem.
          arguments: of the update.
          metrics: costs of the update, if they were computed.
        """
        arrays = {
            "algorithm": np.array(self._compiled.name),
            **_name_arrays(arguments),
            **self.state_dict(),
            **{f"cost/{name}": np.array(value) for name, value in (metrics or {}).items()},
        }
        first = next(iter(find_not_finite(arrays).items()), None)
        where = "all arrays are finite: lower the learning rate, or clip gradients"
        if first is not None:
            place = describe_place(*first, count_leading_axes(arrays))
            where = f"the first such number is in {place}"
        message = f"{what}; {where}"
        if self._run_dir is not None:
            try:
                path = save_training_error(self._run_dir, arrays)
                message += f"; for more: relaax diagnose {shlex.quote(str(path))}"
            except OSError as error:
                message += f"; the details could not be saved: {error}"
        return NotFiniteError(message, metrics)

    def _set_optimizers(
        self,
        slots: Mapping[str, np.ndarray],
        slot_names: Mapping[str, Sequence[str]],
        steps: Mapping[str, int],
    ) -> None:
        names = {group: tuple(one) for group, one in slot_names.items()}
        optimizers = OptimizerState(steps, slots, names)
        self._compiled.import_optimizers(optimizers)
        self._updates = self._compiled.count_updates(steps)


def _name_arrays(arguments: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Returns the arrays of an update by the names that they have in `training_error.npz`."""
    return {
        f"batch/{part}/{name}": array
        for part, arrays in arguments.items()
        for name, array in arrays.items()
    }
