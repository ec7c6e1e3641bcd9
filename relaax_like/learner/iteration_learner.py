"""IterationLearner: learns whole iterations in one call, and publishes each as one version."""

from collections.abc import Mapping, Sequence
from typing import Any

from relaax_like.bridge.service import Episode, Publisher
from relaax_like.computation.learning import Learned
from relaax_like.experience.collector import Collector
from relaax_like.experience.rollout import Rollout
from relaax_like.learner.base_learner import BaseLearner
from relaax_like.learner.learning_policy import LearningPolicy
from relaax_like.learner.publishing_learner import PublishingLearner
from relaax_like.learner.rollout_layout import RolloutLayout


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
    """

    def __init__(
        self,
        base_learner: BaseLearner,
        policy: LearningPolicy,
        collector: Collector,
        publisher: Publisher,
        layout: RolloutLayout,
    ):
        super().__init__(base_learner, policy, publisher)
        self._collector = collector
        self._layout = layout

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

    def add(self, rollout: Rollout, episodes: Sequence[Episode]) -> int:
        """Takes a rollout, and the episodes that ended in it; returns its ticket.

        Raises:
          CollectorFullError: too much waits; nothing was taken.
          InvalidInputError: it is none of this run; nothing was taken.
        """
        ticket = self._collector.add(rollout)
        self.add_episodes(episodes)
        return ticket

    def learn(self, timeout_sec: float = 0.0) -> Learned | None:
        """Learns from the next iteration, if there is one in time, and publishes.

        Returns:
          The new values; its `numbers` are the tickets that were used up. None: no iteration yet.

        Raises:
          NotFiniteError: the iteration led nowhere; nothing was published.
        """
        data = self._collector.get_training_data(timeout_sec)
        return None if data is None else self.learn_from(data)

    def get_state(self) -> dict[str, Any]:
        """Returns what the next publish will be made of, and no publish holds."""
        return {
            "collector": self._collector.get_state(),
            "episodes": [[episode.episode_return, episode.length] for episode in self._episodes],
            "reward_sums": self._policy.get_sums(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `get_state` returned; after `load`, with nothing added before."""
        self._collector.set_state(state["collector"])
        self.add_episodes([Episode(*episode) for episode in state["episodes"]])
        self._policy.set_sums(state["reward_sums"])

    def close(self) -> None:
        """Takes nothing more, and runs the hooks of the end."""
        self._collector.close()
        super().close()
