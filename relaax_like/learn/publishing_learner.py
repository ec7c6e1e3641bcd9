"""PublishingLearner: learns from iterations, and publishes each as one version."""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from relaax_like.core.records import (
    Episode,
    LearnerUpdate,
    Lease,
    Origin,
    Publication,
    Received,
)
from relaax_like.core.roles import Publisher
from relaax_like.learn.base_learner import BaseLearner
from relaax_like.learn.learning_policy import LearningPolicy
from relaax_like.learn.means import Means
from relaax_like.learn.tally import Tally
from relaax_like.wire import tracing
from relaax_like.wire.errors import ServerUnavailableError

logger = logging.getLogger(__name__)


class Iteration(Protocol):
    """What is learned from at once; the policy knows what else there is to it."""

    @property
    def env_steps(self) -> int:
        """Steps that are learned from."""

    @property
    def tickets(self) -> Sequence[int]:
        """Of the works that it uses up."""


class PublishingLearner:
    """Publishes what a BaseLearner makes of each iteration.

        learner = PublishingLearner(base_learner, policy, parameter_server)
        first = learner.load()
        learner.add_counts(env_steps, episodes)
        learned = learner.learn_from(iteration)
        learner.close()

    What is learned from and what is counted are two things: steps are counted when they are
    accepted, with the next publication, or by `count` and `close` when there is none.

    `add_counts` may be called from any thread, all else by one.

    Args:
      base_learner: trains the policy, with its hooks.
      policy: of `base_learner`.
      publisher: the parameter server.
    """

    def __init__(self, base_learner: BaseLearner, policy: LearningPolicy, publisher: Publisher):
        self._base_learner = base_learner
        self._policy = policy
        self._publisher = publisher
        self._lease: Lease | None = None
        self._number = 0
        self._version = 0
        self._lock = threading.Lock()  # guards _tally
        self._tally = Tally()
        self._learned_at = time.monotonic()
        self._sample_rate = 0.0  # steps per second, of the newest iteration
        self._means = Means(publisher.metrics())

    @property
    def iteration(self) -> int:
        """Number of the newest iteration that was published, of all the run's; 0 before the first.

        After `load`.
        """
        return self._number

    @property
    def version(self) -> int:
        """Of the newest values, with which the next iteration is learned from; after `load`."""
        return self._version

    @property
    def received(self) -> Mapping[str, Received]:
        """Client id -> what the newest publication contains of its experience; after `load`."""
        with self._lock:
            return self._tally.received

    def load(self) -> LearnerUpdate:
        """Becomes the run's only learner; returns the values to act with."""
        lease = self._publisher.lease()
        with self._lock:
            self._tally.load(lease.received)
        self._lease, self._number, self._version = lease, lease.number, lease.version
        self._policy.load(lease)
        self._base_learner.go_on_from(lease.number, lease.global_t)
        values = lease.manifest.unpack(lease.values)
        self._base_learner.call_hook("before_run")
        self._learned_at = time.monotonic()
        return LearnerUpdate((), lease.version, lease.global_t, lease.finished, values)

    def add_counts(
        self, env_steps: int, episodes: Sequence[Episode] = (), origin: Origin | None = None
    ) -> None:
        """Accepts environment steps and episodes, to be counted with the next publication.

        Args:
          env_steps: 0 or more.
          episodes: that ended among them.
          origin: with what they came; None: from this process.
        """
        with self._lock:
            self._tally.add(env_steps, episodes, origin)

    def count(self) -> LearnerUpdate | None:
        """Counts what has been accepted since the last publication; the values do not change.

        Returns:
          The new counts, without values. None: there was nothing to count.
        """
        with self._lock:
            counts = self._tally.take()
        if not (counts.env_steps or counts.episodes):
            return None
        reply = self._publisher.count(counts)
        self._take_global_t(reply.global_t)
        return LearnerUpdate((), reply.version, reply.global_t, reply.finished, None)

    def learn_from(self, data: Iteration) -> LearnerUpdate:
        """Learns from an iteration, and publishes.

        Returns:
          The new values; its `numbers` are the tickets that were used up.

        Raises:
          NotFiniteError: the iteration led nowhere; nothing was published.
        """
        began = time.monotonic()
        with tracing.span("update"):
            self._base_learner.train(data)
        self._means.add(
            {f"Optimizer/{name}": y for name, y in self._base_learner.log_buffer.items()}
        )
        with tracing.span("publish"):
            learned = self._publish(data)
        self._record_times(began, data.env_steps)
        return learned

    def record(self, numbers: Mapping[str, float]) -> None:
        """Adds to curves, which show means over about a second."""
        self._means.add(numbers)

    def close(self) -> None:
        """Counts what no publication contains, and runs the hooks of the end."""
        if self._lease is not None:
            self._count_rest()
            self._lease = None
            self._means.record()
            self._base_learner.call_hook("after_run")

    def _publish(self, data: Iteration) -> LearnerUpdate:
        assert self._lease is not None
        values, optimizers = self._policy.get_values(), self._policy.get_optimizers()
        with self._lock:
            counts = self._tally.take(data.tickets)
        self._number += 1
        reply = self._publisher.publish(
            Publication(
                number=self._number,
                values=self._lease.manifest.pack(values),
                slots=optimizers.slots,
                steps=optimizers.steps,
                env_steps=counts.env_steps,
                episodes=counts.episodes,
                received=counts.received,
            )
        )
        self._version = reply.version
        self._take_global_t(reply.global_t)
        return LearnerUpdate(data.tickets, reply.version, reply.global_t, reply.finished, values)

    def _take_global_t(self, global_t: int) -> None:
        """Makes schedules follow what was counted, which may differ from what was learned from."""
        self._policy.global_t = global_t
        self._base_learner.go_on_from(self._number, global_t)

    def _count_rest(self) -> None:
        try:
            self.count()
        except ServerUnavailableError as error:
            logger.warning("the last environment steps were not counted: %s", error)

    def _record_times(self, began: float, env_steps: int) -> None:
        """Records where the time of an iteration went."""
        now = time.monotonic()
        sampling, learning = began - self._learned_at, now - began
        self._learned_at = now
        self._sample_rate = env_steps / max(sampling, 1e-9)
        self._means.add(
            {
                "Time/Sample Time": sampling,
                "Time/Sample Rate": self._sample_rate,
                "Time/Optimize Time": learning,
                "Time/Timesteps per Iteration": env_steps,
                "Time/Timesteps per Second": env_steps / max(sampling + learning, 1e-9),
            }
        )
