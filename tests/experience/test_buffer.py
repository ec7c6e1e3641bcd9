"""Buffers of trajectories: returns and padded batches by hand, and what must hold for all."""

# covers P3, P4, P5, P6, P7, P8, P12

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaax_like.experience.buffer import Buffer, Minibatch
from relaax_like.wire.errors import ConfigError, InvalidInputError

REWARDS, VALUES = [1.0, 2.0, 4.0], [2.0, 0.0, 4.0]


def push_steps(buffer: Buffer, rewards: Any, values: Any, first: int = 0) -> None:
    for t, (reward, value) in enumerate(zip(rewards, values, strict=True), first):
        buffer.push(np.array([t, -t], np.float32), np.array([10 + t]), reward, value)


def make_buffer(*lengths: int, first: int = 0) -> Buffer:
    """Steps are numbered from `first` on; state [n], action n, reward n, extra -n."""
    buffer = Buffer(0.9, 0.8)
    for length in lengths:
        for n in range(first, first + length):
            buffer.push(np.array([n], np.float32), np.array(n), n, n / 2)
            buffer.push_additional_info({"foot": np.array([-n, n], np.int32)})
        buffer.end_trajectory(terminal_value=1.0)
        first += length
    return buffer


def test_returns_of_a_terminated_trajectory_by_hand() -> None:
    # gamma = lambda = 1/2, V = 0 behind the end. delta = 1 + 0 - 2, 2 + 2 - 0, 4 + 0 - 4;
    # A2 = 0, A1 = 4 + 0 / 4 = 4, A0 = -1 + 4 / 4 = 0
    buffer = Buffer(0.5, 0.5)
    push_steps(buffer, REWARDS, VALUES)
    buffer.end_trajectory()
    batch = buffer.pad()
    np.testing.assert_allclose(batch.returns[:, 0], [2, 4, 4])
    # A = 0, 4, 0: mean 4 / 3, deviation sqrt(32) / 3
    deviation = np.sqrt(32) / 3 + 1e-4
    want = [-4 / 3 / deviation, 8 / 3 / deviation, -4 / 3 / deviation]
    np.testing.assert_allclose(batch.advantages[:, 0], want, rtol=1e-6)


def test_returns_of_a_truncated_trajectory_by_hand() -> None:
    # V = 8 behind the end: delta2 = 4 + 4 - 4 = 4; A2 = 4, A1 = 4 + 4 / 4 = 5, A0 = -1 + 5 / 4
    buffer = Buffer(0.5, 0.5)
    push_steps(buffer, REWARDS, VALUES)
    buffer.end_trajectory(terminal_value=8.0)
    np.testing.assert_allclose(buffer.pad().returns[:, 0], [2.25, 5, 8])


def test_no_trajectory_reaches_into_the_one_before() -> None:
    buffer = Buffer(0.5, 0.5)
    for terminal_value in (0.0, 8.0):
        push_steps(buffer, REWARDS, VALUES)
        buffer.end_trajectory(terminal_value)
    np.testing.assert_allclose(buffer.pad().returns, [[2, 2.25], [4, 5], [4, 8]])


def test_advantages_are_normalised_over_all_trajectories() -> None:
    buffer = Buffer(0.5, 0.5)
    for terminal_value in (0.0, 8.0):
        push_steps(buffer, REWARDS, VALUES)
        buffer.end_trajectory(terminal_value)
    raw = np.array([0, 4, 0, 0.25, 5, 4])
    want = (raw - raw.mean()) / (raw.std() + 1e-4)
    np.testing.assert_allclose(buffer.pad().advantages.T.ravel(), want, rtol=1e-6)
    np.testing.assert_allclose(buffer.pad([1]).advantages[:, 0], want[3:], rtol=1e-6)


def test_a_padded_batch_by_hand() -> None:
    batch = make_buffer(3, 1, 2).pad()
    np.testing.assert_array_equal(batch.mask, [[1, 1, 1], [1, 0, 1], [1, 0, 0]])
    np.testing.assert_array_equal(batch.states[..., 0], [[0, 3, 4], [1, 0, 5], [2, 0, 0]])
    np.testing.assert_array_equal(batch.actions, [[0, 3, 4], [1, 0, 5], [2, 0, 0]])
    np.testing.assert_array_equal(batch.rewards, [[0, 3, 4], [1, 0, 5], [2, 0, 0]])
    np.testing.assert_array_equal(batch.values, [[0, 1.5, 2], [0.5, 0, 2.5], [1, 0, 0]])
    np.testing.assert_array_equal(
        batch.extras["foot"][..., 0], [[0, -3, -4], [-1, 0, -5], [-2, 0, 0]]
    )
    for padded in (batch.returns, batch.advantages):
        np.testing.assert_array_equal(padded != 0, batch.mask == 1)
    assert batch.states.shape == (3, 3, 1)
    assert {a.dtype for a in (batch.mask, batch.rewards, batch.returns, batch.advantages)} == {
        np.dtype(np.float32)
    }
    assert (batch.actions.dtype, batch.extras["foot"].dtype) == (np.int64, np.int32)


def test_chosen_trajectories_are_padded_to_the_longest_of_them() -> None:
    batch = make_buffer(3, 1, 2).pad([2, 1])
    np.testing.assert_array_equal(batch.rewards, [[4, 3], [5, 0]])
    np.testing.assert_array_equal(batch.mask, [[1, 1], [1, 0]])


def test_the_buffer_itself_holds_no_padding() -> None:
    buffer = make_buffer(3, 1, 2)
    assert (len(buffer), buffer.traj_idx) == (6, [0, 3, 4, 6])


def test_a_masked_mean_does_not_change_with_padding() -> None:
    def masked_mean(batch: Minibatch, of: np.ndarray) -> float:
        return float((of * batch.mask).sum() / batch.mask.sum())

    def loss(batch: Minibatch) -> np.ndarray:
        return np.cos(batch.states[..., 0]) + (batch.returns - batch.values) ** 2

    buffer = make_buffer(3, 1, 2, 9)
    rows = next(buffer.sample(len(buffer)))
    everything = buffer.pad()
    assert everything.mask.size > len(buffer)
    want = masked_mean(rows, loss(rows))
    assert want == pytest.approx(loss(rows).mean())
    assert masked_mean(everything, loss(everything)) == pytest.approx(want)
    # The same trajectory, alone and beside a longer one.
    alone, beside = buffer.pad([1]), buffer.pad([1, 3])
    per_trajectory = (loss(beside) * beside.mask).sum(axis=0) / beside.mask.sum(axis=0)
    assert masked_mean(alone, loss(alone)) == pytest.approx(per_trajectory[0])
    # Without the mask it would.
    assert loss(everything).mean() != pytest.approx(want)


def test_minibatches_of_steps_leave_the_short_rest_out() -> None:
    buffer = make_buffer(3, 1, 7)
    batches = list(buffer.sample(4, rng=np.random.default_rng(0)))
    assert [batch.rewards.shape for batch in batches] == [(4,), (4,)]
    steps = np.concatenate([batch.rewards for batch in batches])
    assert len(set(steps)) == 8
    assert set(steps) < set(range(11))
    for batch in batches:
        np.testing.assert_array_equal(batch.states[:, 0], batch.rewards)
        np.testing.assert_array_equal(batch.actions, batch.rewards)
        np.testing.assert_array_equal(batch.extras["foot"][:, 1], batch.rewards)
        np.testing.assert_array_equal(batch.mask, np.ones(4))


def test_minibatches_of_trajectories_keep_the_short_rest() -> None:
    buffer = make_buffer(3, 1, 7, 2, 2)
    batches = list(buffer.sample(2, recurrent=True, rng=np.random.default_rng(0)))
    assert [batch.mask.shape[1] for batch in batches] == [2, 2, 1]
    assert all(batch.mask.max(axis=1).all() for batch in batches)  # no longer than the longest
    steps = np.concatenate([batch.rewards[batch.mask == 1] for batch in batches])
    assert sorted(steps) == list(range(15))


def test_the_order_comes_from_the_generator() -> None:
    buffer = make_buffer(9)

    def draw(seed: int) -> list[float]:
        batches = buffer.sample(3, rng=np.random.default_rng(seed))
        return [x for batch in batches for x in batch.rewards]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert draw(1) != sorted(draw(1))


def test_states_and_actions_may_be_dicts() -> None:
    buffer = Buffer(0.9, 0.9)
    for t in range(3):
        state = {"camera": np.full((2, 2), t, np.uint8), "speed": np.float32(t)}
        buffer.push(state, {"gas": t, "wheel": -t}, 0.0, 0.0)
    buffer.end_trajectory()
    batch = buffer.pad()
    assert isinstance(batch.states, dict)
    assert isinstance(batch.actions, dict)
    assert (batch.states["camera"].shape, batch.states["camera"].dtype) == ((3, 1, 2, 2), np.uint8)
    np.testing.assert_array_equal(batch.states["speed"], [[0], [1], [2]])
    np.testing.assert_array_equal(batch.actions["wheel"], [[0], [-1], [-2]])


def test_a_pushed_array_may_be_written_into_again() -> None:
    buffer, state = Buffer(0.9, 0.9), np.zeros(2)
    for t in range(3):
        state[:] = t
        buffer.push(state, 0, 0.0, 0.0)
    buffer.end_trajectory()
    np.testing.assert_array_equal(buffer.pad().states[:, 0, 0], [0, 1, 2])


def test_minibatches_are_copies() -> None:
    buffer = make_buffer(4)
    for batch in (buffer.pad(), next(buffer.sample(4))):
        batch.states[:] = 99
        batch.rewards[:] = 99
    np.testing.assert_array_equal(buffer.pad().rewards[:, 0], [0, 1, 2, 3])
    np.testing.assert_array_equal(buffer.pad().states[:, 0, 0], [0, 1, 2, 3])


def test_equal_advantages_become_zero_and_not_nan() -> None:
    buffer = Buffer(0.9, 0.9)
    buffer.push(np.zeros(1), 0, 1.0, 0.0)
    buffer.end_trajectory()
    np.testing.assert_array_equal(buffer.pad().advantages, [[0]])


LENGTHS = st.lists(st.integers(1, 80), min_size=1, max_size=8)


def assert_equal_buffers(one: Buffer, other: Buffer) -> None:
    assert one.traj_idx == other.traj_idx
    mine, theirs = one.pad(), other.pad()
    for name in ("states", "actions", "rewards", "values", "returns", "advantages", "mask"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name), name)
    np.testing.assert_array_equal(mine.extras["foot"], theirs.extras["foot"])


@given(LENGTHS)
def test_padding_and_taking_it_away_gives_the_trajectories(lengths: list[int]) -> None:
    buffer = make_buffer(*lengths)
    batch, borders = buffer.pad(), buffer.traj_idx
    assert batch.mask.shape == (max(lengths), len(lengths))
    assert borders == [0, *itertools.accumulate(lengths)]
    for i, (start, stop) in enumerate(itertools.pairwise(borders)):
        n = np.arange(start, stop)
        is_step = batch.mask[:, i] == 1
        np.testing.assert_array_equal(np.flatnonzero(is_step), np.arange(lengths[i]))
        np.testing.assert_array_equal(batch.states[is_step, i, 0], n)
        np.testing.assert_array_equal(batch.extras["foot"][is_step, i, 1], n)
        for array in (batch.states, batch.rewards, batch.returns, batch.extras["foot"]):
            assert not array[~is_step, i].any()


@given(LENGTHS, st.integers(1, 10), st.booleans(), st.integers(0, 99))
def test_an_epoch_gives_each_step_once(
    lengths: list[int], batch_size: int, recurrent: bool, seed: int
) -> None:
    buffer = make_buffer(*lengths)
    batch_size = min(batch_size, len(buffer))
    batches = list(buffer.sample(batch_size, recurrent, rng=np.random.default_rng(seed)))
    steps = np.concatenate([batch.rewards[batch.mask == 1] for batch in batches])
    assert len(set(steps)) == len(steps)
    if recurrent:
        assert len(steps) == len(buffer)
    else:
        assert len(steps) == len(buffer) // batch_size * batch_size


@given(LENGTHS)
def test_whole_trajectories_equal_steps_one_by_one(lengths: list[int]) -> None:
    whole, first = Buffer(0.9, 0.8), 0
    for length in lengths:
        n = np.arange(first, first + length)
        extras = {"foot": np.stack([-n, n], 1).astype(np.int32)}
        whole.push_trajectory(n[:, None].astype(np.float32), n, n, n / 2, 1.0, extras)
        first += length
    assert_equal_buffers(whole, make_buffer(*lengths))


@given(LENGTHS, LENGTHS, LENGTHS)
def test_adding_buffers_is_associative_and_shifts_the_borders(
    a: list[int], b: list[int], c: list[int]
) -> None:
    one = make_buffer(*a)
    two = make_buffer(*b, first=sum(a))
    three = make_buffer(*c, first=sum(a) + sum(b))
    assert_equal_buffers((one + two) + three, one + (two + three))
    assert_equal_buffers(one + two + three, make_buffer(*a, *b, *c))
    assert_equal_buffers(one, make_buffer(*a))


def test_adding_an_empty_buffer_changes_nothing() -> None:
    buffer = make_buffer(2, 3)
    assert_equal_buffers(Buffer(0.9, 0.8) + buffer, buffer)
    assert_equal_buffers(buffer + Buffer(0.9, 0.8), buffer)


def test_a_sum_grows_apart_from_its_parts() -> None:
    one, two = make_buffer(2), make_buffer(3, first=2)
    both = one + two
    both.push_trajectory(np.zeros((1, 1)), [5], [5], [2.5], 1.0, {"foot": [[-5, 5]]})
    assert (len(one), len(two), len(both)) == (2, 3, 6)
    assert_equal_buffers(one + two, make_buffer(2, 3))


def test_buffers_with_other_extras_are_not_added() -> None:
    other = Buffer(0.9, 0.8)
    other.push_trajectory(np.zeros((1, 1)), [0], [0], [0], extras={"hand": [0]})
    with pytest.raises(InvalidInputError, match=r"\['hand'\], expected \['foot'\]"):
        make_buffer(2) + other
    none = Buffer(0.9, 0.8)
    none.push_trajectory(np.zeros((1, 1)), [0], [0], [0])
    for one, two in ((none, other), (other, none)):
        with pytest.raises(InvalidInputError, match="additional info is"):
            one + two


def test_buffers_with_another_discount_are_not_added() -> None:
    with pytest.raises(InvalidInputError, match=r"discount 0.9 and 0.99"):
        make_buffer(2) + Buffer(0.99, 0.8)


def test_something_else_is_not_added() -> None:
    with pytest.raises(TypeError):
        make_buffer(2) + 1  # type: ignore[operator]


REFUSED = {
    "state": ((np.zeros(3, np.float32), np.array([0]), 0.0, 0.0), r"float32 of \[3\], expected"),
    "state by name": (({"x": np.zeros(2)}, np.array([0]), 0.0, 0.0), "a dict of .'x'.*one array"),
    "action": ((np.zeros(2, np.float32), np.array([0.5]), 0.0, 0.0), r"action is float64 of \[1\]"),
    "reward": ((np.zeros(2, np.float32), np.array([0]), [1, 2], 0.0), r"reward has shape \[2\]"),
    "value": ((np.zeros(2, np.float32), np.array([0]), 0.0, None), "value is None .dtype object"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_step_of_another_kind_is_refused_and_leaves_no_trace(case: str) -> None:
    step, message = REFUSED[case]
    buffer = Buffer(0.5, 0.5)
    push_steps(buffer, REWARDS[:2], VALUES[:2])
    with pytest.raises(InvalidInputError, match=message):
        buffer.push(*step)
    assert len(buffer) == 2
    push_steps(buffer, REWARDS[2:], VALUES[2:], first=2)
    buffer.end_trajectory()
    batch = buffer.pad()
    np.testing.assert_allclose(batch.returns[:, 0], [2, 4, 4])
    np.testing.assert_array_equal(batch.states[:, 0, 1], [0, -1, -2])


def test_a_first_step_that_is_refused_sets_no_shape() -> None:
    buffer = Buffer(0.5, 0.5)
    with pytest.raises(InvalidInputError, match="action contains 'left'"):
        buffer.push([1.0, 2.0], "left", 0.0, 0.0)
    with pytest.raises(InvalidInputError, match="has shape"):
        buffer.push_trajectory([[1.0, 2.0]], [0, 1], [0.0], [0.0])
    buffer.push([1.0, 2.0, 3.0], 0, 0.0, 0.0)
    buffer.end_trajectory()
    assert buffer.rows().states.shape == (1, 3)


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"state contains 'hello' \(dtype <U5\), expected"):
        Buffer(0.5, 0.5).push("hello", 0, 0.0, 0.0)


def push_state(buffer: Buffer, state: Any) -> None:
    buffer.push(state, 0, 0.0, 0.0)


def push_states(buffer: Buffer, state: Any) -> None:
    buffer.push_trajectory(np.asarray(state)[None], [0], [0.0], [0.0])


@pytest.mark.parametrize(
    ("first", "later"),
    [(np.float32(1), 2.5), (np.float32(1), 3), (np.int64(1), np.int32(4)), (1.5, True)],
)
def test_numbers_of_the_same_kind_are_converted(first: Any, later: Any) -> None:
    for push in (push_state, push_states):
        buffer = Buffer(0.9, 0.8)
        push(buffer, first)
        push(buffer, later)
        if push is push_state:
            buffer.end_trajectory()
        states = buffer.rows().states
        assert states.dtype == np.asarray(first).dtype
        assert states[1] == later


@pytest.mark.parametrize(
    ("first", "later"),
    [(1, 2.5), (True, 2), (np.zeros(3), np.zeros(1)), (np.zeros(3), 0.0), (1.0, "2"), (1.0, None)],
)
def test_what_would_lose_something_is_refused(first: Any, later: Any) -> None:
    for push in (push_state, push_states):
        buffer = Buffer(0.9, 0.8)
        push(buffer, first)
        with pytest.raises(InvalidInputError, match=r"is .*, expected .*the same shape and dtype"):
            push(buffer, later)


def test_an_integer_that_the_first_element_s_dtype_cannot_represent_is_refused() -> None:
    for push, wrong in ((push_state, 300), (push_states, -129)):
        buffer = Buffer(0.9, 0.8)
        push(buffer, np.int8(1))
        push(buffer, 127)  # int64
        with pytest.raises(InvalidInputError, match=rf"contains {wrong}, which int8, .*, cannot"):
            push(buffer, wrong)


def test_names_are_those_of_the_first_step_and_an_error_has_them() -> None:
    buffer = Buffer(0.9, 0.8)
    push_state(buffer, {"a": 1, "b": [2, 3]})
    for other in ({"a": 1}, {"a": 1, "b": [2, 3], "c": 4}, 1):
        with pytest.raises(InvalidInputError, match="expected a dict of"):
            push_state(buffer, other)
    with pytest.raises(InvalidInputError) as caught:
        push_state(buffer, {"a": 1.5, "b": [2, 3]})
    assert caught.value.field == "state['a']"


def test_additional_info_that_is_missing_is_found_when_the_trajectory_ends() -> None:
    buffer = Buffer(0.5, 0.5)
    push_steps(buffer, REWARDS, VALUES)
    buffer.push_additional_info({"foot": 1.0})
    with pytest.raises(InvalidInputError, match=r"pushed 1 time\(s\) for 3 step\(s\)"):
        buffer.end_trajectory()


def test_additional_info_with_other_names_is_refused() -> None:
    buffer = Buffer(0.5, 0.5)
    buffer.push_additional_info({"foot": 1.0})
    with pytest.raises(InvalidInputError, match=r"a dict of \['hand'\], expected"):
        buffer.push_additional_info({"hand": 1.0})


def test_a_trajectory_without_its_additional_info_is_refused() -> None:
    buffer = make_buffer(2)
    with pytest.raises(InvalidInputError, match=r"additional info is \[\], expected \['foot'\]"):
        buffer.push_trajectory(np.zeros((1, 1)), [0], [0], [0])
    assert_equal_buffers(buffer, make_buffer(2))


TRAJECTORY: dict[str, Any] = {
    "states": np.zeros((3, 1)),
    "actions": [0, 1, 2],
    "rewards": np.ones(3),
    "values": np.ones(3),
}


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("states", np.zeros((2, 1))),
        ("actions", 0),
        ("rewards", np.ones((3, 1))),
        ("rewards", []),
        ("values", np.ones(4)),
        ("extras", {"foot": [1, 2]}),
    ],
)
def test_a_trajectory_of_different_lengths_is_refused(field: str, wrong: Any) -> None:
    buffer = Buffer(0.5, 0.5)
    with pytest.raises(InvalidInputError, match="has shape"):
        buffer.push_trajectory(**{**TRAJECTORY, field: wrong})
    assert (len(buffer), buffer.traj_idx) == (0, [0])


def test_an_unfinished_trajectory_is_neither_sampled_nor_joined() -> None:
    buffer = make_buffer(2)
    buffer.push(np.zeros(1), 0, 0.0, 0.0)
    calls = (
        lambda: buffer.sample(1),
        buffer.pad,
        lambda: buffer + make_buffer(1),
        lambda: make_buffer(1) + buffer,
        lambda: buffer.push_trajectory(**TRAJECTORY),
    )
    for call in calls:
        with pytest.raises(InvalidInputError, match=r"with 1 step\(s\), has not ended"):
            call()


def test_additional_info_without_its_step_is_no_trajectory() -> None:
    buffer = make_buffer(2)
    buffer.push_additional_info({"foot": np.zeros(2, np.int32)})
    with pytest.raises(InvalidInputError, match=r"pushed 3 time\(s\) for 2 step.*for each step"):
        buffer + make_buffer(1)
    plain = Buffer(0.5, 0.5)
    plain.push_trajectory(**TRAJECTORY)
    plain.push_additional_info({"foot": 1.0})
    with pytest.raises(InvalidInputError, match=r"pushed 1 time\(s\) for .*use a new Buffer"):
        plain.pad()


def test_empty_additional_info_is_none() -> None:
    buffer = Buffer(0.5, 0.5)
    buffer.push_additional_info({})
    buffer.push_trajectory(**TRAJECTORY)
    assert buffer.pad().extras == {}


def test_an_empty_trajectory_does_not_end() -> None:
    with pytest.raises(InvalidInputError, match="has no step"):
        make_buffer(2).end_trajectory()


def test_an_empty_buffer_gives_no_minibatch() -> None:
    for call in (Buffer(0.9, 0.9).pad, lambda: Buffer(0.9, 0.9).sample(1, recurrent=True)):
        with pytest.raises(InvalidInputError, match="the buffer is empty"):
            call()


def test_a_batch_size_that_leaves_all_steps_out_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="batch_size is 6, expected 1 to 5"):
        make_buffer(2, 3).sample(6)
    assert len(list(make_buffer(2, 3).sample(6, recurrent=True))) == 1


@pytest.mark.parametrize(
    ("chosen", "named"), [([0, 2], "2"), ([-1], "-1"), ([], "empty")], ids=["2", "-1", "empty"]
)
def test_a_trajectory_that_is_not_there_is_refused(chosen: list[int], named: str) -> None:
    wanted = f"trajectories: {named}, expected at least one index, each from 0 to 1"
    with pytest.raises(InvalidInputError, match=wanted):
        make_buffer(2, 3).pad(chosen)


@pytest.mark.parametrize(("discount", "gae_lambda"), [(1.5, 0.9), (0.9, -0.1)])
def test_a_discount_outside_its_range_is_refused(discount: float, gae_lambda: float) -> None:
    with pytest.raises(ConfigError, match="expected 0 to 1"):
        Buffer(discount, gae_lambda)


def test_rows_are_all_steps_in_order() -> None:
    rows = make_buffer(3, 1, 2).rows()
    np.testing.assert_array_equal(rows.actions, range(6))
    np.testing.assert_array_equal(rows.extras["foot"][:, 1], range(6))
    np.testing.assert_array_equal(rows.mask, np.ones(6))
    np.testing.assert_allclose(rows.advantages.mean(), 0, atol=1e-6)


def test_several_buffers_are_joined_as_by_adding_one_after_the_other() -> None:
    parts = [make_buffer(3, 1), make_buffer(2, first=4), make_buffer(4, 4, first=6)]
    joined, added = Buffer.join(parts), parts[0] + parts[1] + parts[2]
    assert joined.traj_idx == added.traj_idx == [0, 3, 4, 6, 10, 14]
    assert joined.terminal_values == added.terminal_values == [1.0] * 5
    for one, other in zip(_leaves(joined.rows()), _leaves(added.rows()), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(joined.rows().actions, range(14))


def test_a_buffer_goes_on_from_the_state_of_another() -> None:
    state = make_buffer(3, 1).get_state()
    copy = Buffer(0.9, 0.8)
    copy.set_state(state)
    state["rewards"][:] = 7  # copied
    for n in (4, 5):
        copy.push(np.array([n], np.float32), np.array(n), n, n / 2)
        copy.push_additional_info({"foot": np.array([-n, n], np.int32)})
    copy.end_trajectory(terminal_value=1.0)
    assert copy.traj_idx == [0, 3, 4, 6]
    assert copy.terminal_values == [1.0] * 3
    for one, other in zip(_leaves(copy.rows()), _leaves(make_buffer(3, 1, 2).rows()), strict=True):
        np.testing.assert_array_equal(one, other)


def _leaves(batch: Minibatch) -> list[np.ndarray]:
    fields = [vars(batch)[name] for name in vars(batch)]
    return [
        array
        for field in fields
        for array in (field.values() if isinstance(field, dict) else [field])
    ]
