"""Files of trajectories, played by a policy that is written down."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from relaax_like.client.interactor import Interactor
from relaax_like.config.models import Experiment
from relaax_like.experience.rollout import ALIVE, TERMINATED, TRUNCATED, RolloutBuffer
from relaax_like.experience.trajectory_files import TrajectoryWriter
from relaax_like.launch.local import open_slots


def balance(observations: np.ndarray) -> np.ndarray:
    """Keeps CartPole's pole up for 500 steps: pushes to where position and pole lean."""
    return (observations @ [0.1, 0.2, 1.0, 1.0] > 0).astype(np.int64)


class Recorder:
    """The agent of an Interactor: acts as it is instructed, and writes what happens to files.

    Args:
      policy: observations `[k, ...]` to actions `[k, ...]`.
      folder: of the files.
      files: to write; then it has finished.
      steps: of each slot in a file.
      slots: k.
    """

    def __init__(
        self,
        policy: Callable[[np.ndarray], np.ndarray],
        folder: Path,
        files: int,
        steps: int,
        slots: int,
    ):
        self._policy = policy
        self._writer = TrajectoryWriter(folder, 1e9)
        self._files = files
        self._written = 0
        self._slots = slots
        self._buffer = RolloutBuffer(steps, np.arange(slots))

    def step(
        self,
        observations: Any = None,
        rewards: Any = None,
        terminated: Any = None,
        truncated: Any = None,
        final_observations: Any = None,
        success: Any = None,
    ) -> Any:
        seen = {"observation": np.asarray(observations, np.float32)}
        if rewards is not None:
            alive = np.where(terminated, TERMINATED, np.where(truncated, TRUNCATED, ALIVE))
            finals = None if final_observations is None else {"observation": final_observations}
            rollout = self._buffer.add_outcome(rewards[:, None], alive, seen, finals)
            if rollout is not None:
                self._written += 1
                self._writer.write(self._written, rollout)
        if self._written == self._files:
            return SimpleNamespace(actions=None, finished="enough")
        actions = self._policy(seen["observation"])
        self._buffer.add_actions(seen, {"action": actions}, np.zeros(self._slots), {}, 0)
        return SimpleNamespace(actions=actions, finished="")


def record(
    experiment: Experiment,
    folder: Path,
    policy: Callable[[np.ndarray], np.ndarray] = balance,
    files: int = 20,
    steps: int = 64,
) -> None:
    """Plays the experiment's environment, and writes so many files of `steps` steps each."""
    with open_slots(experiment, "record") as slots:
        Interactor(slots, Recorder(policy, folder, files, steps, slots.slots)).run()
