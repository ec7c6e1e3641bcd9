"""RecordedFiles: files of trajectories as a source of iterations."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from relaax_like.algorithm.model import Model
from relaax_like.config.plan import RolloutPlan
from relaax_like.config.seeds import derive_seed
from relaax_like.experience.rollout import Rollout
from relaax_like.experience.trajectory_files import DamagedFileError, read_trajectories
from relaax_like.learn.learner_loop import Source
from relaax_like.learn.rollout_layout import RolloutLayout
from relaax_like.learn.tally import Tally
from relaax_like.wire import tracing
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.spaces import Space


@dataclass(frozen=True)
class RecordedData:
    """An iteration from a file.

    Attributes:
      rollout: `[T, k, ...]`.
      tickets: empty, because no agent waits for it.
      mean_version: None, because another run has acted.
    """

    rollout: Rollout
    tickets: tuple[int, ...] = ()
    mean_version: None = None

    @property
    def env_steps(self) -> int:
        """T * k."""
        return self.rollout.env_steps

    @property
    def keys(self) -> np.ndarray:
        """`[k, 2] int64`: 0, and the slot; see `TrainingData`."""
        return np.stack([np.zeros(self.rollout.slots, np.int64), np.arange(self.rollout.slots)], 1)


class RecordedFiles(Source):
    """Each file is an iteration; all are read repeatedly, each time in another order.

    The order depends on the seed, the number of files and the number of the iteration: a run that
    resumes from a snapshot draws what it would have drawn.

    Args:
      files: at least one, in an order that is always the same.
      tally: counts the steps of each file that is read.
      model: its specs define the rollouts.
      action_spaces: leaf -> space, if they are known.
      seed: of the orders.
    """

    def __init__(
        self,
        files: Sequence[Path],
        tally: Tally,
        model: Model,
        action_spaces: Mapping[str, Space],
        seed: int,
    ):
        self._files = files
        self._tally = tally
        self._model = model
        self._action_spaces = action_spaces
        self._seed = seed

    def get(self, done: int, timeout_sec: float) -> RecordedData:
        """Reads the next file; see `Source`.

        Raises:
          InvalidInputError: the file is damaged, or its rollout does not fit the algorithm.
        """
        path = self._files[draw_index(self._seed, len(self._files), done)]
        with tracing.span("read"):
            rollout = _conform(read_trajectories(path), path, self._model, self._action_spaces)
        self._tally.add(rollout.env_steps)
        return RecordedData(rollout)


def validate_files(
    files: Sequence[Path], model: Model, action_spaces: Mapping[str, Space], plan: RolloutPlan
) -> None:
    """Reads all files once, so that none of them ends the training hours later.

    This takes about a second per GB, plus the time of the disk.

    Args:
      files: of trajectories.
      model: see `RecordedFiles`.
      action_spaces: see `RecordedFiles`.
      plan: of the updates.

    Raises:
      InvalidInputError: files are damaged, and the error lists all of them; or the rollout of a
        file does not fit the algorithm, or is too short for one update.
    """
    damaged: list[DamagedFileError] = []
    unfit: InvalidInputError | None = None
    for path in files:
        try:
            rollout = _conform(read_trajectories(path), path, model, action_spaces)
            _validate_length(rollout, path, plan)
        except DamagedFileError as error:
            damaged.append(error)
        except InvalidInputError as error:
            unfit = unfit or error
    if damaged:
        lines = "".join(f"\n  {one.path} ({one.reason})" for one in damaged)
        raise InvalidInputError(
            f"{len(damaged)} of {len(files)} files contain no trajectories, or are damaged; "
            f"remove them, or record them again:{lines}"
        )
    if unfit is not None:
        raise unfit


def _validate_length(rollout: Rollout, path: Path, plan: RolloutPlan) -> None:
    rows = plan.minibatch_of == "steps"
    length, what = (rollout.env_steps, "steps") if rows else (rollout.slots, "slots")
    if length < plan.minibatch_size:
        raise InvalidInputError(
            f"{path} has {length} {what}, but an update needs {plan.minibatch_size} "
            "(algorithm.batch_size); lower batch_size, or remove the file",
            "batch_size",
        )


def _conform(
    rollout: Rollout, path: Path, model: Model, action_spaces: Mapping[str, Space]
) -> Rollout:
    """Converts a rollout to what the model reads; each slot begins without memory.

    The recorded memory belongs to another network.
    """
    memory = {
        name: np.zeros((rollout.slots, *properties["shape"]), np.float32)
        for name, properties in model.get_state_specs()
    }
    layout = RolloutLayout(model, len(rollout.next_alive), action_spaces)
    try:
        return layout.conform(dataclasses.replace(rollout, states=memory))
    except InvalidInputError as error:
        raise InvalidInputError(
            f"{path} does not fit the algorithm's settings: {error}", error.field
        ) from error


def draw_index(seed: int, number: int, iteration: int) -> int:
    """Returns the index of the file, 0 to `number` - 1, from which an iteration learns.

    Every `number` iterations, starting at 0, go through all files in a different order.
    """
    epoch, place = divmod(iteration, number)
    order = np.random.default_rng(derive_seed(seed, "files", epoch)).permutation(number)
    return int(order[place])
