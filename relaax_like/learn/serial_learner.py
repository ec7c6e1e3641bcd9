"""SerialLearner: `placement: server` in one process and one thread."""

from collections.abc import Mapping
from typing import Any

from relaax_like.core.records import LearnerUpdate, LearnRequest
from relaax_like.core.roles import Learner, OnUpdate
from relaax_like.learn.iteration_learner import IterationLearner


class SerialLearner(Learner):
    """Learns in the thread of the agents, from each iteration as soon as it is whole.

    The agents act on when that is over. So two runs of a seed are the same.

    Args:
      learner: used by this thread alone.
    """

    def __init__(self, learner: IterationLearner):
        self._learner = learner
        self._on_update: OnUpdate = lambda learned: None
        self._newest = LearnerUpdate((), 0, 0, "", None)

    def start(self, on_update: OnUpdate) -> None:
        """Loads the values; see `Learner`."""
        self._on_update = on_update
        self._newest = self._learner.load()
        on_update(self._newest)

    def submit(self, work: LearnRequest) -> None:
        """Learns from what is there, as far as it makes whole iterations; see `Learner`."""
        values = None
        if work.rollout is None or self._newest.finished:
            self._learner.add_counts(work.env_steps, work.episodes)
        else:
            self._learner.add(work.rollout, work.episodes, work.env_steps)
            while not self._newest.finished and (learned := self._learner.learn()) is not None:
                self._newest, values = learned, learned.values
        newest = self._newest
        self._on_update(
            LearnerUpdate((work.number,), newest.version, newest.global_t, newest.finished, values)
        )

    def take_state(self) -> dict[str, Any]:
        """Takes away what the next publication will be made of; see `Learner`."""
        return self._learner.take_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from there; see `Learner`."""
        self._learner.set_state(state)

    def stop(self) -> None:
        """Ends; see `Learner`."""
        self._learner.close()
