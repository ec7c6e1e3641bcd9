"""Gradients of rollouts as an update, and a sink that pushes them to a parameter server."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from relaax_like.core.moments import Moments
from relaax_like.core.records import LearnerUpdate
from relaax_like.core.roles import ParameterServerClient
from relaax_like.experience.holes import cut_ends
from relaax_like.experience.rollout import Rollout, get_rows
from relaax_like.learn.computation_task import Gradient
from relaax_like.learn.gradients import GradientTask
from relaax_like.learn.learner_loop import Sink
from relaax_like.learn.request_queue import Packed
from relaax_like.learn.tally import Tally
from relaax_like.wire import tracing
from relaax_like.wire.errors import ConfigError


class Pushing(Sink):
    """Pushes gradients with what is to be counted, and takes the values that come back.

    The steps of a push that failed are counted with the next one; its episodes when the iteration's
    requests are tried again.

    Args:
      client: the parameter server.
      task: takes the values at the beginning.
      tally: of the steps that are to be counted.

    Attributes:
      values: the newest ones.
    """

    def __init__(self, client: ParameterServerClient, task: GradientTask, tally: Tally):
        self._client = client
        self._task = task
        self._tally = tally
        self._number = 0
        self.values: Sequence[np.ndarray] = ()

    @property
    def number(self) -> int:
        """Iterations of this learner; see `Sink`."""
        return self._number

    @property
    def global_t(self) -> int:
        """Newest known environment steps of all clients."""
        return self._client.global_t

    def load(self) -> LearnerUpdate:
        """Pulls the newest values; see `Sink`.

        Raises:
          ConfigError: they are of another model.
        """
        self.values = self._client.get_values()
        try:
            self._task.set_values(self.values)
        except ValueError as error:  # InvalidInputError is one
            raise ConfigError(
                f"the parameter server's values do not fit the model: {error}; use the same "
                "configuration for both servers"
            ) from error
        return self.report((), with_values=True)

    def add_statistics(self, name: str, moments: Moments) -> None:
        """Adds to a running statistic, with the next push."""
        self._client.add_statistics(name, moments)

    def push(self, gradient: Gradient, iteration: Packed) -> None:
        """Pushes a gradient of an iteration, and pulls the newest values.

        Steps and episodes are counted with the last one of an iteration: the budget's end cuts
        none.

        Raises:
          InvalidInputError: it is not finite.
          ServerUnavailableError: there is no parameter server.
        """
        with tracing.span("push-pull"):
            if gradient.is_last:
                self._add_episodes(iteration)
                self.hand_steps_over()
            self.values = self._client.push_pull(gradient.arrays, gradient.groups)

    def deliver(self, iteration: Packed) -> LearnerUpdate:
        """Returns what the last push has brought; see `Sink`."""
        self._number += 1
        return self.report(iteration.tickets, with_values=True)

    def count(self, iteration: Packed | None = None) -> LearnerUpdate:
        """Counts without a gradient, and pulls the newest values; see `Sink`."""
        if iteration is not None:
            self._add_episodes(iteration)
        self.hand_steps_over()
        self.values = self._client.push_pull()
        return self.report(() if iteration is None else iteration.tickets, with_values=True)

    def hand_steps_over(self) -> None:
        """Passes the steps to the client, which sends them with the next push or soon after."""
        self._client.increment_global_t(self._tally.take().env_steps)

    def _add_episodes(self, iteration: Packed) -> None:
        for request in iteration.requests:
            for episode in request.episodes:
                self._client.add_episode(episode.episode_return, episode.length)

    def report(self, tickets: Sequence[int], with_values: bool = False) -> LearnerUpdate:
        """Returns the newest known counts, for requests that lead to no gradient."""
        client = self._client
        values = self.values if with_values else None
        return LearnerUpdate(tickets, client.version, client.global_t, client.finished, values)


class GradientPolicy:
    """What a BaseLearner updates beside its agents: the parameter server does, by its gradients.

    Attributes:
      pushed: tickets of the newest iteration of which a gradient was applied.
      rows: results of each row of the newest iteration, name -> `[T, k]`.

    Args:
      task: computes gradients.
      sink: takes them.
    """

    def __init__(self, task: GradientTask, sink: Pushing):
        self.pushed: Sequence[int] = ()
        self.rows: Mapping[str, np.ndarray] = {}
        self._task = task
        self._sink = sink

    def data_preprocess(self, data: Packed) -> Packed:
        """Returns the iteration as it is."""
        return data

    def forward(self, data: Packed) -> Mapping[str, Any]:
        """Computes the gradients of an iteration, and pushes them; returns costs and metrics.

        There is one for each phase of the algorithm. Costs are those of the groups' own phases, all
        other numbers of the first phase that has them.

        Raises:
          ConfigError: the algorithm's code fails, as it would each time.
          InvalidInputError: the gradient is not finite.
          ServerUnavailableError: there is no parameter server.
        """
        dense = data.dense
        rollout = dense.rollout
        arguments = self._task.make_arguments(rollout, cut_ends(rollout))
        gradients = self._task.compute_phases(**arguments, global_t=self._sink.global_t)
        numbers: dict[str, float] = {}
        while True:
            with tracing.span("gradient"):
                gradient = next(gradients)
            if not numbers:
                self.rows = {name: dense.restore(rows) for name, rows in gradient.rows.items()}
            own = {n: y for n, y in gradient.numbers.items() if n in gradient.groups}
            numbers = {**gradient.numbers, **numbers, **own}
            if gradient.is_last:  # until then inputs are seen as they were when it was acted
                self._add_statistics(rollout)
            self._sink.push(gradient, data)
            self.pushed = data.tickets
            if gradient.is_last:
                return numbers
            self._task.set_values(self._sink.values)

    def _add_statistics(self, rollout: Rollout) -> None:
        for name in self._task.statistics:
            rows = get_rows(rollout, rollout.inputs[name])
            self._sink.add_statistics(name, Moments.of(rows))

    def state_dict(self) -> dict[str, np.ndarray]:
        """Returns the newest values by name; optimizers are the parameter server's."""
        names = (variable.name for variable in self._task.get_variables())
        return {f"value/{n}": v for n, v in zip(names, self._sink.values, strict=True)}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Refuses: the values are the parameter server's."""
        raise ConfigError(
            "a learner beside its agents takes its values from the parameter server; use "
            "learner.previous"
        )
