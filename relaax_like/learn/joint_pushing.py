"""JointPushing: a learner that makes each update together with other learners."""

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from relaax_like.algorithm.parts import MASK, Parts
from relaax_like.config.plan import LearningPlan, Replay
from relaax_like.config.seeds import derive_seed
from relaax_like.core.moments import Moments
from relaax_like.core.records import GroupKind, GroupReply, GroupRequest, Reply
from relaax_like.core.roles import GroupConnection, ParameterServerClient
from relaax_like.experience.collector import TrainingData
from relaax_like.learn.compiled_algorithm import GRADIENT_NORM, Gradient
from relaax_like.learn.draw import Draw
from relaax_like.learn.gradients import CompiledGradients, Reduce, Shared
from relaax_like.learn.pushing import Pushing
from relaax_like.learn.replayed import ReplayIteration
from relaax_like.learn.tally import Tally
from relaax_like.wire import tracing
from relaax_like.wire.errors import (
    ConfigError,
    InvalidInputError,
    LeasedError,
    RelaaxError,
    ServerUnavailableError,
)

logger = logging.getLogger(__name__)

MadeT = TypeVar("MadeT")


class _AgainError(RelaaxError):
    """Another learner has left the iteration: the current update is made again without it."""


class OutError(RelaaxError):
    """The others have continued without this learner."""


class JointPushing(Pushing):
    """Makes each update together with the other learners of the run, as their group.

    In an iteration, each learner has the rows of its own agents. An update is one step of the
    optimizer for the batch of all learners: sums over rows, such as the mean of a cost, the moments
    of advantages, or the KL divergence after which an iteration ends early, are over the rows of
    all. An epoch has as many minibatches as the rows of all learners fill, and each learner has a
    part of each minibatch, in proportion to its rows; one whose part is less than a row learns
    nothing in the iteration.

    A learner that the others have waited for too long is out: the rest of its iteration is not
    learned from. It continues with the newest values, and enters the next iteration.

    Args:
      client, tally, plan, seed: see `Pushing`.
      compiled: computes this learner's part of gradients; receives values.
    """

    def __init__(
        self,
        client: ParameterServerClient,
        compiled: CompiledGradients,
        tally: Tally,
        plan: LearningPlan,
        seed: int,
    ):
        super().__init__(client, compiled, tally, plan, seed)
        self._group = self
        self._is_out = False  # whether the other learners have continued without this one
        self._connection: GroupConnection | None = None
        self._entered = GroupReply(outcome="out")  # the newest answer: its counts are valid
        self._global_t = 0  # for the schedules of the whole iteration
        self._has_updated = False
        self._is_closed = False
        # This learner's, those of lower ranks, and those of all learners.
        self._units = self._units_before = self._total_units = 0
        # Sums that are known in advance, `[minibatches, m]`: this learner's; and those of all, as
        # of a generation.
        self._own_ahead = self._ahead = np.zeros((0, 0))
        self._ahead_generation = -1
        compiled.on_compile = self._note_compiling

    @property
    def global_t(self) -> int:
        """Environment steps when the iteration began: the same for all learners."""
        return self._global_t

    @property
    def is_recording(self) -> bool:
        """Whether this learner is the first of all that made the newest iteration's updates."""
        return self._has_updated and self._entered.rank == 0

    def join(self) -> None:
        """Joins the other learners, which then wait for this one. Idempotent.

        Raises:
          ConfigError: the run's learners do not make updates together.
          InvalidInputError: the run has another model, or its parameter server another version of
            relaax_like.
          ServerUnavailableError: the parameter server is not available, there are too many
            learners, or `disconnect` was called.
          NotAllowedError, ProtocolError: see `GroupStream`.
        """
        if self._connection is None:
            try:
                self._connection = self._client.join_group()
            except LeasedError as error:
                raise ConfigError(str(error)) from None
        if self._is_closed:  # perhaps while it joined
            self._disconnect()
            raise ServerUnavailableError("this learner is ending")

    def disconnect(self) -> None:
        """Leaves the other learners for good. Idempotent; any thread can call it."""
        self._is_closed = True
        connection = self._connection
        if connection is not None:
            connection.close()

    # An iteration.

    def data_preprocess(self, data: TrainingData | ReplayIteration) -> dict[str, Any]:
        """Waits until the next iteration begins, and returns the arguments of `forward`.

        Raises:
          RelaaxError: see `UpdatePolicy`; or an error of `join`, or of the connection.
        """
        self._is_out = self._has_updated = False
        try:
            return super().data_preprocess(data)
        except Exception:
            with contextlib.suppress(RelaaxError):
                self._leave()
            raise

    def forward(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Makes this learner's part of the updates of one iteration; see `Pushing`.

        Returns:
          As `Pushing.forward`; only `updates`, 0, also if the other learners have continued without
          this one, even if updates were made before.

        Raises:
          ConfigError: the algorithm's code fails, as it would each time, or the run's learners do
            not make updates together.
          InvalidInputError: see `Pushing.forward`; or a request differs from those of most
            learners.
          ServerUnavailableError: the parameter server is not available, or `disconnect` was called.
          NotAllowedError, ProtocolError: see `GroupStream`.
        """
        self.rows = {}
        results: dict[str, Any] = {"updates": 0}
        try:
            if not self._is_out:
                results = self._learn(arguments)
        except OutError:
            logger.warning(
                "the other learners have continued without this one (see "
                "relaax-parameter-server.combine.max_wait_sec); it enters the next iteration"
            )
        finally:
            self._leave()
        self.push_counts()
        return results

    def _begin(self, arguments: Mapping[str, Any]) -> None:
        """Waits until the next iteration begins, and takes the values that it begins with."""
        units = self._count_units(arguments)
        self.join()
        self._units = units
        entered = self._send(GroupRequest(kind="enter", units=units))
        self._entered = entered
        self._is_out = entered.outcome != "done"
        self._total_units, self._units_before = entered.units, entered.units_before
        self._global_t = entered.reply.global_t
        self._take(entered.reply)
        self._updates = self._compiled.num_gradients = entered.updates

    def _count_units(self, arguments: Mapping[str, Any]) -> int:
        """Returns the number of rows, or of slots, that minibatches are made of.

        With a plan `Replay`, it is the number of minibatches.
        """
        alive = arguments["next_alive"]["alive"]
        mask = arguments.get("extras", {}).get(MASK)
        if isinstance(self._plan, Replay):
            return int(alive.shape[-1]) // self._plan.batch_size
        if self._plan.minibatch_of == "steps":
            return alive.size if mask is None else int(mask.sum())
        return int(alive.shape[1] if mask is None else mask[0].sum())

    def _choose(self, arguments: Mapping[str, Any]) -> Draw | None:
        """Returns how this learner draws its part of each minibatch; None: it has no part."""
        plan = self._plan
        if isinstance(plan, Replay):
            return self._make_draw(arguments)
        total = self._total_units
        batch_size = min(plan.batch_size or total, total)
        minibatches = total // batch_size
        first, last = self._units_before, self._units_before + self._units
        # Rounded such that the parts of all learners make one minibatch, as far as rows reach.
        size = last * batch_size // total - first * batch_size // total
        size = min(size, self._units // minibatches)
        if not size:  # the other learners have nearly all rows
            return None
        return Draw(
            batch_size=size,
            minibatch_of=plan.minibatch_of,
            epochs=plan.epochs,
            seed=derive_seed(self._seed, "minibatches", self._updates),
            count=self._units,
            minibatches=minibatches,
        )

    def prepare(self, prepare: Callable[[Shared], Parts]) -> Parts:
        """Prepares this learner's part of a batch."""
        return self._retry(
            lambda: prepare(Shared(self._entered.learners, self._make_reduce("prepare")))
        )

    def look_ahead(self, own: np.ndarray) -> None:
        """Takes what can be summed over all learners in advance.

        Args:
          own: `[minibatches, 1 + n]`, of this learner, for each minibatch of the batch: the number
            of valid rows, and the first sums.
        """
        self._own_ahead, self._ahead_generation = own, -1

    def step(self, compute: Callable[[Shared], Gradient], index: int, phase: int) -> Gradient:
        """Makes the update of one phase; again, while other learners leave.

        Args:
          compute: computes this learner's part of the gradient.
          index: of the minibatch.
          phase: its index.

        Returns:
          The gradient, with the numbers of the joint batch.

        Raises:
          OutError: the others have continued without this learner.
          RelaaxError: an error of the connection.
        """
        return self._retry(lambda: self._step(compute, index, f"{index} {phase}"))

    def push(self, gradient: Gradient) -> None:
        """Notes that a gradient, which the group has applied, was used."""
        self._has_updated |= gradient.ends_update

    def _join_moments(self, moments: Moments) -> Moments:
        """Returns the moments of the rows of all learners."""
        if self._is_out:
            return moments
        try:
            return self._retry(lambda: self._add_moments(moments))
        except OutError:
            self._is_out = True
            return moments

    def _leave(self) -> None:
        """Ends this learner's part of the iteration."""
        if self._connection is not None:
            self._send(GroupRequest(kind="leave"))

    def _step(self, compute: Callable[[Shared], Gradient], index: int, tag: str) -> Gradient:
        entered = self._entered
        if self._ahead_generation != entered.generation:  # those who have left are not in the sums
            rest, reduce = self._own_ahead[index:], self._make_reduce(f"counts {index}")
            self._ahead = np.zeros_like(self._own_ahead)
            self._ahead[index:] = reduce(rest.ravel()).reshape(rest.shape)
            self._ahead_generation = entered.generation
        count, *first_sums = self._ahead[index]
        reduce = self._make_reduce(f"sums {tag}")
        with tracing.span("gradient"):
            gradient = compute(Shared(entered.learners, reduce, count, first_sums))
        assert gradient.compute_numbers is not None
        with tracing.span("push-pull"):
            reply = self._exchange(
                "step",
                tag=f"step {tag}",
                sums=gradient.sums,
                gradient=gradient.flat,
                groups=gradient.groups,
                clip=self._compiled.clip,
            )
        self.has_pushed = True
        numbers = gradient.compute_numbers(reply.sums)
        for group, norm in reply.norms.items():
            numbers[f"{GRADIENT_NORM} {group}" if group else GRADIENT_NORM] = norm
        if reply.reply.values is not None:
            self._take(reply.reply)
        return replace(gradient, numbers=numbers)

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

    def _take(self, reply: Reply) -> None:
        assert reply.values is not None
        self.values = self._client.manifest.unpack(reply.values.flat)
        self._compiled.set_values(self.values)

    # The other learners.

    def _make_reduce(self, tag: str) -> Reduce:
        """Returns a function that sums numbers over all learners."""
        rounds = iter(range(1 << 20))

        def reduce(own: np.ndarray) -> np.ndarray:
            return self._exchange("sum", tag=f"{tag} {next(rounds)}", sums=own).sums

        return reduce

    def _retry(self, make: Callable[[], MadeT]) -> MadeT:
        """Calls a function again for as long as learners leave meanwhile."""
        while True:
            try:
                return make()
            except _AgainError:
                logger.debug("a learner has left; continuing with %d", self._entered.learners)

    def _note_compiling(self) -> None:
        if self._connection is not None:
            self._send(GroupRequest(kind="compiling"))

    def _exchange(self, kind: GroupKind, **fields: Any) -> GroupReply:
        entered = self._entered
        reply = self._send(
            GroupRequest(
                kind=kind, iteration=entered.iteration, generation=entered.generation, **fields
            )
        )
        if reply.outcome == "out":
            raise OutError("out")
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
