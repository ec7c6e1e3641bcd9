"""JointPolicy: the policy of a BaseLearner that makes each update together with other learners."""

import contextlib
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from relaax_like.algorithm.parts import MASK, Parts, flatten, unflatten
from relaax_like.config.plan import LearningPlan, Replay, Unit
from relaax_like.config.seeds import derive_seed
from relaax_like.core.moments import Moments
from relaax_like.core.records import GroupKind, GroupReply, GroupRequest
from relaax_like.core.roles import GroupConnection
from relaax_like.learn.computation_task import CHOSEN, GRADIENT_NORM
from relaax_like.learn.gradients import draw_minibatches, merge_numbers
from relaax_like.learn.joint_task import JointGradient, JointTask, Reduce
from relaax_like.learn.minibatches import Cut, find_first, plan_cut, validate_lengths
from relaax_like.learn.pushing import Pushing
from relaax_like.learn.replay_policy import make_replay_arguments
from relaax_like.learn.replayed import ReplayIteration
from relaax_like.learn.update_policy import UpdatePolicy
from relaax_like.nn.runtime import tf
from relaax_like.wire import tracing
from relaax_like.wire.errors import (
    ConfigError,
    InvalidInputError,
    LeasedError,
    RelaaxError,
    ServerUnavailableError,
)

logger = logging.getLogger(__name__)


class _AgainError(RelaaxError):
    """Another learner has left the iteration: the current update is made again without it."""


class _OutError(RelaaxError):
    """The others have continued without this learner."""


class JointPolicy(UpdatePolicy[JointTask]):
    """A JointTask with the plan of its iterations; all learners of a run make each update together.

    In an iteration, each learner has the rows of its own agents. An update is one step of the
    optimizer for the batch of all learners: sums over rows, such as the mean of a cost, the moments
    of advantages, or the KL divergence after which an iteration ends early, are over the rows of
    all. An epoch has as many minibatches as the rows of all learners fill, and each learner has a
    part of each minibatch, in proportion to its rows; one whose part is less than a row learns
    nothing in the iteration.

    A learner that the others have waited for too long is out: the rest of its iteration is not
    learned from. It continues with the newest values, and enters the next iteration.

    Attributes:
      has_pushed: whether an update of the newest iteration was made.
      is_ending: whether the iteration must end with its next update, because the process is about
        to end; set by another thread.
      is_recording: whether this learner is the first one, which records the curves of all.

    Args:
      task: computes this learner's part of gradients.
      plan: of an iteration.
      seed: of the orders of minibatches.
      sink: connects to the other learners; receives values, and steps to be counted.

    Raises:
      ConfigError: see `UpdatePolicy`.
    """

    def __init__(self, task: JointTask, plan: LearningPlan, seed: int, sink: Pushing):
        super().__init__(task, plan, seed)
        self.has_pushed = False
        self.is_ending = False
        self._sink = sink
        self._connection: GroupConnection | None = None
        self._entered = GroupReply(outcome="out")  # the newest answer: its counts are valid
        self._global_t = 0  # for the schedules of the whole iteration
        self._is_out = self._has_updated = False
        self._is_closed = False
        # This learner's, those of lower ranks, and those of all learners.
        self._units = self._units_before = self._total_units = 0
        task.on_compile = self._note_compiling

    @property
    def global_t(self) -> int:
        """Environment steps when the iteration began: the same for all learners."""
        return self._global_t

    @property
    def is_recording(self) -> bool:
        """Whether this learner is the first of all that made the newest iteration's updates."""
        return self._has_updated and self._entered.rank == 0

    def data_preprocess(self, data: Any) -> dict[str, Any]:
        """Enters the next iteration; returns the arguments of `forward`.

        Raises:
          ConfigError: the run's learners do not make updates together.
          InvalidInputError: rewards that are to be scaled contain NaN or infinity, or a request
            differs from those of most learners.
          ServerUnavailableError: the parameter server is not available, has too many learners, or
            `close` was called.
          RelaaxError: another error of `join`.
        """
        self.has_pushed = self._is_out = self._has_updated = False
        try:
            return super().data_preprocess(data)
        except Exception:
            self._give_up()
            raise

    def forward(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Makes the updates of one iteration.

        Args:
          arguments: from `data_preprocess`.

        Returns:
          The means of costs and metrics over the updates, and `updates`, the number of these. If
          the other learners have continued without this one: only `updates`, 0, even if updates
          were made before.

        Raises:
          ConfigError: the algorithm's code fails, as it would each time, or the run's learners do
            not make updates together.
          NotAllowedError, ProtocolError: see `GroupStream`.
          InvalidInputError: a gradient, or the sum of all learners', is not finite, or too large;
            inputs that feed a running statistic are not finite; or a request differs from those of
            most learners.
          LeasedError: the run learns from experience, and there are statistics.
          ServerUnavailableError: the parameter server is not available, or `close` was called.
        """
        try:
            costs = {} if self._is_out else self._learn(arguments)
        except _OutError:
            logger.warning(
                "the other learners have continued without this one (see "
                "relaax-parameter-server.combine.max_wait_sec); it enters the next iteration"
            )
            costs = {}
            self.rows = {}
        finally:
            self._leave()
        self._sink.push_counts()
        return {"updates": 0, **costs}

    def join(self) -> None:
        """Joins the other learners, which then wait for this one. Idempotent.

        Raises:
          ConfigError: the run's learners do not make updates together.
          InvalidInputError: the run has another model, or its parameter server another version of
            relaax_like.
          ServerUnavailableError: the parameter server is not available, there are too many
            learners, or `close` was called.
          NotAllowedError, ProtocolError: see `GroupStream`.
        """
        if self._connection is None:
            try:
                self._connection = self._sink.join_group()
            except LeasedError as error:
                raise ConfigError(str(error)) from None
        if self._is_closed:  # perhaps while it joined
            self._disconnect()
            raise ServerUnavailableError("this learner is ending")

    def close(self) -> None:
        """Leaves the other learners for good. Idempotent; any thread can call it."""
        self._is_closed = True
        connection = self._connection
        if connection is not None:
            connection.close()

    def state_dict(self) -> dict[str, np.ndarray]:
        """Returns the newest values by name; optimizers are the parameter server's."""
        names = (variable.name for variable in self._task.get_variables())
        return {f"value/{n}": v for n, v in zip(names, self._sink.values, strict=True)}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Raises ConfigError, because the values belong to the parameter server."""
        raise ConfigError(
            "cannot load a checkpoint: learners that make each update together take their values "
            "from the parameter server; to start from another run's weights, set learner.previous"
        )

    def take_state(self) -> dict[str, Any]:
        """Returns the state that the parameter server does not store."""
        return {"reward_sums": self.get_sums()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `take_state` returned."""
        self.set_sums(state["reward_sums"])

    # The iteration.

    def _begin(self, arguments: Mapping[str, Any]) -> None:
        """Enters the next iteration with this learner's rows."""
        self._units = self._count_units(arguments)
        self._enter()

    def _count_units(self, arguments: Mapping[str, Any]) -> int:
        """Returns the number of rows, or of slots, that minibatches are made of."""
        alive = arguments["next_alive"]["alive"]
        mask = arguments.get("extras", {}).get(MASK)
        if self._unit == "steps":
            return alive.size if mask is None else int(mask.sum())
        return alive.shape[1] if mask is None else int(mask[0].sum())

    @property
    def _unit(self) -> Unit:
        return self._plan.minibatch_of if self._plan.batch_size else "rollouts"

    def _learn(self, arguments: Mapping[str, Any]) -> dict[str, float]:
        if self._must_prenormalize():
            self._feed_statistics(arguments)
            self.rows = {}
            return {"updates": 0}
        made = self._make_updates(arguments)
        if self._plan.update_norm:
            # Until then, inputs are normalised as they were when acting.
            self._feed_statistics(arguments)
        return made

    def _make_updates(self, arguments: Mapping[str, Any]) -> dict[str, float]:
        """Makes the updates of an iteration; each learner has a part of each minibatch."""
        plan, task, unit = self._plan, self._task, self._unit
        total = self._total_units
        minibatch = min(plan.batch_size or total, total)
        minibatches = total // minibatch
        first, last = self._units_before, self._units_before + self._units
        # Rounded such that the parts of all learners make one minibatch, as far as rows reach.
        size = last * minibatch // total - first * minibatch // total
        size = min(size, self._units // minibatches)
        if not size:  # the other learners have nearly all rows
            self.rows = {}
            return {"updates": 0}
        seed = derive_seed(self._seed, "minibatches", self._updates)
        parts = task.make_parts(**arguments)
        cut = plan_cut(parts, task.count_leading_axes(parts), unit)
        length = validate_lengths(parts, cut, size)
        count = size * minibatches
        valid = find_first(parts, unit, length, self._units)
        prepared = self._retry(lambda: self._prepare(parts))
        cut = plan_cut(prepared, task.count_leading_axes(prepared), unit)
        drawn = draw_minibatches(length, count, size, seed, valid)
        chosen = [next(drawn) for _ in range(plan.epochs * minibatches)]
        leading = tuple(flatten(prepared)[0].shape[: task.count_leading_axes(prepared)])
        return self._make_each_update(
            [_Part({**prepared, CHOSEN: {unit: tf.constant(one)}}, cut, one) for one in chosen],
            [_count_valid(prepared, cut, one) for one in chosen],
            leading,
        )

    def _prepare(self, parts: Parts) -> Parts:
        return self._task.prepare(
            parts,
            self._entered.learners,
            self._updates + 1,
            self._global_t,
            self._make_reduce("prepare"),
        )

    def _make_each_update(
        self, parts: "list[_Part]", counts: list[float], leading: tuple[int, ...]
    ) -> dict[str, float]:
        task = self._task
        sums: dict[str, list[float]] = {}
        rows: dict[str, np.ndarray] = {}
        number = self._updates + 1
        firsts = [
            task.compute_first_sums(part.parts, number + index, self._global_t)
            for index, part in enumerate(parts)
        ]
        known = _JointSums(np.column_stack([counts, np.stack(firsts)]))
        updates = 0
        for index, part in enumerate(parts):
            number = self._updates + 1
            numbers: dict[str, float] = {}
            waiting = task.find_waiting(number)
            due = task.find_due(number)
            for phase in due:
                gradient, joint, stop = self._retry(
                    lambda part=part, phase=phase, index=index: self._step(
                        part.parts, phase, index, known
                    )
                )
                own = {name: y for name, y in joint.items() if name not in waiting}
                numbers = merge_numbers(numbers, own, gradient.groups)
                if phase == due[0]:
                    for name, results in gradient.rows.items():
                        whole = rows.setdefault(name, np.full(leading, np.nan, results.dtype))
                        part.cut.put_array(whole, part.chosen, results)
            self._updates += 1
            updates += 1
            self._has_updated = True
            for name, value in numbers.items():
                sums.setdefault(name, []).append(value)
            seen = {**dict.fromkeys(waiting, 0.0), **numbers}
            stop = stop or task.stops_after_phases(seen, self._global_t)
            if stop or self.is_ending:
                break
        self.rows = {name: self._restore(results) for name, results in rows.items()}
        return {**{name: sum(all_) / len(all_) for name, all_ in sums.items()}, "updates": updates}

    def _step(
        self, parts: Parts, phase: int, index: int, known: "_JointSums"
    ) -> tuple[JointGradient, dict[str, float], bool]:
        """Makes the update of one phase.

        Returns:
          Its gradient; costs and metrics; and whether to skip the remaining updates.
        """
        entered = self._entered
        sums = known.get(index, entered.generation, self._make_reduce(f"counts {index}"))
        tag = f"{index} {phase}"
        with tracing.span("gradient"):
            gradient = self._task.compute(
                parts,
                phase,
                count=float(sums[0]),
                learners=entered.learners,
                number=self._updates + 1,
                global_t=self._global_t,
                reduce=self._make_reduce(f"sums {tag}"),
                first_sums=sums[1:],
            )
        with tracing.span("push-pull"):
            reply = self._exchange(
                "step",
                tag=f"step {tag}",
                sums=gradient.sums,
                gradient=gradient.flat,
                groups=gradient.groups,
                clip=self._task.clip,
            )
        self.has_pushed = True
        numbers, stop = gradient.compute_numbers(reply.sums)
        for group, norm in reply.norms.items():
            numbers[f"{GRADIENT_NORM} {group}" if group else GRADIENT_NORM] = norm
        if reply.reply.values is not None:
            self._sink.take(reply.reply)
            self._task.set_values(self._sink.values)
        return gradient, numbers, stop

    def _join_moments(self, moments: Moments) -> Moments:
        """Returns the moments of the rows of all learners."""
        if self._is_out:
            return moments
        try:
            return self._retry(lambda: self._add_moments(moments))
        except _OutError:
            self._is_out = True
            return moments

    def _add_moments(self, moments: Moments) -> Moments:
        if not np.isfinite(moments.mean).all() or not np.isfinite(moments.m2).all():
            raise InvalidInputError(
                "rewards contain NaN or infinity, so they cannot be scaled; check the environment "
                "and the data handler"
            )
        count, mean = moments.count, np.asarray(moments.mean, np.float64)
        reduce = self._make_reduce("moments")
        total, *sums = reduce(np.concatenate([[count], count * mean.ravel()]))
        joint = np.reshape(sums, mean.shape) / max(total, 1.0)
        m2 = moments.m2 + count * (mean - joint) ** 2
        return Moments(float(total), joint, np.reshape(reduce(m2.ravel()), mean.shape))

    def _add_statistic(self, name: str, moments: Moments) -> None:
        self._sink.add_statistics(name, moments)

    # The other learners.

    def _enter(self) -> None:
        """Waits until the next iteration begins, and takes the values that it begins with."""
        self.join()
        entered = self._send(GroupRequest(kind="enter", units=self._units))
        assert entered.reply.values is not None
        self._entered = entered
        self._is_out = entered.outcome != "done"
        self._total_units, self._units_before = entered.units, entered.units_before
        self._updates = entered.updates
        self._global_t = entered.reply.global_t
        self._sink.take(entered.reply)
        self._task.set_values(self._sink.values)

    def _give_up(self) -> None:
        """Leaves the iteration after an error."""
        with contextlib.suppress(RelaaxError):
            self._leave()

    def _leave(self) -> None:
        if self._connection is not None:
            self._send(GroupRequest(kind="leave"))

    def _note_compiling(self) -> None:
        if self._connection is not None:
            self._send(GroupRequest(kind="compiling"))

    def _make_reduce(self, tag: str) -> Reduce:
        """Returns a function that sums numbers over all learners."""
        rounds = iter(range(1 << 20))

        def reduce(own: np.ndarray) -> np.ndarray:
            return self._exchange("sum", tag=f"{tag} {next(rounds)}", sums=own).sums

        return reduce

    def _retry(self, make: Any) -> Any:
        """Calls a function again for as long as learners leave meanwhile."""
        while True:
            try:
                return make()
            except _AgainError:
                logger.debug("a learner has left; continuing with %d", self._entered.learners)

    def _exchange(self, kind: GroupKind, **fields: Any) -> GroupReply:
        entered = self._entered
        reply = self._send(
            GroupRequest(
                kind=kind, iteration=entered.iteration, generation=entered.generation, **fields
            )
        )
        if reply.outcome == "out":
            raise _OutError("out")
        self._entered = reply
        if reply.outcome == "again":
            raise _AgainError("again")
        return reply

    def _send(self, request: GroupRequest) -> GroupReply:
        assert self._connection is not None
        try:
            return self._connection.exchange(request)
        except LeasedError as error:
            self._disconnect()
            raise ConfigError(str(error)) from None
        except Exception:
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class JointReplayPolicy(JointPolicy):
    """Makes each update from one minibatch of each learner; see `JointPolicy`.

    Args:
      task: computes this learner's part of gradients.
      plan: of the algorithm.
      seed: unused: minibatches are taken in the order in which they were drawn.
      sink: see `JointPolicy`.
    """

    def __init__(self, task: JointTask, plan: Replay, seed: int, sink: Pushing):
        super().__init__(task, plan, seed, sink)
        self._batch_size = plan.batch_size
        task.wants_rows = task.wants_rows or plan.priority_exponent is not None

    def data_preprocess(self, data: ReplayIteration) -> dict[str, Any]:  # type: ignore[override]
        """Enters the next iteration; returns the arguments of `forward`.

        Raises:
          ConfigError: the run's learners do not make updates together.
          InvalidInputError: observations that feed a running statistic are not finite, or a request
            differs from those of most learners.
          ServerUnavailableError: the parameter server is not available, has too many learners, or
            `close` was called.
          RelaaxError: another error of `join`.
        """
        self.has_pushed = self._is_out = self._has_updated = False
        for name, moments in data.statistics.items():
            self._add_statistic(name, moments)
        arguments = make_replay_arguments(self._task, data.minibatches)
        self._units = next(iter(arguments["rewards"].values())).shape[-2] // self._batch_size
        self._enter()
        return arguments

    def forward(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Makes one update of each minibatch; see `JointPolicy.forward`.

        If `is_ending`, `rows` is {}.
        """
        results = super().forward(arguments)
        if self.is_ending:  # rows of updates that were left out have no results
            self.rows = {}
        return results

    def _learn(self, arguments: Mapping[str, Any]) -> dict[str, float]:
        task, size = self._task, self._batch_size
        parts = task.make_parts(**arguments)
        axes = task.count_leading_axes(parts)
        cut = plan_cut(parts, axes, "steps" if axes == 1 else "rollouts")
        length = validate_lengths(parts, cut, size)
        chosen = [np.arange(start, start + size) for start in range(0, length, size)]
        prepared = []
        for one in chosen:
            own = unflatten(parts, cut.take(flatten(parts), tf.constant(one)))
            prepared.append(_Part(self._retry(lambda own=own: self._prepare(own)), cut, one))
        return self._make_each_update(
            prepared,
            [_count_valid(part.parts) for part in prepared],
            tuple(flatten(parts)[0].shape[:axes]),
        )


class _Part:
    """This learner's part of a minibatch.

    Args:
      parts: the tensors that `JointTask.prepare` returned, with the chosen rows.
      cut: how rows were chosen.
      chosen: indices of these rows in the iteration.
    """

    def __init__(self, parts: Parts, cut: Cut, chosen: np.ndarray):
        self.parts = parts
        self.cut = cut
        self.chosen = chosen


class _JointSums:
    """What is summed over all learners in advance, for each minibatch that is still to come.

    Args:
      own: `[n, m]`, of this learner: the number of valid rows, and sums.
    """

    def __init__(self, own: np.ndarray):
        self._own = own
        self._joint = own
        self._generation = -1

    def get(self, index: int, generation: int, reduce: Reduce) -> np.ndarray:
        """Returns the sums of a minibatch, `[m]`; exchanges them again if learners have left."""
        if self._generation != generation:
            rest = self._own[index:]
            self._joint = np.zeros_like(self._own)
            self._joint[index:] = reduce(rest.ravel()).reshape(rest.shape)
            self._generation = generation
        return np.asarray(self._joint[index])


def _count_valid(
    prepared: Parts, cut: Cut | None = None, chosen: np.ndarray | None = None
) -> float:
    """Returns the number of valid rows of a minibatch."""
    alive = prepared["next_alive"]["alive"]
    mask = prepared.get("extras", {}).get(MASK)
    rows = np.ones(alive.shape) if mask is None else mask.numpy()
    if cut is None or chosen is None:
        return float(rows.sum())
    if cut.rows:
        return float(rows.reshape(-1)[chosen].sum())
    return float((rows[chosen] if cut.axes[0] == 0 else rows[:, chosen]).sum())
