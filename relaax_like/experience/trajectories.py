"""Trajectories: the slots of a rollout, cut where episodes end."""

import enum
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from relaax_like.experience.rollout import TERMINATED, TRUNCATED, Arrays, Rollout


class TrajectoryEnd(enum.Enum):
    """Why a trajectory has no more steps."""

    TERMINATED = "terminated"  # nothing of worth comes afterwards
    TRUNCATED = "truncated"  # the episode was cut off
    ROLLOUT_END = "rollout end"  # the episode goes on, in the next rollout


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """L steps of one slot, all of one episode; views of the rollout's arrays.

    Attributes:
      slot: number of the slot in the rollout.
      start: number of the first step in the rollout.
      inputs: name -> [L, ...], observations that the actions answered.
      actions: name -> [L, ...].
      rewards: [L, r] float32.
      log_prob: [L] float32, of the actions under the policy that acted.
      versions: [L] int64, of the values that acted.
      states: name -> [...], memory at the first step: the rollout's, or zero where the episode
        begins inside of it.
      end: why it ends.
      final_inputs: name -> [...], the observation behind the last step. Its value is the
        trajectory's terminal value, unless `end` is TERMINATED: then it may mean nothing.
    """

    slot: int
    start: int
    inputs: Arrays
    actions: Arrays
    rewards: np.ndarray
    log_prob: np.ndarray
    versions: np.ndarray
    states: Arrays
    end: TrajectoryEnd
    final_inputs: Arrays

    def __len__(self) -> int:
        """L."""
        return len(self.log_prob)


def split_trajectories(rollout: Rollout) -> list[Trajectory]:
    """Cuts a rollout at the ends of episodes.

    Returns:
      Slot after slot, and in each one step after step; every step is in just one trajectory.
    """
    return [
        _cut(rollout, slot, start, stop)
        for slot in range(rollout.slots)
        for start, stop in _find_borders(rollout.next_alive[:, slot])
    ]


def _find_borders(next_alive: np.ndarray) -> Iterator[tuple[int, int]]:
    """Gives (first step, one behind the last) of each trajectory of a slot; `next_alive: [T]`."""
    start = 0
    for last in np.flatnonzero(next_alive <= 0).tolist():
        yield start, last + 1
        start = last + 1
    if start < len(next_alive):
        yield start, len(next_alive)


def _cut(rollout: Rollout, slot: int, start: int, stop: int) -> Trajectory:
    def steps(arrays: Arrays) -> dict[str, np.ndarray]:
        return {name: array[start:stop, slot] for name, array in arrays.items()}

    states = {name: array[slot] for name, array in rollout.states.items()}
    if start:
        states = {name: np.zeros_like(state) for name, state in states.items()}
    return Trajectory(
        slot=slot,
        start=start,
        inputs=steps(rollout.inputs),
        actions=steps(rollout.actions),
        rewards=rollout.rewards[start:stop, slot],
        log_prob=rollout.log_prob[start:stop, slot],
        versions=rollout.versions[start:stop],
        states=states,
        end=_find_end(rollout.next_alive[stop - 1, slot]),
        final_inputs={name: array[stop - 1, slot] for name, array in rollout.next_inputs.items()},
    )


def _find_end(next_alive: float) -> TrajectoryEnd:
    if next_alive == TERMINATED:
        return TrajectoryEnd.TERMINATED
    return TrajectoryEnd.TRUNCATED if next_alive == TRUNCATED else TrajectoryEnd.ROLLOUT_END
