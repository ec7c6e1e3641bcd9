"""Files of trajectories: written whole, bounded, and read back as they were. covers J15"""

import dataclasses
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.rollouts import make_rollout

from relaax_like.experience.recordings import make_recording
from relaax_like.experience.rollout import Rollout, concatenate
from relaax_like.experience.trajectory_files import (
    DamagedFileError,
    TrajectoryGatherer,
    TrajectoryWriter,
    find_trajectories,
    read_trajectories,
)
from relaax_like.wire.errors import InvalidInputError


def assert_same(one: Rollout, other: Rollout) -> None:
    for field, value in vars(one).items():
        there = getattr(other, field)
        if value is None:
            assert there is None
            continue
        pairs = {"": (value, there)}
        if isinstance(value, dict):
            assert value.keys() == there.keys()
            pairs = {name: (value[name], there[name]) for name in value}
        for name, (a, b) in pairs.items():
            assert (a.dtype, a.shape) == (b.dtype, b.shape), (field, name)
            np.testing.assert_array_equal(a, b, err_msg=f"{field} {name}")


def test_what_was_written_comes_back_as_it_was(tmp_path: Path) -> None:
    plain = make_rollout(3, 1)
    random = np.random.default_rng(2)
    several = Rollout(
        inputs={
            "camera/left": random.integers(256, size=(5, 3, 2, 2, 1), dtype=np.uint8),
            "speed": random.standard_normal((5, 3, 1)),
        },
        next_inputs={"speed": random.standard_normal((5, 3, 1))},
        next_alive=plain.next_alive,
        rewards=plain.rewards,
        actions={"wheel": random.standard_normal((5, 3, 2)), "gear": np.ones((5, 3), np.int8)},
        log_prob=plain.log_prob,
        states={"policy": random.standard_normal((3, 4))},
        versions=np.arange(5),
        valid=random.random((5, 3)) < 0.5,
        starts=random.integers(9, size=(3, 3)),
    )
    writer = TrajectoryWriter(tmp_path / "trajectories", 1e6)
    writer.write(7, plain)
    writer.write(12, several)
    files = find_trajectories(tmp_path / "trajectories")
    assert [file.name for file in files] == ["iteration-00000007.npz", "iteration-00000012.npz"]
    # There is nothing else, such as half of a file.
    assert sorted((tmp_path / "trajectories").iterdir()) == files
    assert_same(read_trajectories(files[0]), plain)
    assert_same(read_trajectories(files[1]), several)
    with np.load(files[1], allow_pickle=False) as arrays:
        np.testing.assert_array_equal(arrays["actions/wheel"], several.actions["wheel"])


def test_a_link_to_a_missing_file_is_refused_when_it_is_read(tmp_path: Path) -> None:
    link = tmp_path / "iteration-00000001.npz"
    link.symlink_to(tmp_path / "gone")
    recording = make_recording(link)
    assert recording.bytes == 0
    with pytest.raises(DamagedFileError, match=r"iteration-00000001\.npz"):
        recording.read()
    TrajectoryWriter(tmp_path, 1e6)  # counts it as empty


@pytest.mark.parametrize("shape", [(), (3,), (0, 3), (5, 0)])
def test_a_file_without_steps_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    rollout = dataclasses.replace(make_rollout(3, 1), next_alive=np.zeros(shape, np.float32))
    TrajectoryWriter(tmp_path, 1e9).write(1, rollout)
    (file,) = find_trajectories(tmp_path)
    with pytest.raises(DamagedFileError, match="next_alive has shape"):
        read_trajectories(file)


def test_an_iteration_that_is_learned_from_again_replaces_its_file(tmp_path: Path) -> None:
    writer = TrajectoryWriter(tmp_path, 1e6)
    writer.write(1, make_rollout(3, 1))
    writer.write(1, make_rollout(3, 2))
    (file,) = find_trajectories(tmp_path)
    assert_same(read_trajectories(file), make_rollout(3, 2))


def test_a_replaced_file_is_not_counted_twice(tmp_path: Path) -> None:
    TrajectoryWriter(tmp_path, 1e9).write(1, make_rollout(3, 0, steps=1000))
    size = find_trajectories(tmp_path)[0].stat().st_size
    writer = TrajectoryWriter(tmp_path, 2.5 * size)
    for seed in range(1, 5):
        writer.write(1, make_rollout(3, seed, steps=1000))
    writer.write(2, make_rollout(3, 5, steps=1000))
    assert not writer.is_full
    first, second = find_trajectories(tmp_path)
    assert_same(read_trajectories(first), make_rollout(3, 4, steps=1000))
    assert_same(read_trajectories(second), make_rollout(3, 5, steps=1000))


def test_a_full_folder_gets_no_more_files_and_one_line_tells(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    TrajectoryWriter(tmp_path, 1e9).write(1, make_rollout(3, 1, steps=1000))
    size = find_trajectories(tmp_path)[0].stat().st_size
    # Of another start of the run: what lies there counts.
    writer = TrajectoryWriter(tmp_path, 2.9 * size)
    for iteration in range(2, 6):
        writer.write(iteration, make_rollout(3, iteration, steps=1000))
    files = find_trajectories(tmp_path)
    assert [file.name[-5] for file in files] == ["1", "2"]
    assert sum(file.stat().st_size for file in files) <= 2.9 * size
    (warning,) = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert "learner.collect_traj_max_mb" in warning.getMessage()
    assert "iteration-00000003.npz does not fit" in warning.getMessage()


def test_small_rollouts_share_a_file_in_their_order(tmp_path: Path) -> None:
    gatherer = TrajectoryGatherer(TrajectoryWriter(tmp_path, 1e9, learner="rlx-1"))
    rollouts = [make_rollout(3, seed, steps=400) for seed in range(5)]
    rollouts.append(make_rollout(3, 5, steps=300))
    for rollout in rollouts:
        gatherer.write(0, rollout)
    # Four have 4800 steps; the fifth and the sixth differ in their number of steps.
    assert len(find_trajectories(tmp_path)) == 2
    gatherer.flush()
    gatherer.flush()
    files = find_trajectories(tmp_path)
    assert [file.stem.rpartition("-")[2] for file in files] == [f"{n:08d}" for n in (1, 2, 3)]
    for file, parts in zip(files, (rollouts[:4], rollouts[4:5], rollouts[5:]), strict=True):
        assert_same(read_trajectories(file), concatenate(parts))


def test_rollouts_with_other_arrays_or_large_ones_get_a_file_of_their_own(tmp_path: Path) -> None:
    gatherer = TrajectoryGatherer(TrajectoryWriter(tmp_path, 1e9, learner="rlx-1"))
    plain = make_rollout(3, 1)
    image = np.zeros((5, 3, 200, 200, 30), np.uint8)
    others = [
        dataclasses.replace(plain, extras={"grip": np.zeros((5, 3), np.float32)}),
        dataclasses.replace(plain, rewards=np.zeros((5, 3, 2), np.float32)),
        dataclasses.replace(plain, starts=np.zeros((3, 3), np.int64)),
        dataclasses.replace(plain, states={"gru": np.zeros((3, 4), np.float32)}),
        dataclasses.replace(plain, inputs={"image": image}, next_inputs={"image": image}),
    ]
    for rollout in others:
        gatherer.write(0, rollout)
    files = find_trajectories(tmp_path)
    assert len(files) == len(others)  # the last one has 36 MB
    for file, rollout in zip(files, others, strict=True):
        assert_same(read_trajectories(file), rollout)
    # Holes alone make no difference.
    for valid in (None, np.eye(5, 3) > 0):
        gatherer.write(0, dataclasses.replace(plain, valid=valid))
    gatherer.flush()
    (newest,) = set(find_trajectories(tmp_path)) - set(files)
    assert read_trajectories(newest).env_steps == 15 + 3


def test_learners_of_one_folder_replace_no_files(tmp_path: Path) -> None:
    TrajectoryWriter(tmp_path, 1e9).write(3, make_rollout(3, 0))
    for _ in range(2):  # the second time as after a restart
        for number, learner in enumerate(("rlx-1", "rlx-2")):
            gatherer = TrajectoryGatherer(TrajectoryWriter(tmp_path, 1e9, learner))
            gatherer.write(0, make_rollout(3, number))
            gatherer.flush()
    files = find_trajectories(tmp_path)
    assert sorted(file.stem.rpartition("-")[2] for file in files) == [
        f"{number:08d}" for number in (1, 1, 2, 2, 3)
    ]


def test_a_disk_that_refuses_costs_files_and_one_line_but_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "trajectories"
    folder.write_text("a file where the folder is to be")
    writer = TrajectoryWriter(folder, 1e6)
    writer.write(1, make_rollout(3, 1))
    writer.write(2, make_rollout(3, 2))
    (warning,) = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert "iteration-00000001.npz could not be written" in warning.getMessage()
    os.remove(folder)
    writer.write(3, make_rollout(3, 3))
    assert [file.name for file in find_trajectories(folder)] == ["iteration-00000003.npz"]
    assert len(caplog.records) == 1


_FULL = """
import logging, resource, sys
from pathlib import Path
import numpy as np
from relaax_like.experience.rollout import Rollout, concatenate
from relaax_like.experience.trajectory_files import TrajectoryWriter

logging.basicConfig(format="%(message)s")
x = np.zeros((100, 8, 4))
part = {"x": x}
rollout = Rollout(inputs=part, next_inputs=part, next_alive=x, rewards=x, actions=part,
                  log_prob=x, states={}, versions=x)
writer = TrajectoryWriter(Path(sys.argv[1]), 1e9)
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
writer.write(1, rollout)
writer.write(2, rollout)
print("training went on")
"""


def test_half_of_a_file_is_removed_when_no_more_can_be_written(tmp_path: Path) -> None:
    """A file of 180 kB where the system takes 60."""
    done = subprocess.run(
        [sys.executable, "-c", _FULL, str(tmp_path / "trajectories")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "training went on\n"), done.stderr
    assert done.stderr.count("File too large") == done.stderr.count("could not be written") == 1
    assert list((tmp_path / "trajectories").iterdir()) == []


@pytest.mark.parametrize("what", ["cut off", "changed", "another npz", "missing"])
def test_what_is_no_file_of_ours_is_refused_by_name(tmp_path: Path, what: str) -> None:
    TrajectoryWriter(tmp_path, 1e6).write(1, make_rollout(3, 1))
    (file,) = find_trajectories(tmp_path)
    content = bytearray(file.read_bytes())
    match what:
        case "cut off":
            file.write_bytes(content[: len(content) // 2])
        case "changed":
            content[len(content) // 3] ^= 1
            file.write_bytes(content)
        case "another npz":
            np.savez(file, x=np.zeros(3))
        case "missing":
            file.unlink()
    with pytest.raises(InvalidInputError, match=r"iteration-00000001\.npz: no trajectories, or"):
        read_trajectories(file)
