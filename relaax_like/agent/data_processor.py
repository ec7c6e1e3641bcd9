"""ComputationDataProcessor: packs many agents' data into one call and unpacks the results."""

import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from relaax_like.algorithm.model import get_learning_specs, get_reward_columns
from relaax_like.core.metrics import Metrics
from relaax_like.core.prediction import Prediction, Request
from relaax_like.core.records import EpisodeReport, LearnerUpdate, LearnRequest
from relaax_like.core.roles import Learner
from relaax_like.experience.rollout import Rollout
from relaax_like.wire.errors import RelaaxError
from relaax_like.wire.spaces import Spaces

if TYPE_CHECKING:  # The processor itself works without TensorFlow.
    from relaax_like.algorithm.acting import Actor

logger = logging.getLogger(__name__)

Arrays = Mapping[str, np.ndarray]
# Agents that do not learn receive values that are at most about this old.
_REFRESH_SEC = 0.5


class ComputationDataProcessor:
    """Serves all agents of a process that share one CompiledAlgorithm.

        processor = ComputationDataProcessor(actor, learner, metrics)
        processor.start()
        predictions = processor.predict([agent.request() for agent in ready])
        processor.submit(rollout, episodes, on_learned)
        processor.stop()

    `predict` runs in its caller's thread; only one thread can call it at a time. Rollouts go to the
    learner; the actor adopts the values that the learner returns between two predictions.

    Args:
      actor: computes actions.
      learner: of the Algorithm.
      metrics: the recorder.
      name: part of its agents' ids; unique among the processors of the run that learn.

    Attributes:
      name: as the argument.
      finished: what ended the training, or "" while it continues.
      global_t: newest known number of environment steps of all agents of the run.
    """

    def __init__(self, actor: "Actor", learner: Learner, metrics: Metrics, name: str = ""):
        self.name = name
        self.finished = ""
        self.global_t = 0
        self._actor = actor
        self._learner = learner
        self._metrics = metrics
        self._numbers = itertools.count(1)
        self._agents = itertools.count(1)
        # Callbacks of unanswered requests: set by agents, removed by the learner's thread.
        self._on_done: dict[int, Callable[[], None]] = {}
        self._next_refresh = 0.0
        self._failure: RelaaxError | None = None

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all observations that the model learns from, without the batch axis."""
        return {name: tuple(p["shape"]) for name, p in get_learning_specs(self._actor.model)}

    @property
    def privileged(self) -> tuple[str, ...]:
        """Names of the observations that are used only for learning."""
        return tuple(name for name, _ in self._actor.model.get_privileged_specs())

    @property
    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the model's memory, without the batch axis; float32."""
        return {name: tuple(p["shape"]) for name, p in self._actor.model.get_state_specs()}

    @property
    def reward_columns(self) -> dict[str, slice]:
        """Where the rewards of each name are in `[k, r]` rewards."""
        return get_reward_columns(self._actor.model)

    def expect_actions(self, spaces: Spaces) -> None:
        """Compares the policy's outputs with action spaces; see `NumpyActor`, also for errors."""
        self._actor.expect_actions(spaces)

    def metrics(self) -> Metrics:
        """Returns the recorder of metrics."""
        return self._metrics

    @property
    def keeps_requests(self) -> bool:
        """Whether agents can wait until rollouts are acknowledged; see `Learner`."""
        return self._learner.keeps_requests

    def name_agent(self) -> str:
        """Returns a name that no other agent of this processor has."""
        return f"agent-{next(self._agents)}"

    def start(self) -> None:
        """Fetches the values and starts to learn.

        Raises:
          ConfigError: the run has another model, or its learners do not make updates together,
            although this process's learner does.
          ServerUnavailableError: the parameter server or the learner is not ready.
          Exception: another error of `Learner.start`.
        """
        self._learner.start(self._take)

    def stop(self) -> None:
        """Stops the learner; see `Learner.stop`, also for the errors. Idempotent."""
        self._learner.stop()

    def take_state(self) -> dict[str, Any]:
        """Returns the state of actor and learner, while nothing is in progress; see `Learner`."""
        return {"actor": self._actor.get_state(), "learner": self._learner.take_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Resumes from what `take_state` returned, after `start`.

        Raises:
          InvalidInputError: see `Learner.set_state`.
        """
        self._actor.set_state(state["actor"])
        self._learner.set_state(state["learner"])

    def fail(self, error: RelaaxError) -> None:
        """Makes `predict` raise the error from now on; for a learner that has failed."""
        self._failure = error

    def predict(self, requests: Sequence[Request]) -> list[Prediction]:
        """Chooses actions for all requests, in one call for acting and one for exploiting agents.

        Returns:
          One prediction for each request, in their order.

        Raises:
          ConfigError: see `NumpyActor.act`, `CompiledActor.act`.
          RelaaxError: the error that was passed to `fail`.
        """
        if self._failure is not None:
            raise self._failure
        kinds = {request.exploit for request in requests} if len(requests) > 1 else ()
        if len(kinds) <= 1:
            return self._predict(requests)
        predictions: dict[int, Prediction] = {}
        for exploit in sorted(kinds):
            chosen = [i for i, request in enumerate(requests) if request.exploit == exploit]
            parts = self._predict([requests[i] for i in chosen])
            predictions.update(zip(chosen, parts, strict=True))
        return [predictions[i] for i in range(len(requests))]

    def submit(
        self,
        rollout: Rollout,
        episodes: Sequence[EpisodeReport],
        on_done: Callable[[], None],
        env_steps: int | None = None,
        agent: str = "",
        is_urgent: bool = False,
    ) -> None:
        """Submits a rollout to the learner.

        Args:
          rollout: its arrays are not copied.
          episodes: those that ended during the rollout.
          on_done: called when the agent can continue (see `LearnerUpdate`), after newer values, if
            any, have taken effect; from another thread, unless the learner has no thread.
          env_steps: number of environment steps to count with the rollout: 0 if another Algorithm
            counts the agent's steps, more than its own if rollouts were discarded before it; None:
            its own.
          agent: name of the agent that played it.
          is_urgent: whether the agent cannot wait; see `LearnRequest`.

        Raises:
          Exception: see `Learner.submit`.
        """
        steps = rollout.env_steps if env_steps is None else env_steps
        self._submit(rollout, episodes, steps, on_done, agent, is_urgent)

    def report(self, episodes: Sequence[EpisodeReport], env_steps: int) -> None:
        """Counts episodes and steps that were not learned from; raises the same as `submit`."""
        self._submit(None, tuple(episodes), env_steps)

    def leave(self, agent: str) -> None:
        """Reports that an agent will submit nothing more, so that nothing waits for it."""
        self._learner.leave(agent)

    def refresh(self, on_done: Callable[[], None] | None = None) -> None:
        """Requests the newest values; raises the same as `submit`.

        Args:
          on_done: called when they have taken effect, or could not be fetched; None: nothing is
            called.
        """
        self._next_refresh = time.monotonic() + _REFRESH_SEC
        self._submit(None, (), 0, on_done)

    def refresh_soon(self) -> None:
        """Requests the newest values, unless they were just requested; not thread-safe.

        Raises the same as `submit`.
        """
        if time.monotonic() >= self._next_refresh:
            self.refresh()

    def _submit(
        self,
        rollout: Rollout | None,
        episodes: Sequence[EpisodeReport],
        env_steps: int,
        on_done: Callable[[], None] | None = None,
        agent: str = "",
        is_urgent: bool = False,
    ) -> None:
        number = next(self._numbers)
        if on_done is not None:
            self._on_done[number] = on_done
        self._learner.submit(
            LearnRequest(number, rollout, episodes, env_steps, agent, is_urgent=is_urgent)
        )

    def _take(self, learned: LearnerUpdate) -> None:
        """Applies an update, in the learner's thread: first the values, then the callbacks."""
        if learned.values is not None:
            self._actor.set_values(learned.values, learned.version)
        self.finished = learned.finished
        self.global_t = self._actor.global_t = learned.global_t
        for number in learned.numbers:
            on_done = self._on_done.pop(number, None)
            if on_done is None:
                continue
            try:
                on_done()
            except Exception:
                logger.exception("could not notify an agent that its rollout is finished")

    def _predict(self, requests: Sequence[Request]) -> list[Prediction]:
        """Answers requests that all exploit, or that all do not."""
        if len(requests) == 1:
            inputs, states, exploit, _, ranks, rated = requests[0]
            return [self._actor.act(inputs, states, exploit, ranks, rated)]
        inputs = _pack([request.inputs for request in requests])
        states = _pack([request.states for request in requests]) if requests[0].states else {}
        ranks = None
        if self._actor.explores:
            known = [request.ranks for request in requests if request.ranks is not None]
            ranks = np.concatenate(known) if len(known) == len(requests) else None
        rated = any(request.rated for request in requests)
        prediction = self._actor.act(inputs, states, requests[0].exploit, ranks, rated)
        predictions, start = [], 0
        for request in requests:
            stop = start + len(next(iter(request.inputs.values())))
            predictions.append(prediction.rows(start, stop))
            start = stop
        return predictions


def _pack(parts: Sequence[Arrays]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
