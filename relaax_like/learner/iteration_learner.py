"""IterationLearner: learns whole iterations in one call, and publishes each as one version."""

import logging
import time
from collections.abc import Sequence

from relaax_like.bridge.service import Episode, Lease, Publish, Publisher
from relaax_like.computation.learning import Learned
from relaax_like.experience.collector import Collector, TrainingData
from relaax_like.experience.rollout import Rollout
from relaax_like.learner.base_learner import BaseLearner
from relaax_like.learner.learning_policy import LearningPolicy
from relaax_like.learner.means import Means
from relaax_like.wire import tracing

logger = logging.getLogger(__name__)


class IterationLearner:
    """Takes iterations from a collector, and publishes what a BaseLearner makes of them.

        learner = IterationLearner(base_learner, policy, collector, parameter_server)
        first = learner.load()
        ticket = learner.add(rollout, episodes)
        learned = learner.learn(timeout_sec=1.0)   # None: there was no whole iteration in time

    `add` may be called from any thread, all else by one.

    Args:
      base_learner: trains the policy, with its hooks.
      policy: of `base_learner`.
      collector: gives iterations.
      publisher: the parameter server.
    """

    def __init__(
        self,
        base_learner: BaseLearner,
        policy: LearningPolicy,
        collector: Collector,
        publisher: Publisher,
    ):
        self._base_learner = base_learner
        self._policy = policy
        self._collector = collector
        self._publisher = publisher
        self._lease: Lease | None = None
        self._number = 0
        self._episodes: list[Episode] = []
        self._learned_at = time.monotonic()
        self._means = Means(publisher.metrics())

    @property
    def waiting_columns(self) -> int:
        """Rollouts of one slot that no iteration has been made of."""
        return self._collector.waiting_columns

    def load(self) -> Learned:
        """Becomes the run's only learner; returns the values to act with."""
        lease = self._publisher.lease()
        self._lease, self._number = lease, lease.number
        self._policy.load(lease)
        values = lease.manifest.unpack(lease.values)
        self._base_learner.call_hook("before_run")
        self._learned_at = time.monotonic()
        return Learned((), lease.version, lease.global_t, lease.finished, values)

    def add(self, rollout: Rollout, episodes: Sequence[Episode]) -> int:
        """Takes a rollout, and the episodes that ended in it; returns its ticket.

        Raises:
          CollectorFullError: too much waits; nothing was taken.
          InvalidInputError: it is none of this run; nothing was taken.
        """
        ticket = self._collector.add(rollout)
        self.add_episodes(episodes)
        return ticket

    def add_episodes(self, episodes: Sequence[Episode]) -> None:
        """Has episodes counted with the next iteration."""
        self._episodes.extend(episodes)

    def learn(self, timeout_sec: float = 0.0) -> Learned | None:
        """Learns from the next iteration, if there is one in time, and publishes.

        Returns:
          The new values; its `numbers` are the tickets that were used up. None: no iteration yet.

        Raises:
          NotFiniteError: the iteration led nowhere; nothing was published.
        """
        data = self._collector.get_training_data(timeout_sec)
        if data is None:
            return None
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

    def close(self) -> None:
        """Takes nothing more, and runs the hooks of the end."""
        self._collector.close()
        if self._lease is not None:
            self._lease = None
            self._base_learner.call_hook("after_run")

    def _publish(self, data: TrainingData) -> Learned:
        assert self._lease is not None
        values, optimizers = self._policy.get_values(), self._policy.get_optimizers()
        # Those of other threads that come from here on belong to the next one.
        episodes, self._episodes = self._episodes, []
        self._number += 1
        reply = self._publisher.publish(
            Publish(
                number=self._number,
                values=self._lease.manifest.pack(values),
                slots=optimizers.slots,
                updates=optimizers.updates,
                env_steps=data.env_steps,
                episodes=tuple(episodes),
            )
        )
        return Learned(data.tickets, reply.version, reply.global_t, reply.finished, values)

    def _record_times(self, began: float, env_steps: int) -> None:
        """Records where the time of an iteration went."""
        now = time.monotonic()
        sampling, learning = began - self._learned_at, now - began
        self._learned_at = now
        self._means.add(
            {
                "Time/Sample Time": sampling,
                "Time/Optimize Time": learning,
                "Time/Timesteps per Iteration": env_steps,
                "Time/Timesteps per Second": env_steps / max(sampling + learning, 1e-9),
            }
        )
