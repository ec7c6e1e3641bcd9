"""SimpleRLAgent: one client's k slots, as arrays, through a ComputationDataProcessor."""

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from relaax_like.bridge.service import Episode
from relaax_like.computation.data_processor import ComputationDataProcessor
from relaax_like.computation.prediction import Prediction, Request
from relaax_like.experience.rollout import ALIVE, TERMINATED, TRUNCATED, RolloutBuffer

Arrays = Mapping[str, np.ndarray]


class SimpleRLAgent:
    """Acts for k slots and learns from rollouts of T steps, one task, on-policy.

    Its owner calls `observe` with what happened, then, when it is not `waiting`, `request`, has the
    processor predict, and calls `take`:

        agent.observe(observations, rewards, terminated, truncated, finals, episodes)
        if not agent.waiting:
            actions = agent.take(processor.predict([agent.request()])[0])

    After each T steps it waits until the rollout has been learned from, so that the next one is
    acted with the values that came of it; but not for longer than `max_wait_sec`: when the
    parameter server hangs, it goes on with the values at hand, and discards and counts rollouts
    until the one under way has come back.

    Attributes:
      discarded_rollouts: whole rollouts that were thrown away.

    Args:
      processor: predicts and learns.
      slots: k.
      steps: T.
      init_states: name -> [...], the memory at the start of each episode.
      learning: False stores and learns nothing; predictions are the best actions then.
      reward_shaping_f: applied to `[k, r]` rewards before they are stored.
      on_learned: called, from another thread, when a wait is over.
      max_wait_sec: longest wait for a rollout to be learned from.
    """

    def __init__(
        self,
        processor: ComputationDataProcessor,
        slots: int,
        *,
        steps: int,
        init_states: Arrays | None = None,
        learning: bool = True,
        reward_shaping_f: Callable[[np.ndarray], np.ndarray] | None = None,
        on_learned: Callable[[], None] | None = None,
        max_wait_sec: float = 2.0,
    ):
        self.discarded_rollouts = 0
        self.learning = learning
        self._max_wait_sec = max_wait_sec
        self._under_way = False
        self._wait_until = 0.0
        self._processor = processor
        self._slots = slots
        self._buffer = RolloutBuffer(steps, slots)
        self._init_states = {k: np.asarray(v) for k, v in (init_states or {}).items()}
        self._states: Arrays = self._get_init_states()
        self._observations: Arrays = {}
        self._episodes: list[Episode] = []
        self._shape = reward_shaping_f
        self._on_learned = on_learned

    @property
    def waiting(self) -> bool:
        """True between a whole rollout (or a wish for new values) and its effect."""
        return self._under_way and time.monotonic() < self._wait_until

    @property
    def unfinished_steps(self) -> int:
        """Steps of all slots that are stored and not yet learned from."""
        return self._buffer.length * self._slots

    def observe(
        self,
        observations: Arrays | None,
        rewards: np.ndarray | None = None,
        terminated: np.ndarray | None = None,
        truncated: np.ndarray | None = None,
        final_observations: Arrays | None = None,
        episodes: Sequence[Episode] = (),
    ) -> None:
        """Takes what the last actions led to.

        Args:
          observations: name -> [k, ...]; where an episode ended the next one's first. None when all
            slots ended and none goes on yet.
          rewards: [k, r]; None at the start, when there were no actions.
          terminated: [k] bool.
          truncated: [k] bool.
          final_observations: name -> [k, ...], rows of slots that were truncated.
          episodes: that ended with this step.
        """
        if rewards is not None:
            assert terminated is not None
            assert truncated is not None
            self._store(observations, rewards, terminated, truncated, final_observations, episodes)
            ended = terminated | truncated
            if self._states and ended.any():
                self._reset_states(ended)
        if observations is not None:
            self._observations = observations

    def close(self) -> None:
        """Forgets the unfinished rollout; episodes that ended in it are still reported."""
        if self._episodes:
            self._processor.report(self._episodes, self.unfinished_steps)
        self._episodes = []
        self._buffer.discard()

    def request(self) -> Request:
        """Returns the rows that want actions."""
        return Request(self._observations, self._states, exploit=not self.learning)

    def take(self, prediction: Prediction) -> Arrays:
        """Takes the prediction for `request` and returns its actions, name -> [k, ...]."""
        if self.learning:
            self._buffer.add_actions(
                self._observations,
                prediction.actions,
                prediction.log_prob,
                self._states,
                prediction.version,
            )
        self._states = prediction.next_states
        return prediction.actions

    def _store(
        self,
        observations: Arrays | None,
        rewards: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        final_observations: Arrays | None,
        episodes: Sequence[Episode],
    ) -> None:
        if not self.learning:
            if episodes and self._begin_wait():
                self._processor.refresh(self._note_learned)
            return
        self._episodes.extend(episodes)
        alive = np.where(terminated, TERMINATED, np.where(truncated, TRUNCATED, ALIVE))
        rollout = self._buffer.add_outcome(
            rewards if self._shape is None else self._shape(rewards),
            alive,
            # What follows a terminal state is multiplied by zero: any array will do.
            self._observations if observations is None else observations,
            final_observations,
        )
        if rollout is not None:
            ended, self._episodes = self._episodes, []
            if self._begin_wait():
                self._processor.submit(rollout, ended, self._note_learned)
            else:
                self.discarded_rollouts += 1

    def _begin_wait(self) -> bool:
        """Takes the one place in the outbox; False when it is taken."""
        if self._under_way:
            return False
        self._under_way = True
        self._wait_until = time.monotonic() + self._max_wait_sec
        return True

    def _note_learned(self) -> None:
        self._under_way = False
        if self._on_learned is not None:
            self._on_learned()

    def _get_init_states(self) -> dict[str, np.ndarray]:
        return {k: np.repeat(v[None], self._slots, axis=0) for k, v in self._init_states.items()}

    def _reset_states(self, ended: np.ndarray) -> None:
        states = {name: np.array(array) for name, array in self._states.items()}
        for name, array in states.items():
            array[ended] = self._init_states[name]
        self._states = states
