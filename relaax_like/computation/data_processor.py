"""ComputationDataProcessor: packs many agents' data into one call and unpacks the results."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from relaax_like.bridge.moments import Moments
from relaax_like.bridge.service import Episode, Metrics, ParameterServerClient
from relaax_like.computation.prediction import LOG_PROB, Prediction, Request
from relaax_like.experience.rollout import Rollout, concatenate
from relaax_like.wire import tracing
from relaax_like.wire.errors import RelaaxError

if TYPE_CHECKING:  # The processor itself works without TensorFlow.
    from relaax_like.computation.acting import Actor
    from relaax_like.computation.computation_task import ComputationTask

logger = logging.getLogger(__name__)

Arrays = Mapping[str, np.ndarray]
_METRICS_EVERY_SEC = 1.0
_FAILURE_LINE_SEC = 1.0
# Longest wait for the gradient at hand when the process ends.
_STOP_SEC = 2.0
# Agents that do not learn get values that are at most about so old.
_REFRESH_SEC = 0.5


@dataclass
class _Work:
    """A rollout to learn from, or (None) a wish for the newest values."""

    rollout: Rollout | None
    episodes: Sequence[Episode]
    on_done: Callable[[], None]
    env_steps: int


@dataclass
class _Means:
    """Costs since they were last recorded. Used by the training thread only."""

    since: float
    sums: dict[str, float] = field(default_factory=dict)
    count: int = 0


class ComputationDataProcessor:
    """Serves all agents of a process that share one ComputationTask.

        processor = ComputationDataProcessor(task, actor, parameter_server)
        processor.start()
        predictions = processor.predict([agent.request() for agent in ready])
        processor.submit(rollout, episodes, on_learned)
        processor.stop()

    `predict` runs in its caller's thread, one caller at a time. Learning runs in a thread of its
    own: rollouts that wait are packed side by side, one gradient of their mean is pushed, and the
    values that come back are taken up by the actor between two predictions.

    Args:
      task: computes gradients.
      actor: computes actions.
      parameter_server: where gradients go to; used by the training thread alone.
      max_packed: most rollouts in one gradient, a power of two.
      curves: what the names of its costs' curves begin with.
    """

    def __init__(
        self,
        task: "ComputationTask",
        actor: "Actor",
        parameter_server: ParameterServerClient,
        max_packed: int = 16,
        curves: str = "Optimizer",
    ):
        self._task = task
        self._actor = actor
        self._parameter_server = parameter_server
        self._max_packed = max_packed
        self._curves = curves
        # Bounded by its users: each agent has at most one piece of work in it.
        self._queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._training_loop, name="training", daemon=True)
        self._means = _Means(since=time.monotonic())
        self._failed_rollouts = 0
        self._next_failure_line = 0.0
        self._next_refresh = 0.0

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the model's inputs, without the batch axis."""
        return self._task.input_shapes

    @property
    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the model's memory, without the batch axis; float32."""
        return self._task.state_shapes

    @property
    def finished(self) -> str:
        """What ended the training, or "" while it goes on."""
        return self._parameter_server.finished

    def metrics(self) -> Metrics:
        """Returns the recorder."""
        return self._parameter_server.metrics()

    def start(self) -> None:
        """Fetches the values and starts to learn.

        Raises:
          ServerUnavailableError: there is no parameter server.
        """
        self._take_values(self._parameter_server.get_values())
        self._thread.start()

    def stop(self) -> None:
        """Ends the training loop after the work at hand; may be called twice."""
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join(_STOP_SEC)
        self._task.close()
        self._parameter_server.close()

    def predict(self, requests: Sequence[Request]) -> list[Prediction]:
        """Chooses actions for all requests in one call each for acting and exploiting ones."""
        predictions: list[Prediction | None] = [None] * len(requests)
        for exploit in (False, True):
            chosen = [i for i, request in enumerate(requests) if request.exploit == exploit]
            if chosen:
                parts = self._predict([requests[i] for i in chosen], exploit)
                for i, part in zip(chosen, parts, strict=True):
                    predictions[i] = part
        return [prediction for prediction in predictions if prediction is not None]

    def submit(
        self,
        rollout: Rollout,
        episodes: Sequence[Episode],
        on_done: Callable[[], None],
        env_steps: int | None = None,
    ) -> None:
        """Hands a rollout over to be learned from.

        Args:
          rollout: its arrays are not copied.
          episodes: that ended during it.
          on_done: called from the training thread when the values that it led to are in force (or
            when it could not be used).
          env_steps: to be counted with it: 0 where another task counts the agent's steps; None: all
            of the rollout's.
        """
        steps = rollout.env_steps if env_steps is None else env_steps
        self._queue.put(_Work(rollout, episodes, on_done, steps))

    def report(self, episodes: Sequence[Episode], env_steps: int) -> None:
        """Counts episodes and steps that no gradient was made of."""
        self._queue.put(_Work(None, tuple(episodes), lambda: None, env_steps))

    def refresh(self, on_done: Callable[[], None]) -> None:
        """Asks for the newest values; `on_done` is called when they are in force."""
        self._next_refresh = time.monotonic() + _REFRESH_SEC
        self._queue.put(_Work(None, (), on_done, 0))

    def refresh_soon(self) -> None:
        """Asks for the newest values, unless somebody just has. Called by one thread."""
        if time.monotonic() >= self._next_refresh:
            self.refresh(lambda: None)

    def _predict(self, requests: Sequence[Request], exploit: bool) -> list[Prediction]:
        if len(requests) == 1:
            request = requests[0]
            return [self._actor.act(request.inputs, request.states, exploit)]
        inputs = _pack([request.inputs for request in requests])
        states = _pack([request.states for request in requests])
        prediction = self._actor.act(inputs, states, exploit)
        predictions, start = [], 0
        for request in requests:
            stop = start + len(next(iter(request.inputs.values())))
            predictions.append(prediction.rows(start, stop))
            start = stop
        return predictions

    def _training_loop(self) -> None:
        mark = tracing.begin()
        while (work := self._queue.get()) is not None:
            tracing.end("wait for rollouts", mark)
            batch = self._take_more(work)
            self._try_to_learn(batch)
            for done in batch:
                try:
                    done.on_done()
                except Exception:
                    logger.exception("an agent could not be told that its rollout is done")
            mark = tracing.begin()

    def _try_to_learn(self, batch: Sequence[_Work]) -> None:
        """Learns from a batch; when that fails, from each rollout alone, so that one spoils one."""
        try:
            self._learn(batch)
        except Exception as error:
            if len(batch) > 1:
                for work in batch:
                    self._try_to_learn([work])
                return
            self._failed_rollouts += 1
            self._note_failure(error)
            # The steps were taken all the same: a training that diverges ends with its budget.
            if batch[0].rollout is not None:
                self._parameter_server.increment_global_t(batch[0].env_steps)

    def _note_failure(self, error: Exception) -> None:
        now = time.monotonic()
        if now < self._next_failure_line:
            return
        self._next_failure_line = now + _FAILURE_LINE_SEC
        logger.error(
            "a rollout could not be learned from (%d so far): %s",
            self._failed_rollouts,
            error if isinstance(error, RelaaxError) else repr(error),
            exc_info=None if isinstance(error, RelaaxError) else error,
        )

    def _take_more(self, work: _Work) -> list[_Work]:
        """Takes what else waits, as far as it can be packed: a power of two, of the same shape."""
        batch = [work]
        if work.rollout is None:
            return batch
        waiting = min(self._queue.qsize() + 1, self._max_packed)
        while len(batch) < 1 << (waiting.bit_length() - 1):
            more = self._queue.get()
            if more is None or more.rollout is None or not _same_shape(more.rollout, work.rollout):
                self._queue.put(more)  # in its turn
                break
            batch.append(more)
        # Half of a broken-off batch may have an odd size; any size is right, some are quicker.
        return batch

    def _learn(self, batch: Sequence[_Work]) -> None:
        rollouts = [work.rollout for work in batch if work.rollout is not None]
        if not rollouts:
            self._add_episodes(batch)
            self._parameter_server.increment_global_t(batch[0].env_steps)
            self._take_values(self._parameter_server.push_pull())
            return
        mark = tracing.begin()
        rollout = concatenate(rollouts)
        mark = tracing.end("pack", mark)
        gradients, costs = self._task.compute_gradients(
            inputs=rollout.inputs,
            next_inputs=rollout.next_inputs,
            next_alive={"alive": rollout.next_alive},
            rewards={"reward": rollout.rewards},
            # With the probability under the policy that acted, which may be an older one.
            actions={**rollout.actions, LOG_PROB: rollout.log_prob},
            states=rollout.states,
        )
        mark = tracing.end("gradient", mark)
        for name in self._task.statistics:
            rows = rollout.inputs[name].reshape(-1, *self.input_shapes[name])
            self._parameter_server.add_statistics(name, Moments.of(rows))
        self._add_episodes(batch)
        self._parameter_server.increment_global_t(sum(work.env_steps for work in batch))
        staleness = self._parameter_server.version - float(rollout.versions.mean())
        values = self._parameter_server.push_pull(gradients)
        mark = tracing.end("push-pull", mark)
        self._take_values(values)
        tracing.end("take values", mark)
        self._record({**costs, "version span": staleness})

    def _add_episodes(self, batch: Sequence[_Work]) -> None:
        for work in batch:
            for episode in work.episodes:
                self._parameter_server.add_episode(episode.episode_return, episode.length)

    def _take_values(self, values: Sequence[np.ndarray]) -> None:
        self._task.set_values(values)
        self._actor.set_values(values, self._parameter_server.version)

    def _record(self, values: Mapping[str, float]) -> None:
        means, now = self._means, time.monotonic()
        for name, value in values.items():
            means.sums[name] = means.sums.get(name, 0.0) + value
        means.count += 1
        if now - means.since < _METRICS_EVERY_SEC:
            return
        for name, total in means.sums.items():
            if np.isfinite(total):
                self.metrics().scalar(f"{self._curves}/{name}", total / means.count)
        self._means = _Means(since=now)


def _pack(parts: Sequence[Arrays]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _same_shape(one: Rollout, other: Rollout) -> bool:
    return one.next_alive.shape == other.next_alive.shape
