"""A learner that publishes is killed between two copies of a target, and goes on bit for bit."""

# covers F6, R30

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
from support.cluster import ROOT
from support.compare import compare
from support.feeding import ITERATIONS

FOLDER = ROOT / "tests" / "support" / "targets"


def feed(folder: Path, *kill: object) -> int:
    """Feeds the learner in a process; returns its exit status."""
    folder.mkdir(exist_ok=True)
    file = folder / "experiment.yaml"
    file.write_text(
        f"run_dir: {folder / 'run'}\n"
        f"compile_cache: {folder.parent / 'cache'}\n"
        "learner: {placement: server}\n"
        f"algorithm: {{path: '{FOLDER}', max_global_step: 1000000}}\n"
    )
    argv = [sys.executable, "-m", "support.feeding", file, folder, *map(str, kill)]
    done = subprocess.run(argv, cwd=ROOT / "tests", capture_output=True, text=True, timeout=100)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


def read(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def test_a_killed_learner_goes_on_as_if_it_had_not_been_killed(tmp_path: Path) -> None:
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    assert feed(straight) == 0
    assert feed(killed, "after", 1) == -signal.SIGKILL
    assert feed(killed, "before", 3) == -signal.SIGKILL
    assert feed(killed) == 0
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
