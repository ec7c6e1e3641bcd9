"""Replayed: a replay table as a source of iterations; and the table of a plan."""

import dataclasses
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from relaax_like.algorithm.model import Model, get_learning_specs, get_reward_columns
from relaax_like.config.places import describe_place
from relaax_like.config.plan import RETURN_STATISTIC, Replay
from relaax_like.core.moments import Moments
from relaax_like.core.records import EpisodeReport, Origin, Received, TableStatus
from relaax_like.experience.collector import DataHandler, handle_rollout
from relaax_like.experience.replay.hindsight import ComputeRewards
from relaax_like.experience.replay.items import Items, Minibatches
from relaax_like.experience.replay.selectors import Selector
from relaax_like.experience.rollout import OVERRIDDEN, Rollout, get_valid, stack_history
from relaax_like.learn.agent_source import AgentSource
from relaax_like.learn.data_handlers import locate_handler_errors
from relaax_like.learn.replay_log import ReplayLog, ReplayRecord
from relaax_like.learn.reward_scale import RewardScale
from relaax_like.learn.rollout_layout import RolloutLayout, remove_question
from relaax_like.learn.tally import Tally
from relaax_like.nn.normalization import Normalizer
from relaax_like.replay import (
    Balanced,
    Hindsight,
    Prioritized,
    RateLimiter,
    RowSpec,
    SequenceBatch,
    Sequences,
    Storage,
    Table,
    Transitions,
    Uniform,
    make_sparse_rewards,
)
from relaax_like.wire.errors import (
    CollectorFullError,
    ConfigError,
    InvalidInputError,
)

logger = logging.getLogger(__name__)

# Row of `Losses.rows` that becomes a priority.
PRIORITY = "priority"
# While nothing is learned, this many steps are counted together: each count is written to disk.
_COUNT_STEPS = 64
# Slots whose rollouts can continue one another in the table.
MAX_STREAMS = 4096
# Slots of a rollout for which the rate limiter has room.
_SLOTS = 64


@dataclass(frozen=True)
class ReplayIteration:
    """Minibatches that are learned from at once.

    Attributes:
      minibatches: `[U, B, ...]`, or sequences `[U, L, B, ...]`; None: there are none, and steps are
        only counted.
      env_steps: environment steps that have arrived since the previous iteration.
      tickets: of the rollouts that have arrived since then.
      mean_version: of the values that acted, over the first steps of the minibatches' items that
        are the run's own; None without minibatches.
      statistics: input -> moments of the steps that have arrived since the last minibatches, for
        running statistics.
    """

    minibatches: Minibatches | None
    env_steps: int
    tickets: tuple[int, ...]
    mean_version: float | None
    statistics: Mapping[str, Moments] = field(default_factory=dict)


class Replayed(AgentSource):
    """Puts agents' rollouts into a table, and draws minibatches from it.

        source = Replayed(make_table(plan, model, ...), tally, layout, plan)
        ticket = source.add(rollout, episodes)
        iteration = source.get(done=0, timeout_sec=1.0)

    Agents do not wait for updates: a rollout is learned from again and again, or never. If the
    learner is too far behind, `add` raises CollectorFullError until it has caught up. Rollouts of
    agents that cannot wait (`is_urgent`) are accepted nevertheless: then more updates are overdue
    than the rate limiter tolerates.

    Args:
      table: empty.
      tally: counts steps and episodes.
      layout: of the rollouts.
      plan: of the algorithm, also of the table. With `prior_overridden`, the column `OVERRIDDEN` of
        rollouts says which of their steps the prior gets, too.
      log: keeps accepted rollouts on disk; None: they are lost with the process.
      normalizers: of the model; the rollouts are added to their running statistics.
      data_handler: applies a user's changes to rollouts; None: no changes. The log has rollouts
        as they arrived, and they are changed again when the table is filled from it.
    """

    holds_agents = False
    _layout: RolloutLayout

    def __init__(
        self,
        table: Table,
        tally: Tally,
        layout: RolloutLayout,
        plan: Replay,
        log: ReplayLog | None = None,
        normalizers: Sequence[Normalizer] = (),
        data_handler: DataHandler | None = None,
    ):
        super().__init__(tally, layout, data_handler)
        self._prior_overridden = plan.prior_overridden
        reward_discount = plan.reward_discount
        self._reward_scale = None if reward_discount is None else RewardScale(reward_discount)
        self._table = table
        self._updates = plan.updates_at_once
        self._log = log
        self._normalizers = [
            one
            for one in normalizers
            if reward_discount is not None or one.statistic != RETURN_STATISTIC
        ]
        self._changed = threading.Condition()  # guards all that follows
        self._tickets: list[int] = []
        self._number = 0
        self._steps = 0
        self._must_count = False  # what the log had
        # Of the rollout that `add` has just written to the log; guarded by the tally's lock.
        self._handled: Sequence[Rollout] | None = None
        self._seen: list[Rollout] = []  # not yet in `_moments`
        self._moments: dict[str, Moments] = {}
        self._closed = False

    @property
    def has_iteration(self) -> bool:
        """Whether minibatches are due, or many steps are to be counted."""
        return self._table.can_sample(self._updates) or self._steps >= _COUNT_STEPS

    @property
    def table_status(self) -> TableStatus:
        """Updates that are due by `updates_per_step`; when the log was given up; with a prior, the
        steps of both tables."""
        given_up_step = None if self._log is None else self._log.given_up_step
        counts = self._table.counts
        own_steps = None if counts.prior_items is None else counts.items
        return TableStatus(counts.deficit, given_up_step, own_steps, counts.prior_items)

    def load(self) -> None:
        """Fills the table from the log, and counts what no publication contains; see `Source`.

        Raises:
          ConfigError: the log has rollouts that do not fit this run; or the data handler has
            failed, and the error names the line.
          JournalError: the log is damaged, another version wrote it, or its folder cannot be read
            or written.
        """
        if self._log is None:
            return
        published = self.tally.received
        # Steps in the running statistics of the newest publication.
        seen = min((float(one.count.numpy()) for one in self._normalizers), default=0.0)
        steps = minibatches = newer = 0
        for record in self._log.replay():
            if record.rollout is not None:
                self._insert_again(record.rollout, is_seen=record.steps < seen)
            steps = record.steps + (record.rollout.env_steps if record.rollout else 0)
            minibatches = record.minibatches
            if not _is_published(record.origin, published):
                self.tally.add(record.env_steps, record.episodes, record.origin)
                newer += record.env_steps
        self._table.set_priorities(self._log.take_priorities())
        if not steps:
            return
        self._table.set_progress(steps, minibatches)
        with self._changed:
            self._steps += newer
            self._must_count = newer > 0
        logger.info(
            "replay table: %s rows from %s; %s steps are newer than the newest publication",
            *(f"{self._table.counts.rows:,}", self._log.directory, f"{newer:,}"),
        )

    def add(
        self,
        rollout: Rollout,
        episodes: Sequence[EpisodeReport],
        env_steps: int | None = None,
        origin: Origin | None = None,
        is_urgent: bool = False,
    ) -> int:
        """Adds a rollout, once the log contains it; see `AgentSource`.

        Raises:
          CollectorFullError: the learner or the disk is behind, or the source is closed; nothing
            was added.
          ConfigError: the data handler has failed; the error names the line.
          InvalidInputError: the rollout does not fit this run, or the data handler returned no
            rollout; nothing was added.
          ServerUnavailableError: the disk has failed; nothing was added.
        """
        rollout = self._layout.select(rollout)  # over the network nothing else has come
        with self.tally.lock:
            if self._log is not None:
                self._require_room(rollout.env_steps, is_urgent)
                handled = self._handle(rollout)
                for one in handled:
                    self._table.validate(self._remove_marks(one))
                steps = rollout.env_steps if env_steps is None else env_steps
                self._log.append(self._make_record(rollout, episodes, steps, origin))
                self._handled = handled
            return super().add(rollout, episodes, env_steps, origin, is_urgent)

    def add_counts(
        self, env_steps: int, episodes: Sequence[EpisodeReport] = (), origin: Origin | None = None
    ) -> None:
        """Counts steps and episodes, once the log contains them; see `AgentSource`.

        Raises:
          CollectorFullError: the disk is behind; nothing was counted.
          ServerUnavailableError: the disk has failed; nothing was counted.
        """
        with self.tally.lock:
            if self._log is not None and (env_steps or episodes):
                self._log.append(self._make_record(None, episodes, env_steps, origin))
            super().add_counts(env_steps, episodes, origin)

    def has_rollouts(self, iteration: ReplayIteration) -> bool:
        """Returns whether there are minibatches; see `Source`."""
        return iteration.minibatches is not None

    def get(self, done: int, timeout_sec: float) -> ReplayIteration | None:
        """Waits for minibatches, or for steps to be counted; see `Source`.

        Raises:
          InvalidInputError, ConfigError: see `Table.sample`.
          Exception: an error of the `compute_rewards` of `Hindsight`.
        """
        with self._changed:
            self._changed.wait_for(self._is_ready, timeout_sec)
            if self._closed or not self._is_ready():
                return None
            tickets, steps = tuple(self._tickets), self._steps
            self._tickets, self._steps, self._must_count = [], 0, False
        minibatches = None
        if self._table.can_sample(self._updates):
            minibatches = self._table.sample(self._updates)
        if minibatches is None:
            return ReplayIteration(None, steps, tickets, None)
        with self._changed:
            moments = self._take_moments()
        # Recorded steps have the versions of another run.
        version = float(np.mean(minibatches.versions[minibatches.ids >= 0]))
        return ReplayIteration(minibatches, steps, tickets, version, moments)

    def note_learned(
        self, number: int, iteration: ReplayIteration, results: Mapping[str, Any]
    ) -> None:
        """Sets priorities in the table, and passes the results to the data handler; see `Source`.

        Raises:
          ConfigError: the data handler has failed; the error names the line.
          InvalidInputError: a priority is not finite.
        """
        minibatches = iteration.minibatches
        assert minibatches is not None
        if PRIORITY in results:
            errors = np.abs(np.asarray(results[PRIORITY]))
            if isinstance(minibatches, SequenceBatch):
                errors = _mix_errors(errors, minibatches.valid)
            errors = errors.reshape(minibatches.ids.shape)
            # An algorithm's `stop` can skip the last minibatches, whose rows have no results.
            made = int(results.get("updates", len(errors)))
            self._table.update_priorities(minibatches.ids[:made], errors[:made])
        if self.data_handler is not None:
            with locate_handler_errors(self.data_handler, "after_learn"):
                self.data_handler.after_learn(minibatches, results)

    def forget(self, agents: Sequence[int]) -> None:
        """Forgets slots that will send nothing more; see `Table.forget`."""
        self._table.forget(agents)

    def take_curves(self, sample_rate: float) -> Mapping[str, float]:
        """Returns arrival rates, the table's size and the number of overdue updates."""
        counts = self._table.counts
        return {
            **super().take_curves(sample_rate),
            "Replay/steps": counts.rows,
            "Replay/updates behind": counts.deficit,
        }

    def take_state(self) -> dict[str, Any]:
        """Returns the table, and removes what is to be counted; see `Source`."""
        with self._changed:
            moments = self._take_moments()
        return {
            **super().take_state(),
            "table": self._table.get_state(),
            "statistics": {name: dataclasses.asdict(one) for name, one in moments.items()},
            "sums": np.zeros(0) if self._reward_scale is None else self._reward_scale.sums.copy(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `take_state` returned; see `Source`."""
        self._table.set_state(state["table"])
        with self._changed:
            for name, one in state["statistics"].items():
                self._moments[name] = Moments(float(one["count"]), one["mean"], one["m2"])
            if self._reward_scale is not None:
                self._reward_scale.sums = state["sums"].copy()
        super().set_state(state)

    def close(self) -> None:
        """Stops accepting rollouts, and closes the log."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._log is not None:
            with self.tally.lock:
                self._log.close(self._table.get_priorities())

    def _is_ready(self) -> bool:
        has_news = self._must_count or bool(self._tickets)
        return self._closed or has_news or self._table.can_sample(self._updates)

    def _take_moments(self) -> dict[str, Moments]:
        """Removes and returns the moments of the inputs that came since the last call."""
        moments, self._moments = self._moments, {}
        rollouts, self._seen = self._seen, []
        for name in [one.statistic for one in self._normalizers] if rollouts else ():
            rows = [self._find_rows(name, rollout) for rollout in rollouts]
            one = Moments.of(np.concatenate(rows))
            moments[name] = moments[name].merge(one) if name in moments else one
        return moments

    def _find_rows(self, name: str, rollout: Rollout) -> np.ndarray:
        """Returns what a rollout adds to a running statistic, `[rows, ...]`."""
        valid = get_valid(rollout)
        if name != RETURN_STATISTIC or self._reward_scale is None:
            return rollout.inputs[name][valid]
        keys = np.stack([np.zeros(rollout.slots, np.int64), np.arange(rollout.slots)], 1)
        rewards, alive = rollout.rewards[..., 0], rollout.next_alive
        return self._reward_scale.add(rewards, alive, keys, valid)[valid]

    def _require_open(self) -> None:
        if self._closed:
            raise CollectorFullError("the replay table is closed and takes no more steps")

    def _require_room(self, steps: int, is_urgent: bool) -> None:
        """Checks that the table accepts `steps` steps now.

        Raises:
          CollectorFullError: the learner is behind, or the source is closed.
        """
        self._require_open()
        if not is_urgent and not self._table.can_insert(steps):
            raise CollectorFullError("the learner is behind; agents wait until it has caught up")

    def _make_record(
        self,
        rollout: Rollout | None,
        episodes: Sequence[EpisodeReport],
        env_steps: int,
        origin: Origin | None,
    ) -> ReplayRecord:
        counts = self._table.counts
        return ReplayRecord(rollout, episodes, env_steps, origin, counts.steps, counts.minibatches)

    def _insert_again(self, rollout: Rollout, is_seen: bool) -> None:
        assert self._log is not None
        try:
            for handled in self._handle(self.conform(rollout)):
                self._insert(handled)
                if not is_seen:
                    self._note_seen(handled)
                elif self._reward_scale is not None:
                    self._find_rows(RETURN_STATISTIC, handled)  # later sums continue these
        except InvalidInputError as error:
            raise ConfigError(
                f"{self._log.directory}: the experience in it does not fit this run: "
                f"{remove_question(error)}; continue with the spaces, settings and data handler of "
                "the run that wrote it, or use another checkpoint_dir"
            ) from error

    def _take(self, rollout: Rollout, is_urgent: bool) -> int:
        handled, self._handled = self._handled, None
        self._require_room(rollout.env_steps, is_urgent)
        if handled is None:
            handled = self._handle(rollout)
            if len(handled) > 1:  # all or none of them
                for one in handled:
                    self._table.validate(self._remove_marks(one))
        steps = 0
        for one in handled:
            with self._changed:
                self._require_open()
                steps += self._insert(one)
                self._note_seen(one)
        with self._changed:
            self._number += 1
            self._tickets.append(self._number)
            self._steps += steps
            self._changed.notify_all()
            return self._number

    def _insert(self, rollout: Rollout) -> int:
        """Inserts into the table, and marked steps into the prior; returns the number of steps."""
        own = self._remove_marks(rollout)
        steps = self._table.insert(own).steps
        if own is not rollout:
            overridden = get_valid(rollout) & (rollout.extras[OVERRIDDEN] > 0)
            if overridden.any():
                self._table.insert_prior(dataclasses.replace(own, valid=overridden))
        return steps

    def _remove_marks(self, rollout: Rollout) -> Rollout:
        """Returns a rollout without the column `OVERRIDDEN`, if the prior is to have it.

        Raises:
          InvalidInputError: it is not one number for each step.
        """
        if not self._prior_overridden or OVERRIDDEN not in rollout.extras:
            return rollout
        came, expected = rollout.extras[OVERRIDDEN].shape, rollout.next_alive.shape
        if came != expected:
            raise InvalidInputError(
                f"extras {OVERRIDDEN}: shape {list(came)}, expected {list(expected)}; let the data "
                "handler keep the column as it came",
                "extras",
            )
        extras = {name: array for name, array in rollout.extras.items() if name != OVERRIDDEN}
        return dataclasses.replace(rollout, extras=extras)

    def _handle(self, rollout: Rollout) -> Sequence[Rollout]:
        with locate_handler_errors(self.data_handler, "after_interact"):
            return handle_rollout(self.data_handler, rollout)

    def _note_seen(self, rollout: Rollout) -> None:
        if self._normalizers:
            self._seen.append(stack_history(rollout))
        if len(self._seen) >= _COUNT_STEPS:
            self._moments = self._take_moments()


def _mix_errors(errors: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Returns the error of each sequence, `[U, B]`: 0.9 times the largest + 0.1 times the mean.

    Source: Kapturowski et al. 2019, https://openreview.net/forum?id=r1lyTjAqYX, section 2.3.

    Args:
      errors: `[L, U * B]`, 0 or more.
      valid: `[U, L, B] bool`, which of the steps count; at least one of each sequence.
    """
    updates, length, size = valid.shape
    ours = np.moveaxis(errors.reshape(length, updates, size), 0, 1)
    ours = np.where(valid, ours, 0.0)
    return 0.9 * ours.max(1) + 0.1 * ours.sum(1) / valid.sum(1)


def _is_published(origin: Origin | None, published: Mapping[str, Received]) -> bool:
    """Returns whether the newest publication counts a message; True for this process's own."""
    if origin is None:
        return True
    known = published.get(origin.client_id)
    if known is None:
        return False
    return (origin.incarnation, origin.sequence) <= (known.incarnation, known.counted)


def make_table(
    plan: Replay,
    model: Model,
    history: Mapping[str, int],
    seed: int,
    compute_rewards: ComputeRewards | None = None,
) -> Table:
    """Makes the empty table of a plan.

    Args:
      plan: of the algorithm.
      model: its specs define the steps.
      history: input -> number of observations that the model sees at once, if it is more than one.
      seed: of the draws.
      compute_rewards: rewards of replaced goals, with `plan.hindsight`; None: 0 at the goal, -1
        elsewhere.

    Raises:
      ConfigError: goals are to be replaced, but the observations do not have them, their shapes
        differ, or there are several rewards; the model's reward specs are not valid; or the table
        does not fit into memory.
    """
    limiter = RateLimiter(
        plan.updates_per_step,
        plan.warm_up_steps,
        max_segment_steps=plan.rollout_steps * _SLOTS,
        max_minibatches=plan.updates_at_once,
    )
    selector: Selector = Balanced() if plan.balance_rewards else Uniform()
    if plan.priority_exponent is not None:
        selector = Prioritized(plan.priority_exponent, plan.weight_exponent)
    return Table(
        Storage(make_spec(model, history), plan.capacity, history=history, max_streams=MAX_STREAMS),
        make_items(plan, model, compute_rewards),
        selector,
        minibatch_size=plan.batch_size,
        limiter=limiter,
        seed=seed,
    )


def make_items(plan: Replay, model: Model, compute_rewards: ComputeRewards | None) -> Items:
    """Returns what minibatches consist of.

    Raises:
      ConfigError: goals are to be replaced, but the observations do not have them, their shapes
        differ, or there are several rewards.
    """
    if plan.sequence_steps is not None:
        return Sequences(plan.sequence_steps, plan.burn_in_steps, discount=plan.discount)
    settings = plan.hindsight
    if settings is None:
        return Transitions(n_step=plan.n_step, discount=plan.discount)
    specs = dict(get_learning_specs(model))
    for key in ("achieved", "desired"):
        name = getattr(settings, key)
        if name not in specs:
            raise ConfigError(
                f"algorithm.hindsight.{key}: there is no observation {name!r}, only "
                f"{', '.join(map(repr, specs))}; name the one that has the goal, or remove "
                "hindsight"
            )
    achieved, desired = (tuple(specs[n]["shape"]) for n in (settings.achieved, settings.desired))
    if achieved != desired:
        raise ConfigError(
            f"algorithm.hindsight: {settings.achieved!r} has shape {list(achieved)} and "
            f"{settings.desired!r} {list(desired)}, expected the same shape; name other "
            "observations"
        )
    rewards = max(part.stop for part in get_reward_columns(model).values())
    if rewards > 1:
        place = describe_place(type(model), "get_reward_specs")
        raise ConfigError(
            f"{place}: {rewards} rewards, but algorithm.hindsight replaces only one; define one "
            "reward of shape [1], or remove hindsight"
        )
    return Hindsight(
        compute_rewards or make_sparse_rewards(settings.tolerance, settings.ends_at_goal),
        settings.achieved,
        settings.desired,
        settings.strategy,
        settings.goals,
        plan.discount,
    )


def make_spec(model: Model, history: Mapping[str, int]) -> RowSpec:
    """Returns the columns of a model's table; for `history`, see `make_table`."""

    def read(name: str, spec: Mapping[str, Any], number: int = 1) -> np.dtype:
        shape = tuple(spec["shape"])
        if number > 1:
            shape = (*shape[:-1], shape[-1] // number)
        return np.dtype((spec.get("dtype", "float32"), shape))

    return RowSpec(
        observations={
            name: read(name, spec, history.get(name, 1)) for name, spec in get_learning_specs(model)
        },
        actions={name: read(name, spec) for name, spec in model.get_action_specs()},
        num_rewards=max(part.stop for part in get_reward_columns(model).values()),
    )
