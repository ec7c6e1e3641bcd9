"""IterationLearner: learns whole iterations in one call, and publishes each as one version."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from relaax_like.core.records import Episode, LearnerUpdate, Origin
from relaax_like.core.roles import Publisher
from relaax_like.experience.collector import Collector
from relaax_like.experience.rollout import Rollout
from relaax_like.experience.trajectory_files import TrajectoryWriter
from relaax_like.learn.base_learner import BaseLearner
from relaax_like.learn.learning_policy import LearningPolicy
from relaax_like.learn.means import LAG
from relaax_like.learn.publishing_learner import PublishingLearner
from relaax_like.learn.rollout_layout import RolloutLayout


class IterationLearner(PublishingLearner):
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
      layout: of the policy's rollouts.
      trajectories: keeps what was learned from; None: nothing is kept.
    """

    def __init__(
        self,
        base_learner: BaseLearner,
        policy: LearningPolicy,
        collector: Collector,
        publisher: Publisher,
        layout: RolloutLayout,
        trajectories: TrajectoryWriter | None = None,
    ):
        super().__init__(base_learner, policy, publisher)
        self._collector = collector
        self._layout = layout
        self._trajectories = trajectories
        self._counted_at = 0.0
        # Since _counted_at; guarded by _lock.
        self._came_env_steps = 0
        self._sampling_sec: dict[str, float] = {}  # client id -> seconds

    @property
    def waiting_columns(self) -> int:
        """Rollouts of one slot that no iteration has been made of."""
        return self._collector.waiting_columns

    @property
    def added_columns(self) -> int:
        """Rollouts of one slot that ever came."""
        return self._collector.num_added

    def conform(self, rollout: Rollout) -> Rollout:
        """Returns a rollout that somebody else has made as the policy reads it.

        Raises:
          InvalidInputError: it is none of this run.
        """
        return self._layout.conform(rollout)

    def load(self) -> LearnerUpdate:
        """Becomes the run's only learner; returns the values to act with."""
        learned = super().load()
        self._counted_at = time.monotonic()
        return learned

    def add(
        self,
        rollout: Rollout,
        episodes: Sequence[Episode],
        env_steps: int | None = None,
        origin: Origin | None = None,
    ) -> int:
        """Takes a rollout, and the episodes that ended in it; returns its ticket.

        Args:
          rollout: what is learned from.
          episodes: that ended in it.
          env_steps: to be counted with it; None: the rollout's.
          origin: with what it came; None: from this process.

        Raises:
          CollectorFullError: too much waits; nothing was taken.
          InvalidInputError: it is none of this run; nothing was taken.
        """
        steps = rollout.env_steps if env_steps is None else env_steps
        with self._lock:  # an iteration with this rollout is published with its steps
            ticket = self._collector.add(rollout)
            self._tally.add(steps, episodes, origin, ticket)
            self._came_env_steps += steps
        return ticket

    def add_sampling(self, client_id: str, seconds: float) -> None:
        """Takes note of how long a client has sampled, without waiting, since its last message."""
        with self._lock:
            self._sampling_sec[client_id] = self._sampling_sec.get(client_id, 0.0) + seconds

    def learn(self, timeout_sec: float = 0.0) -> LearnerUpdate | None:
        """Learns from the next iteration, if there is one in time, and publishes.

        Returns:
          The new values; its `numbers` are the tickets that were used up. None: no iteration yet.

        Raises:
          NotFiniteError: the iteration led nowhere; nothing was published.
        """
        data = self._collector.get_training_data(timeout_sec)
        if data is None:
            return None
        lag = self.version - data.mean_version
        learned = self.learn_from(data)
        means = {name: np.asarray(y) for name, y in self._base_learner.log_buffer.items()}
        self._collector.handle_data_after_learn({**means, **self._policy.rows})
        self.record({LAG: lag, **self._count_sampled()})
        if self._trajectories is not None:
            self._trajectories.write(self.iteration, data.rollout)
        return learned

    def take_state(self) -> dict[str, Any]:
        """Returns what the next publication will be made of, and no publication contains.

        Its steps and episodes are the caller's to count: this learner counts them no more, unless
        they are given back by `set_state`.
        """
        with self._lock:
            counts = self._tally.take()
        return {
            "collector": self._collector.get_state(),
            "env_steps": counts.env_steps,
            "episodes": [[episode.episode_return, episode.length] for episode in counts.episodes],
            "reward_sums": self._policy.get_sums(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `take_state` returned; after `load`, with nothing added before."""
        self._collector.set_state(state["collector"])
        with self._lock:
            episodes = [Episode(*episode) for episode in state["episodes"]]
            self._tally.add(int(state["env_steps"]), episodes)
        self._policy.set_sums(state["reward_sums"])

    def _count_sampled(self) -> dict[str, float]:
        """Returns curves of what has come since the last call."""
        now = time.monotonic()
        with self._lock:
            came, self._came_env_steps = self._came_env_steps, 0
            sampling, self._sampling_sec = self._sampling_sec, {}
        seconds, self._counted_at = now - self._counted_at, now
        curves = {"Time/Sampled Timesteps per Second": came / max(seconds, 1e-9)}
        busy_sec = sum(sampling.values())
        if busy_sec > 0:
            # Had each of them done nothing but sample.
            ideal = came * len(sampling) / busy_sec
            curves |= {
                "Time/Ideal Sample Rate": ideal,
                "Time/Overhead Loss": ideal - self._sample_rate,
            }
        return curves

    def close(self) -> None:
        """Takes nothing more, counts what no publication contains, and runs the last hooks."""
        self._collector.close()
        super().close()
