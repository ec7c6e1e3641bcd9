"""GradientPolicy: the policy of a BaseLearner beside its agents, which pushes gradients."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from relaax_like.config.plan import LearningPlan
from relaax_like.core.moments import Moments
from relaax_like.experience.collector import TrainingData
from relaax_like.learn.computation_task import Gradient
from relaax_like.learn.gradients import GradientTask, merge_numbers
from relaax_like.learn.pushing import Pushing
from relaax_like.learn.update_policy import UpdatePolicy
from relaax_like.wire import tracing
from relaax_like.wire.errors import ConfigError


class GradientPolicy(UpdatePolicy[GradientTask]):
    """A GradientTask with the plan of its iterations; the parameter server updates the values.

    Each minibatch leads to a gradient (one for each phase that is due), which is computed with the
    values that the previous push returned. These can include gradients of other learners.

    Attributes:
      has_pushed: whether a gradient of the newest iteration was pushed.
      is_ending: whether the iteration must end with its next update, because the process is about
        to end; set by another thread.

    Args:
      task: computes gradients.
      plan: of an iteration.
      seed: of the orders of minibatches.
      sink: receives the gradients.

    Raises:
      ConfigError: see `UpdatePolicy`.
    """

    def __init__(self, task: GradientTask, plan: LearningPlan, seed: int, sink: Pushing):
        super().__init__(task, plan, seed)
        self.has_pushed = False
        self.is_ending = False
        self._sink = sink

    @property
    def global_t(self) -> int:
        """Newest known environment steps of all clients."""
        return self._sink.global_t

    def data_preprocess(self, data: TrainingData) -> dict[str, Any]:
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
          InvalidInputError: a gradient is refused, see `Pushing.push`; inputs that feed a running
            statistic are not finite; the iteration has too few valid rows for a minibatch; or see
            `GradientTask.compute_updates`.
          LeasedError: the run learns from experience.
          NotAllowedError, ProtocolError: see `ParameterServerStub`.
        """
        if self._must_prenormalize():
            self._feed_statistics(arguments)
            self._sink.push_counts()
            self.rows = {}
            return {"updates": 0}
        gradients = self._compute_gradients(arguments)
        sums: dict[str, list[float]] = {}
        numbers: dict[str, float] = {}
        rows: Mapping[str, np.ndarray] = {}
        updates = 0
        while True:
            with tracing.span("gradient"):
                gradient = next(gradients)
            if self.is_ending and gradient.ends_update:
                gradient = replace(gradient, is_last=True)
            rows = gradient.rows or rows
            numbers = merge_numbers(numbers, gradient.numbers, gradient.groups)
            if gradient.is_last and self._plan.update_norm:
                # Until then, inputs are normalised as they were when acting.
                self._feed_statistics(arguments)
            self._sink.push(gradient)
            self.has_pushed = True
            if gradient.ends_update:
                updates += 1
                for name, number in numbers.items():
                    sums.setdefault(name, []).append(number)
                numbers = {}
            if gradient.is_last:
                break
            self._task.set_values(self._sink.values)
        self._updates += updates
        self.rows = {name: self._restore(results) for name, results in rows.items()}
        return {**{name: sum(all_) / len(all_) for name, all_ in sums.items()}, "updates": updates}

    def state_dict(self) -> dict[str, np.ndarray]:
        """Returns the newest values by name; optimizers are the parameter server's."""
        names = (variable.name for variable in self._task.get_variables())
        return {f"value/{n}": v for n, v in zip(names, self._sink.values, strict=True)}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Raises ConfigError, because the values belong to the parameter server."""
        raise ConfigError(
            "cannot load a checkpoint: a learner beside its agents takes its values from the "
            "parameter server; to start from another run's weights, set learner.previous"
        )

    def take_state(self) -> dict[str, Any]:
        """Returns the state that the parameter server does not store."""
        return {"updates": self._updates, "reward_sums": self.get_sums()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `take_state` returned."""
        self._updates = int(state["updates"])
        self.set_sums(state["reward_sums"])

    def _compute_gradients(self, arguments: Mapping[str, Any]) -> Iterator[Gradient]:
        """Yields the gradients of an iteration."""
        draw = self._make_draw(arguments)
        return self._task.compute_updates(draw, global_t=self.global_t, **arguments)

    def _add_statistic(self, name: str, moments: Moments) -> None:
        self._sink.add_statistics(name, moments)
