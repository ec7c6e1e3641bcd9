"""Replayed measures discounted sums of rewards, as xqc scales rewards by them. covers P16"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.batch import load

from relaax_like.algorithm.model import get_normalizers
from relaax_like.config.plan import Replay
from relaax_like.core.moments import Moments
from relaax_like.experience.rollout import Rollout
from relaax_like.learn.replay_log import ReplayLog
from relaax_like.learn.replayed import Replayed, make_table
from relaax_like.learn.rollout_layout import RolloutLayout
from relaax_like.learn.tally import Tally

STEPS, SLOTS = 3, 2
# Of the rollouts below, with the discount 0.5: the valid steps of slot 0, and those of slot 1.
SUMS = ([1.0, 2.5, 4.0, 3.0, 9.5], [4.0, 4.0, 2.0, 1.0, 1.5, 1.75], [2.0, 2.0, 2.0, 1.875, 1, 1.5])


def make_rollout(number: int) -> Rollout:
    """Makes one of three rollouts of two slots: an end, a hole, and truncations."""
    rewards = [
        [[1, 3], [2, 5], [4, 8]],
        [[2, 1], [2, 1], [2, 1]],
        [[1, 1], [1, 1], [1, 1]],
    ][number]
    alive = [
        [[1, 1], [0, 1], [1, -1]],
        [[1, 1], [-1, 1], [1, 1]],
        [[0, 0], [0, 1], [0, 1]],
    ][number]
    valid = np.ones((STEPS, SLOTS), bool)
    valid[1, 1] = number != 0
    if number == 2:
        rewards[0][0], rewards[1][0], rewards[2][0] = 1, 2, 2
    return Rollout(
        inputs={"observation": np.full((STEPS, SLOTS, 2), float(number), np.float32)},
        next_inputs={"observation": np.zeros((STEPS, SLOTS, 2), np.float32)},
        next_alive=np.array(alive, np.float32),
        rewards=np.array(rewards, np.float32)[..., None],
        actions={"action": np.zeros((STEPS, SLOTS, 1), np.float32)},
        log_prob=np.zeros((STEPS, SLOTS), np.float32),
        states={},
        versions=np.zeros(STEPS, np.int64),
        valid=valid,
    )


def make_source(folder: Path | None = None, seen: int = 0, **settings: Any) -> Replayed:
    """Makes a source, of whose steps the model's statistics have seen the first ones."""
    options = {
        **{"state_size": 2, "action_size": 1, "action_low": -1.0, "action_high": 1.0},
        **{"network": {"layers": (4,)}, "atoms": 11, "gamma": 0.5, "rollout_steps": STEPS},
        **{"batch_size": 2, "warm_up_steps": 6, "capacity": 64, "updates_at_once": 1},
        **settings,
    }
    config = load("config", "xqc").Config.model_validate(options)
    model = load("model", "xqc").make_model(config, 0)
    normalizers = get_normalizers(model)
    for one in normalizers:
        one.count.assign(seen)
    table = make_table(config.plan, model, {}, 0)
    log = None if folder is None else ReplayLog(folder, lambda: table.rows)
    layout = RolloutLayout(model, STEPS, config.action_spaces)
    plan = dataclasses.replace(config.plan, updates_at_once=1)
    return Replayed(table, Tally(), layout, plan, log, normalizers)


def add(source: Replayed, *numbers: int) -> Replayed:
    for number in numbers:
        source.add(make_rollout(number), [], is_urgent=True)
    return source


def assert_sums(found: Any, *numbers: int) -> None:
    """Checks moments against those of the sums of some rollouts."""
    if isinstance(found, Moments):
        found = {"count": found.count, "mean": found.mean, "m2": found.m2}
    rows = [one for number in numbers for one in SUMS[number]]
    mean = sum(rows) / len(rows)
    assert found["count"] == len(rows)
    assert float(found["mean"]) == pytest.approx(mean)
    assert float(found["m2"]) == pytest.approx(sum((row - mean) ** 2 for row in rows))


def test_sums_begin_anew_behind_ends_and_leave_holes_out() -> None:
    assert_sums(add(make_source(), 0).take_state()["statistics"]["return"], 0)
    assert_sums(add(make_source(), 0, 1, 2).take_state()["statistics"]["return"], 0, 1, 2)


def test_they_come_with_the_minibatches_and_only_once() -> None:
    source = add(make_source(), 0)
    assert source.get(0, 0.0).statistics == {}  # still warming up
    iteration = add(source, 1).get(0, 0.0)
    assert iteration.minibatches is not None
    assert_sums(iteration.statistics["return"], 0, 1)
    assert source.get(0, 0.0).statistics == {}
    assert_sums(add(source, 2).take_state()["statistics"]["return"], 2)


def test_what_was_taken_goes_on_in_another_source() -> None:
    state = add(make_source(), 0, 1).take_state()
    other = make_source()
    other.set_state(state)
    assert_sums(add(other, 2).take_state()["statistics"]["return"], 0, 1, 2)


@pytest.mark.parametrize("seen", [0, 5])
def test_the_log_leads_to_the_same_sums(tmp_path: Path, seen: int) -> None:
    """Where the newest publication has the first rollout's, those of the second continue them."""
    first = make_source(tmp_path / "replay")
    first.load()
    add(first, 0, 1).close()
    source = make_source(tmp_path / "replay", seen)
    source.load()
    numbers = (0, 1) if not seen else (1,)
    assert_sums(add(source, 2).take_state()["statistics"]["return"], *numbers, 2)
    source.close()


def test_a_statistic_that_the_plan_does_not_measure_stays_empty() -> None:
    source = make_source()
    plan = Replay(capacity=9, batch_size=1)
    plain = Replayed(source._table, Tally(), source._layout, plan, None, source._normalizers)
    assert add(plain, 0).take_state()["statistics"] == {}
    assert add(make_source(normalize_rewards=False), 0).take_state()["statistics"] == {}
