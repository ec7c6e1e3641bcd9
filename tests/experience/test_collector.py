"""Collector: whatever goes in comes out once, in order, in batches of one size."""

# covers J4, J5, J7, P26

import dataclasses
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rollouts import make_rollout
from support.threads import Caller

from relaax_like.experience.collector import Collector, TrainingData
from relaax_like.experience.rollout import Rollout, concatenate, slice_slots
from relaax_like.wire.errors import (
    CollectorClosedError,
    CollectorFullError,
    ConfigError,
    InvalidInputError,
)

STEPS = 3


def numbered(first: int, slots: int, version: int = 0) -> Rollout:
    """A rollout in which each number tells its column, and, behind the comma, its step."""
    columns = np.arange(first, first + slots, dtype=np.float32)
    steps = np.arange(STEPS, dtype=np.float32)[:, None] / 10
    numbers = columns + steps  # [T, k]
    return Rollout(
        inputs={"x": numbers[..., None], "goal": columns + np.zeros((STEPS, 1), np.float32)},
        next_inputs={"x": numbers[..., None] + 0.1, "goal": numbers},
        next_alive=np.ones((STEPS, slots), np.float32),
        rewards=-numbers[..., None],
        actions={"action": numbers.astype(np.int64)},
        log_prob=-numbers,
        states={"memory": columns[:, None]},
        versions=version + np.arange(STEPS),
    )


def first_columns(data: TrainingData | None) -> list[int]:
    assert data is not None
    return data.rollout.inputs["goal"][0].astype(int).tolist()


def assert_equal_rollouts(got: Rollout, want: Rollout) -> None:
    for field in dataclasses.fields(Rollout):
        one, other = getattr(got, field.name), getattr(want, field.name)
        if not isinstance(one, dict):
            one, other = {"": one}, {"": other}
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], field.name)


def test_whole_rollouts_and_parts_make_a_batch_and_the_rest_waits() -> None:
    collector = Collector(STEPS, 4, capacity=20)
    assert [collector.add(numbered(0, 3)), collector.add(numbered(3, 2))] == [1, 2]
    assert collector.add_exps_list([numbered(5, 1), numbered(6, 3)]) == [3, 4]
    assert (collector.num_added, collector.waiting_columns) == (9, 9)

    data = collector.get_training_data()
    assert data is not None
    assert first_columns(data) == [0, 1, 2, 3]
    assert (data.tickets, data.env_steps) == ((1,), 12)
    np.testing.assert_array_equal(data.keys, [[1, 0], [1, 1], [1, 2], [2, 0]])
    assert_equal_rollouts(data.rollout, numbered(0, 4))

    data = collector.get_training_data()
    assert data is not None
    assert first_columns(data) == [4, 5, 6, 7]
    assert data.tickets == (2, 3)
    np.testing.assert_array_equal(data.keys, [[2, 1], [3, 0], [4, 0], [4, 1]])
    assert_equal_rollouts(data.rollout, numbered(4, 4))

    assert collector.get_training_data() is None
    assert (collector.num_taken, collector.waiting_columns) == (8, 1)
    collector.add(numbered(9, 3))
    assert first_columns(collector.get_training_data()) == [8, 9, 10, 11]


def test_a_rollout_of_many_columns_is_cut_into_several_batches() -> None:
    collector = Collector(STEPS, 2, capacity=7)
    collector.add(numbered(0, 7))
    batches = [collector.get_training_data() for _ in range(3)]
    assert [first_columns(data) for data in batches] == [[0, 1], [2, 3], [4, 5]]
    assert [data.tickets for data in batches if data] == [(), (), ()]
    assert [data.keys[:, 1].tolist() for data in batches if data] == [[0, 1], [2, 3], [4, 5]]
    collector.add(numbered(7, 1))
    data = collector.get_training_data()
    assert data is not None
    assert data.tickets == (1, 2)


def test_versions_of_a_batch_are_the_oldest() -> None:
    collector = Collector(STEPS, 2, capacity=4)
    collector.add_exps_list([numbered(0, 1, version=9), numbered(1, 1, version=5)])
    data = collector.get_training_data()
    assert data is not None
    np.testing.assert_array_equal(data.rollout.versions, [5, 6, 7])


def test_the_mean_version_of_a_batch_counts_each_step_once() -> None:
    # covers J16
    collector = Collector(STEPS, 4, capacity=8)
    for slots, version in ((1, 3), (3, 6), (2, 9)):
        rollout = make_rollout(slots, version, STEPS)
        collector.add(dataclasses.replace(rollout, versions=version + np.arange(STEPS)))
    batch = collector.get_training_data()
    assert batch is not None
    # One column of 3, 4, ... and three of 6, 7, ...; those of 9 wait.
    assert batch.mean_version == (1 * 3 + 3 * 6) / 4 + (STEPS - 1) / 2
    assert batch.rollout.versions.tolist() == [3 + t for t in range(STEPS)]
    assert collector.num_added == 6


def test_a_rollout_that_is_the_batch_goes_out_as_it_came() -> None:
    collector = Collector(STEPS, 8, capacity=8)
    rollout = make_rollout(8, 0, STEPS)
    collector.add(rollout)
    data = collector.get_training_data()
    assert data is not None
    assert data.rollout is rollout


def test_a_batch_of_open_size_has_whole_rollouts_up_to_a_limit() -> None:
    # covers F26
    collector = Collector(STEPS, 4, capacity=100, max_columns=12)
    assert collector.columns == 4
    for first in range(0, 30, 3):
        collector.add(numbered(first, 3))
    # Two rollouts have four columns; twice as many are twelve, and eight would be too many.
    assert first_columns(collector.get_training_data()) == list(range(12))
    assert first_columns(collector.get_training_data()) == list(range(12, 24))
    assert collector.num_taken == 24
    collector.add(numbered(30, 20))
    # Four do not fit any more, since the last one is large.
    assert first_columns(collector.get_training_data()) == list(range(24, 30))
    # An agent that sends more at once is not cut.
    assert first_columns(collector.get_training_data()) == list(range(30, 50))
    collector.add(numbered(50, 3))
    assert collector.get_training_data() is None


def test_a_batch_that_is_part_of_one_rollout_is_not_copied() -> None:
    collector = Collector(STEPS, 2, capacity=4)
    rollout = numbered(0, 4)
    collector.add(rollout)
    for _ in range(2):
        data = collector.get_training_data()
        assert data is not None
        assert np.shares_memory(data.rollout.rewards, rollout.rewards)


@given(
    columns=st.integers(1, 9),
    slots=st.lists(st.integers(1, 12), max_size=12),
    together=st.integers(1, 4),
)
def test_all_comes_out_once_and_in_order(columns: int, slots: list[int], together: int) -> None:
    collector = Collector(STEPS, columns, capacity=columns + sum(slots))
    rollouts, first = [], 0
    for k in slots:
        rollouts.append(numbered(first, k))
        first += k
    tickets: list[int] = []
    batches: list[TrainingData] = []
    for start in range(0, len(rollouts), together):
        tickets += collector.add_exps_list(rollouts[start : start + together])
        while data := collector.get_training_data():
            batches.append(data)
    assert tickets == list(range(1, len(slots) + 1))
    assert all(data.rollout.slots == columns for data in batches)
    assert (len(batches), collector.waiting_columns) == divmod(first, columns)
    if not batches:
        return
    taken = len(batches) * columns
    whole = slice_slots(concatenate(rollouts), 0, taken)
    assert_equal_rollouts(concatenate([data.rollout for data in batches]), whole)
    keys = [[ticket, i] for ticket, k in zip(tickets, slots, strict=True) for i in range(k)]
    np.testing.assert_array_equal(np.concatenate([data.keys for data in batches]), keys[:taken])
    done = [ticket for data in batches for ticket in data.tickets]
    assert done == [t for t, end in zip(tickets, np.cumsum(slots), strict=True) if end <= taken]


def change(rollout: Rollout, field: str, **arrays: Any) -> Rollout:
    return dataclasses.replace(rollout, **{field: {**getattr(rollout, field), **arrays}})


REFUSED = {
    "inputs['x']": change(numbered(0, 2), "inputs", x=np.zeros((STEPS, 2, 5), np.float32)),
    "next_inputs['x']": change(numbered(0, 2), "next_inputs", x=np.zeros((STEPS, 2, 1))),
    "inputs['new']": change(numbered(0, 2), "inputs", new=np.zeros((STEPS, 2))),
    "inputs['goal']": dataclasses.replace(
        numbered(0, 2), inputs={"x": np.zeros((STEPS, 2, 1), np.float32)}
    ),
    "actions['action']": change(numbered(0, 2), "actions", action=np.zeros((STEPS, 3), np.int64)),
    "rewards": dataclasses.replace(numbered(0, 2), rewards=np.zeros((STEPS, 2, 2), np.float32)),
    "log_prob": dataclasses.replace(numbered(0, 2), log_prob=np.zeros((STEPS, 1), np.float32)),
    "states['memory']": change(numbered(0, 2), "states", memory=np.zeros((3, 1), np.float32)),
    "versions": dataclasses.replace(numbered(0, 2), versions=np.arange(STEPS + 1)),
    "next_alive": dataclasses.replace(numbered(0, 2), next_alive=np.ones(2, np.float32)),
}


@pytest.mark.parametrize("field", REFUSED)
def test_a_rollout_of_another_kind_is_refused_and_named(field: str) -> None:
    collector = Collector(STEPS, 2, capacity=8)
    collector.add(numbered(0, 1))
    with pytest.raises(InvalidInputError) as caught:
        collector.add_exps_list([numbered(5, 1), REFUSED[field]])
    assert caught.value.field == field
    assert field in str(caught.value)
    assert collector.waiting_columns == 1
    assert collector.add(numbered(1, 1)) == 2


def test_a_first_rollout_of_other_steps_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"has shape \[5, 2, 4\], expected \[3, 2, ...\]"):
        Collector(STEPS, 2, capacity=8).add(make_rollout(2, 0, steps=5))


def test_a_rollout_without_slots_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="at least one slot"):
        Collector(STEPS, 2, capacity=8).add(numbered(0, 0))


def test_more_than_capacity_is_refused_and_fits_when_a_batch_is_taken() -> None:
    collector = Collector(STEPS, 4, capacity=8)
    collector.add(numbered(0, 6))
    with pytest.raises(
        CollectorFullError,
        match=r"6 column\(s\) are waiting, and 3 more would exceed capacity, which is 8",
    ):
        collector.add(numbered(6, 3))
    assert collector.add(numbered(6, 2)) == 2
    assert first_columns(collector.get_training_data()) == [0, 1, 2, 3]
    assert collector.add(numbered(8, 4)) == 3
    assert first_columns(collector.get_training_data()) == [4, 5, 6, 7]
    assert first_columns(collector.get_training_data()) == [8, 9, 10, 11]


def test_several_are_added_all_or_none() -> None:
    collector = Collector(STEPS, 4, capacity=8)
    collector.add(numbered(0, 5))
    with pytest.raises(CollectorFullError):
        collector.add_exps_list([numbered(5, 1), numbered(6, 3)])
    assert collector.waiting_columns == 5
    assert collector.add_exps_list([numbered(5, 1), numbered(6, 2)]) == [2, 3]


def test_a_rollout_of_any_size_is_taken_while_there_is_no_batch() -> None:
    collector = Collector(STEPS, 4, capacity=5)
    collector.add(numbered(0, 3))
    assert collector.add(numbered(3, 30)) == 2
    with pytest.raises(CollectorFullError):
        collector.add(numbered(33, 1))


def test_a_refused_rollout_does_not_set_the_kind() -> None:
    collector = Collector(STEPS, 1, capacity=2)
    with pytest.raises(InvalidInputError, match="at least one slot"):
        collector.add(numbered(0, 0))
    assert collector.add(make_rollout(2, 0, STEPS)) == 1


@pytest.mark.parametrize(
    ("steps", "columns", "capacity", "named"),
    [(0, 1, 1, "steps 0"), (1, 0, 1, "columns 0"), (1, 8, 7, "capacity 7, expected 8")],
)
def test_sizes_that_could_never_give_a_batch_are_refused(
    steps: int, columns: int, capacity: int, named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        Collector(steps, columns, capacity=capacity)


def test_a_waiting_learner_gets_the_batch_when_it_is_whole() -> None:
    collector = Collector(STEPS, 4, capacity=8)
    learner = Caller(lambda: collector.get_training_data(None))
    collector.add(numbered(0, 3))
    assert learner.is_alive()
    collector.add(numbered(3, 1))
    assert first_columns(learner.get()) == [0, 1, 2, 3]


def test_no_batch_in_time_is_none_and_nothing_is_lost() -> None:
    collector = Collector(STEPS, 4, capacity=8)
    collector.add(numbered(0, 3))
    assert collector.get_training_data(timeout_sec=0.01) is None
    assert collector.waiting_columns == 3


def test_closing_wakes_the_learner_and_refuses_more() -> None:
    collector = Collector(STEPS, 2, capacity=8)
    learner = Caller(lambda: collector.get_training_data(None))
    collector.close()
    assert learner.get() is None
    with pytest.raises(CollectorClosedError):
        collector.add(numbered(0, 1))
    collector.close()


def test_whole_batches_are_still_there_after_closing() -> None:
    collector = Collector(STEPS, 2, capacity=8)
    collector.add(numbered(0, 5))
    collector.close()
    assert first_columns(collector.get_training_data(None)) == [0, 1]
    assert first_columns(collector.get_training_data(None)) == [2, 3]
    assert collector.get_training_data(None) is None
    assert collector.waiting_columns == 1


def test_many_agents_and_a_slow_learner_lose_nothing() -> None:
    agents, rollouts_each, columns, capacity = 6, 25, 5, 8
    collector = Collector(STEPS, columns, capacity=capacity)
    taken = threading.Condition()
    refusals = threading.Semaphore(0)
    accepted: dict[int, tuple[int, int, int]] = {}

    def add_until_it_fits(rollout: Rollout) -> int:
        while True:
            before = collector.num_taken
            try:
                return collector.add(rollout)
            except CollectorFullError:
                refusals.release()
                with taken:
                    assert taken.wait_for(lambda before=before: collector.num_taken > before, 60)

    def play(agent: int) -> None:
        for number in range(rollouts_each):
            slots = 1 + (agent + number) % 4
            first = 10_000 * agent + 10 * number
            accepted[add_until_it_fits(numbered(first, slots))] = (agent, first, slots)

    callers = [Caller(lambda agent=agent: play(agent)) for agent in range(agents)]
    total = sum(1 + (a + n) % 4 for a in range(agents) for n in range(rollouts_each))
    seen, done = [], []
    assert refusals.acquire(timeout=60)  # the learner is slower than the agents
    for _ in range(total // columns):
        data = collector.get_training_data(60)
        assert data is not None
        with taken:
            taken.notify_all()
        assert collector.waiting_columns <= capacity
        seen += first_columns(data)
        done += data.tickets
    for caller in callers:
        caller.get()
    assert (collector.num_added, collector.waiting_columns) == (total, total % columns)
    want = [first + i for _, (_, first, slots) in sorted(accepted.items()) for i in range(slots)]
    assert seen == want[: len(seen)]
    assert len(seen) == total - total % columns
    assert done == list(range(1, len(done) + 1))
    for agent in range(agents):
        own = [first for _, (who, first, _) in sorted(accepted.items()) if who == agent]
        assert own == sorted(own)


class Goals:
    """Adds each rollout again with the goal that it reached; keeps a priority for each column."""

    def __init__(self) -> None:
        self.priorities: dict[tuple[int, int], float] = {}

    def after_interact(self, rollout: Rollout) -> Sequence[Rollout]:
        reached = np.broadcast_to(rollout.inputs["goal"][-1] + 500, (STEPS, rollout.slots))
        return [rollout, change(rollout, "inputs", goal=reached)]

    def after_learn(self, training_data: TrainingData, policy_data: Any) -> None:
        errors = np.abs(policy_data["td_error"]).max(axis=0)
        for key, error in zip(training_data.keys.tolist(), errors, strict=True):
            self.priorities[tuple(key)] = float(error)


def test_a_data_handler_adds_goals_and_keeps_priorities() -> None:
    goals = Goals()
    collector = Collector(STEPS, 3, capacity=12, data_handler=goals)
    assert collector.add(numbered(0, 2)) == 1
    assert collector.add(numbered(7, 1)) == 2
    assert collector.waiting_columns == 6

    data = collector.get_training_data()
    assert data is not None
    assert (first_columns(data), data.tickets) == ([0, 1, 500], ())
    collector.handle_data_after_learn({"td_error": np.array([[1, -5, 2], [0, 3, 1], [-4, 0, 0]])})
    assert goals.priorities == {(1, 0): 4, (1, 1): 5, (1, 2): 2}

    data = collector.get_training_data()
    assert data is not None
    assert (first_columns(data), data.tickets) == ([501, 7, 507], (1, 2))
    np.testing.assert_array_equal(data.keys, [[1, 3], [2, 0], [2, 1]])


def test_an_update_that_found_out_nothing_changes_nothing() -> None:
    goals = Goals()
    collector = Collector(STEPS, 1, capacity=4, data_handler=goals)
    collector.handle_data_after_learn(None)
    collector.handle_data_after_learn({})
    assert goals.priorities == {}


def test_without_a_data_handler_what_an_update_found_out_is_let_go() -> None:
    collector = Collector(STEPS, 1, capacity=4)
    collector.add(numbered(0, 1))
    collector.get_training_data()
    collector.handle_data_after_learn({"td_error": np.zeros((STEPS, 1))})


def test_policy_data_before_a_batch_is_refused() -> None:
    collector = Collector(STEPS, 1, capacity=4, data_handler=Goals())
    with pytest.raises(InvalidInputError, match="call get_training_data first"):
        collector.handle_data_after_learn({"td_error": np.zeros((STEPS, 1))})


class Drops(Goals):
    def after_interact(self, rollout: Rollout) -> Sequence[Rollout]:
        return []


def test_a_data_handler_that_returns_nothing_is_named() -> None:
    collector = Collector(STEPS, 1, capacity=4, data_handler=Drops())
    with pytest.raises(InvalidInputError, match=r"Drops: after_interact returned no rollouts"):
        collector.add(numbered(0, 1))


class Names(Goals):
    def after_interact(self, rollout: Rollout) -> Any:
        return dict(rollout.inputs)


def test_a_data_handler_that_returns_something_else_is_named() -> None:
    collector = Collector(STEPS, 1, capacity=4, data_handler=Names())
    with pytest.raises(InvalidInputError, match="after_interact returned dict with str, expected"):
        collector.add(numbered(0, 1))
    assert collector.waiting_columns == 0


class OnlyGoals(Goals):
    def after_interact(self, rollout: Rollout) -> Rollout:
        return super().after_interact(rollout)[1]


def test_a_data_handler_may_return_one_rollout() -> None:
    collector = Collector(STEPS, 2, capacity=4, data_handler=OnlyGoals())
    collector.add(numbered(0, 2))
    assert first_columns(collector.get_training_data()) == [500, 501]


class Yields(Goals):
    def after_interact(self, rollout: Rollout) -> Iterator[Rollout]:
        yield from super().after_interact(rollout)


def test_a_data_handler_can_be_a_generator() -> None:
    collector = Collector(STEPS, 2, capacity=4, data_handler=Yields())
    collector.add(numbered(0, 1))
    assert first_columns(collector.get_training_data()) == [0, 500]


def test_another_collector_goes_on_from_a_state_with_part_of_a_rollout() -> None:
    first = Collector(STEPS, 4, capacity=8)
    first.add_exps_list([numbered(0, 3), numbered(3, 3)])
    assert first_columns(first.get_training_data()) == [0, 1, 2, 3]
    second = Collector(STEPS, 4, capacity=8)
    second.set_state(first.get_state())
    assert second.waiting_columns == 2
    for collector in (first, second):
        assert collector.add(numbered(6, 3)) == 3
    one, other = first.get_training_data(), second.get_training_data()
    assert one is not None
    assert other is not None
    assert first_columns(other) == [4, 5, 6, 7]
    assert_equal_rollouts(other.rollout, one.rollout)
    np.testing.assert_array_equal(other.keys, one.keys)
    assert (other.tickets, second.num_added, second.num_taken) == ((2,), 9, 8)
    # It knows the kind of rollouts, too.
    with pytest.raises(InvalidInputError, match="is missing"):
        second.add(dataclasses.replace(numbered(0, 1), states={}))
