"""Observations that are stored once, and joined with those before them when a batch is made."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaax_like.agent.history import ObservationHistory
from relaax_like.experience.episodes import EpisodeCollector
from relaax_like.experience.rollout import (
    ALIVE,
    TERMINATED,
    TRUNCATED,
    Rollout,
    RolloutBuffer,
    concatenate,
    slice_slots,
    stack_history,
)
from relaax_like.experience.trajectory_files import (
    TrajectoryWriter,
    find_trajectories,
    read_trajectories,
)
from relaax_like.learn.rollout_messages import bytes_to_rollout, rollout_to_bytes
from relaax_like.wire.errors import InvalidInputError

SLOTS = 2
# Shapes of one observation, and of one that the model sees alone.
SHAPES: Mapping[str, tuple[tuple[int, ...], str]] = {
    "vector": ((3,), "float32"),
    "image": ((4, 2, 1), "uint8"),
}
GOAL = "goal"


def play(ends: list[tuple[float, ...]], steps: int, number: int, pause: int = -1) -> Any:
    """Stores the same life in two ways; returns the rollouts of both: stored once, and joined.

    Args:
      ends: what became of each slot in each step.
      steps: of a rollout.
      number: observations that are joined.
      pause: step before which another buffer continues.
    """
    random = np.random.default_rng(len(ends) + number)

    def observe() -> dict[str, np.ndarray]:
        return {
            name: random.integers(0, 200, (SLOTS, *shape)).astype(dtype)
            for name, (shape, dtype) in SHAPES.items()
        }

    history = ObservationHistory(number, SLOTS)
    joined = dict.fromkeys(SHAPES, number)
    once, full = (RolloutBuffer(steps, np.arange(SLOTS)) for _ in range(2))
    seen: dict[str, np.ndarray] = history.add(observe())
    rollouts: list[tuple[Rollout, Rollout]] = []
    for t, alive in enumerate(ends):
        if t == pause:
            state, once = once.get_state(), RolloutBuffer(steps, np.zeros(SLOTS, np.int64))
            once.set_state(state)
        inputs = {**seen, GOAL: np.full((SLOTS, 2), t, np.float32)}
        taken = ({"action": np.array([t, t])}, np.zeros(SLOTS), {}, t)
        once.add_actions(inputs, *taken, joined)
        full.add_actions(inputs, *taken)
        ended = np.array(alive) != ALIVE
        finals = None
        if ended.any():
            finals = history.join_finals(observe())
        seen = history.add(observe(), ended)
        outcome = (np.ones((SLOTS, 1)), np.array(alive, np.float32), seen, finals)
        pair = once.add_outcome(*outcome), full.add_outcome(*outcome)
        if pair[0] is not None:
            assert pair[1] is not None
            rollouts.append((pair[0], pair[1]))
    return rollouts


def assert_same(stacked: Rollout, full: Rollout) -> None:
    assert stacked.history == {}
    assert stacked.inputs.keys() == full.inputs.keys()
    # What follows a terminal state is multiplied by zero.
    matters = full.next_alive != TERMINATED
    for name in full.inputs:
        np.testing.assert_array_equal(stacked.inputs[name], full.inputs[name], strict=True)
        ours, theirs = stacked.next_inputs[name], full.next_inputs[name]
        np.testing.assert_array_equal(ours[matters], theirs[matters], strict=True)


lives = st.lists(
    st.tuples(*[st.sampled_from((ALIVE, ALIVE, TERMINATED, TRUNCATED))] * SLOTS),
    min_size=4,
    max_size=24,
)


@given(ends=lives, steps=st.integers(1, 6), number=st.integers(2, 4), pause=st.integers(-1, 20))
def test_what_was_stored_once_is_joined_as_the_agent_saw_it(
    ends: list[tuple[float, ...]], steps: int, number: int, pause: int
) -> None:
    for once, full in play(ends, steps, number, pause):
        for name, (shape, _) in SHAPES.items():
            assert once.inputs[name].shape == (steps, SLOTS, *shape)
            assert once.history[name].shape == (number - 1, SLOTS, *shape)
        assert GOAL not in once.history
        assert_same(stack_history(once), full)
        assert stack_history(full) is full


@given(ends=lives, number=st.integers(2, 3))
def test_joining_and_cutting_rollouts_changes_nothing(
    ends: list[tuple[float, ...]], number: int
) -> None:
    pairs = play(ends, 4, number)
    once, full = (concatenate([pair[i] for pair in pairs]) for i in (0, 1))
    assert_same(stack_history(once), full)
    assert_same(stack_history(slice_slots(once, 1, 2)), slice_slots(full, 1, 2))


@given(ends=lives, number=st.integers(2, 3))
def test_episodes_begin_with_their_first_observation(
    ends: list[tuple[float, ...]], number: int
) -> None:
    once, full = (EpisodeCollector(4, 1, capacity=99, max_steps=99) for _ in range(2))
    for pair in play(ends, 4, number):
        once.add(pair[0])
        full.add(pair[1])
    while (data := full.get_training_data()) is not None:
        ours = once.get_training_data()
        assert ours is not None
        stacked, valid = stack_history(ours.rollout), data.rollout.valid
        assert valid is not None
        for name in SHAPES:
            np.testing.assert_array_equal(
                stacked.inputs[name][valid], data.rollout.inputs[name][valid]
            )


def test_it_travels_and_is_kept_as_it_was_stored(tmp_path: Any) -> None:
    life = [(ALIVE, TRUNCATED), (ALIVE, ALIVE), (TERMINATED, ALIVE)] * 16
    once, full = play(life, len(life), 4)[0]
    data = rollout_to_bytes(once)
    # A third and less of what the joined ones take.
    assert data.nbytes < 0.45 * rollout_to_bytes(full).nbytes
    assert_same(stack_history(bytes_to_rollout(data)), full)
    TrajectoryWriter(tmp_path, 1e9).write(1, once)
    read = read_trajectories(find_trajectories(tmp_path)[0])
    assert_same(stack_history(read), full)
    assert dataclasses.replace(read).history.keys() == set(SHAPES)


def test_another_history_is_of_another_kind() -> None:
    pairs = [play([(ALIVE, ALIVE)] * 3, 3, number)[0][0] for number in (2, 3)]
    collector = EpisodeCollector(3, 1, capacity=99, max_steps=99)
    collector.add(pairs[0])
    with pytest.raises(InvalidInputError, match=r"history\['vector'\].*in the first rollout"):
        collector.add(pairs[1])
