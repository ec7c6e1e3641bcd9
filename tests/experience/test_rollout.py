"""Rollout buffers: every number where it belongs, across episode ends and rollout ends."""

# covers F18, F22, F23

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaax_like.experience.rollout import (
    ALIVE,
    TERMINATED,
    TRUNCATED,
    RolloutBuffer,
    concatenate,
    find_episodes,
    make_agent_ids,
    slice_slots,
)

SLOTS = 2


def observation(t, base=0):
    return {"x": np.array([[t + base], [100 + t + base]], np.float32)}


def add(buffer, t, *arguments, **options):
    add_actions(buffer, t)
    return add_outcome(buffer, t, *arguments, **options)


def add_actions(buffer, t):
    buffer.add_actions(
        observation(t),
        {"action": np.array([t, -t])},
        np.array([-t, -2 * t], np.float32),
        {"memory": np.full((SLOTS, 1), t, np.float32)},
        version=7 + t,
    )


def add_outcome(buffer, t, alive=(ALIVE, ALIVE), final=None, next_base=0):
    rewards = np.array([[t], [10 * t]], np.float64)
    return buffer.add_outcome(rewards, np.array(alive), observation(t + 1, next_base), final)


def test_a_rollout_comes_after_the_last_step_with_all_that_was_stored():
    buffer = RolloutBuffer(3, np.arange(SLOTS))
    assert add(buffer, 0) is None
    assert add(buffer, 1) is None
    rollout = add(buffer, 2)
    np.testing.assert_array_equal(rollout.inputs["x"][:, :, 0], [[0, 100], [1, 101], [2, 102]])
    np.testing.assert_array_equal(rollout.next_inputs["x"][:, :, 0], [[1, 101], [2, 102], [3, 103]])
    np.testing.assert_array_equal(rollout.rewards[:, :, 0], [[0, 0], [1, 10], [2, 20]])
    np.testing.assert_array_equal(rollout.actions["action"], [[0, 0], [1, -1], [2, -2]])
    np.testing.assert_array_equal(rollout.log_prob, [[0, 0], [-1, -2], [-2, -4]])
    np.testing.assert_array_equal(rollout.states["memory"], [[0], [0]])
    np.testing.assert_array_equal(rollout.versions, [7, 8, 9])
    assert rollout.env_steps == 6


def test_the_next_rollout_does_not_touch_the_one_given_away():
    buffer = RolloutBuffer(1, np.arange(SLOTS))
    first = add(buffer, 0)
    add(buffer, 5)
    np.testing.assert_array_equal(first.inputs["x"][:, :, 0], [[0, 100]])
    np.testing.assert_array_equal(first.rewards[:, :, 0], [[0, 0]])


def test_where_an_episode_ended_next_inputs_hold_its_last_observation():
    """The observation that follows is the next episode's first and belongs to no transition."""
    buffer = RolloutBuffer(3, np.arange(SLOTS))
    add(buffer, 0)
    final = {"x": np.array([[-5.0], [-6.0]], np.float32)}
    add(buffer, 1, alive=(TRUNCATED, ALIVE), final=final)
    rollout = add(buffer, 2)
    np.testing.assert_array_equal(
        rollout.next_inputs["x"][:, :, 0], [[1, 101], [-5, 102], [3, 103]]
    )
    np.testing.assert_array_equal(rollout.inputs["x"][:, 0, 0], [0, 1, 2])
    np.testing.assert_array_equal(rollout.next_alive[:, 0], [ALIVE, TRUNCATED, ALIVE])


def test_a_truncation_in_the_last_step_keeps_its_final_observation():
    buffer = RolloutBuffer(1, np.arange(SLOTS))
    final = {"x": np.array([[-5.0], [-6.0]], np.float32)}
    rollout = add(buffer, 0, alive=(TERMINATED, TRUNCATED), final=final)
    np.testing.assert_array_equal(rollout.next_inputs["x"][0, :, 0], [-5, -6])


def test_discarding_forgets_the_unfinished_steps_only():
    buffer = RolloutBuffer(2, np.arange(SLOTS))
    add(buffer, 0)
    assert buffer.discard() == 1
    assert add(buffer, 3) is None
    np.testing.assert_array_equal(add(buffer, 4).rewards[:, 0, 0], [3, 4])


def test_several_agents_rollouts_stand_side_by_side():
    rollouts = [add(RolloutBuffer(1, np.arange(SLOTS)), t) for t in (1, 2)]
    joined = concatenate(rollouts)
    np.testing.assert_array_equal(joined.inputs["x"][0, :, 0], [1, 101, 2, 102])
    np.testing.assert_array_equal(joined.states["memory"][:, 0], [1, 1, 2, 2])
    np.testing.assert_array_equal(joined.versions, [8])
    assert joined.env_steps == 4


def test_slots_of_a_rollout_are_views_of_its_arrays():
    rollout = add(RolloutBuffer(1, np.arange(SLOTS)), 1)
    part = slice_slots(rollout, 1, 2)
    np.testing.assert_array_equal(part.inputs["x"], [[[101]]])
    np.testing.assert_array_equal(part.next_inputs["x"], [[[102]]])
    np.testing.assert_array_equal(part.actions["action"], [[-1]])
    np.testing.assert_array_equal(part.rewards, [[[10]]])
    np.testing.assert_array_equal(part.log_prob, [[-2]])
    np.testing.assert_array_equal(part.states["memory"], [[1]])
    np.testing.assert_array_equal(part.versions, [8])
    assert (part.slots, part.env_steps) == (1, 1)
    assert np.shares_memory(part.rewards, rollout.rewards)


def test_an_outcome_without_actions_is_a_defect():
    with pytest.raises(AssertionError):
        RolloutBuffer(1, np.arange(1)).add_outcome(np.zeros((1, 1)), np.ones(1), {})


@pytest.mark.parametrize("next_alive", [ALIVE, TRUNCATED])
def test_inputs_that_are_no_observations_stay_as_they_were(next_alive):
    buffer = RolloutBuffer(steps=3, agents=np.arange(1))
    for t in range(3):
        inputs = {"x": np.full((1, 1), t), "goal": np.full((1, 1), 10 + t)}
        buffer.add_actions(inputs, {}, np.zeros(1), {}, 0)
        alive = next_alive if t == 0 else ALIVE
        finals = {"x": np.full((1, 1), -7)} if alive == TRUNCATED else None
        following = {"x": np.full((1, 1), t + 1)}
        rollout = buffer.add_outcome(np.zeros((1, 1)), np.array([alive]), following, finals)
    cut_off = next_alive == TRUNCATED
    np.testing.assert_array_equal(rollout.next_inputs["x"][:, 0, 0], [-7 if cut_off else 1, 2, 3])
    np.testing.assert_array_equal(
        rollout.next_inputs["goal"][:, 0, 0], [10 if cut_off else 11, 12, 12]
    )


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.parametrize("stop", [0, 1, 2, 3])
def test_another_buffer_goes_on_from_a_state(stop, waiting, overlap):
    """The middle of three steps cuts one slot off, so that its last observation is kept apart."""

    def finish(buffer, t):
        if t == 1:
            return add_outcome(buffer, t, (ALIVE, TRUNCATED), observation(50), next_base=7)
        return add_outcome(buffer, t)

    def store(buffer, t):
        add_actions(buffer, t)
        return finish(buffer, t)

    straight, first, second = (
        RolloutBuffer(3, np.arange(SLOTS), overlap=overlap) for _ in range(3)
    )
    for t in range(stop):
        store(first, t)
    if waiting:
        add_actions(first, stop)
    second.set_state(first.get_state())
    assert second.length == first.length
    assert second.env_steps == first.env_steps
    rollouts = [store(straight, t) for t in range(6)]
    assert rollouts[5] is not None
    for t in range(stop, 6):
        got = (finish if waiting and t == stop else store)(second, t)
        want = rollouts[t]
        assert (got is None) == (want is None)
        if got is None:
            continue
        for field in ("inputs", "next_inputs", "actions", "states"):
            for name, array in getattr(want, field).items():
                np.testing.assert_array_equal(getattr(got, field)[name], array, field)
        for field in ("next_alive", "rewards", "log_prob", "versions"):
            np.testing.assert_array_equal(getattr(got, field), getattr(want, field), field)


@pytest.mark.parametrize("stop", range(5))
@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.parametrize("overridden", ["only", "cut"])
def test_another_buffer_continues_a_rollout_with_holes(stop, waiting, overridden):
    """With "only", steps of the policy are holes; with "cut", those after an early end."""

    def store(buffer, t, begun=False):
        if not begun:
            add_actions(buffer, t)
        rewards = np.array([[t], [10 * t]], np.float64)
        alive = np.array((ALIVE, TRUNCATED if t == 3 else ALIVE))
        due = overridden == "cut" and t == 1
        return buffer.add_outcome(rewards, alive, observation(t + 1), observation(50), is_due=due)

    straight, first, second = (RolloutBuffer(4, np.arange(SLOTS), overridden) for _ in range(3))
    for t in range(stop):
        store(first, t)
    if waiting:
        add_actions(first, stop)
    second.set_state(first.get_state())
    rollouts = [store(straight, t) for t in range(8)]
    for t in range(stop, 8):
        got, want = store(second, t, waiting and t == stop), rollouts[t]
        assert (got is None) == (want is None)
        if want is not None:
            for field in ("valid", "next_alive", "rewards", "starts"):
                found = getattr(got, field)
                if field == "valid" and found is None:  # a buffer that never had holes
                    found = np.ones((4, SLOTS), bool)
                np.testing.assert_array_equal(found, getattr(want, field), field)


@given(
    ends=st.lists(
        st.tuples(*[st.sampled_from((ALIVE, TERMINATED, TRUNCATED))] * SLOTS), max_size=20
    ),
    steps=st.integers(1, 4),
    pause=st.integers(0, 20),
)
def test_each_row_knows_its_agent_episode_and_step(ends, steps, pause):
    agents = np.array([7, 9])
    buffer = RolloutBuffer(steps, agents)
    episode, step = np.zeros(SLOTS, np.int64), np.zeros(SLOTS, np.int64)
    expected = []
    for t, alive in enumerate(ends):
        if t == pause:  # as when another process continues
            state, buffer = buffer.get_state(), RolloutBuffer(steps, np.zeros(SLOTS, np.int64))
            buffer.set_state(state)
        expected.append((episode.copy(), step.copy()))
        ended = np.array(alive) != ALIVE
        rollout = add(buffer, t, alive, observation(t))
        step = np.where(ended, 0, step + 1)
        episode += ended
        if rollout is not None:
            assert rollout.starts[:, 0].tolist() == [7, 9]
            episodes, numbers = find_episodes(rollout.starts, rollout.next_alive)
            np.testing.assert_array_equal(episodes, [e for e, _ in expected])
            np.testing.assert_array_equal(numbers, [n for _, n in expected])
            expected = []


@given(
    ends=st.lists(
        st.tuples(*[st.sampled_from((ALIVE, TERMINATED, TRUNCATED))] * SLOTS), max_size=20
    ),
    steps=st.integers(2, 4),
)
def test_overlapping_rollouts_have_each_step_and_its_successor_in_one_of_them(ends, steps):
    # covers F23
    buffer = RolloutBuffer(steps, np.array([7, 9]), overlap=True)
    final = {"x": np.array([[-5.0], [-6.0]], np.float32)}
    rows, counted, last = [], 0, None
    # The first rollout begins with a row that ends an episode without steps.
    places, episode, step = [], np.ones(SLOTS, np.int64), np.zeros(SLOTS, np.int64)
    for t, alive in enumerate(ends):
        places.append((episode.copy(), step.copy()))
        ended = np.array(alive) != ALIVE
        step = np.where(ended, 0, step + 1)
        episode += ended
        rollout = add(buffer, t, alive, final)
        if rollout is None:
            continue
        counted += buffer.newest_env_steps
        assert len(rollout.rewards) == steps
        if last is None:
            assert (rollout.next_alive[0] == TERMINATED).all()
        else:
            for name in ("next_alive", "rewards", "log_prob"):
                np.testing.assert_array_equal(getattr(rollout, name)[0], getattr(last, name)[-1])
            for name in ("inputs", "next_inputs", "actions"):
                for leaf, array in getattr(rollout, name).items():
                    np.testing.assert_array_equal(array[0], getattr(last, name)[leaf][-1])
            np.testing.assert_array_equal(rollout.states["memory"], t - steps + 1)
        episodes, numbers = find_episodes(rollout.starts, rollout.next_alive)
        known = 1 if last is None else 0  # the first row that was played
        want = places[t - steps + 1 + known : t + 1]
        np.testing.assert_array_equal(episodes[known:], [e for e, _ in want])
        np.testing.assert_array_equal(numbers[known:], [n for _, n in want])
        for slot in range(SLOTS):
            for row in range(1, steps):
                rows.append((slot, episodes[row, slot], numbers[row, slot]))
        last = rollout
    assert len(set(rows)) == len(rows) == counted == len(ends) // (steps - 1) * (steps - 1) * SLOTS


def test_steps_of_a_rollout_that_is_forgotten_are_numbered_all_the_same():
    buffer = RolloutBuffer(2, np.arange(SLOTS))
    add(buffer, 0, (ALIVE, TERMINATED))
    buffer.discard()
    add(buffer, 1)
    assert add(buffer, 2).starts[:, 1:].tolist() == [[0, 1], [1, 0]]


def test_agents_have_numbers_of_their_own():
    numbers = [make_agent_ids(f"rlx-{i}/agent-1", 8) for i in range(1000)]
    assert len(set(np.concatenate(numbers).tolist())) == 8000
    assert all((array >= 0).all() and array.dtype == np.int64 for array in numbers)
    np.testing.assert_array_equal(numbers[3], make_agent_ids("rlx-3/agent-1", 8))


def test_slots_keep_their_starts_when_rollouts_are_joined_and_cut():
    one, other = (add(RolloutBuffer(1, np.arange(n, n + SLOTS)), 1) for n in (0, 10))
    joined = concatenate([one, other])
    assert joined.starts[:, 0].tolist() == [0, 1, 10, 11]
    assert slice_slots(joined, 1, 3).starts[:, 0].tolist() == [1, 10]
    unknown = dataclasses.replace(other, starts=None)
    assert concatenate([one, unknown]).starts is None
    assert slice_slots(unknown, 0, 1).starts is None
