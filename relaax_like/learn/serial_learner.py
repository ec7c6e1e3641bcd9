"""SerialLearner: `placement: server` in one process and one thread."""

from collections.abc import Mapping
from typing import Any

from relaax_like.core.records import LearnerUpdate, LearnRequest
from relaax_like.core.roles import Learner, OnUpdate
from relaax_like.learn.agent_source import AgentSource
from relaax_like.learn.learner_loop import LearnerLoop


class SerialLearner(Learner):
    """Learns in the agents' thread, from each iteration as soon as it is complete.

    The agents continue to act afterwards, so two runs with the same seed are identical.

    Args:
      loop: used only by the agents' thread.
    """

    def __init__(self, loop: LearnerLoop[AgentSource]):
        self._loop = loop
        self._on_update: OnUpdate = lambda learned: None

    def start(self, on_update: OnUpdate) -> None:
        """Loads the values; see `Learner`.

        Raises:
          Exception: see `LearnerLoop.load`.
        """
        self._on_update = on_update
        on_update(self._loop.load())

    def submit(self, request: LearnRequest) -> None:
        """Adds a request, and learns from all complete iterations; see `Learner`.

        Raises:
          RelaaxError: the rollout cannot be added; see `AgentSource.add`.
          Exception: an iteration cannot be learned from; see `LearnerLoop.learn`.
        """
        loop, source = self._loop, self._loop.source
        version = loop.newest.version
        if request.rollout is None or loop.newest.finished:
            source.add_counts(request.env_steps, request.episodes)
        else:
            source.add(request.rollout, request.episodes, request.env_steps)
            loop.run(lambda: bool(loop.newest.finished) or not source.has_iteration)
        newest = loop.newest
        values = None if newest.version == version else newest.values
        self._on_update(
            LearnerUpdate(
                (request.number,), newest.version, newest.global_t, newest.finished, values
            )
        )

    def take_state(self) -> dict[str, Any]:
        """Returns the data of the next iterations, and removes the counts; see `Learner`."""
        return self._loop.take_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores a state; see `Learner`."""
        self._loop.set_state(state)

    def stop(self) -> None:
        """Closes the loop; see `Learner`."""
        self._loop.close()
