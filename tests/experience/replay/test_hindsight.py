"""Hindsight: which goals are chosen, and what is computed from them. covers J14"""

import numpy as np
import pytest

from relaax_like.experience.rollout import Rollout
from relaax_like.replay import (
    Hindsight,
    RowSpec,
    Storage,
    Table,
    Uniform,
    make_sparse_rewards,
)
from relaax_like.wire.errors import ConfigError

DISCOUNT = 0.5
LENGTHS = (3, 7, 1, 5)  # of the episodes of each slot, again and again


class GoalSlots:
    """Slots whose achieved goal is [slot, episode, steps taken]; none is ever what was desired."""

    def __init__(self, slots: int):
        self._slots = slots
        self._episode = np.zeros(slots, np.int64)
        self._step = np.zeros(slots, np.int64)

    def observe(self) -> dict[str, np.ndarray]:
        achieved = np.stack([np.arange(self._slots), self._episode, self._step], -1)
        return {
            "achieved_goal": achieved.astype(np.float32),
            "desired_goal": np.full((self._slots, 3), -1.0, np.float32),
            "observation": self._step[:, None].astype(np.float32),
        }

    def play(self, length: int, terminates: bool = False) -> Rollout:
        starts = np.stack([np.arange(self._slots), self._episode, self._step], -1)
        rows, following, alive = [], [], []
        for _ in range(length):
            rows.append(self.observe())
            self._step += 1
            following.append(self.observe())
            ends = self._step >= np.array(LENGTHS)[self._episode % len(LENGTHS)]
            alive.append(np.where(ends, 0.0 if terminates else -1.0, 1.0))
            self._episode += ends
            self._step[ends] = 0

        def stack(observed: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
            return {name: np.stack([one[name] for one in observed]) for name in observed[0]}

        shape = (length, self._slots)
        return Rollout(
            inputs=stack(rows),
            next_inputs=stack(following),
            next_alive=np.array(alive, np.float32),
            rewards=np.full((*shape, 1), -7.0, np.float32),
            actions={"action": np.zeros(shape, np.int64)},
            log_prob=np.zeros(shape, np.float32),
            states={},
            versions=np.zeros(length, np.int64),
            starts=starts,
        )


def make_table(
    strategy: str = "future", goals: int = 4, capacity: int = 400, size: int = 20_000, **options
) -> Table:
    slots = GoalSlots(2)
    spec = RowSpec.from_rollout(slots.play(1))
    compute = options.pop("compute", make_sparse_rewards(0.25, options.pop("ends", False)))
    items = Hindsight(compute, strategy=strategy, goals=goals, discount=DISCOUNT, **options)
    return Table(Storage(spec, capacity), items, Uniform(), minibatch_size=size)


def draw(table: Table, rollouts: list[Rollout]) -> dict[str, np.ndarray]:
    """Returns columns of a minibatch, `[N, ...]`."""
    for rollout in rollouts:
        table.insert(rollout)
    batch = table.sample()
    assert batch is not None
    return {
        "key": batch.keys[0],
        "goal": batch.observations["desired_goal"][0],
        "next goal": batch.next_observations["desired_goal"][0],
        "achieved": batch.next_observations["achieved_goal"][0],
        "reward": batch.returns[0, :, 0],
        "discount": batch.discounts[0],
    }


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_goals_are_of_the_strategy_s_steps_and_each_is_as_likely(strategy):
    slots = GoalSlots(2)
    drawn = draw(make_table(strategy), [slots.play(4) for _ in range(8)])  # 2 rounds of 16 steps
    changed = drawn["goal"][:, 0] >= 0
    assert abs(changed.mean() - 0.8) < 0.01
    np.testing.assert_array_equal(drawn["goal"], drawn["next goal"])
    key, goal = drawn["key"][changed], drawn["goal"][changed]
    np.testing.assert_array_equal(goal[:, :2], key[:, :2])  # of the same slot and episode
    length = np.array(LENGTHS)[key[:, 1] % len(LENGTHS)]
    first = {"future": key[:, 2] + 1, "final": length, "episode": np.ones(len(key))}[strategy]
    assert (goal[:, 2] >= first).all()
    assert (goal[:, 2] <= length).all()
    one = (key[:, 1] == 1) & (key[:, 2] == 2)  # the third of seven steps
    found = np.bincount(goal[one, 2].astype(int), minlength=8)[1:] / one.sum()
    want = {"future": [0, 0, *[0.2] * 5], "final": [*[0] * 6, 1], "episode": [1 / 7] * 7}
    np.testing.assert_allclose(found, want[strategy], atol=0.05)


def test_rewards_and_discounts_are_computed_from_the_goal():
    for ends in (False, True):
        slots = GoalSlots(2)
        drawn = draw(make_table(ends=ends), [slots.play(4, terminates=True) for _ in range(4)])
        changed = drawn["goal"][:, 0] >= 0
        assert (drawn["reward"][~changed] == -7.0).all()
        terminated = drawn["key"][:, 2] + 1 == np.array(LENGTHS)[drawn["key"][:, 1] % 4]
        np.testing.assert_array_equal(drawn["discount"][~changed] == 0, terminated[~changed])
        reached = (drawn["achieved"] == drawn["goal"]).all(-1)[changed]
        assert 0.1 < reached.mean() < 0.9
        np.testing.assert_array_equal(drawn["reward"][changed], np.where(reached, 0.0, -1.0))
        want = np.where(reached & ends, 0.0, DISCOUNT)
        np.testing.assert_array_equal(drawn["discount"][changed], want)


def test_nothing_of_it_is_stored():
    slots = GoalSlots(2)
    table = make_table(goals=1)
    before = draw(table, [slots.play(16)])
    assert (table._storage.observations["desired_goal"][:30] == -1.0).all()
    assert abs((before["goal"][:, 0] >= 0).mean() - 0.5) < 0.01
    again = draw(table, [])
    assert (before["goal"] != again["goal"]).any()


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_only_steps_that_are_there_are_chosen(strategy):
    """A lost segment, an episode under way, and evicted rows."""
    slots = GoalSlots(2)
    first = slots.play(5)  # up to the second step of the second episode
    slots.play(2)  # lost
    third = slots.play(2)
    drawn = draw(make_table(strategy), [first, third])
    changed = (drawn["goal"][:, 0] >= 0) & (drawn["key"][:, 1] == 1)
    key, goal = drawn["key"][changed, 2], drawn["goal"][changed, 2]
    assert set(goal[key < 2]) <= {1, 2}
    assert set(goal[key >= 4]) <= {5, 6}
    # 20 rows: of one round with 16 steps of each slot, a part is gone.
    slots = GoalSlots(2)
    small = make_table(strategy, capacity=20)
    drawn = draw(small, [slots.play(1) for _ in range(14)])
    there = {tuple(key) for key in drawn["key"].tolist()}
    changed = drawn["goal"][:, 0] >= 0
    chosen = {(int(a), int(e), int(s) - 1) for a, e, s in drawn["goal"][changed]}
    assert chosen <= there


def test_a_draw_depends_on_the_table_s_generator_alone():
    states = []
    for _ in range(2):
        slots, table = GoalSlots(2), make_table()
        table.insert(slots.play(16))
        states.append(table.sample())
    np.testing.assert_array_equal(
        states[0].observations["desired_goal"], states[1].observations["desired_goal"]
    )


def test_a_small_minibatch_can_keep_all_its_goals():
    table = make_table(goals=1, size=1)
    table.insert(GoalSlots(2).play(16))
    batches = [table.sample() for _ in range(40)]
    kept = [bool((batch.observations["desired_goal"] == -1.0).all()) for batch in batches]
    assert 0 < sum(kept) < 40


def test_a_folder_s_own_rewards_are_checked():
    slots = GoalSlots(2)

    def compute(achieved, desired):
        return np.zeros(3), np.zeros(len(achieved), np.bool_)

    with pytest.raises(ConfigError, match=r"rewards of shape \[3\], expected \["):
        draw(make_table(compute=compute), [slots.play(4)])
    with pytest.raises(ConfigError, match=r"did not return two arrays.*NoneType"):
        draw(make_table(compute=lambda achieved, desired: None), [slots.play(4)])

    def compute_texts(achieved, desired):
        return np.full(len(achieved), "far"), np.zeros(len(achieved), np.bool_)

    with pytest.raises(ConfigError, match=r"rewards of dtype <U3, expected numbers"):
        draw(make_table(compute=compute_texts), [slots.play(4)])
