"""A prior: recorded steps in each minibatch of a replay table.

covers F24, J11 (recordings are learned from beside what is played)
"""

import dataclasses
import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from support.batch import load
from support.replayed import make_config, make_source, make_step

from relaax_like.config.plan import Replay
from relaax_like.config.sources import PRIOR_NAME
from relaax_like.experience.recordings import Recording
from relaax_like.experience.rollout import ALIVE, TERMINATED, TRUNCATED, Rollout, concatenate
from relaax_like.learn.prior import keep_prior, make_prior, read_prior
from relaax_like.wire.errors import ConfigError, InvalidInputError

SETTINGS = {"prior": "recorded", "warm_up_steps": 6, "updates_at_once": 2, "batch_size": 4}
# Steps of one slot: number, and what follows. Numbers from 100 on are recorded.
RECORDED = {100: ALIVE, 101: ALIVE, 102: TERMINATED, 200: ALIVE, 201: TRUNCATED}


def make_recorded(numbers: range, last: float, start: int | None = 0) -> Rollout:
    """Makes a recording of one slot, `[T, 1]`; `start`: its first step; None: unknown."""
    rows = [make_step(n, last if n == numbers[-1] else ALIVE) for n in numbers]

    def join(*keys: str) -> Any:
        arrays = [getattr(row, keys[0]) for row in rows]
        return np.concatenate([one[keys[1]] for one in arrays] if keys[1:] else arrays)

    return dataclasses.replace(
        rows[0],
        inputs={"observation": join("inputs", "observation")},
        next_inputs={"observation": join("next_inputs", "observation")},
        actions={"action": join("actions", "action")},
        **{name: join(name) for name in ("next_alive", "rewards", "log_prob", "versions")},
        starts=None if start is None else np.array([[7, 0, start]]),
    )


def make_recordings() -> list[Rollout]:
    """Makes what RECORDED describes, the first episode in two parts."""
    return [
        make_recorded(range(100, 102), ALIVE),
        make_recorded(range(102, 103), TERMINATED, start=2),
        make_recorded(range(200, 202), TRUNCATED, start=None),
    ]


def draw(steps: int = 60, rollouts: Any = None, **settings: Any) -> Any:
    """Returns all minibatches `[U, B]` of a source with so many steps of its own, and a prior."""
    config = make_config(**{**SETTINGS, **settings})
    source, _ = make_source(config, prior=make_recordings() if rollouts is None else rollouts)
    found = []
    for number in range(steps):
        source.add(make_step(number), [])
        while source.has_iteration:
            iteration = source.get(0, timeout_sec=0.0)
            found += [iteration.minibatches] if iteration.minibatches else []
    return found


def name_steps(minibatches: Any) -> np.ndarray:
    return minibatches.observations["observation"][..., 0]


@pytest.mark.parametrize(
    ("fraction", "size", "recorded"), [(0.5, 4, 2), (0.25, 4, 1), (0.9, 10, 9), (0.5, 5, 2)]
)
def test_each_minibatch_has_as_many_recorded_steps_as_the_fraction_says(
    fraction: float, size: int, recorded: int
) -> None:
    found = draw(prior_fraction=fraction, batch_size=size)
    assert len(found) > 20
    for minibatches in found:
        numbers = name_steps(minibatches)
        assert numbers.shape == (2, size)
        assert ((numbers >= 100).sum(1) == recorded).all()
        np.testing.assert_array_equal(minibatches.ids < 0, numbers >= 100)


def test_recorded_steps_become_the_transitions_that_the_run_would_have_made() -> None:
    """With two rewards, gamma 0.5: number + 0.5 * the next number, where there is one."""
    returns = {100: 150.5, 101: 152.0, 102: 102.0, 200: 300.5, 201: 201.0}
    # After a termination nothing is worth anything; a truncation is followed by the last one seen.
    after = {100: (102, 0.25), 101: (103, 0.0), 102: (103, 0.0), 200: (202, 0.25), 201: (202, 0.5)}
    seen: Counter[int] = Counter()
    for minibatches in draw(n_step=2):
        numbers = name_steps(minibatches)
        following = minibatches.next_observations["observation"][..., 0]
        for place in np.argwhere(numbers >= 100):
            number = int(numbers[*place])
            seen[number] += 1
            assert minibatches.returns[*place, 0] == returns[number]
            assert minibatches.actions["action"][*place] == number % 3
            assert (following[*place], minibatches.discounts[*place]) == after[number]
    assert seen.keys() == RECORDED.keys()
    # 100 or more draws of five steps, each equally likely: within four standard deviations.
    expected = seen.total() / 5
    assert all(abs(count - expected) < 4 * np.sqrt(expected * 0.8) for count in seen.values())


def test_nothing_recorded_is_evicted_and_its_own_steps_are() -> None:
    found = draw(steps=300, capacity=20)
    assert {int(n) for n in name_steps(found[-1]).reshape(-1) if n < 100} <= set(range(279, 300))
    late = {int(n) for one in found[-50:] for n in name_steps(one).reshape(-1)}
    assert RECORDED.keys() <= late


def test_draws_depend_on_the_seed_alone_and_the_warm_up_on_its_own_steps() -> None:
    first, second = draw(), draw()
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)
    assert len({tuple(one.ids.reshape(-1)) for one in first}) > 20
    assert draw(steps=7) == []  # the updates of two steps are due together
    assert len(draw(steps=8)) == 1


def test_versions_are_those_of_the_run() -> None:
    source, _ = make_source(make_config(**SETTINGS), prior=[make_step(100, version=999)])
    for number in range(9):
        source.add(make_step(number, version=3), [])
    iteration = source.get(0, timeout_sec=0.0)
    assert (iteration.minibatches.versions == 999).any()
    assert iteration.mean_version == 3.0


def test_a_data_handler_changes_recorded_steps_as_those_of_agents() -> None:
    class Doubling:
        def after_interact(self, rollout: Rollout) -> Rollout:
            return dataclasses.replace(rollout, rewards=2 * rollout.rewards)

        def after_learn(self, training_data: Any, policy_data: Any) -> None:
            pass

    config = make_config(**SETTINGS)
    source, _ = make_source(config, data_handler=Doubling(), prior=make_recordings())
    for number in range(9):
        source.add(make_step(number), [])
    drawn = source.get(0, timeout_sec=0.0).minibatches
    np.testing.assert_array_equal(drawn.returns[..., 0], 2 * name_steps(drawn))


def test_a_history_of_observations_is_that_of_the_recording() -> None:
    """Of 100, the earlier observation is 99, which its file has beside its steps."""
    recorded = [make_step(100, history=2), make_step(101, history=2)]
    config = make_config(**SETTINGS, observation_history=2)
    source, _ = make_source(config, prior=recorded)
    for number in range(30):
        source.add(make_step(number, history=2), [])
    drawn = source.get(0, timeout_sec=0.0).minibatches.observations["observation"][:, 2:]
    assert {tuple(row[::2]) for row in drawn.reshape(-1, 4)} <= {(99, 100), (100, 101)}


def test_several_parts_of_one_slot_side_by_side_are_separate_episodes() -> None:
    """As learners beside their agents write them."""
    parts = [make_recorded(range(100, 102), ALIVE), make_recorded(range(110, 112), ALIVE, start=2)]
    steps = {int(n) for one in draw(rollouts=[concatenate(parts)]) for n in name_steps(one).flat}
    assert {n for n in steps if n >= 100} == {100, 101, 110, 111}


def add_steps(source: Any, numbers: range, overridden: set[int]) -> list[Any]:
    """Adds steps of one slot; returns the minibatches, each with the number of the newest step."""
    found = []
    for number in numbers:
        marks = np.array([[number in overridden]], np.float32)
        source.add(dataclasses.replace(make_step(number), extras={"overridden": marks}), [])
        while source.has_iteration:
            iteration = source.get(0, timeout_sec=0.0)
            found += [(number, iteration.minibatches)] if iteration.minibatches else []
    return found


@pytest.mark.parametrize("has_recordings", [False, True])
def test_overridden_steps_are_drawn_like_recorded_ones(
    has_recordings: bool, tmp_path: Path
) -> None:
    settings = {**SETTINGS, "prior_overridden": True, "capacity": 64}
    if not has_recordings:
        del settings["prior"]
    recordings = make_recordings() if has_recordings else ()
    config, overridden = make_config(**settings), {10, 11, 12, 30}
    source, _ = make_source(config, tmp_path, prior=recordings)
    source.load()
    found = add_steps(source, range(50), overridden)
    source.close()
    named = {int(n) for n in RECORDED} if has_recordings else set()
    drawn: dict[bool, set[int]] = {False: set(), True: set()}
    for newest, one in found:
        is_prior, numbers = one.ids < 0, name_steps(one)
        known = named | {n for n in overridden if n <= newest}
        assert (is_prior.sum(-1) == (2 if known else 0)).all()
        assert {int(n) for n in numbers[is_prior]} <= known
        drawn[False].update(map(int, numbers[~is_prior]))
        drawn[True].update(map(int, numbers[is_prior]))
        of_run = numbers < 100
        following = one.next_observations["observation"][..., 0]
        np.testing.assert_array_equal(following[of_run], numbers[of_run] + 1)
        assert (one.discounts[of_run] == 0.5).all()
        assert "overridden" not in one.extras
    assert drawn[True] == named | overridden
    assert overridden <= drawn[False]
    # A run that resumes has them from its log.
    resumed, _ = make_source(config, tmp_path, prior=recordings)
    resumed.load()
    assert resumed.table_status.prior_steps == source.table_status.prior_steps
    assert source.table_status.prior_steps == len(named) + len(overridden)
    resumed.close()


def test_marks_of_another_shape_are_refused_before_anything_is_kept(tmp_path: Path) -> None:
    config = make_config(**SETTINGS, prior_overridden=True)
    source, _ = make_source(config, tmp_path, prior=make_recordings())
    source.load()
    marks = np.zeros((1, 1, 3), np.float32)
    step = dataclasses.replace(make_step(0), extras={"overridden": marks})
    with pytest.raises(InvalidInputError, match=r"extras overridden: shape \[1, 1, 3\]") as caught:
        source.add(step, [])
    assert caught.value.field == "extras"
    assert source.table_status.table_steps == 0
    source.close()
    again, _ = make_source(config, tmp_path, prior=make_recordings())
    again.load()
    assert again.table_status.table_steps == 0
    again.close()


def test_a_column_of_this_name_does_not_touch_recordings_unless_it_is_asked_for() -> None:
    source, _ = make_source(make_config(**SETTINGS), prior=make_recordings())
    marked = {"overridden": np.ones((1, 1), np.float32)}
    with pytest.raises(InvalidInputError, match="overridden"):  # a column of no data handler
        source.add(dataclasses.replace(make_step(0), extras=marked), [])
    assert source.table_status.prior_steps == len(RECORDED)


def test_recorded_steps_make_room_for_overridden_ones_at_last() -> None:
    config = make_config(**SETTINGS, prior_overridden=True, capacity=8)
    source, _ = make_source(config, prior=make_recordings())
    # Eight rows, and the observation after each step where something else follows.
    found = add_steps(source, range(100), set(range(20, 100)))
    seen = {int(n) for newest, one in found if newest > 90 for n in name_steps(one)[one.ids < 0]}
    assert seen
    assert min(seen) > 70
    assert not seen & set(RECORDED)


def test_the_status_has_the_steps_of_both(tmp_path: Path) -> None:
    source, _ = make_source(make_config(**SETTINGS), prior=make_recordings())
    for number in range(4):
        source.add(make_step(number), [])
    status = source.table_status
    assert (status.table_steps, status.prior_steps) == (4, 5)
    other, _ = make_source(make_config())
    assert (other.table_status.table_steps, other.table_status.prior_steps) == (None, None)


def test_a_checksum_tells_recordings_apart() -> None:
    model = load("model", "dqn").make_model(make_config(**SETTINGS), 3)
    model.masks = {}

    def read(rollout: Rollout) -> tuple[list[Rollout], int]:
        return read_prior([Recording("one", 1, lambda: rollout)], model, {})

    first = make_recorded(range(100, 104), TERMINATED)
    rollouts, checksum = read(first)
    assert read(first)[1] == checksum
    for change in ("next_alive", "rewards"):
        other = dataclasses.replace(first, **{change: np.zeros_like(getattr(first, change))})
        assert read(other)[1] != checksum, change
    table = make_prior(rollouts, make_config(**SETTINGS).plan, model, {})
    assert table.counts.items == 4
    with pytest.raises(InvalidInputError, match=r"^one cannot be learned from: inputs"):
        read(dataclasses.replace(first, inputs={}))


def test_recordings_that_have_changed_are_refused_and_others_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep_prior(tmp_path / "new", ["a", "b"], 10, 77)
    keep_prior(tmp_path / "new", ["a", "b"], 10, 77)
    for steps, checksum in ((11, 77), (10, 78)):
        with pytest.raises(ConfigError, match=r"^algorithm\.prior: a, b has .*0000004d"):
            keep_prior(tmp_path / "new", ["a", "b"], steps, checksum)
    assert not caplog.records
    keep_prior(tmp_path / "new", ["c"], 12, 79)
    assert "was a, b" in caplog.text
    assert json.loads((tmp_path / "new" / PRIOR_NAME).read_text())["steps"] == 12
    assert [path.name for path in (tmp_path / "new").iterdir()] == [PRIOR_NAME]
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"^relaax-parameter-server\.checkpoint_dir: .*written"):
        keep_prior(tmp_path / "file", ["c"], 12, 79)


def test_learners_that_start_together_write_down_the_same(tmp_path: Path) -> None:
    start = threading.Barrier(4)

    def keep(number: int) -> None:
        for turn in range(20):
            start.wait(20)
            keep_prior(tmp_path / str(turn), ["a"], 10, 77)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(keep, range(4))) == [None] * 4


@pytest.mark.parametrize(
    ("settings", "key", "cure"),
    [
        ({"priority_exponent": 0.6}, "prior", "priority_exponent"),
        ({"sequence_steps": 4}, "prior", "sequence_steps"),
        ({"hindsight": {}}, "prior", "hindsight"),
        ({"prior_fraction": 0.1}, "prior_fraction", "batch_size"),
        ({"prior_fraction": 0.9}, "prior_fraction", "batch_size"),
        ({"prior_fraction": 0.0}, "prior_fraction", ""),
        ({"prior_fraction": 1.0}, "prior_fraction", ""),
        ({"prior": []}, "prior", ""),
    ],
)
def test_what_a_prior_is_not_combined_with_is_named(
    settings: dict[str, Any], key: str, cure: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        make_config(**{**SETTINGS, **settings})
    (error,) = caught.value.errors()
    message = error["msg"].removeprefix("Value error, ")
    if error["loc"]:  # of one setting alone
        assert (error["loc"][0], cure) == (key, "")
    else:
        assert message.startswith(f"{key} is ")
        assert message.endswith(cure)


def test_overridden_steps_are_not_combined_with_what_a_prior_is_not() -> None:
    want = r"^Replay: prior_overridden is true, .*remove prior_overridden, or sequence_steps$"
    with pytest.raises(ValueError, match=want):
        Replay(capacity=9, batch_size=4, prior_overridden=True, sequence_steps=3)


def test_balanced_minibatches_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"^Replay: prior is x, .* or balance_rewards$"):
        Replay(capacity=9, batch_size=4, prior=("x",), balance_rewards=True)
