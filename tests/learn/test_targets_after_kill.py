"""A learner that publishes is killed between two copies of a target, and resumes bit for bit."""

# covers F6

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.cluster import ROOT
from support.compare import compare
from support.feeding import ITERATIONS

FOLDER = ROOT / "tests" / "support" / "targets"


def feed(*runs: str) -> list[int]:
    """Feeds a learner in a process for each run; returns their exit statuses."""
    for folder in {Path(run.partition(":")[0]) for run in runs}:
        folder.mkdir()
        (folder / "experiment.yaml").write_text(
            f"run_dir: {folder / 'run'}\n"
            f"compile_cache: {folder.parent / 'cache'}\n"
            "learner: {placement: server}\n"
            f"algorithm: {{path: '{FOLDER}', max_global_step: 1000000}}\n"
        )
    argv = [sys.executable, "-m", "support.feeding", *runs]
    done = subprocess.run(argv, cwd=ROOT / "tests", capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return [int(status) for status in done.stdout.splitlines()[-1].split()]


def read(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


@pytest.mark.slow
def test_a_killed_learner_goes_on_as_if_it_had_not_been_killed(tmp_path: Path) -> None:
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    statuses = feed(f"{straight}", f"{killed}:after:1", f"{killed}:before:3", f"{killed}")
    assert statuses == [0, -signal.SIGKILL, -signal.SIGKILL, 0]
    for number in range(1, ITERATIONS):
        loaded = killed / f"loaded-{number}.npz"
        # What was published is there, and what was not is learned once more.
        assert loaded.exists() == (number in (1, 2))
        if loaded.exists():
            assert compare(read(loaded), read(straight / f"published-{number}.npz")) == ""
    for number in (2, 3, ITERATIONS):
        name = f"published-{number}.npz"
        assert compare(read(killed / name), read(straight / name)) == ""
    # Eight steps of the critic in each iteration, and a copy at every third: so each kill was
    # between two copies.
    state = read(straight / "published-2.npz")
    assert (state["steps/critic"], state["steps/actor"]) == (16, 8)
    names = [name for name in state if name.startswith(("value/target/", "value/mixed/"))]
    assert len(names) == 8
