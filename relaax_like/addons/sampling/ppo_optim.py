"""PPOOptim: the update that learns from a buffer of complete trajectories."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from relaax_like.config.plan import OnPolicy
from relaax_like.core.prediction import LOG_PROB
from relaax_like.experience.buffer import Buffer, Tree, lay_side_by_side
from relaax_like.experience.rollout import ALIVE, TERMINATED
from relaax_like.learn.learning_policy import LearningPolicy
from relaax_like.learn.updates import CompiledUpdates
from relaax_like.wire.errors import InvalidInputError

# Rows are padded to a multiple of this fraction of an iteration.
_PARTS = 4
# Lengths and numbers of trajectories are padded to values that differ by this factor. Compiling a
# shape of an LSTM takes seconds, masked steps cost milliseconds.
_FACTOR = 4


class PPOOptim(LearningPolicy):
    """A LearningPolicy whose iterations are buffers of complete trajectories.

        optim = PPOOptim(compiled, plan, seed, max_traj_len=300)
        metrics = optim.optimize(buffer)

    Minibatches consist of steps, or, if the plan's consist of rollouts, of complete trajectories,
    each without memory at its start. Padding after their ends is masked and has no effect. The
    algorithm's `prepare` computes values, returns and advantages again, from rewards and terminal
    values, with the current policy: with the policy that sampled, they equal those of the buffer,
    unless the plan scales rewards.

    Batches are padded to few shapes, because each is compiled when it first occurs. Minibatches of
    steps do not contain padding; those of trajectories can contain padded steps and trajectories.

    Attributes:
      num_steps: number of environment steps of an iteration, by the plan; a buffer can have others.
      max_traj_len: as the argument.

    Args:
      compiled: see `LearningPolicy`.
      plan: see `LearningPolicy`.
      seed: see `LearningPolicy`.
      max_traj_len: steps of the longest trajectory that is expected.
      run_dir: see `LearningPolicy`.

    Raises:
      ConfigError: the model does not have one reward of one number, or lacks running statistics
        that the plan needs.
    """

    def __init__(
        self,
        compiled: CompiledUpdates,
        plan: OnPolicy,
        seed: int,
        max_traj_len: int,
        run_dir: Path | None = None,
    ):
        super().__init__(compiled, plan, seed, run_dir)
        compiled.validate_one_reward("a Buffer has one")
        self._plan: OnPolicy = plan
        self.num_steps = plan.env_steps
        self.max_traj_len = max_traj_len
        self._state_shapes = compiled.state_shapes

    def optimize(self, buffer: Buffer) -> dict[str, Any]:
        """Makes the updates of one iteration.

        Args:
          buffer: with named states and actions, and the extra `log_prob`.

        Returns:
          The means of costs and metrics over the updates, and `updates`, the number of these; only
          `updates`, 0, if the iteration only feeds the running statistics.

        Raises:
          ConfigError: the algorithm's code fails, as it would each time.
          InvalidInputError: see `data_preprocess`; or the buffer's arrays do not fit the model, or
            there are too few steps for one minibatch.
          NotFiniteError: the buffer, or a gradient, has NaN or infinity; the updates before it
            stay.
        """
        return self.forward(self.data_preprocess(buffer))

    def add_to_statistics(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Adds rows `[B, ...]` to the running statistics of the inputs; see `AlgoWorker`."""
        self._feed_statistics({"inputs": inputs})
        self._prenormalizes = self._must_prenormalize()

    def data_preprocess(self, data: Any) -> dict[str, Any]:
        """Returns the arguments of an update.

        Args:
          data: a `Buffer`, with named states and actions, and the extra `log_prob`.

        Raises:
          InvalidInputError: the buffer is empty, its last trajectory has not ended, its states or
            actions have no names, or the extra `log_prob` is missing or not one number per step.
          NotFiniteError: the buffer contains NaN or infinity; nothing has changed.
        """
        buffer: Buffer = data
        steps, borders = buffer.rows(), np.array(buffer.traj_idx)
        states, actions = _get_named(steps.states, "state"), _get_named(steps.actions, "action")
        log_prob = steps.extras.get(LOG_PROB)
        if log_prob is None or log_prob.ndim != 1:
            given = "is missing" if log_prob is None else f"has shape {list(log_prob.shape)}"
            raise InvalidInputError(
                f"buffer: the extra {LOG_PROB} {given}, expected [{len(buffer)}], the log-"
                f"probability of each action; call push_additional_info({{{LOG_PROB!r}: number}}) "
                "once for each step",
                LOG_PROB,
            )
        next_alive = np.full(len(buffer), ALIVE, np.float32)
        next_alive[borders[1:] - 1] = TERMINATED
        arguments: dict[str, dict[str, np.ndarray]] = {
            "inputs": states,
            "actions": {**actions, LOG_PROB: log_prob},
            "next_alive": {"alive": next_alive},
            "rewards": {"reward": steps.rewards[:, None]},
        }
        self._validate_finite(
            {
                **{p: {n: a[:, None] for n, a in part.items()} for p, part in arguments.items()},
                "ends": {"value": np.array(buffer.terminal_values)},
            }
        )
        # As those of one slot, one trajectory after the other.
        rewards = self._scale_rewards(
            steps.rewards[:, None, None], next_alive[:, None], np.zeros((1, 2), np.int64)
        )[:, 0]
        # An end with value V gives the reward r + discount V, and then nothing, so no step needs
        # the observation after it.
        rewards[borders[1:] - 1, 0] += buffer.discount * np.array(buffer.terminal_values)
        arguments["rewards"] = {"reward": rewards}
        return self._lay_out(arguments, borders)

    def _lay_out(
        self, arguments: Mapping[str, Mapping[str, np.ndarray]], borders: np.ndarray
    ) -> dict[str, Any]:
        """Converts rows `[S, ...]` to the shape of a rollout `[T, k, ...]`.

        As steps, they are one column, one trajectory after the other; otherwise each trajectory is
        a column.
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
        # Padding repeats the first step, which, unlike zeros, is always a valid action.
        rows, is_step = lay_side_by_side(starts, lengths, steps)
        laid_out: dict[str, Any] = {
            part: {name: array[rows] for name, array in arrays.items()}
            for part, arrays in arguments.items()
        }
        laid_out["next_inputs"] = {
            # The input after the last step of a trajectory can be anything: it has no value.
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
        unit = max(self._plan.batch_size, -(-self._plan.env_steps // _PARTS))
        return -(-rows // unit) * unit

    def _pad_steps(self, steps: int) -> int:
        padded = max(steps, self.max_traj_len)
        while (shorter := -(-padded // _FACTOR)) >= steps and shorter < padded:
            padded = shorter
        return padded

    def _pad_columns(self, columns: int) -> int:
        padded = self._plan.batch_size or 1  # 0: a minibatch is all of the iteration
        while padded < columns:
            padded *= _FACTOR
        return padded


def _get_named(arrays: Tree, field: str) -> dict[str, np.ndarray]:
    if isinstance(arrays, dict):
        return arrays
    raise InvalidInputError(
        f"buffer: the {field}s are one array without a name, expected a dict of the model's names; "
        f"push each {field} as a dict name -> array",
        field,
    )
