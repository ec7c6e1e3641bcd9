"""LearningPolicy: what a BaseLearner trains, as a whole iteration in one compiled call."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from relaax_like.config.plan import RETURN_STATISTIC, RolloutPlan
from relaax_like.config.seeds import derive_seed
from relaax_like.core.moments import Moments
from relaax_like.core.records import Lease
from relaax_like.experience.holes import Dense, cut_ends, make_dense
from relaax_like.experience.rollout import stack_history
from relaax_like.learn.reward_scale import RewardScale, scale_rewards
from relaax_like.learn.training_error import (
    describe_place,
    find_not_finite,
    save_training_error,
)
from relaax_like.learn.updates import LearningTask, NotFiniteError, OptimizerState
from relaax_like.wire.errors import InvalidInputError


class LearningPolicy:
    """A LearningTask with the plan of its iterations.

        policy = LearningPolicy(task, plan, seed)
        policy.load(parameter_server.lease())
        log_vars = policy.forward(policy.data_preprocess(training_data))
        values, optimizers = policy.get_values(), policy.get_optimizers()

    Which minibatches an update is made of depends on the seed and on the number of updates so far:
    a run that goes on from a snapshot draws what it would have drawn.

    Where the plan says so, the first iterations only feed the running statistics of the inputs
    (`prenormalize_steps`), and each later one feeds them after its updates (`update_norm`): in
    those the networks see inputs as they were seen when it was acted, and log-probabilities fit.
    Statistics that a run starts from take the place of the former.

    Attributes:
      global_t: environment steps, which schedules follow. It grows by what is learned from, and a
        publisher sets it to what was counted.
      rows: results of each row of the newest iteration, name -> `[T, k]`; {} where there are none.

    Args:
      task: owns model and optimizers.
      plan: of an iteration.
      seed: of the orders of minibatches.
      run_dir: folder for `training_error.npz`, which is written when numbers are not finite; None:
        it is not.
    """

    def __init__(
        self, task: LearningTask, plan: RolloutPlan, seed: int, run_dir: Path | None = None
    ):
        self.global_t = 0
        self.rows: Mapping[str, np.ndarray] = {}
        self._task = task
        self._plan = plan
        self._seed = seed
        self._run_dir = run_dir
        self._updates = 0
        self._names = [variable.name for variable in task.get_variables()]
        self._statistics = [name for name in task.statistics if name != RETURN_STATISTIC]
        self._reward_scale = (
            None if plan.reward_discount is None else RewardScale(plan.reward_discount)
        )
        if self._reward_scale is not None:
            task.validate_one_reward("plan.reward_discount scales one reward")
        self._prenormalizes = self._must_prenormalize()
        self._dense: Dense | None = None  # the iteration at hand

    def load(self, lease: Lease) -> None:
        """Goes on from what a parameter server holds.

        Raises:
          InvalidInputError: it is of another model or optimizer.
        """
        self._task.set_values(lease.manifest.unpack(lease.values))
        self._set_optimizers(lease.slots, lease.slot_names, lease.steps)
        self.global_t = lease.global_t
        self._prenormalizes = self._must_prenormalize()

    def data_preprocess(self, data: Any) -> dict[str, Any]:
        """Returns the arguments of an update; rewards are scaled where the plan says so.

        Args:
          data: a `TrainingData`.

        Raises:
          NotFiniteError: the iteration has NaN or infinity; nothing has changed.
        """
        self._dense = dense = make_dense(stack_history(data.rollout))
        rollout = dense.rollout
        arguments = self._task.make_arguments(rollout, cut_ends(rollout))
        self._validate_finite(arguments)
        keys = data.keys if dense.order is None else data.keys[dense.columns]
        rewards = self._scale_rewards(rollout.rewards, rollout.next_alive, keys, rollout.valid)
        return {**arguments, "rewards": self._task.split_rewards(rewards)}

    def forward(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Makes the updates of one iteration; returns the means of costs and metrics.

        Args:
          arguments: of `data_preprocess`. Where they have an extra `mask`, `[T, k]`, it is 1 at
            steps and 0 at padding; columns of padding alone, or rows of one column, come last.

        Raises:
          NotFiniteError: a gradient had NaN or infinity; the updates before it stay.
        """
        plan = self._plan
        mask = arguments.get("extras", {}).get("mask")
        alive = arguments["next_alive"]["alive"]
        env_steps = alive.size if mask is None else int(mask.sum())
        if self._prenormalizes:
            self._feed_statistics(arguments["inputs"], mask)
            self.global_t += env_steps
            self._prenormalizes = self._must_prenormalize()
            self.rows = {}
            return {"updates": 0}
        try:
            learned = self._task.update_epochs(
                epochs=plan.epochs,
                minibatch=plan.minibatch_size,
                seed=derive_seed(self._seed, "minibatches", self._updates),
                minibatch_of=plan.minibatch_of,
                global_t=self.global_t,
                count=None if mask is None else self._count(mask),
                **arguments,
            )
        except NotFiniteError as error:
            raise self._explain(str(error), arguments, error.metrics) from None
        self._updates += learned.updates
        self.global_t += env_steps
        self.rows = {name: self._restore(row) for name, row in learned.rows.items()}
        if plan.update_norm:
            self._feed_statistics(arguments["inputs"], mask)
        return {**learned.costs, "updates": learned.updates}

    def get_values(self) -> list[np.ndarray]:
        """Returns copies of all variables, in manifest order."""
        return self._task.get_values()

    def get_optimizers(self) -> OptimizerState:
        """Returns a copy of what the optimizers remember."""
        return self._task.export_optimizers()

    def state_dict(self) -> dict[str, np.ndarray]:
        """Returns values and optimizers as named arrays."""
        optimizers = self.get_optimizers()
        return {
            **{f"value/{n}": v for n, v in zip(self._names, self.get_values(), strict=True)},
            **{f"slots/{group}": slots for group, slots in optimizers.slots.items()},
            **{f"steps/{group}": np.array(n) for group, n in optimizers.steps.items()},
            "updates": np.array(optimizers.updates),
            "global_t": np.array(self.global_t),
        }

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Goes on from what `state_dict` returned.

        Raises:
          InvalidInputError: it is of another model or optimizer.
        """
        known = self._task.export_optimizers()
        self._task.set_values([state[f"value/{name}"] for name in self._names])
        slots = {group: state[f"slots/{group}"] for group in known.slots}
        steps = {group: int(state[f"steps/{group}"]) for group in known.steps}
        self._set_optimizers(slots, known.slot_names, steps)
        self.global_t = int(state["global_t"])
        self._prenormalizes = self._must_prenormalize()

    def get_sums(self) -> np.ndarray:
        """Returns the discounted sums of rewards of the slots, `[slots]`; empty without scaling."""
        return np.zeros(0) if self._reward_scale is None else self._reward_scale.sums.copy()

    def set_sums(self, sums: np.ndarray) -> None:
        """Goes on from what `get_sums` returned."""
        if self._reward_scale is not None:
            self._reward_scale.sums = sums.copy()

    def _restore(self, rows: np.ndarray) -> np.ndarray:
        """Puts results where the iteration's rows were before its holes were removed."""
        return rows if self._dense is None else self._dense.restore(rows)

    def _must_prenormalize(self) -> bool:
        """Returns whether the next iteration only feeds the statistics."""
        if not self._plan.prenormalize_steps or self._updates:
            return False
        seen = min(self._task.get_statistic(name).count for name in self._statistics)
        # What is there before the first step has come with the policy that the run starts from.
        return seen < self._plan.prenormalize_steps and (self.global_t > 0 or not seen)

    def _count(self, mask: np.ndarray) -> int:
        """Returns how many rows or columns minibatches are made of.

        Of rows those that count; what is left behind the last whole minibatch is another part in
        each epoch. Of columns as many more as fill the last minibatch, where there are so many:
        none is left out, and none is of padding alone.

        Raises:
          InvalidInputError: there are too few for one minibatch.
        """
        minibatch, count = self._plan.minibatch_size, int(mask.sum())
        needed = minibatch if self._plan.minibatch_of == "steps" else 1
        if count < needed:
            raise InvalidInputError(
                f"an iteration has {count} valid rows, but a minibatch needs {needed}; lower "
                "the size of minibatches, or have the data handler leave more rows valid",
                "valid",
            )
        if self._plan.minibatch_of == "steps":
            return count
        whole = -(-int(mask[0].sum()) // minibatch)
        return min(whole, mask.shape[1] // minibatch) * minibatch

    def _feed_statistics(
        self, inputs: Mapping[str, np.ndarray], mask: np.ndarray | None = None
    ) -> None:
        for name in self._statistics:
            before, rows = self._task.get_statistic(name), inputs[name]
            rows = rows.reshape(-1, *before.mean.shape) if mask is None else rows[mask > 0]
            self._task.set_statistic(name, before.merge(Moments.of(rows)))

    def _validate_finite(self, arguments: Mapping[str, Any]) -> None:
        if find_not_finite(_name_arrays(arguments)):
            raise self._explain(
                "an iteration contains NaN or infinity; it was not learned from", arguments
            )

    def _scale_rewards(
        self,
        rewards: np.ndarray,
        next_alive: np.ndarray,
        keys: np.ndarray,
        valid: np.ndarray | None = None,
    ) -> np.ndarray:
        if self._reward_scale is None:
            return rewards
        sums = self._reward_scale.add(rewards[..., 0], next_alive, keys, valid)
        rows = sums.ravel() if valid is None else sums[valid]
        moments = self._task.get_statistic(RETURN_STATISTIC).merge(Moments.of(rows))
        self._task.set_statistic(RETURN_STATISTIC, moments)
        return scale_rewards(rewards, moments)

    def _explain(
        self, what: str, arguments: Mapping[str, Any], metrics: Mapping[str, float] | None = None
    ) -> NotFiniteError:
        """Writes all down, and returns an error that names the file and where the first number is.

        Args:
          what: went wrong.
          arguments: of the update.
          metrics: its costs, if it came to them.
        """
        arrays = {
            "task": np.array(self._task.name),
            **_name_arrays(arguments),
            **self.state_dict(),
            **{f"cost/{name}": np.array(value) for name, value in (metrics or {}).items()},
        }
        first = next(iter(find_not_finite(arrays).items()), None)
        where = "none of the arrays" if first is None else describe_place(*first)
        message = f"{what}; first among all arrays: {where}"
        if self._run_dir is not None:
            try:
                path = save_training_error(self._run_dir, arrays)
                message += f"; for more: relaax diagnose {path}"
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
        self._task.import_optimizers(optimizers)
        self._updates = optimizers.updates


def _name_arrays(arguments: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Returns the arrays of an update under the names that they have in `training_error.npz`."""
    return {
        f"batch/{part}/{name}": array
        for part, arrays in arguments.items()
        for name, array in arrays.items()
    }
