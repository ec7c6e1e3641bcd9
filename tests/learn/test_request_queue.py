"""RequestQueue: agents' requests go to a table beside them, and are answered. covers F24"""

import pytest
from support.replayed import make_config, make_source, make_step

from relaax_like.core.records import Episode, LearnRequest
from relaax_like.learn.replayed import ReplayIteration
from relaax_like.learn.request_queue import RequestQueue, Requests
from relaax_like.wire.errors import InvalidInputError


def make_queue(holds_agents=False, **settings):
    source, tally = make_source(make_config(**settings))
    return RequestQueue(source, holds_agents=holds_agents), tally


def put(queue, *numbers):
    for number in numbers:
        queue.put(LearnRequest(number, make_step(number), [Episode(1.0, 2)], 1, "a"))


def drain(queue):
    """Returns what the queue gives until it waits: numbers of requests, or "minibatches"."""
    found = []
    while (item := queue.get(0, 0.0)) is not None:
        if isinstance(item, ReplayIteration):
            assert item.minibatches.ids.shape == (2, 4)
            assert item.tickets == ()
            found.append("minibatches")
        else:
            assert item.error is None
            found += item.tickets
    return found


def test_agents_are_answered_at_once_and_minibatches_follow_when_they_are_due():
    queue, tally = make_queue()
    put(queue, *range(5))
    assert drain(queue) == [0, 1, 2, 3, 4]
    assert tally.take().env_steps == 5
    for number in range(5, 9):
        put(queue, number)
        assert drain(queue)[0] == number  # before the learner has the time
    put(queue, 9, 10)
    assert drain(queue) == [9, 10, "minibatches"]


def test_agents_can_be_held_until_no_minibatch_is_due():
    queue, _ = make_queue(holds_agents=True)
    put(queue, *range(8))
    assert drain(queue) == ["minibatches", *range(8)]
    put(queue, 8)
    assert drain(queue) == [8]  # one is due, and two are made at once
    put(queue, 9)
    assert drain(queue) == ["minibatches", 9]


def test_steps_are_counted_before_the_first_minibatch():
    queue, _ = make_queue(warm_up_steps=1_000, capacity=1_000)
    put(queue, *range(64))
    kinds = []
    while (item := queue.get(0, 0.0)) is not None:
        kinds.append((len(item.tickets), item.wants_values))
    assert kinds == [(64, False), (0, True)]  # the second is a push of counts


def test_where_the_learner_is_behind_agents_wait_and_lose_nothing():
    queue, tally = make_queue()
    put(queue, *range(100))
    answered = queue.get(0, 0.0)
    assert 0 < len(answered.tickets) < 100
    assert tally.take().env_steps == len(answered.tickets)
    rest = drain(queue)
    assert [number for number in rest if number != "minibatches"] == list(
        range(len(answered.tickets), 100)
    )
    assert rest.count("minibatches") == (100 - 6) // 2
    assert tally.take().env_steps == 100 - len(answered.tickets)


def test_after_the_end_of_the_training_requests_are_only_counted():
    queue, tally = make_queue()
    put(queue, *range(20))
    queue.get(0, 0.0)
    queue.finish()
    assert "minibatches" not in drain(queue)
    put(queue, 20)
    queue.put(LearnRequest(21, None, [], 7))
    assert drain(queue) == [20, 21]
    assert tally.take().env_steps == 28
    queue.end()
    assert queue.get(0, 0.0) is None
    assert queue.has_ended


def test_a_rollout_that_does_not_fit_is_an_error_of_its_request_alone():
    queue, tally = make_queue()
    step = make_step(0)
    bad = type(step)(**{**vars(step), "starts": step.starts[:, :2]})
    queue.put(LearnRequest(0, bad, [], 1, "a"))
    put(queue, 1)
    failed = queue.get(0, 0.0)
    assert failed.tickets == (0,)
    with pytest.raises(InvalidInputError, match="starts"):
        queue.has_rollouts(failed)
    assert drain(queue) == [1]
    assert tally.take().env_steps == 2


def test_an_agent_that_leaves_ends_its_chain():
    queue, _ = make_queue()
    put(queue, *range(4))
    drain(queue)
    table = queue.source._table
    rows = table.counts.rows
    queue.put(LearnRequest(0, None, agent="a", is_leaving=True))
    assert drain(queue) == []
    assert table.counts.rows == rows + 1  # the last observation


def test_a_state_goes_on_with_the_same_table():
    queue, _ = make_queue()
    put(queue, *range(12))
    drain(queue)
    other, _ = make_queue()
    other.set_state(queue.take_state())
    assert other.source._table.counts == queue.source._table.counts


def test_requests_without_a_rollout_are_reported_with_values():
    queue, _ = make_queue()
    queue.put(LearnRequest(3, None, [], 2))
    assert queue.get(0, 0.0) == Requests([3])


def test_where_minibatches_cannot_be_drawn_agents_are_answered_and_the_error_is_raised():
    queue, _ = make_queue(holds_agents=True)

    def fail(done, timeout_sec):
        raise TypeError("compute_rewards")

    queue.source.get = fail
    put(queue, *range(8))
    failed = queue.get(0, 0.0)
    assert list(failed.tickets) == [*range(8)]
    with pytest.raises(TypeError, match="compute_rewards"):
        queue.has_rollouts(failed)
