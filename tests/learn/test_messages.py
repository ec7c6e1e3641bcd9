"""Works and answers as messages: what comes out is what went in. covers F11"""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from support.rollouts import make_rollout

from relaax_like.core.records import Episode, LearnerUpdate, LearnRequest
from relaax_like.experience.rollout import TRUNCATED, Rollout, RolloutBuffer
from relaax_like.learn.messages import (
    message_to_request,
    message_to_update,
    request_to_message,
    update_to_message,
)
from relaax_like.v1 import learner_pb2
from relaax_like.wire.errors import InvalidInputError


def send(work):
    message = learner_pb2.Work.FromString(request_to_message(work, "RL").SerializeToString())
    assert message.task == "RL"
    return message, message_to_request(message)


def assert_same(got, want):
    for field in dataclasses.fields(Rollout):
        one, other = getattr(got, field.name), getattr(want, field.name)
        if not isinstance(one, dict):
            one, other = {"": one}, {"": other}
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], strict=True)


def collect(finals):
    """A rollout of two slots from a buffer, truncated at step 1 of 3 if there are `finals`."""
    buffer = RolloutBuffer(3, np.arange(2))
    for t in range(3):
        state = {"memory": np.full((2, 1), t, np.float32)}
        seen = {"x": np.full((2, 4), t, np.float32), "image": np.full((2, 2, 2, 1), t, np.uint8)}
        buffer.add_actions(seen, {"a": np.array([t, 1])}, np.zeros(2, np.float32), state, t)
        after = {name: array + 1 for name, array in seen.items()}
        alive = np.array([TRUNCATED if finals and t == 1 else 1, 1], np.float32)
        last = {k: np.full_like(v, 99) for k, v in seen.items()} if finals and t == 1 else None
        rollout = buffer.add_outcome(np.ones((2, 1)), alive, after, last)
    return rollout


@pytest.mark.parametrize("finals", [False, True])
def test_a_collected_rollout_comes_out_as_it_went_in(finals):
    rollout = collect(finals)
    message, work = send(LearnRequest(7, rollout, [Episode(2.5, 9)], 6))
    assert (work.number, work.env_steps, work.episodes) == (7, 6, [Episode(2.5, 9)])
    assert_same(work.rollout, rollout)
    # Observations are sent twice only where an episode was cut off.
    assert bool(message.rollout.next_inputs) == finals


def test_inputs_that_are_no_observations_are_sent_once_too():
    rollout = make_rollout(3, seed=0)
    message, work = send(LearnRequest(1, rollout))
    assert not message.rollout.next_inputs
    assert_same(work.rollout, rollout)


@pytest.mark.parametrize("shift", [0, 2])
def test_views_of_one_array_that_are_not_one_step_apart_are_both_sent(shift):
    whole = np.arange(24, dtype=np.float32).reshape(6, 1, 4)
    rollout = dataclasses.replace(
        make_rollout(1, seed=0, steps=4),
        inputs={"observation": whole[:4]},
        next_inputs={"observation": whole[shift : shift + 4]},
    )
    assert_same(send(LearnRequest(1, rollout))[1].rollout, rollout)


def test_work_without_a_rollout_stays_without():
    assert send(LearnRequest(3, None, [Episode(1.0, 2)], 0))[1] == LearnRequest(
        3, None, [Episode(1.0, 2)], 0
    )


@given(
    values=st.lists(
        st_numpy.arrays(
            st.sampled_from([np.float32, np.float64, np.int64]),
            st_numpy.array_shapes(min_dims=0, max_dims=3, min_side=0),
        ),
        min_size=1,
        max_size=4,
    ),
    numbers=st.lists(st.integers(1, 2**63), max_size=5),
)
def test_answers_come_out_as_they_went_in(values, numbers):
    learned = LearnerUpdate(numbers, 5, 2**40, "the end", values)
    text = update_to_message(learned, "goal").SerializeToString()
    got = message_to_update(learner_pb2.Learned.FromString(text))
    assert (got.numbers, got.version, got.global_t, got.finished) == (numbers, 5, 2**40, "the end")
    for one, other in zip(got.values, values, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)
        assert not one.flags.writeable


def test_an_answer_without_values_has_none():
    assert (
        message_to_update(update_to_message(LearnerUpdate([1], 0, 0, "", None), "RL")).values
        is None
    )


def test_an_array_that_is_not_what_it_says_is_refused():
    message = request_to_message(LearnRequest(1, make_rollout(1, seed=0)), "RL")
    message.rollout.rewards.shape[0] += 1
    with pytest.raises(InvalidInputError, match="rewards: 20 bytes of data, but shape"):
        message_to_request(message)
