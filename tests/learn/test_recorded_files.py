"""RecordedFiles: which file comes when, what of it is read, and where a run resumes. covers J11"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.learning import STEPS, PlainModel, PlainPolicy, make_plain_server, make_rewarded

from relaax_like.algorithm.model import Specs
from relaax_like.config.base_learner import NO_HOOKS
from relaax_like.config.plan import Offline, Unit
from relaax_like.experience.recordings import Recording, make_recording
from relaax_like.experience.trajectory_files import TrajectoryWriter, find_trajectories
from relaax_like.learn.base_learner import BaseLearner
from relaax_like.learn.learner_loop import LearnerLoop
from relaax_like.learn.publishing import Publishing
from relaax_like.learn.recorded_files import RecordedFiles, draw_index, validate_files
from relaax_like.learn.tally import Tally
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.spaces import Discrete

FILES = 4


class RememberingModel(PlainModel):
    def get_state_specs(self) -> Specs:
        return [("policy", {"shape": [3]})]


class KeepingPolicy(PlainPolicy):
    """Also keeps the rollouts."""

    def forward(self, data: Any) -> dict[str, Any]:
        self.newest = data.rollout
        return super().forward(data)


@pytest.fixture
def files(tmp_path: Path) -> list[Recording]:
    """File i has i + 1 slots, and the reward i in all steps."""
    writer = TrajectoryWriter(tmp_path / "trajectories", 1e6)
    for number in range(FILES):
        writer.write(number, make_rewarded(number + 1, float(number), seed=number))
    return read_folder(tmp_path / "trajectories")


def read_folder(folder: Path) -> list[Recording]:
    return [make_recording(path) for path in find_trajectories(folder)]


def make_learner(
    server: ParameterServer,
    files: Sequence[Recording],
    policy: PlainPolicy,
    model: Any = None,
    seed: int = 1,
) -> LearnerLoop[RecordedFiles]:
    base = BaseLearner({"hook": NO_HOOKS}, exp_dir="unused")
    base.policy = policy  # type: ignore[assignment]
    tally = Tally()
    source = RecordedFiles(files, tally, model or PlainModel(), {"action": Discrete(n=2)}, seed)
    return LearnerLoop(source, base, Publishing(server, policy, tally))  # type: ignore[arg-type]


def test_every_file_comes_once_before_one_comes_again_and_orders_differ() -> None:
    orders = [
        [draw_index(3, 6, iteration) for iteration in range(start, start + 6)]
        for start in range(0, 60, 6)
    ]
    assert all(sorted(order) == list(range(6)) for order in orders)
    assert len({tuple(order) for order in orders}) > 5
    assert [draw_index(4, 6, i) for i in range(60)] != [draw_index(3, 6, i) for i in range(60)]


def test_each_file_is_an_iteration_whose_steps_count(files: list[Recording]) -> None:
    policy = PlainPolicy()
    with make_plain_server() as server:
        learner = make_learner(server, files, policy)
        assert learner.load().version == 0
        learned = [learner.learn() for _ in range(FILES)]
        assert server.global_t == learned[-1].global_t == STEPS * (1 + 2 + 3 + 4)
        learner.close()
    assert [one.version for one in learned] == [1, 2, 3, 4]
    assert [rewards.shape[1] for rewards in policy.rewards] == [
        draw_index(1, FILES, iteration) + 1 for iteration in range(FILES)
    ]


def test_a_run_that_goes_on_draws_what_it_would_have_drawn(files: list[Recording]) -> None:
    straight, stopped = PlainPolicy(), PlainPolicy()
    with make_plain_server() as server:
        learner = make_learner(server, files, straight)
        learner.load()
        for _ in range(7):
            learner.learn()
        want = server.get_values()
    with make_plain_server() as server:
        for count in (3, 4):
            learner = make_learner(server, files, stopped)
            learner.load()
            for _ in range(count):
                learner.learn()
            learner.close()
        for value, other in zip(server.get_values(), want, strict=True):
            np.testing.assert_array_equal(value, other)
    assert [r.shape for r in stopped.rewards] == [r.shape for r in straight.rewards]


def test_a_network_with_a_memory_begins_each_file_without_any(tmp_path: Path) -> None:
    """What was written is the memory of another network."""
    rollout = make_rewarded(2, 1.0)
    rollout = dataclasses.replace(rollout, states={"other": np.ones((2, 9), np.float32)})
    TrajectoryWriter(tmp_path, 1e6).write(1, rollout)
    policy = KeepingPolicy()
    with make_plain_server() as server:
        learner = make_learner(server, read_folder(tmp_path), policy, RememberingModel())
        learner.load()
        learner.learn()
    assert list(policy.newest.states) == ["policy"]
    np.testing.assert_array_equal(policy.newest.states["policy"], np.zeros((2, 3)))


@pytest.mark.parametrize(
    ("change", "want"),
    [
        ({"inputs": {"pixels": np.zeros((STEPS, 2, 4))}}, "inputs: observation is missing"),
        ({"actions": {"action": np.full((STEPS, 2), 2)}}, r"actions action: .* outside 0\.\.1"),
        ({"rewards": np.full((STEPS, 2, 1), np.nan)}, r"rewards: nan at \[0, 0, 0\]"),
    ],
    ids=["other observations", "an action that there is not", "NaN"],
)
def test_a_file_that_does_not_fit_is_named_and_not_learned_from(
    tmp_path: Path, change: dict[str, Any], want: str
) -> None:
    TrajectoryWriter(tmp_path, 1e6).write(1, dataclasses.replace(make_rewarded(2, 1.0), **change))
    policy = PlainPolicy()
    with make_plain_server() as server:
        learner = make_learner(server, read_folder(tmp_path), policy)
        learner.load()
        with pytest.raises(InvalidInputError, match=rf"iteration-00000001\.npz .*{want}"):
            learner.learn()
        assert server.version == 0
    assert policy.rewards == []


SPACES = {"action": Discrete(n=2)}
PLAN = Offline(batch_size=STEPS)


def test_all_damaged_files_are_named_at_once(files: list[Recording]) -> None:
    steps = validate_files(files, PlainModel(), SPACES, PLAN)
    assert steps == STEPS * (1 + 2 + 3 + 4)
    cut, flipped = Path(files[1].name), Path(files[3].name)
    content = bytearray(flipped.read_bytes())
    cut.write_bytes(cut.read_bytes()[:-100])
    content[len(content) // 3] ^= 4
    flipped.write_bytes(content)
    with pytest.raises(InvalidInputError) as caught:
        validate_files(files, PlainModel(), SPACES, PLAN)
    message = str(caught.value)
    title, first, second = message.splitlines()
    assert title.startswith(
        "damaged recordings, or recordings without trajectories (2 of 4); leave"
    )
    assert first == f"  {cut} (BadZipFile: File is not a zip file)"
    assert second.startswith(f"  {flipped} (BadZipFile: Bad CRC-32")


def test_the_first_file_that_does_not_fit_is_named_before_any_is_learned_from(
    files: list[Recording], tmp_path: Path
) -> None:
    three = {"action": np.full((STEPS, 2), 2)}
    writer = TrajectoryWriter(tmp_path / "trajectories", 1e6)
    for number in (2, 3):
        writer.write(number, dataclasses.replace(make_rewarded(2, 1.0), actions=three))
    with pytest.raises(InvalidInputError, match=r"^\S*iteration-00000002\.npz .*outside 0\.\.1"):
        validate_files(files, PlainModel(), SPACES, PLAN)


@pytest.mark.parametrize("unit", ["steps", "rollouts"])
def test_a_file_too_short_for_one_update_is_named(files: list[Recording], unit: Unit) -> None:
    has = {"steps": STEPS, "rollouts": 1}[unit]  # of the first
    whole = dataclasses.replace(PLAN, minibatch_of=unit, batch_size=has)
    validate_files(files, PlainModel(), SPACES, whole)
    more = dataclasses.replace(whole, batch_size=has + 1)
    with pytest.raises(InvalidInputError, match=rf"npz has {has} \w+\(s\), .* needs {has + 1}, "):
        validate_files(files, PlainModel(), SPACES, more)
