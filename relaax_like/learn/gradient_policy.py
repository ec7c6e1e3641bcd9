"""GradientPolicy: the policy of a BaseLearner beside its agents, which pushes gradients."""

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from relaax_like.algorithm.parts import MASK
from relaax_like.config.plan import LearningPlan, Replay
from relaax_like.config.seeds import derive_seed
from relaax_like.core.moments import Moments
from relaax_like.experience.collector import TrainingData
from relaax_like.learn.draw import Draw
from relaax_like.learn.gradients import GradientTask, merge_numbers
from relaax_like.learn.joint_pushing import JointPushing, OutError
from relaax_like.learn.pushing import Pushing
from relaax_like.learn.replayed import ReplayIteration
from relaax_like.learn.update_policy import UpdatePolicy
from relaax_like.wire import tracing
from relaax_like.wire.errors import ConfigError, RelaaxError

logger = logging.getLogger(__name__)


class GradientPolicy(UpdatePolicy[GradientTask]):
    """A GradientTask with the plan of its iterations; the parameter server updates the values.

    Each minibatch leads to a gradient (one for each phase that is due), which is computed with the
    values that the previous push returned. These can include gradients of other learners; or all
    learners of a run make each update together, see `JointPushing`.

    Attributes:
      is_ending: whether the iteration must end with its next update, because the process is about
        to end; set by another thread.

    Args:
      task: computes gradients.
      plan: of an iteration.
      seed: of the orders of minibatches; a plan `Replay` does not use it.
      sink: receives the gradients; a `JointPushing` if the task's updates are made together.

    Raises:
      ConfigError: see `UpdatePolicy`.
    """

    def __init__(self, task: GradientTask, plan: LearningPlan, seed: int, sink: Pushing):
        super().__init__(task, plan, seed)
        self.is_ending = False
        self._sink = sink
        self._group = sink if isinstance(sink, JointPushing) else None
        if isinstance(plan, Replay):
            task.wants_rows = task.wants_rows or plan.priority_exponent is not None

    @property
    def global_t(self) -> int:
        """Newest known environment steps of all clients; see also `JointPushing`."""
        return self._sink.global_t

    @property
    def is_recording(self) -> bool:
        """Whether this learner records the curves of the newest iteration."""
        return self._sink.is_recording

    def data_preprocess(self, data: TrainingData | ReplayIteration) -> dict[str, Any]:
        """Returns the arguments of `forward`; see `UpdatePolicy`.

        With other learners, it first waits until the next iteration begins.

        Raises:
          RelaaxError: see `UpdatePolicy` and `JointPushing.enter`.
        """
        self._sink.begin()
        try:
            return super().data_preprocess(data)
        except Exception:
            with contextlib.suppress(RelaaxError):
                self._sink.leave()
            raise

    def forward(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Computes and pushes the gradients of one iteration.

        While the parameter server is not available, gradients are discarded.

        Args:
          arguments: from `data_preprocess`.

        Returns:
          The means of costs and metrics over the updates, and `updates`, the number of these; only
          `updates`, 0, if the iteration only feeds the running statistics, or if the other learners
          have continued without this one, even if updates were made before.

        Raises:
          ConfigError: the algorithm's code fails, as it would each time, or the run's learners do
            not make updates together.
          InvalidInputError: a gradient is refused, see `Pushing.push`; inputs that feed a running
            statistic are not finite; the iteration has too few valid rows for a minibatch; a
            request differs from those of most learners; or see `GradientTask.compute_updates`.
          LeasedError: the run learns from experience.
          ServerUnavailableError: the learners of the run make each update together, and the
            parameter server is not available, or `JointPushing.disconnect` was called.
          NotAllowedError, ProtocolError: see `ParameterServerStub` and `GroupStream`.
        """
        self.rows = {}
        results: dict[str, Any] = {"updates": 0}
        try:
            if not self._sink.is_out:
                results = self._learn(arguments)
        except OutError:
            logger.warning(
                "the other learners have continued without this one (see "
                "relaax-parameter-server.combine.max_wait_sec); it enters the next iteration"
            )
        finally:
            self._sink.leave()
        if self._group is not None or not results["updates"]:  # else the last gradient had them
            self._sink.push_counts()
        return results

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

    def _begin(self, arguments: Mapping[str, Any]) -> None:
        if self._group is not None:
            updates = self._group.enter(self._count_units(arguments))
            self._updates = self._task.num_gradients = updates

    def _count_units(self, arguments: Mapping[str, Any]) -> int:
        """Returns the number of rows, or of slots, that minibatches are made of.

        With a plan `Replay`, it is the number of minibatches.
        """
        alive = arguments["next_alive"]["alive"]
        mask = arguments.get("extras", {}).get(MASK)
        if isinstance(self._plan, Replay):
            return int(alive.shape[-1]) // self._plan.batch_size
        if self._plan.minibatch_of == "steps":
            return alive.size if mask is None else int(mask.sum())
        return int(alive.shape[1] if mask is None else mask[0].sum())

    def _draw(self, arguments: Mapping[str, Any]) -> Draw | None:
        """Returns how minibatches are drawn; None: this learner has no part of them."""
        if self._group is None or isinstance(self._plan, Replay):
            return self._make_draw(arguments)
        return self._group.draw(self._plan, derive_seed(self._seed, "minibatches", self._updates))

    def _learn(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        is_measuring = self._must_prenormalize()
        draw = None if is_measuring else self._draw(arguments)
        if draw is None:
            if is_measuring or self._plan.update_norm:
                self._feed_statistics(arguments)
            return {"updates": 0}
        gradients = self._task.compute_updates(
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
            self._sink.push(gradient)
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

    def _join_moments(self, moments: Moments) -> Moments:
        return self._sink.join_moments(moments)

    def _add_statistic(self, name: str, moments: Moments) -> None:
        self._sink.add_statistics(name, moments)
