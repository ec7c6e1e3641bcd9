"""Publishing: a sink that publishes each iteration as one version of a parameter server."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from relaax_like.core.records import LearnerUpdate, Lease, Publication
from relaax_like.core.roles import Publisher
from relaax_like.learn.learner_loop import Sink
from relaax_like.learn.tally import Tally
from relaax_like.nn.device import hold_gpu
from relaax_like.wire import tracing
from relaax_like.wire.errors import ServerUnavailableError

if TYPE_CHECKING:  # It imports TensorFlow.
    from relaax_like.experience.collector import TrainingData
    from relaax_like.learn.learning_policy import LearningPolicy
    from relaax_like.learn.replayed import ReplayIteration

logger = logging.getLogger(__name__)


class Publishing(Sink):
    """Publishes values and optimizers of a policy.

    The steps learned from and the steps counted can differ: steps are counted once they are
    accepted, with the next publication, or by `count` and `close` if there is none.

    Args:
      publisher: the parameter server.
      policy: to publish.
      tally: of the steps and episodes to be counted.
      lock: as the attribute; None: no other learner changes the policy's variables.

    Attributes:
      number: of the run's publications at `load`, and of this learner's since; see `Sink`.
    """

    def __init__(
        self,
        publisher: Publisher,
        policy: "LearningPolicy",
        tally: Tally,
        lock: AbstractContextManager[Any] | None = None,
    ):
        self.lock = lock or self.lock
        self._publisher = publisher
        self._policy = policy
        self._tally = tally
        self._lease: Lease | None = None

    def load(self) -> LearnerUpdate:
        """Becomes the run's only learner; see `Sink`.

        Raises:
          InvalidInputError: the run has another model or optimizer.
          RelaaxError: an error of `Publisher.lease`.
        """
        self._lease = lease = self._publisher.lease()
        self._tally.load(lease.received)
        self._policy.load(lease)
        self.number = lease.number
        values = lease.manifest.unpack(lease.values)
        return LearnerUpdate((), lease.version, lease.global_t, lease.finished, values)

    def refresh(self, newest: LearnerUpdate) -> LearnerUpdate:
        """Updates the schedules' steps to include those of other Algorithms; see `Sink`."""
        global_t, finished = self._publisher.global_t, self._publisher.finished
        if (global_t, finished) == (newest.global_t, newest.finished):
            return newest
        self._policy.global_t = global_t
        return replace(newest, global_t=global_t, finished=finished)

    def deliver(self, iteration: "TrainingData | ReplayIteration") -> LearnerUpdate:
        """Publishes values and counts; see `Sink`.

        Raises:
          RelaaxError: an error of `Publisher.publish`.
        """
        assert self._lease is not None
        with tracing.span("publish"):
            with hold_gpu():
                flat, optimizers = self._policy.get_flat(), self._policy.get_optimizers()
            counts = self._tally.take(iteration.tickets)
            self.number += 1
            reply = self._publisher.publish(
                Publication(
                    number=self.number,
                    values=flat,
                    slots=optimizers.slots,
                    steps=optimizers.steps,
                    env_steps=counts.env_steps,
                    episodes=counts.episodes,
                    received=counts.received,
                )
            )
        self._policy.global_t = reply.global_t
        values = self._lease.manifest.unpack(flat)
        return LearnerUpdate(
            iteration.tickets, reply.version, reply.global_t, reply.finished, values
        )

    def count(
        self, iteration: "TrainingData | ReplayIteration | None" = None
    ) -> LearnerUpdate | None:
        """Publishes counts without new values; see `Sink`.

        Raises:
          RelaaxError: an error of `Publisher.count`.
        """
        tickets: Sequence[int] = () if iteration is None else iteration.tickets
        counts = self._tally.take(tickets)
        if not (counts.env_steps or counts.episodes):
            return None
        reply = self._publisher.count(counts)
        self._policy.global_t = reply.global_t
        return LearnerUpdate(tickets, reply.version, reply.global_t, reply.finished, None)

    def take_state(self) -> dict[str, Any]:
        """Returns the sums of rewards for reward scaling; see `Sink`."""
        return {"reward_sums": self._policy.get_sums()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `take_state` returned."""
        self._policy.set_sums(state["reward_sums"])

    def close(self) -> LearnerUpdate | None:
        """Counts the steps and episodes that no publication contains; see `Sink`.

        Raises:
          RelaaxError: an error of `Publisher.wait_published` or `Publisher.count`; a
            ServerUnavailableError is only logged.
        """
        self._lease = None
        try:
            self._publisher.wait_published()
            return self.count()
        except ServerUnavailableError as error:
            logger.warning("the last environment steps were probably not counted: %s", error)
            return None
