"""`relaax train` and `relaax eval`: all roles in one process. covers R1, R12, R24, R29

Learning is shown on ppo with TensorFlow; the rest with the NumPy algorithm.
"""

import contextlib
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.cluster import TRACE, Cluster, Program, find_command
from support.here import Done, run_relaax
from support.uncompiled import copy_uncompiled

from relaax_like.parameter_server.snapshot_format import State
from relaax_like.parameter_server.snapshots import read_latest


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        yield cluster


PPO = (
    *("learner.placement=server", "environment.slots=8", "algorithm.num_steps=512"),
    *("algorithm.rollout_steps=64", "algorithm.batch_size=512", "algorithm.epochs=20"),
    *("algorithm.learning_rate=3e-3", "algorithm.critic_learning_rate=3e-3"),
    *("algorithm.gamma=0.98", "algorithm.gae_lambda=0.8", "algorithm.network={layers: [32]}"),
)


@pytest.fixture
def ppo(tmp_path: Path) -> Iterator[Cluster]:
    algorithm = copy_uncompiled("ppo", tmp_path)
    with Cluster(tmp_path, algorithm, "learner.target_episodes=100") as cluster:
        yield cluster


@pytest.fixture
def cartpole(tmp_path: Path) -> Iterator[Cluster]:
    algorithm = copy_uncompiled("policy_gradient", tmp_path)
    with Cluster(tmp_path, algorithm, "learner.target_episodes=100") as cluster:
        yield cluster


def start(cluster: Cluster, command: str, *arguments: object, sets: tuple[str, ...]) -> Program:
    overrides = [part for text in sets for part in ("--set", text)]
    return cluster.start(command, [find_command("relaax"), command, *arguments, *overrides])


def train(cluster: Cluster, *sets: str) -> Program:
    return start(cluster, "train", cluster.config, sets=sets)


def resume(cluster: Cluster, *sets: str) -> Program:
    return start(cluster, "resume", cluster.folder / "run", sets=sets)


def read_snapshot(folder: Path) -> State:
    state = read_latest(folder / "checkpoints")
    assert state is not None, "there is no snapshot"
    return state


def test_it_learns_cartpole_and_the_weights_play_it(ppo: Cluster) -> None:
    program = train(ppo, *PPO, "learner.target_return=120", "algorithm.max_global_step=60000")
    assert program.wait(100) == 0, program
    # Not the budget: that would be the end without having learned.
    found = program.wait_for(r"finished: mean return ([\d.]+) of the last \d+ episodes reached")
    assert float(found[1]) >= 120
    assert TRACE not in program.output
    assert list((ppo.folder / "run" / "metrics").rglob("events.*")), "no curves"

    # The command that the summary names, on the configuration that was saved with the run.
    evaluate = program.wait_for(r"evaluate +relaax eval (\S+)")[1]
    player = start(ppo, "eval", evaluate, "--episodes", 10, sets=())
    assert player.wait() == 0, player
    (line,) = player.lines
    match = re.match(r"mean return ([\d.]+) \+- [\d.]+ .* 10 greedy episodes, mean length", line)
    assert match is not None, line
    # The best actions are no worse than those drawn during the training, but for noise.
    assert float(match[1]) >= 100
    state = read_snapshot(ppo.folder / "run")
    assert f"weights of step {state.global_t:,}, version {state.version:,}" in line


@pytest.mark.slow
def test_two_runs_with_one_seed_end_with_the_same_weights(cartpole: Cluster) -> None:
    budget = "algorithm.max_global_step=800"
    programs = [train(cartpole, budget, "seed=5", f"run_dir={name}") for name in ("a", "b")]
    for program in programs:
        assert program.wait(100) == 0, program
    one, two = (read_snapshot(cartpole.folder / name) for name in ("a", "b"))
    assert one.version > 10
    assert (one.global_t, one.version) == (two.global_t, two.version)
    np.testing.assert_array_equal(one.values, two.values)
    np.testing.assert_array_equal(one.slots["default"], two.slots["default"])
    # The very same episodes. Steps without a gradient are pushed by time, so that the numbers of
    # pushes and records differ.
    assert one.statistics["players"] == two.statistics["players"]
    assert one.statistics["episodes"] == two.statistics["episodes"] > 20


def test_ctrl_c_saves_and_a_resumed_run_goes_on_from_there(bare: Cluster) -> None:
    first = train(bare, "relaax-parameter-server.progress_interval_sec=0.1")
    first.wait_for(r"step [\d,]{2,} ")
    assert first.stop(signal.SIGINT) == 128 + signal.SIGINT
    first.wait_for("stopped")
    saved = read_snapshot(bare.folder / "run")
    assert saved.global_t > 0
    second = resume(bare, f"algorithm.max_global_step={saved.global_t + 500}")
    assert second.wait() == 0
    second.wait_for(f"global_t is {saved.global_t}$")
    after = read_snapshot(bare.folder / "run")
    assert after.global_t >= saved.global_t + 500
    assert after.version > saved.version
    assert TRACE not in first.output + second.output


def run_here(cluster: Cluster, command: str, *arguments: object, sets: tuple[str, ...]) -> Done:
    """Runs a command in this process, in the folder of the configuration."""
    overrides = [part for text in sets for part in ("--set", text)]
    with contextlib.chdir(cluster.folder):
        return run_relaax(command, *arguments, *overrides)


def test_a_finished_run_ends_at_once_and_says_so(bare: Cluster) -> None:
    budget = ("algorithm.max_global_step=300",)
    assert run_here(bare, "train", bare.config, sets=budget).status == 0
    saved = read_snapshot(bare.folder / "run")
    again = run_here(bare, "resume", "run", sets=budget)
    assert again.status == 0, again
    assert "has already finished" in again.output
    assert read_snapshot(bare.folder / "run").version == saved.version


def test_the_slots_of_all_clients_train_together(bare: Cluster) -> None:
    sets = ("environment.clients=2", "environment.slots=3", "algorithm.max_global_step=900")
    sets += ("relaax-rlx-server.score_lines=true",)
    done = run_here(bare, "train", bare.config, sets=sets)
    assert done.status == 0, done
    assert read_snapshot(bare.folder / "run").global_t >= 900
    assert set(re.findall(r"slot (\d+): score", done.output)) == set("012345")


@pytest.mark.parametrize(
    ("sets", "status", "want"),
    [
        (("environment.env=NoSuchEnv-v0",), 2, "NoSuchEnv-v0"),
        (("environment.env=Pendulum-v1",), 2, "observation_spaces: leaf 'observation' is a Box"),
    ],
    ids=["unknown environment", "spaces that the algorithm cannot use"],
)
def test_a_wrong_environment_is_one_line(
    bare: Cluster, sets: tuple[str, ...], status: int, want: str
) -> None:
    done = run_here(bare, "train", bare.config, sets=sets)
    assert done.status == status, done
    assert done.lines[-1].startswith("error: ")
    assert want in done.lines[-1]
    assert TRACE not in done.output


def test_eval_without_a_snapshot_says_what_to_do(bare: Cluster) -> None:
    program = start(bare, "eval", bare.config, sets=())
    assert program.wait() == 1
    assert program.lines == ["error: run/checkpoints: no snapshot to act with; train the run first"]
