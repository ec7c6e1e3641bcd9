"""Policies of a BaseLearner that learns from minibatches of a replay table."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from relaax_like.algorithm.parts import DISCOUNT, MASK, WEIGHTS
from relaax_like.config.plan import Replay
from relaax_like.core.prediction import LOG_PROB
from relaax_like.learn.gradient_policy import GradientPolicy
from relaax_like.learn.gradients import GradientTask
from relaax_like.learn.learning_policy import LearningPolicy
from relaax_like.learn.pushing import Pushing
from relaax_like.learn.replayed import ReplayIteration
from relaax_like.learn.update_policy import Task
from relaax_like.learn.updates import LearningTask, NotFiniteError
from relaax_like.replay import SequenceBatch
from relaax_like.replay.items import Minibatches


class ReplayPolicy(LearningPolicy):
    """Makes one update from each minibatch of a replay table; see `LearningPolicy`.

    First, the steps that arrived since the previous iteration update the running statistics.

    Args:
      task: owns model and optimizers.
      plan: of the algorithm.
      seed: unused; minibatches are taken in the order in which they were drawn.
      run_dir: see `LearningPolicy`.
    """

    def __init__(self, task: LearningTask, plan: Replay, seed: int, run_dir: Path | None = None):
        super().__init__(task, plan, seed, run_dir)

    def data_preprocess(self, data: ReplayIteration) -> dict[str, Any]:  # type: ignore[override]
        """Feeds the statistics; returns the arguments of the updates.

        Args:
          data: minibatches of single steps or of sequences, which become rows `[U * B, ...]` or
            `[L, U * B, ...]`.

        Raises:
          NotFiniteError: a number is not finite; nothing has changed.
        """
        arguments = make_replay_arguments(self._task, data.minibatches)
        self._validate(arguments)
        for name, moments in data.statistics.items():
            self._add_statistic(name, moments)
        return arguments

    def forward(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Makes one update of each minibatch.

        Args:
          arguments: of `data_preprocess`.

        Returns:
          The means of costs and metrics over the updates, and `updates`, the number of these.

        Raises:
          ConfigError: the algorithm's code fails, as it would each time.
          NotFiniteError: a gradient had NaN or infinity; the updates before it stay.
        """
        try:
            learned = self._task.update(
                self._make_draw(arguments), global_t=self.global_t, **arguments
            )
        except NotFiniteError as error:
            raise self._explain(str(error), arguments, error.metrics) from None
        self._updates += learned.updates
        self.rows = learned.rows
        return {**learned.costs, "updates": learned.updates}


class ReplayGradientPolicy(GradientPolicy):
    """Pushes the gradients of each minibatch, one after another; see `GradientPolicy`.

    Args:
      task: computes gradients.
      plan: of the algorithm.
      seed: unused; see `ReplayPolicy`.
      sink: receives the gradients.
    """

    def __init__(self, task: GradientTask, plan: Replay, seed: int, sink: Pushing):
        super().__init__(task, plan, seed, sink)
        task.wants_rows = task.wants_rows or plan.priority_exponent is not None

    def data_preprocess(self, data: ReplayIteration) -> dict[str, Any]:  # type: ignore[override]
        """Feeds the statistics; returns the arguments of `forward`.

        Raises:
          InvalidInputError: observations that feed a running statistic are not finite.
        """
        self.has_pushed = False
        for name, moments in data.statistics.items():
            self._add_statistic(name, moments)
        return make_replay_arguments(self._task, data.minibatches)

    def forward(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Computes and pushes the gradients of each minibatch; see `GradientPolicy.forward`.

        If `is_ending`, `rows` is {}.
        """
        results = super().forward(arguments)
        if self.is_ending:  # rows of updates that were left out have no results
            self.rows = {}
        return results


def make_replay_arguments(task: Task, batch: Minibatches | None) -> dict[str, Any]:
    """Returns the arguments of updates, rows `[U * B, ...]` or `[L, U * B, ...]`.

    Args:
      task: whose updates they are.
      batch: the minibatches of a `ReplayIteration`; not None.
    """
    assert batch is not None
    if isinstance(batch, SequenceBatch):
        return _make_sequences(task, batch)
    return {
        "inputs": _merge_all(batch.observations),
        "next_inputs": _merge_all(batch.next_observations),
        "next_alive": {"alive": (_merge(batch.discounts) > 0).astype(np.float32)},
        "rewards": task.split_rewards(_merge(batch.returns)),
        "actions": {**_merge_all(batch.actions), LOG_PROB: _merge(batch.log_prob)},
        "states": {},
        "extras": {
            **_merge_all(batch.extras),
            DISCOUNT: _merge(batch.discounts),
            WEIGHTS: _merge(batch.weights),
        },
    }


def _make_sequences(task: Task, batch: SequenceBatch) -> dict[str, Any]:
    """Returns the arguments of updates of sequences, which begin with an empty memory."""
    updates, _, size = batch.present.shape
    rows = updates * size
    weights = np.broadcast_to(batch.weights[:, None], batch.present.shape)
    observations = {name: _line_up(array) for name, array in batch.observations.items()}
    return {
        "inputs": {name: array[:-1] for name, array in observations.items()},
        "next_inputs": {name: array[1:] for name, array in observations.items()},
        "next_alive": {"alive": _line_up(batch.continues).astype(np.float32)},
        "rewards": task.split_rewards(_line_up(batch.rewards)),
        "actions": {
            **{name: _line_up(array) for name, array in batch.actions.items()},
            LOG_PROB: _line_up(batch.log_prob),
        },
        "states": {
            name: np.zeros((rows, *shape), np.float32) for name, shape in task.state_shapes.items()
        },
        "extras": {
            **{name: _line_up(array) for name, array in batch.extras.items()},
            MASK: _line_up(batch.valid).astype(np.float32),
            DISCOUNT: _line_up(batch.discounts),
            WEIGHTS: _line_up(weights),
        },
    }


def _merge(array: np.ndarray) -> np.ndarray:
    """Returns `[U, B, ...]` as `[U * B, ...]`."""
    return array.reshape(-1, *array.shape[2:])


def _merge_all(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: _merge(array) for name, array in arrays.items()}


def _line_up(array: np.ndarray) -> np.ndarray:
    """Returns `[U, L, B, ...]` as `[L, U * B, ...]`."""
    return np.moveaxis(array, 1, 0).reshape(array.shape[1], -1, *array.shape[3:])
