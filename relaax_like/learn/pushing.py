"""Pushing: the update and sink of a learner that pushes gradients to a parameter server."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from relaax_like.config.plan import LearningPlan, Replay
from relaax_like.core.moments import Moments
from relaax_like.core.records import LearnerUpdate
from relaax_like.core.roles import ParameterServerClient
from relaax_like.experience.collector import TrainingData
from relaax_like.learn.compiled_algorithm import Gradient
from relaax_like.learn.draw import Draw
from relaax_like.learn.gradients import CompiledGradients, merge_numbers
from relaax_like.learn.learner_loop import Sink
from relaax_like.learn.replayed import ReplayIteration
from relaax_like.learn.request_queue import Requests
from relaax_like.learn.tally import Tally
from relaax_like.learn.update_policy import UpdatePolicy
from relaax_like.wire import tracing
from relaax_like.wire.errors import ConfigError

if TYPE_CHECKING:
    from relaax_like.learn.joint_pushing import JointPushing


class Pushing(UpdatePolicy[CompiledGradients], Sink):
    """Pushes gradients with the steps and episodes to be counted, and pulls the newest values.

        sink = Pushing(client, compiled, tally, plan, seed)
        first = sink.load()
        log_vars = sink.forward(sink.data_preprocess(training_data))
        values = sink.deliver(training_data).values

    It is both the policy of a BaseLearner and the sink of its loop. Each minibatch leads to a
    gradient (one for each phase that is due), which is computed with the values that the previous
    push returned. These can include gradients of other learners; or all learners of a run make each
    update together, see `JointPushing`.

    Args:
      client: of the parameter server, which updates the values.
      compiled: computes gradients; receives the values.
      tally: of the steps and episodes that are to be counted.
      plan: of an iteration.
      seed: of the orders of minibatches; a plan `Replay` does not use it.

    Attributes:
      values: the newest ones.
      has_pushed: whether a gradient of the newest iteration was pushed.
      is_ending: whether the iteration must end with its next update, because the process is about
        to end; set by another thread.

    Raises:
      ConfigError: see `UpdatePolicy`.
    """

    # What makes each update together with other learners, if any.
    _group: "JointPushing | None" = None

    def __init__(
        self,
        client: ParameterServerClient,
        compiled: CompiledGradients,
        tally: Tally,
        plan: LearningPlan,
        seed: int,
    ):
        super().__init__(compiled, plan, seed)
        self._client = client
        self._tally = tally
        self.values: Sequence[np.ndarray] = ()
        self.has_pushed = False
        self.is_ending = False
        if isinstance(plan, Replay):
            compiled.wants_rows = compiled.wants_rows or plan.priority_exponent is not None

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
            self._compiled.set_values(self.values)
        except ValueError as error:  # InvalidInputError is one
            raise ConfigError(
                f"the parameter server's values do not fit the model: {error}; use the same "
                "configuration for the parameter server and this learner"
            ) from error
        return self.report((), with_values=True)

    # The update of an iteration.

    def data_preprocess(self, data: TrainingData | ReplayIteration) -> dict[str, Any]:
        """Returns the arguments of `forward`; see `UpdatePolicy`."""
        self.has_pushed = False
        return super().data_preprocess(data)

    def forward(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Computes and pushes the gradients of one iteration.

        While the parameter server is not available, gradients are discarded.

        Args:
          arguments: from `data_preprocess`.

        Returns:
          The means of costs and metrics over the updates, and `updates`, the number of these; only
          `updates`, 0, if the iteration only feeds the running statistics.

        Raises:
          ConfigError: the algorithm's code fails, as it would each time.
          InvalidInputError: a gradient is refused, see `push`; inputs that feed a running
            statistic are not finite; the iteration has too few valid rows for a minibatch; or see
            `CompiledGradients.compute_updates`.
          LeasedError: the run learns from experience.
          NotAllowedError, ProtocolError: see `ParameterServerStub`.
        """
        self.rows = {}
        results = self._learn(arguments)
        if not results["updates"]:  # else the last gradient had them
            self.push_counts()
        return results

    def push(self, gradient: Gradient) -> None:
        """Pushes a gradient, and pulls the newest values; see `ParameterServerClient.push_pull`.

        `compiled` gets the values, unless it is the last gradient of an iteration.
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
            self._compiled.set_values(self.values)

    def state_dict(self) -> dict[str, np.ndarray]:
        """Returns the newest values by name; optimizers are the parameter server's."""
        names = (variable.name for variable in self._compiled.get_variables())
        return {f"value/{n}": v for n, v in zip(names, self.values, strict=True)}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Raises ConfigError, because the values belong to the parameter server."""
        raise ConfigError(
            "cannot load a checkpoint: a learner beside its agents takes its values from the "
            "parameter server; to start from another run's weights, set learner.previous"
        )

    def take_state(self) -> dict[str, Any]:
        """Returns the state that the parameter server does not store; see `Sink`."""
        return {"updates": self._updates, "reward_sums": self.get_sums()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `take_state` returned."""
        self._updates = int(state["updates"])
        self.set_sums(state["reward_sums"])

    def _choose(self, arguments: Mapping[str, Any]) -> Draw | None:
        """Returns how minibatches are drawn; None: this learner has no part of them."""
        return self._make_draw(arguments)

    def _learn(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        is_measuring = self._must_prenormalize()
        draw = None if is_measuring else self._choose(arguments)
        if draw is None:
            if is_measuring or self._plan.update_norm:
                self._feed_statistics(arguments)
            return {"updates": 0}
        gradients = self._compiled.compute_updates(
            draw, global_t=self.global_t, group=self._group, **arguments
        )
        sums: dict[str, list[float]] = {}
        numbers: dict[str, float] = {}
        rows: Mapping[str, np.ndarray] = {}
        updates, is_last = 0, False
        while not is_last:
            with tracing.span("gradient") if self._group is None else contextlib.nullcontext():
                gradient = next(gradients)
            if self.is_ending and gradient.ends_update:
                gradient = replace(gradient, is_last=True)
            is_last = gradient.is_last
            rows = gradient.rows or rows
            numbers = merge_numbers(numbers, gradient.numbers, gradient.groups)
            if is_last and self._plan.update_norm:
                # Until then, inputs are normalised as they were when acting.
                self._feed_statistics(arguments)
            self.push(gradient)
            if gradient.ends_update:
                updates += 1
                for name, number in numbers.items():
                    sums.setdefault(name, []).append(number)
                numbers = {}
        self._updates += updates
        # With a plan Replay, rows of updates that were left out have no results.
        if not (self.is_ending and isinstance(self._plan, Replay)):
            self.rows = {name: self._restore(results) for name, results in rows.items()}
        return {**{name: sum(all_) / len(all_) for name, all_ in sums.items()}, "updates": updates}

    def _add_statistic(self, name: str, moments: Moments) -> None:
        """Adds to a running statistic, with the next push.

        Raises:
          InvalidInputError: the moments are not finite, or are out of range; see
            `ParameterServerClient.add_statistics` for other causes.
        """
        self._client.add_statistics(name, moments)

    # The sink of the loop.

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
        self.number += 1
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
