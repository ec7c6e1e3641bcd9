"""PPOOptim: the update that learns from a buffer of whole trajectories."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from relaax_like.config.plan import OnPolicy
from relaax_like.core.prediction import LOG_PROB
from relaax_like.experience.buffer import Buffer, lay_side_by_side
from relaax_like.experience.rollout import ALIVE, TERMINATED
from relaax_like.learn.learning_policy import LearningPolicy
from relaax_like.learn.updates import LearningTask

# Rows are filled up to a multiple of this part of an iteration.
_PARTS = 4
# Trajectories are filled up to lengths, and to numbers, that differ by this factor. A shape of an
# LSTM is compiled in seconds, what is masked costs milliseconds.
_FACTOR = 4


class PPOOptim(LearningPolicy):
    """A LearningPolicy whose iterations are buffers of whole trajectories.

        optim = PPOOptim(task, plan, seed, max_traj_len=300)
        metrics = optim.optimize(buffer)

    Minibatches are of steps, or, where the plan's are of rollouts, of complete trajectories, each
    without memory at its start. What follows their ends is masked: it changes no number. The
    algorithm's `prepare` computes values, returns and advantages again, from rewards and terminal
    values, with the current policy: with the policy that sampled, they are those of the buffer.

    Batches are padded to few shapes, as each is compiled when it first comes. No minibatch is made
    of padding, except for what the last one of trajectories lacks.

    Args:
      task: see `LearningPolicy`.
      plan: see `LearningPolicy`.
      seed: see `LearningPolicy`.
      max_traj_len: steps of the longest trajectory.
      run_dir: see `LearningPolicy`.
    """

    def __init__(
        self,
        task: LearningTask,
        plan: OnPolicy,
        seed: int,
        max_traj_len: int,
        run_dir: Path | None = None,
    ):
        super().__init__(task, plan, seed, run_dir)
        task.validate_one_reward("a Buffer has one")
        self._plan: OnPolicy = plan
        self._max_traj_len = max_traj_len
        self._state_shapes = task.state_shapes

    def optimize(self, buffer: Buffer) -> dict[str, Any]:
        """Makes the updates of one iteration.

        Args:
          buffer: with named states and actions, and the extra `log_prob`.

        Returns:
          The means of costs and metrics, and `updates`, their number.

        Raises:
          NotFiniteError: the buffer, or a gradient, has NaN or infinity; the updates before it
            stay.
        """
        return self.forward(self.data_preprocess(buffer))

    def data_preprocess(self, data: Any) -> dict[str, Any]:
        """Returns the arguments of an update.

        Args:
          data: a `Buffer`, with named states and actions, and the extra `log_prob`.

        Raises:
          NotFiniteError: they have NaN or infinity; nothing has changed.
        """
        buffer: Buffer = data
        steps, borders = buffer.rows(), np.array(buffer.traj_idx)
        assert isinstance(steps.states, dict)
        assert isinstance(steps.actions, dict)
        next_alive = np.full(len(buffer), ALIVE, np.float32)
        next_alive[borders[1:] - 1] = TERMINATED
        arguments: dict[str, dict[str, np.ndarray]] = {
            "inputs": steps.states,
            "actions": {**steps.actions, LOG_PROB: steps.extras[LOG_PROB]},
            "next_alive": {"alive": next_alive},
            "rewards": {"reward": steps.rewards[:, None]},
        }
        self._validate_finite(
            {
                **{p: {n: a[:, None] for n, a in part.items()} for p, part in arguments.items()},
                "ends": {"value": np.array(buffer.terminal_values)},
            }
        )
        # As one slot's, one trajectory behind the other.
        rewards = self._scale_rewards(
            steps.rewards[:, None, None], next_alive[:, None], np.zeros((1, 2), np.int64)
        )[:, 0]
        # An end that is worth V pays r + discount V, and then nothing: so no step needs to know
        # what was seen behind it.
        rewards[borders[1:] - 1, 0] += buffer.discount * np.array(buffer.terminal_values)
        arguments["rewards"] = {"reward": rewards}
        return self._lay_out(arguments, borders)

    def _lay_out(
        self, arguments: Mapping[str, Mapping[str, np.ndarray]], borders: np.ndarray
    ) -> dict[str, Any]:
        """Brings rows `[S, ...]` into the shape of a rollout `[T, k, ...]`.

        As rows they are one column, one trajectory behind the other; else each is a column.
        """
        if self._plan.minibatch_of == "steps":
            borders = borders[[0, -1]]
            steps, columns = self._pad_rows(int(borders[-1])), 1
        else:
            steps = self._pad_steps(int(np.diff(borders).max()))
            columns = self._pad_columns(len(borders) - 1)
        number = len(borders) - 1
        starts, lengths = np.zeros(columns, np.int64), np.zeros(columns, np.int64)
        starts[:number], lengths[:number] = borders[:-1], np.diff(borders)
        # Padding repeats the first step: unlike zeros that is an action that there can be.
        rows, is_step = lay_side_by_side(starts, lengths, steps)
        laid_out: dict[str, Any] = {
            part: {name: array[rows] for name, array in arrays.items()}
            for part, arrays in arguments.items()
        }
        laid_out["next_inputs"] = {
            # Behind the last step of a trajectory comes whatever: it is worth nothing.
            name: np.concatenate([array[1:], array[-1:]])
            for name, array in laid_out["inputs"].items()
        }
        laid_out["states"] = {
            name: np.zeros((columns, *shape), np.float32)
            for name, shape in self._state_shapes.items()
        }
        laid_out["extras"] = {"mask": is_step.astype(np.float32)}
        return laid_out

    def _pad_rows(self, rows: int) -> int:
        unit = max(self._plan.minibatch_size, -(-self._plan.env_steps // _PARTS))
        return -(-rows // unit) * unit

    def _pad_steps(self, steps: int) -> int:
        padded = max(steps, self._max_traj_len)
        while (shorter := -(-padded // _FACTOR)) >= steps and shorter < padded:
            padded = shorter
        return padded

    def _pad_columns(self, columns: int) -> int:
        padded = self._plan.minibatch_size
        while padded < columns:
            padded *= _FACTOR
        return padded
