"""RecordedSteps: minibatches from all recordings, their discounts, statistics, and resuming."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.learning import STEPS, PlainModel, make_rewarded

from relaax_like.config.plan import Offline
from relaax_like.experience.recordings import Recording, make_recording
from relaax_like.experience.rollout import RolloutBuffer, make_agent_ids
from relaax_like.experience.trajectory_files import TrajectoryWriter, find_trajectories
from relaax_like.learn.recorded_files import RecordedSteps, validate_files
from relaax_like.learn.tally import Tally
from relaax_like.wire.spaces import Discrete

SPACES = {"action": Discrete(n=2)}
PLAN = Offline(batch_size=3, updates_at_once=4)


def read(folder: Path) -> list[Recording]:
    return [make_recording(path) for path in find_trajectories(folder)]


@pytest.fixture
def files(tmp_path: Path) -> list[Recording]:
    """File i has i + 1 slots, and the reward i in all steps."""
    writer = TrajectoryWriter(tmp_path, 1e6)
    for number in range(3):
        writer.write(number, make_rewarded(number + 1, float(number), seed=number))
    return read(tmp_path)


def make_source(
    files: Sequence[Recording], plan: Offline = PLAN, seed: int = 1, tally: Tally | None = None
) -> RecordedSteps:
    return RecordedSteps(files, tally or Tally(), PlainModel(), SPACES, plan, seed)


def test_an_iteration_has_the_steps_of_its_minibatches_from_all_files(files: Any) -> None:
    tally = Tally()
    source = make_source(files, tally=tally)
    assert source.steps.slots == STEPS * (1 + 2 + 3)
    drawn = [source.get(done, 1.0) for done in range(100)]
    assert {one.rollout.next_alive.shape for one in drawn} == {(1, 12)}
    assert tally.take().env_steps == 1200
    rewards = np.concatenate([one.rollout.rewards.ravel() for one in drawn])
    # A sixth of the steps has the reward 0, a third 1, half 2: within four standard deviations.
    counts = np.bincount(rewards.astype(int), minlength=3) / len(rewards)
    np.testing.assert_allclose(counts, [1 / 6, 1 / 3, 1 / 2], atol=4 * 0.5 / np.sqrt(1200))


def test_a_row_has_the_arrays_of_one_recorded_step(files: Any) -> None:
    source = make_source(files)
    steps = source.steps
    names = ("rewards", "next_alive", "log_prob")
    rollout = source.get(0, 1.0).rollout
    for column in range(rollout.slots):
        seen = rollout.inputs["observation"][0, column]
        [place] = np.flatnonzero((steps.inputs["observation"][0] == seen).all(-1))
        for array, other in (
            *((getattr(rollout, name), getattr(steps, name)) for name in names),
            (rollout.actions["action"], steps.actions["action"]),
            (rollout.next_inputs["observation"], steps.next_inputs["observation"]),
        ):
            np.testing.assert_array_equal(array[0, column], other[0, place])


def test_draws_depend_on_the_seed_and_the_number_of_the_iteration(files: Any) -> None:
    def draw(seed: int, done: int) -> Any:
        return make_source(files, seed=seed).get(done, 1.0).rollout.inputs["observation"]

    np.testing.assert_array_equal(draw(1, 7), draw(1, 7))  # a run that resumes
    assert (draw(1, 7) != draw(1, 8)).any()
    assert (draw(1, 7) != draw(2, 7)).any()


def test_the_first_iteration_has_all_steps_once_if_they_are_the_statistics(files: Any) -> None:
    tally = Tally()
    plan = dataclasses.replace(PLAN, prenormalize=True)
    source = make_source(files, plan, tally=tally)
    assert source.get(0, 1.0).rollout is source.steps
    assert tally.take().env_steps == 0
    assert source.get(1, 1.0).rollout.slots == 12
    assert tally.take().env_steps == 12
    assert make_source(files).get(0, 1.0).rollout.slots == 12


def test_ends_of_episodes_and_holes_are_those_of_the_recording(tmp_path: Path) -> None:
    """A terminal row is 0, a truncated one -1 with its own last observation; holes are left out."""
    buffer = RolloutBuffer(4, make_agent_ids("test", 2))
    alive = np.array([[1, 0], [-1, 1], [1, 1], [1, 1]], np.float32)
    rollout = None
    for t in range(4):
        seen = {"observation": np.full((2, 4), 10.0 * t, np.float32)}
        absent = np.array([False, t == 2])
        buffer.add_actions(
            seen, {"action": np.zeros(2, np.int64)}, np.zeros(2), {}, 0, None, absent
        )
        finals = (
            {"observation": np.full((2, 4), 99.0, np.float32)} if (alive[t] < 0).any() else None
        )
        rollout = buffer.add_outcome(
            np.full((2, 1), t, np.float32),
            alive[t],
            {"observation": np.full((2, 4), 10.0 * (t + 1), np.float32)},
            finals,
            None,
            np.array([False, t + 1 == 2]),
        )
    assert rollout is not None
    TrajectoryWriter(tmp_path, 1e6).write(1, rollout)
    steps = make_source(read(tmp_path)).steps
    rows = zip(
        steps.inputs["observation"][0, :, 0].tolist(),
        steps.next_alive[0].tolist(),
        steps.next_inputs["observation"][0, :, 0].tolist(),
        strict=True,
    )
    of_slot_0 = [(0, 1, 10), (10, -1, 99), (20, 1, 30), (30, 1, 40)]
    # It was terminated, and absent at 20.
    of_slot_1 = [(0, 0), (10, 1, 30), (30, 1, 40)]
    expected = sorted([*of_slot_0, *of_slot_1])
    found = sorted(row if row[1] else row[:2] for row in rows)
    assert found == expected


def test_small_files_are_accepted(files: Any) -> None:
    """A minibatch has steps of several."""
    plan = dataclasses.replace(PLAN, batch_size=10_000)
    validate_files(files, PlainModel(), SPACES, plan)
    assert make_source(files, plan).get(0, 1.0).rollout.slots == 40_000


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"updates_at_once": 0}, "updates_at_once is 0, expected 1 or more"),
        ({"updates_at_once": 2, "epochs": 2}, "epochs is 2, expected 1"),
        ({"updates_at_once": 2, "minibatch_of": "rollouts"}, "minibatch_of is 'rollouts'"),
        ({"updates_at_once": 2, "next_actions": True}, "next_actions is True"),
        ({"updates_at_once": 2, "update_norm": True}, "update_norm is True"),
        ({"prenormalize": True}, "recordings are read one after another"),
    ],
)
def test_plans_that_cannot_work_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Offline(batch_size=4, **settings)
