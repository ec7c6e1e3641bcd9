"""OnlineHelper: an agent's side of one CompiledAlgorithm; submits each rollout once."""

import copy
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from relaax_like.agent.data_processor import ComputationDataProcessor
from relaax_like.config.plan import Plan
from relaax_like.core.episode_reports import pack_reports, unpack_reports
from relaax_like.core.metrics import Metrics
from relaax_like.core.prediction import Prediction, Request
from relaax_like.core.records import MAX_EPISODES, Episode, EpisodeReport, Playing
from relaax_like.experience.magnitudes import MAX_RETURN, validate_rollout
from relaax_like.experience.rollout import Executed, Rollout, RolloutBuffer, make_agent_ids
from relaax_like.wire.errors import InvalidInputError

logger = logging.getLogger(__name__)

Arrays = Mapping[str, np.ndarray]
# Shorter than the timeout of clients, which wait for their actions for a minute.
_WAIT_SEC, _LONG_WAIT_SEC = 2.0, 50.0
# Share of a client's own limit, which must also cover the prediction and the event loop.
AGENT_SHARE = 0.5
# Rollouts in progress of an agent that cannot wait, at most: these are answered within moments.
_URGENT_AHEAD = 64
# Number of consecutive refused rollouts that ends a client's session: its simulator is faulty.
_MAX_REFUSED = 3
# Shortest time between two log lines about refused rollouts.
_REFUSED_LINE_SEC = 1.0
_NO_PLAN = Plan()


class OnlineHelper:
    """Requests actions from one Algorithm, and submits each complete rollout once.

    While a rollout is being learned from, the agent can act for `ahead` more rollouts. Then it must
    wait until the learner has acknowledged one, however long that takes if the learner keeps
    requests. With `max_wait_sec`, or if requests can be lost, it waits no longer than that, and
    continues with the current values; until the submitted rollouts have been answered, others are
    discarded. Not thread-safe, except for the processor's callbacks.

    A rollout with numbers that cannot be learned from is refused on its own: rollouts of other
    agents are not affected. The third one in a row ends the session.

    Each environment step is counted once: those of a discarded rollout with the next request, those
    of the unfinished rollout when the helper is closed. If the learner keeps requests, the steps of
    discarded, refused and unfinished rollouts are reported as not learned from instead, and their
    episodes are left out.

    Attributes:
      discarded_rollouts: number of complete rollouts discarded because learning was too slow.
      discarded_steps: number of environment steps in these.
      refused_rollouts: number of rollouts with NaN, infinity or numbers that are too large.
      client: as the argument.
      overridden: what happens to steps whose action was overridden; see `OnPolicy`.
      on_learned: called when the learner has answered a rollout; see `on_done` of
        `ComputationDataProcessor.submit`. Set by the owner.
      counts_steps: whether the steps of its rollouts are counted. True unless another Algorithm
        of the `BatchAgent` counts them.

    Args:
      processor: of the Algorithm; predicts and learns.
      slots: k.
      steps: T.
      plan: of the Algorithm.
      ahead: number of rollouts that can be in progress while the agent acts. 0: each is answered
        before the next action, which a repeatable serial run needs.
      max_wait_sec: longest time that the agent waits until a rollout has been learned from. None:
        no limit; but if requests can be lost 2 s, and 50 s for the first rollout (its gradient
        must be compiled), with `ahead` 0 (so that a repeatable run discards nothing when the
        machine is briefly slow) and with a replay table.
        If the plan slips, a table then takes rollouts although its learner is behind, and more of
        them can be in progress.
      client: the agent's client, for log lines, for the numbers of its slots in `Rollout.starts`,
        and for `make_ranks`.
      max_segment_sec: a rollout that takes longer is submitted with the steps that it has; None:
        rollouts are always complete.
    """

    # Shared by all helpers: a client can open any number of sessions.
    _next_refused_line = 0.0

    def __init__(
        self,
        processor: ComputationDataProcessor,
        slots: int,
        steps: int,
        *,
        plan: Plan = _NO_PLAN,
        ahead: int = 0,
        max_wait_sec: float | None = None,
        client: str = "",
        max_segment_sec: float | None = None,
    ):
        self.counts_steps = True
        self._processor = processor
        self._steps = steps
        self._is_urgent = max_wait_sec is not None and plan.slips
        self._ahead = max(ahead, _URGENT_AHEAD) if self._is_urgent else ahead
        self._plan = plan
        self.on_learned: Callable[[], None] = lambda: None
        self._max_wait_sec = max_wait_sec
        self.client = client
        self.overridden = plan.overridden
        self._max_segment_sec = max_segment_sec
        self._begin(slots)

    def _begin(self, slots: int) -> None:
        """Makes all that changes, for k slots."""
        self.discarded_rollouts = self.discarded_steps = self.refused_rollouts = 0
        self._slots = slots
        self._refused_in_a_row = 0
        self._name = self._processor.name_agent()
        self._player = f"{self._processor.name}/{self.client}/{self._name}"
        agents = make_agent_ids(self._player, slots)
        self._due_at = 0.0  # of the unfinished rollout
        self._buffer = RolloutBuffer(self._steps, agents, self.overridden, self._plan.overlap)
        self._episodes: list[EpisodeReport] = []
        self._is_known = False  # as a player
        self._unlearned = 0  # steps that are only reported
        self._uncounted = 0  # steps of discarded rollouts, to be counted with the next request
        # Two counters, each with one writer, so no lock is needed.
        self._submitted = self._learned = 0
        self._wait_until = 0.0
        self._progress = threading.Event()

    @property
    def waiting(self) -> bool:
        """Whether too many rollouts are in progress for the agent to continue acting."""
        return self._submitted - self._learned > self._ahead and time.monotonic() < self._wait_until

    @property
    def under_way(self) -> bool:
        """Whether a rollout has been submitted, and the learner has not answered it yet."""
        return self._submitted > self._learned

    @property
    def unfinished_steps(self) -> int:
        """Number of steps of all slots in the unfinished rollout."""
        return self._buffer.env_steps

    @property
    def finished(self) -> str:
        """What ended the training; "" while it continues."""
        return self._processor.finished

    def metrics(self) -> Metrics:
        """Returns the recorder of metrics."""
        return self._processor.metrics()

    def split(self) -> list["OnlineHelper"]:
        """Returns a helper for each slot, to be used for storing instead of this one.

        For an Algorithm whose slots do not all store the same steps; see `BatchAgent._split`.
        """
        return [self._make_for_slot() for _ in range(self._slots)]

    def wait(self) -> None:
        """Blocks while `waiting`; for loops that have nothing else to do."""
        while self.waiting:
            self._progress.clear()
            if self.waiting:
                self._progress.wait(0.1)

    def answer(self, request: Request) -> Prediction:
        """Returns the Algorithm's prediction for one request, `[k, ...]`, immediately.

        Raises:
          RelaaxError: see `ComputationDataProcessor.predict`.
        """
        return self._processor.predict([request])[0]

    def make_init_states(self) -> dict[str, np.ndarray]:
        """Returns the memory at the start of an episode: zeros, name -> `[k, ...]`."""
        return {
            name: np.zeros((self._slots, *shape), np.float32)
            for name, shape in self._processor.state_shapes.items()
        }

    def predict(self, inputs: Arrays, states: Arrays, exploit: bool = False) -> Prediction:
        """Chooses actions for one environment's arrays, without a slot axis; see `answer`."""
        request = Request(_add_axis(inputs), _add_axis(states), exploit)
        prediction = self.answer(request)
        return Prediction(
            {name: array[0] for name, array in prediction.actions.items()},
            {name: array[0] for name, array in prediction.next_states.items()},
            prediction.log_prob[0],
            prediction.version,
        )

    def add_actions(
        self,
        inputs: Arrays,
        states: Arrays,
        prediction: Prediction,
        joined: Mapping[str, int] | None = None,
        absent: np.ndarray | None = None,
    ) -> None:
        """Stores inputs, memory before the step, and actions; `[k, ...]`.

        `joined`, `absent`: see `RolloutBuffer.add_actions`.
        """
        if self._max_segment_sec is not None and not self._buffer.length:
            self._due_at = time.monotonic() + self._max_segment_sec
        self._buffer.add_actions(
            inputs,
            prediction.actions,
            prediction.log_prob,
            states,
            prediction.version,
            joined,
            absent,
        )

    def add_outcome(
        self,
        rewards: np.ndarray,
        next_alive: np.ndarray,
        next_inputs: Arrays,
        final_inputs: Arrays | None = None,
        executed: Executed | None = None,
        absent_next: np.ndarray | None = None,
    ) -> None:
        """Stores the outcome of the actions; see `RolloutBuffer.add_outcome`.

        If the rollout is now complete, or has taken longer than `max_segment_sec`, submits it with
        the episodes that were added. If no row of it is valid, or it has numbers that cannot be
        learned from, it is discarded, and only its steps and episodes are reported. It is also
        discarded if the learner has not caught up in time; then its steps and newest episodes are
        reported with the next rollout, or by `close`.

        Raises:
          InvalidInputError: the third rollout in a row has numbers that cannot be learned from; the
            error names array, step and slot.
          Exception: an error of the learner; see `Learner.submit`.
        """
        is_due = self._max_segment_sec is not None and time.monotonic() >= self._due_at
        rollout = self._buffer.add_outcome(
            rewards, next_alive, next_inputs, final_inputs, executed, absent_next, is_due
        )
        if rollout is not None:
            self._finish(rollout, self._buffer.newest_env_steps)

    def _finish(self, rollout: Rollout, taken: int) -> None:
        """Submits, discards or refuses a complete rollout of `taken` steps; see `add_outcome`."""
        if rollout.valid is not None and not rollout.valid.any():
            self._uncounted += taken
            if self._episodes or self.counts_steps:
                self._report()
            return
        try:
            validate_rollout(rollout)
        except InvalidInputError as error:
            self._refuse(taken, error)
            return
        self._refused_in_a_row = 0
        if self._submitted - self._learned > self._ahead:  # the wait was in vain
            # Its newest episodes go with the next one: a report each would overload the learner.
            self.discarded_rollouts += 1
            self.discarded_steps += taken
            self._drop(taken)
            del self._episodes[:-MAX_EPISODES]
            return
        self._submitted += 1
        self._wait_until = time.monotonic() + self._find_longest_wait()
        env_steps = self._take_env_steps(taken)
        ended = self._take_reports(env_steps)
        self._processor.submit(
            rollout, ended, self._note_learned, env_steps, self._name, self._is_urgent
        )

    def _find_longest_wait(self) -> float:
        """Returns for how many seconds the agent waits for the rollout that it submits next."""
        longest = self._max_wait_sec
        if longest is None and self._processor.keeps_requests:
            longest = math.inf
        if longest is None:
            is_short = self._learned and self._ahead and not self._plan.has_table
            longest = _WAIT_SEC if is_short else _LONG_WAIT_SEC
        return longest

    def add_episodes(self, episodes: Sequence[Episode]) -> None:
        """Adds episodes that end in the step whose outcome is added next.

        Episodes whose return is NaN, or too large to learn from, are left out: they would distort
        the mean.
        """
        self._episodes += [
            replace(episode, player=self._player)
            for episode in episodes
            if abs(episode.episode_return) <= MAX_RETURN
        ]

    def take_state(self) -> dict[str, Any]:
        """Removes and returns the unfinished rollout, for `set_state` of another helper."""
        state = {
            "buffer": self._buffer.get_state(),
            "episodes": pack_reports(self._episodes),
            "discarded_rollouts": self.discarded_rollouts,
            "discarded_steps": self.discarded_steps,
            "uncounted": self._uncounted,
            "unlearned": self._unlearned,
        }
        self._buffer.discard()
        self._episodes = []
        self._uncounted = self._unlearned = 0
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Resumes from what `take_state` returned, before anything is stored."""
        self._buffer.set_state(state["buffer"])
        self._episodes = unpack_reports(state["episodes"])
        self.discarded_rollouts = int(state["discarded_rollouts"])
        self.discarded_steps = int(state["discarded_steps"])
        self._uncounted = int(state["uncounted"])
        self._unlearned = int(state["unlearned"])

    def refresh(self) -> None:
        """Requests newer values without waiting for them; for agents that do not learn.

        Raises:
          Exception: an error of the learner; see `Learner.submit`.
        """
        self._processor.refresh_soon()

    def close(self) -> None:
        """Drops the unfinished rollout.

        Raises:
          Exception: an error of the learner; see `Learner.submit`.
        """
        self._drop(self.unfinished_steps)
        env_steps = self._take_env_steps(0)
        if self._is_known or self._episodes or env_steps or self._unlearned:
            reports = self._take_reports(env_steps)
            if self.counts_steps:
                reports.append(Playing(self._player, 0, 0))
                self._is_known = False
            self._processor.report(reports, env_steps)
        self._buffer.discard()
        if self._submitted:
            self._processor.leave(self._name)

    def _refuse(self, env_steps: int, error: InvalidInputError) -> None:
        """Reports the steps and episodes of a rollout that is not learned from.

        Raises:
          InvalidInputError: it is the third one in a row.
        """
        self.refused_rollouts += 1
        self._refused_in_a_row += 1
        self._drop(env_steps)
        self._report()
        if self._refused_in_a_row >= _MAX_REFUSED:
            raise InvalidInputError(
                f"{error}; {_MAX_REFUSED} rollouts in a row were refused; check what the "
                "environment sends there, or scale it down",
                error.field,
            )
        now = time.monotonic()
        if now >= OnlineHelper._next_refused_line:
            OnlineHelper._next_refused_line = now + _REFUSED_LINE_SEC
            logger.warning(
                "%s: discarding a rollout (%d so far): %s",
                self.client or self._name,
                self.refused_rollouts,
                error,
            )

    def _report(self) -> None:
        """Reports steps and episodes that are not learned from."""
        env_steps = self._take_env_steps(0)
        self._processor.report(self._take_reports(env_steps), env_steps)

    def _take_env_steps(self, env_steps: int) -> int:
        """Returns the steps to count with a request: its own, and those of discarded rollouts."""
        uncounted, self._uncounted = self._uncounted, 0
        return uncounted + env_steps if self.counts_steps else 0

    def _take_reports(self, env_steps: int) -> list[EpisodeReport]:
        """Returns the episodes that ended, and that the agent plays with its slots."""
        reports, self._episodes = self._episodes, []
        if self.counts_steps:
            unlearned, self._unlearned = self._unlearned, 0
            steps = env_steps + unlearned
            self._is_known = True
            reports.insert(0, Playing(self._player, self._slots, steps, unlearned))
        return reports

    def _drop(self, env_steps: int) -> None:
        """Drops a rollout that the learner does not get."""
        if self._processor.keeps_requests:
            self._unlearned += env_steps
            self._episodes = []
        else:
            self._uncounted += env_steps

    def _make_for_slot(self) -> "OnlineHelper":
        helper = copy.copy(self)
        helper._begin(1)
        return helper

    def _note_learned(self) -> None:
        self._learned += 1
        self._progress.set()
        self.on_learned()


def _add_axis(arrays: Arrays) -> Arrays:
    return {name: np.asarray(array)[None] for name, array in arrays.items()}
