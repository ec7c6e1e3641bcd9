"""Pushing: a sink that pushes gradients, steps and episodes to a parameter server."""

from collections.abc import Sequence

import numpy as np

from relaax_like.core.moments import Moments
from relaax_like.core.records import LearnerUpdate
from relaax_like.core.roles import ParameterServerClient
from relaax_like.experience.collector import TrainingData
from relaax_like.learn.computation_task import ComputationTask, Gradient
from relaax_like.learn.learner_loop import Sink
from relaax_like.learn.replayed import ReplayIteration
from relaax_like.learn.request_queue import Requests
from relaax_like.learn.tally import Tally
from relaax_like.wire import tracing
from relaax_like.wire.errors import ConfigError


class Pushing(Sink):
    """Pushes gradients with the steps and episodes to be counted, and pulls the newest values.

    Args:
      client: of the parameter server.
      task: receives the values at the beginning.
      tally: of the steps and episodes that are to be counted.

    Attributes:
      values: the newest ones.
      has_pushed: whether a gradient of the newest iteration was pushed.
      is_out: whether the other learners have continued without this one; see `JointPushing`.
    """

    is_out = False

    def __init__(self, client: ParameterServerClient, task: ComputationTask, tally: Tally):
        self._client = client
        self._task = task
        self._tally = tally
        self._number = 0
        self.values: Sequence[np.ndarray] = ()
        self.has_pushed = False

    @property
    def number(self) -> int:
        """Number of this learner's iterations; see `Sink`."""
        return self._number

    @property
    def global_t(self) -> int:
        """Newest known environment steps of all clients."""
        return self._client.global_t

    @property
    def is_recording(self) -> bool:
        """Whether this learner records the curves of the newest iteration."""
        return True

    def load(self) -> LearnerUpdate:
        """Pulls the newest values; see `Sink`.

        Raises:
          ConfigError: the values belong to another model.
          ServerUnavailableError: the parameter server is not available.
          InvalidInputError: see `ParameterServerClient.get_values`.
          NotAllowedError, ProtocolError: see `ParameterServerStub`.
        """
        self.values = self._client.get_values()
        try:
            self._task.set_values(self.values)
        except ValueError as error:  # InvalidInputError is one
            raise ConfigError(
                f"the parameter server's values do not fit the model: {error}; use the same "
                "configuration for the parameter server and this learner"
            ) from error
        return self.report((), with_values=True)

    def add_statistics(self, name: str, moments: Moments) -> None:
        """Adds to a running statistic, with the next push.

        Raises:
          InvalidInputError: the moments are not finite, or are out of range; see
            `ParameterServerClient.add_statistics` for other causes.
        """
        self._client.add_statistics(name, moments)

    def push(self, gradient: Gradient) -> None:
        """Pushes a gradient, and pulls the newest values; see `ParameterServerClient.push_pull`.

        The task gets the values, unless it is the last gradient of an iteration.
        While the parameter server is not available, the push is discarded, and the values stay.
        Steps and episodes are counted with the last gradient of an iteration, so that all updates
        of an iteration see the same schedules, as in one compiled update, and the end of the budget
        does not cut it short.

        Raises:
          InvalidInputError: the gradient is not finite, or too large, or gradients cannot update
            all variables of the run; see `ParameterServerClient.push_pull` for other causes.
          LeasedError: the run learns from experience.
          NotAllowedError, ProtocolError: see `ParameterServerStub`.
        """
        with tracing.span("push-pull"):
            if gradient.is_last:
                self.hand_counts_over()
            self.values = self._client.push_pull(gradient.arrays, gradient.groups)
        self.has_pushed = True
        if not gradient.is_last:
            self._task.set_values(self.values)

    def begin(self) -> None:
        """Called before each iteration."""
        self.has_pushed = self.is_out = False

    def join_moments(self, moments: Moments) -> Moments:
        """Returns the moments of the rows of all learners that make each update together."""
        return moments

    def leave(self) -> None:
        """Called after each iteration, and after its errors."""

    def push_counts(self) -> None:
        """Pushes steps, episodes and statistics without a gradient, and pulls the newest values.

        While the parameter server is not available, the push is discarded, and the values stay.

        Raises:
          InvalidInputError: see `hand_counts_over`.
          LeasedError: the run learns from experience, and there are statistics.
          NotAllowedError, ProtocolError: see `ParameterServerStub`.
        """
        self.hand_counts_over()
        self.values = self._client.push_pull()

    def deliver(self, iteration: TrainingData | ReplayIteration) -> LearnerUpdate:
        """Returns the values from the last push; see `Sink`."""
        self._number += 1
        return self.report(iteration.tickets, with_values=True)

    def count(
        self, iteration: TrainingData | ReplayIteration | Requests | None = None
    ) -> LearnerUpdate:
        """Counts without a gradient, and pulls the newest values; see `Sink`.

        For `Requests` that do not want values, the counts wait for the next push.

        Raises:
          RelaaxError: see `push_counts`.
        """
        tickets = () if iteration is None else iteration.tickets
        if isinstance(iteration, Requests) and not iteration.wants_values:
            return self.report(tickets)
        self.push_counts()
        return self.report(tickets, with_values=True)

    def hand_counts_over(self) -> None:
        """Passes steps and episodes to the client, which sends them with the next push.

        It can send the steps earlier: see `ParameterServerClient.increment_global_t`.

        Raises:
          InvalidInputError: the return of an episode is not finite, or its length is out of range.
          RelaaxError: an error of `ParameterServerClient.increment_global_t`.
        """
        counts = self._tally.take()
        self._client.add_episodes(counts.episodes)
        self._client.increment_global_t(counts.env_steps)

    def report(self, tickets: Sequence[int], with_values: bool = False) -> LearnerUpdate:
        """Returns the answer to some tickets: the newest known counts; values if `with_values`."""
        client = self._client
        values = self.values if with_values else None
        return LearnerUpdate(tickets, client.version, client.global_t, client.finished, values)

    def close(self) -> LearnerUpdate | None:
        """Passes what no push contains to the client, which sends it when closed; see `Sink`.

        Raises:
          RelaaxError: see `hand_counts_over`.
        """
        self.hand_counts_over()
        return None
