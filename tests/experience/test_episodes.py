"""Whole episodes out of rollouts: each once, complete, in the order in which they end."""

# covers J4, J5, P4, P6, P26, F22, F23

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaax_like.experience.collector import TrainingData
from relaax_like.experience.episodes import EpisodeCollector, find_borders, join_columns
from relaax_like.experience.holes import cut_ends, make_dense
from relaax_like.experience.rollout import (
    ALIVE,
    TERMINATED,
    TRUNCATED,
    Rollout,
    find_episodes,
    find_next_starts,
)
from relaax_like.wire.errors import CollectorFullError, ConfigError, InvalidInputError

STEPS = 4


def make_rollouts(next_alive: Sequence[Sequence[float]], first_agent: int = 0) -> list[Rollout]:
    """Cuts the life of some slots, `[n * STEPS, k]`, into rollouts.

    Each row's reward is its number, 10 000 agent + 100 episode + step.
    """
    alive = np.array(next_alive, np.float32)
    agents = first_agent + np.arange(alive.shape[1])
    starts = np.stack([agents, 0 * agents, 0 * agents], 1)
    rollouts = []
    for t in range(0, len(alive), STEPS):
        part = alive[t : t + STEPS]
        episodes, steps = find_episodes(starts, part)
        numbers = (10_000 * agents + 100 * episodes + steps).astype(np.float32)
        rollouts.append(
            Rollout(
                inputs={"x": numbers[..., None]},
                next_inputs={"x": numbers[..., None] + 1},
                next_alive=part,
                rewards=numbers[..., None],
                actions={"action": numbers.astype(np.int64)},
                log_prob=-numbers,
                states={"memory": numbers[0][:, None]},
                versions=np.arange(t, t + len(part)),
                starts=starts,
            )
        )
        starts = find_next_starts(starts, part)
    return rollouts


def make_collector(episodes: int = 1, **options: Any) -> EpisodeCollector:
    options.setdefault("capacity", 1000)
    options.setdefault("max_steps", 1000)
    return EpisodeCollector(STEPS, episodes, **options)


def take_all(collector: EpisodeCollector) -> list[TrainingData]:
    batches = []
    while (data := collector.get_training_data()) is not None:
        batches.append(data)
    return batches


def read_episodes(batches: Sequence[TrainingData]) -> list[list[int]]:
    """Returns the numbers of the steps of each episode."""
    numbers = []
    for data in batches:
        rollout = data.rollout
        valid = rollout.valid
        assert valid is not None
        for column in range(rollout.slots):
            numbers.append(rollout.rewards[valid[:, column], column, 0].astype(int).tolist())
    return numbers


def find_whole(rollouts: Sequence[Rollout]) -> set[tuple[int, ...]]:
    """Returns the numbers of all episodes that end in what a slot has sent."""
    whole = set()
    for slot in range(rollouts[0].slots):
        steps: list[int] = []
        for rollout in rollouts:
            for t in range(len(rollout.next_alive)):
                steps.append(int(rollout.rewards[t, slot, 0]))
                if rollout.next_alive[t, slot] != ALIVE:
                    whole.add(tuple(steps))
                    steps = []
    return whole


ends = st.sampled_from((ALIVE, ALIVE, ALIVE, TERMINATED, TRUNCATED))


@settings(deadline=None)
@given(data=st.data(), episodes=st.integers(1, 4), slots=st.integers(1, 3))
def test_each_whole_episode_comes_once_whatever_is_lost_and_whoever_goes_on(
    data: st.DataObject, episodes: int, slots: int
) -> None:
    lives = [
        make_rollouts(
            data.draw(st.lists(st.tuples(*[ends] * slots), min_size=5 * STEPS, max_size=5 * STEPS)),
            first_agent,
        )
        for first_agent in (0, 50)
    ]
    lost = data.draw(st.sets(st.integers(0, 9), max_size=2))
    pause = data.draw(st.integers(0, 10))
    collector, batches, tickets = make_collector(episodes), [], []
    for number, (index, agent) in enumerate((i, a) for i in range(5) for a in range(2)):
        if number == pause:
            # JSON turns tuples into lists.
            state = collector.get_state()
            json.dumps(state, default=lambda array: array.tolist())
            collector = make_collector(episodes)
            collector.set_state(state)
        if number not in lost:
            tickets.append(collector.add(lives[agent][index]))
            batches += take_all(collector)
    whole = {
        steps
        for agent, life in enumerate(lives)
        for steps in find_whole(life)
        if not any(
            set(steps) & set(rollout.rewards.ravel().astype(int).tolist())
            for index, rollout in enumerate(life)
            if 2 * index + agent in lost
        )
    }
    collector.close()
    # The last few do not make a batch.
    waiting = [tuple(part.rollout.rewards[:, 0, 0].astype(int)) for part in collector._waiting]
    came = [tuple(steps) for steps in read_episodes(batches)]
    assert len(waiting) == collector.waiting_columns == len(whole) % episodes
    assert len({*came, *waiting}) == len(came) + len(waiting)
    assert {*came, *waiting} == whole
    assert sum(data.env_steps for data in batches) == sum(map(len, came))
    # Each ticket at most once, and only after all that came with it.
    used_up = [ticket for data in batches for ticket in data.tickets]
    assert len(set(used_up)) == len(used_up)
    assert set(used_up) <= set(tickets)


def test_a_batch_is_padded_to_a_doubling_and_its_rows_are_in_place() -> None:
    A, D, C = ALIVE, TERMINATED, TRUNCATED
    rollouts = make_rollouts([(A, A), (D, A), (A, A), (A, A), (A, C), (C, A), (A, A), (A, D)])
    collector = make_collector(episodes=4)
    assert [collector.add(rollout) for rollout in rollouts] == [1, 2]
    data = collector.get_training_data()
    assert data is not None
    rollout = data.rollout
    assert rollout.rewards.shape == (8, 4, 1)  # 5 steps are the longest: twice STEPS
    assert rollout.valid is not None
    assert rollout.valid.sum(0).tolist() == [2, 5, 4, 3]
    # In the order in which they ended; two episodes of each slot.
    assert rollout.starts is not None
    assert rollout.starts.tolist() == [[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]]
    steps = np.arange(8)[:, None]
    numbers = np.array([0, 10_000, 100, 10_100]) + steps
    valid = rollout.valid
    np.testing.assert_array_equal(rollout.rewards[..., 0], np.where(valid, numbers, 0))
    np.testing.assert_array_equal(rollout.next_inputs["x"][valid][:, 0], numbers[valid] + 1)
    np.testing.assert_array_equal(rollout.actions["action"], np.where(valid, numbers, 0))
    np.testing.assert_array_equal(rollout.log_prob, np.where(valid, -numbers, 0))
    ended = rollout.next_alive[rollout.valid.sum(0) - 1, np.arange(4)]
    assert ended.tolist() == [D, C, C, D]
    # Of slot 0's first rollout; the others' episodes begin later, with empty memory.
    assert rollout.states["memory"].tolist() == [[0], [10_000], [0], [0]]
    # The oldest that acted, of those episodes that are so long.
    assert rollout.versions.tolist() == [0, 1, 2, 3, 4, 7, 7, 7]
    assert data.tickets == (1,)  # steps of the other one wait
    assert data.keys.tolist() == [[1, 0], [2, 0], [2, 1], [2, 2]]
    assert data.env_steps == 14
    assert data.mean_version == pytest.approx(
        (0.5 * 2 + 2 * 5 + 3.5 * 4 + 6 * 3) / 14  # of each episode, by its steps
    )


def test_an_episode_that_lasts_too_long_is_cut_off_at_the_end_of_a_rollout() -> None:
    A, D = ALIVE, TERMINATED
    rollouts = make_rollouts([(A,)] * 13 + [(D,)] + [(A,)] * 2)
    collector = make_collector(max_steps=6)
    for rollout in rollouts:
        collector.add(rollout)
    batches = take_all(collector)
    assert read_episodes(batches) == [list(range(8)), list(range(8, 14))]
    first, second = (data.rollout for data in batches)
    # The first part bootstraps at its last step, also where padding follows; the second part
    # starts with the memory that the agent had there.
    assert first.next_alive.tolist() == [[ALIVE]] * 8
    longer = join_columns([first], 16)
    assert cut_ends(make_dense(longer).rollout)[:8, 0].tolist() == [ALIVE] * 7 + [TRUNCATED]
    assert second.states["memory"].tolist() == [[8]]
    assert second.starts is not None
    assert second.starts.tolist() == [[0, 0, 8]]
    assert collector.dropped_steps == 0


def test_holes_stay_holes_and_an_episode_of_holes_alone_is_none() -> None:
    A, D = ALIVE, TERMINATED
    (rollout,) = make_rollouts([(A,), (D,), (A,), (D,)])
    valid = np.array([[True], [False], [False], [False]])
    collector = make_collector()
    collector.add(dataclasses.replace(rollout, valid=valid))
    (data,) = take_all(collector)
    assert read_episodes([data]) == [[0]]
    assert data.tickets == (1,)
    assert cut_ends(make_dense(data.rollout).rollout)[0, 0] == TRUNCATED


def test_a_data_handler_sees_whole_episodes_and_what_it_returns_are_episodes() -> None:
    class Twice:
        def __init__(self) -> None:
            self.seen: list[list[float]] = []

        def after_interact(self, rollout: Rollout) -> list[Rollout]:
            assert rollout.next_alive[-1, 0] == TERMINATED
            self.seen.append(rollout.rewards[:, 0, 0].tolist())
            return [rollout, dataclasses.replace(rollout, rewards=rollout.rewards + 0.5)]

        def after_learn(self, training_data: TrainingData, policy_data: Any) -> None:
            pass

    handler = Twice()
    collector = make_collector(episodes=2, data_handler=handler)
    for rollout in make_rollouts([(ALIVE,)] * 5 + [(TERMINATED,)] + [(ALIVE,)] * 2):
        collector.add(rollout)
    (data,) = take_all(collector)
    assert handler.seen == [[0, 1, 2, 3, 4, 5]]
    assert data.tickets == (1,)  # two steps that came with the second wait
    expected = np.arange(6)[:, None] + [0, 0.5]
    np.testing.assert_array_equal(data.rollout.rewards[:6, :, 0], expected)


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relaax_like.experience.episodes._MAX_UNFINISHED", 2)
    collector = make_collector()
    for agent in (1, 2, 3):
        first, _ = make_rollouts([(ALIVE,)] * 8, agent)
        collector.add(first)
    assert collector.dropped_steps == STEPS
    ending = [make_rollouts([(ALIVE,)] * 7 + [(TERMINATED,)], agent)[1] for agent in (1, 2, 3)]
    collector.add_exps_list(ending)
    assert [steps[0] for steps in read_episodes(take_all(collector))] == [20_000, 30_000]
    assert collector.dropped_steps == 2 * STEPS

    full = make_collector(capacity=2)
    rollouts = make_rollouts([(TERMINATED,)] * 8)
    full.add(rollouts[0])
    with pytest.raises(CollectorFullError, match=r"4 episode\(s\) are waiting, and capacity is 2"):
        full.add(rollouts[1])
    assert len(take_all(full)) == 4
    full.add(rollouts[1])


def test_unfinished_episodes_have_so_many_bytes_at_most(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They count until they have ended, and again after a resume."""
    collector = make_collector()
    rollouts = {agent: make_rollouts([(ALIVE,)] * 7 + [(TERMINATED,)], agent) for agent in range(6)}
    for agent in (1, 2):
        collector.add(rollouts[agent][0])
    monkeypatch.setattr("relaax_like.experience.episodes._MAX_BYTES", collector._num_bytes)
    collector.add(rollouts[1][1])  # ends: there is room for one more
    collector.add(rollouts[3][0])
    assert collector.dropped_steps == 0
    collector.add(rollouts[4][0])
    assert collector.dropped_steps == STEPS
    assert "lower max_steps of the plan" in caplog.text
    resumed = make_collector()
    resumed.set_state(collector.get_state())
    resumed.add(rollouts[5][0])
    assert resumed.dropped_steps == STEPS
    resumed.add_exps_list([rollouts[agent][1] for agent in (2, 3, 4, 5)])
    ended = [steps[0] for steps in read_episodes(take_all(resumed))]
    assert ended == [10_000, 40_000, 50_000]


def test_rollouts_without_starts_are_refused_and_change_nothing() -> None:
    collector = make_collector()
    (rollout,) = make_rollouts([(TERMINATED,)] * 4)
    with pytest.raises(InvalidInputError, match=r"starts: missing, expected \[k, 3\]"):
        collector.add_exps_list([rollout, dataclasses.replace(rollout, starts=None)])
    with pytest.raises(InvalidInputError, match=r"starts: shape \[1, 2\], expected \[1, 3\]"):
        collector.add_exps_list(
            [rollout, dataclasses.replace(rollout, starts=rollout.starts[:, :2])]
        )
    assert collector.add_exps_list([]) == []
    assert collector.num_added == 0
    with pytest.raises(ConfigError, match="max_steps 0, expected 1 or more"):
        make_collector(max_steps=0)


def test_a_data_handler_that_fails_costs_the_episodes_at_hand_and_nothing_waits_for_them() -> None:
    class Fails:
        fails = True

        def after_interact(self, rollout: Rollout) -> Rollout:
            if self.fails:
                raise ValueError("no")
            return rollout

        def after_learn(self, training_data: TrainingData, policy_data: Any) -> None:
            pass

    handler = Fails()
    collector = make_collector(data_handler=handler)
    first, second = make_rollouts([(TERMINATED,)] * 8)
    with pytest.raises(ValueError, match="no"):
        collector.add(first)
    assert collector.dropped_steps == 4
    handler.fails = False
    collector.add(second)
    batches = take_all(collector)
    assert read_episodes(batches) == [[400], [500], [600], [700]]
    assert [data.tickets for data in batches] == [(1,), (), (), (2,)]


@pytest.mark.parametrize("wrong_part", [0, 1])
def test_a_data_handler_that_returns_another_layout_costs_the_episodes_at_hand(
    wrong_part: int,
) -> None:
    class Changes:
        def after_interact(self, rollout: Rollout) -> list[Rollout]:
            parts = [rollout, rollout]
            if rollout.rewards[0, 0, 0] == 200:
                wide = np.repeat(rollout.inputs["x"], 2, axis=-1)
                parts[wrong_part] = dataclasses.replace(rollout, inputs={"x": wide})
            return parts

        def after_learn(self, training_data: TrainingData, policy_data: Any) -> None:
            pass

    # Episode 1 ends in the second rollout, and 2, which is refused, and 3 after it.
    A, D = ALIVE, TERMINATED
    rollouts = make_rollouts([(alive,) for alive in (A, D, A, A, D, A, D, D, D, D, D, D)])
    collector = make_collector(data_handler=Changes())
    collector.add(rollouts[0])
    with pytest.raises(InvalidInputError, match=r"inputs\['x'\] is float32 of \[2\]"):
        collector.add(rollouts[1])
    assert collector.dropped_steps == 3
    batches = take_all(collector)
    assert read_episodes(batches) == [[0, 1], [0, 1], [100, 101, 102], [100, 101, 102]]
    assert [data.tickets for data in batches] == [(), (), (), (1, 2)]
    collector.add(rollouts[2])
    assert [data.tickets for data in take_all(collector)][-1] == (3,)


def test_slots_that_leave_are_forgotten_and_others_arrays_are_not_kept() -> None:
    A, D = ALIVE, TERMINATED
    rollouts = make_rollouts([(A,) * 50] * 3 + [(A, *[D] * 49)] + [(A,) * 50] * 4)
    collector = make_collector(episodes=49)
    collector.add(rollouts[0])
    (kept,) = collector.get_state()["unfinished"]
    arrays = kept["rollouts"][0]
    assert arrays["rewards"].base is None
    assert arrays["inputs"]["x"].base is None
    assert [data.tickets for data in take_all(collector)] == [()]
    collector.forget([0, 17])
    assert collector.get_state()["unfinished"] == []
    assert collector.dropped_steps == STEPS
    collector.add(dataclasses.replace(rollouts[0]))
    assert [data.tickets for data in take_all(collector)] == [(1,)]


def test_borders_are_behind_each_end() -> None:
    alive = np.array([ALIVE, TERMINATED, TRUNCATED, ALIVE])
    assert list(find_borders(alive)) == [(0, 2), (2, 3), (3, 4)]
    assert list(find_borders(alive[:3])) == [(0, 2), (2, 3)]
