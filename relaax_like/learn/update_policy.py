"""UpdatePolicy: the update of one iteration, wherever the optimizers run."""

import abc
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np

from relaax_like.config.plan import RETURN_STATISTIC, LearningPlan, Offline, Replay
from relaax_like.config.seeds import derive_seed
from relaax_like.core.moments import Moments
from relaax_like.experience.collector import TrainingData
from relaax_like.experience.holes import DenseRollout, cut_ends, make_dense
from relaax_like.experience.rollout import stack_history
from relaax_like.learn.draw import Draw
from relaax_like.learn.reward_scale import RewardScale, scale_rewards
from relaax_like.wire.errors import ConfigError, InvalidInputError

if TYPE_CHECKING:
    from relaax_like.learn.compiled_algorithm import CompiledAlgorithm  # imports TensorFlow
    from relaax_like.learn.replayed import ReplayIteration


CompiledT = TypeVar("CompiledT", bound="CompiledAlgorithm")


class UpdatePolicy(abc.ABC, Generic[CompiledT]):
    """The policy of a BaseLearner: learns from an iteration by the plan, in random minibatches.

    The minibatches depend on the seed and on the number of updates so far: a run that resumes from
    a snapshot draws what it would have drawn. With a plan `Replay`, an iteration consists of
    minibatches that were drawn from a table; the steps that arrived since the previous iteration
    first feed the running statistics.

    If the plan requests it, the first iterations only feed the running statistics of the inputs
    (`prenormalize_steps`), and each later one feeds them with its last update (`update_norm`):
    until then, inputs are normalised as when acting, so that log-probabilities match. If a
    run starts with statistics, there are no such first iterations.

    Attributes:
      rows: results of each row of the newest iteration, name -> `[T, k]`, or, with a plan `Replay`,
        `[U * B]` or `[L, U * B]`; {} if there are none.

    Args:
      compiled: computes updates or gradients.
      plan: of an iteration.
      seed: of the orders of minibatches.

    Raises:
      ConfigError: the plan scales rewards, but the model does not have one reward of one number; or
        the plan needs running statistics that the model does not have.
    """

    def __init__(self, compiled: CompiledT, plan: LearningPlan, seed: int):
        self.rows: Mapping[str, np.ndarray] = {}
        self._compiled = compiled
        self._plan = plan
        self._seed = seed
        self._updates = 0
        self._statistics = [name for name in compiled.statistics if name != RETURN_STATISTIC]
        self._reward_scale = (
            None if plan.reward_discount is None else RewardScale(plan.reward_discount)
        )
        if self._reward_scale is not None:
            compiled.validate_one_reward("plan.reward_discount scales one reward")
            if RETURN_STATISTIC not in compiled.statistics:
                raise ConfigError(
                    f"plan: reward_discount is {plan.reward_discount}, but the model has no "
                    f"running statistic {RETURN_STATISTIC!r}; add "
                    f"Normalizer({RETURN_STATISTIC!r}, ()) to the model, or set "
                    "reward_discount=None"
                )
        if plan.prenormalize_steps and not self._statistics:
            setting = f"prenormalize_steps is {plan.prenormalize_steps}"
            off = "prenormalize_steps=0"
            if isinstance(plan, Offline):
                setting, off = "prenormalize is True", "prenormalize=False"
            raise ConfigError(
                f"plan: {setting}, but the model has no running statistics of its inputs; add a "
                f"Normalizer to the model, or set {off}"
            )
        self._prenormalizes = False
        self._dense: DenseRollout | None = None  # the iteration at hand

    def data_preprocess(self, data: "TrainingData | ReplayIteration") -> dict[str, Any]:
        """Returns the arguments of an update, with scaled rewards if the plan requests it.

        Args:
          data: an iteration; minibatches of a replay table become rows `[U * B, ...]` or
            `[L, U * B, ...]`.

        Raises:
          RelaaxError: the iteration cannot be learned from; nothing has changed.
        """
        if isinstance(self._plan, Replay):
            # It loads TensorFlow.
            from relaax_like.learn.replay_arguments import make_replay_arguments

            data = cast("ReplayIteration", data)
            arguments = make_replay_arguments(self._compiled, data.minibatches)
            self._validate(arguments)
            for name, moments in data.statistics.items():
                self._add_statistic(name, moments)
            self._begin(arguments)
            return arguments
        data = cast(TrainingData, data)
        self._dense = dense = make_dense(stack_history(data.rollout))
        rollout = dense.rollout
        arguments = self._compiled.make_arguments(rollout, cut_ends(rollout))
        self._validate(arguments)
        self._begin(arguments)
        if self._reward_scale is None:
            return arguments
        keys = data.keys if dense.order is None else data.keys[dense.columns]
        rewards = self._scale_rewards(rollout.rewards, rollout.next_alive, keys, rollout.valid)
        return {**arguments, "rewards": self._compiled.split_rewards(rewards)}

    @property
    @abc.abstractmethod
    def global_t(self) -> int:
        """Environment steps, for schedules."""

    def _validate(self, arguments: Mapping[str, Any]) -> None:
        """Checks the arguments of an update."""

    def _begin(self, arguments: Mapping[str, Any]) -> None:
        """Called before an iteration's rewards are scaled."""

    def _join_moments(self, moments: Moments) -> Moments:
        """Returns the moments of all learners that share the iteration."""
        return moments

    @abc.abstractmethod
    def _add_statistic(self, name: str, moments: Moments) -> None:
        """Adds to a running statistic."""

    def review(self, numbers: Mapping[str, Any]) -> None:
        """Shows the algorithm what `forward` has returned."""
        self._compiled.review(numbers, int(numbers["updates"]))

    def get_sums(self) -> np.ndarray:
        """Returns the discounted sums of rewards of the slots, `[slots]`; empty without scaling."""
        return np.zeros(0) if self._reward_scale is None else self._reward_scale.sums.copy()

    def set_sums(self, sums: np.ndarray) -> None:
        """Restores what `get_sums` returned."""
        if self._reward_scale is not None:
            self._reward_scale.sums = sums.copy()

    def _make_draw(self, arguments: Mapping[str, Any]) -> Draw:
        """Returns how the minibatches of an iteration are drawn.

        If the arguments have an extra `mask`, `[T, k]`, it is 1 for steps and 0 for padding;
        columns with only padding, or such rows of the only column, come last.

        Raises:
          InvalidInputError: there are too few valid rows for one minibatch.
        """
        plan, mask = self._plan, _find_mask(arguments)
        if isinstance(plan, Replay):  # whose minibatches are drawn already
            return Draw(batch_size=plan.batch_size, minibatch_of=plan.minibatch_of)
        alive = arguments["next_alive"]["alive"]
        batch_size = plan.batch_size or alive.shape[1]  # all of the iteration is of rollouts
        return Draw(
            batch_size=batch_size,
            minibatch_of=plan.minibatch_of,
            epochs=plan.epochs,
            seed=derive_seed(self._seed, "minibatches", self._updates),
            count=None if mask is None else self._count(mask, batch_size),
        )

    def _count(self, mask: np.ndarray, batch_size: int) -> int:
        """Returns the number of rows or columns from which minibatches are drawn.

        For rows, it is the number of valid ones; those left over after the last complete minibatch
        differ in each epoch. For columns, it is rounded up to complete minibatches, if there are
        enough columns: none is left out, and no minibatch has only padding.

        Raises:
          InvalidInputError: there are too few valid rows for one minibatch.
        """
        count = int(mask.sum())
        needed = batch_size if self._plan.minibatch_of == "steps" else 1
        if count < needed:
            lower = ""
            if needed > 1:
                lower = "lower the plan's batch_size (usually algorithm.batch_size), or "
            raise InvalidInputError(
                f"an iteration has {count} valid row(s), but a minibatch needs {needed}; {lower}"
                "make iterations with more valid rows",
                "valid",
            )
        if self._plan.minibatch_of == "steps":
            return count
        whole = -(-int(mask[0].sum()) // batch_size)
        return min(whole, mask.shape[1] // batch_size) * batch_size

    def _restore(self, rows: np.ndarray) -> np.ndarray:
        """Moves results to where the iteration's rows were before its gaps were removed."""
        return rows if self._dense is None else self._dense.restore(rows)

    def _must_prenormalize(self) -> bool:
        """Returns whether the next iteration only feeds the statistics."""
        if not self._plan.prenormalize_steps or self._updates:
            return False
        seen = min(self._compiled.get_statistic(name).count for name in self._statistics)
        # Statistics before the first step belong to the policy from which the run starts.
        return seen < self._plan.prenormalize_steps and (self.global_t > 0 or not seen)

    def _feed_statistics(self, arguments: Mapping[str, Any]) -> None:
        """Adds the iteration's inputs to their running statistics."""
        inputs, mask = arguments["inputs"], _find_mask(arguments)
        for name in self._statistics:
            shape, rows = self._compiled.get_statistic(name).mean.shape, inputs[name]
            rows = rows.reshape(-1, *shape) if mask is None else rows[mask > 0]
            self._add_statistic(name, Moments.of(rows))

    def _scale_rewards(
        self,
        rewards: np.ndarray,
        next_alive: np.ndarray,
        keys: np.ndarray,
        valid: np.ndarray | None = None,
    ) -> np.ndarray:
        if self._reward_scale is None:
            return rewards
        before = self._reward_scale.sums
        sums = self._reward_scale.add(rewards[..., 0], next_alive, keys, valid)
        own = Moments.of(sums.ravel() if valid is None else sums[valid])
        try:
            scale = self._compiled.get_statistic(RETURN_STATISTIC).merge(self._join_moments(own))
            self._add_statistic(RETURN_STATISTIC, own)
        except Exception:
            self._reward_scale.sums = before
            raise
        return scale_rewards(rewards, scale)


def count_env_steps(arguments: Mapping[str, Any]) -> int:
    """Returns the number of valid rows in the arguments of an update."""
    mask = _find_mask(arguments)
    return arguments["next_alive"]["alive"].size if mask is None else int(mask.sum())


def _find_mask(arguments: Mapping[str, Any]) -> np.ndarray | None:
    return arguments.get("extras", {}).get("mask")
