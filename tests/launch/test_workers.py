"""`relaax train --workers`: it learns, stops, continues, and survives its workers."""

# covers P9, P16, P20, P23, P26

import contextlib
import os
import re
import signal
from pathlib import Path

import psutil
import pytest
from support.cluster import BARE, ROOT, TRACE, Processes, Program, find_command, wait_until
from support.uncompiled import copy_uncompiled

from relaax_like.config.loader import load_experiment
from relaax_like.config.run_spaces import read_run_spaces
from relaax_like.launch.parameter_server import run_parameter_server
from relaax_like.metrics.curves import read_curves
from relaax_like.parameter_server.snapshot_format import State
from relaax_like.parameter_server.snapshots import read_latest
from relaax_like.wire.errors import ConfigError

CONFIG = """
run_dir: run
relaax-parameter-server: {{progress_interval_sec: 0.1}}
algorithm: {{path: {folder}, state_size: {size}, num_actions: 2, network: {{layers: {layers}}}}}
environment: {{program: OpenAI_Gym, env: {env}, slots: 4}}
"""
# Agents that learn by themselves, in NumPy.
PLAIN = """
run_dir: run
algorithm: {{path: {folder}}}
environment: {{program: OpenAI_Gym, env: {env}, slots: 4}}
"""
SMALL = (
    *("--workers", 2, "--num-steps", 80, "--rollout-steps", 10, "--batch-size", 40),
    *("--epochs", 1, "--limit", 20),
)
RECURRENT = (*SMALL[:6], "--batch-size", 4, "--epochs", 1, "--limit", 20, "--update-norm", "true")


def write(
    folder: Path,
    layers: str = "[4]",
    size: int = 4,
    env: str = "CartPole-v1",
    algorithm: str = "ppo",
    compiled: bool = True,
) -> Path:
    file, path = folder / "experiment.yaml", ROOT / "algorithms" / algorithm
    if not compiled:
        path = copy_uncompiled(algorithm, folder)
    file.write_text(CONFIG.format(folder=path, layers=layers, size=size, env=env))
    return file


def start(processes: Processes, file: Path, *flags: object) -> Program:
    return processes.start("train", [find_command("relaax"), "train", file, *flags])


def read_state(folder: Path) -> State:
    state = read_latest(folder / "run" / "checkpoints")
    assert state is not None
    return state


def find_workers(processes: Processes) -> list[int]:
    found = []
    for process in processes.find_left():
        with contextlib.suppress(psutil.Error):
            if "relaax_like.launch.worker_main" in process.cmdline():
                found.append(process.pid)
    return found


def test_it_learns_cartpole(tmp_path: Path) -> None:
    flags = (
        *("--workers", 2, "--num-steps", 512, "--rollout-steps", 64, "--batch-size", 512),
        *("--epochs", 20, "--learning-rate", 3e-3, "--critic-learning-rate", 3e-3),
        *("--gamma", 0.98, "--gae-lambda", 0.8, "--target-return", 100, "--target-episodes", 50),
    )
    with Processes(tmp_path) as processes:
        program = start(processes, write(tmp_path, "[32]", compiled=False), *flags)
        assert program.wait(110) == 0, program
    program.wait_for(r"finished: mean return [\d.]+ of the last \d+ episodes reached")
    assert TRACE not in program.output
    curves = read_curves(tmp_path / "run" / "metrics")
    assert {
        *("Train/Return", "Train/Lag", "Optimizer/KL", "Optimizer/actor", "Optimizer/critic"),
        *("Time/Sample Time", "Time/Sample Rate", "Time/Ideal Sample Rate", "Time/Overhead Loss"),
        *("Time/Optimize Time", "Time/Timesteps per Iteration"),
    } <= set(curves)
    assert set(curves["Time/Timesteps per Iteration"].values) == {512}
    assert min(curves["Time/Ideal Sample Rate"].values) > 0


@pytest.mark.slow
def test_single_gradients_are_learned_from_too(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        file = write(tmp_path, algorithm="a2c", compiled=False)
        program = start(processes, file, *SMALL[:2], "--max-global-step", 2000)
        assert program.wait(110) == 0, program
    assert TRACE not in program.output
    assert read_state(tmp_path).version > 0


def test_plain_agents_of_several_workers_push_beside_each_other(tmp_path: Path) -> None:
    file = tmp_path / "experiment.yaml"
    file.write_text(PLAIN.format(folder=BARE, env="CartPole-v1"))
    with Processes(tmp_path) as processes:
        program = start(processes, file, *SMALL[:2], "--max-global-step", 1500)
        assert program.wait(110) == 0, program
    assert "push dropped" not in program.output
    assert read_run_spaces(tmp_path / "run") is not None
    assert TRACE not in program.output


@pytest.mark.slow
def test_a_recurrent_policy_learns_and_a_stopped_run_continues(tmp_path: Path) -> None:
    file = write(tmp_path, "[{lstm: 4}]", 2, "MaskedCartPole-v1", compiled=False)
    with Processes(tmp_path) as processes:
        program = start(processes, file, *RECURRENT)
        program.wait_for(r"step [\d,]{3,} ")
        assert program.stop(signal.SIGINT) == 128 + signal.SIGINT
        assert TRACE not in program.output
        first = read_state(tmp_path)
        assert first.global_t >= 80
        slots = [one for player in first.statistics["players"].values() for one in player]
        returns = [x for one in slots for x in one["returns"]]
        assert returns
        assert max(returns) <= 20  # the limit
        budget = first.global_t + 500
        resume = [find_command("relaax"), "resume", "run", "--max-global-step", budget]
        program = processes.start("resume", resume)
        assert program.wait(110) == 0, program
        assert TRACE not in program.output
        processes.assert_nothing_left()
    second = read_state(tmp_path)
    assert second.version > first.version
    assert second.global_t >= budget


def test_a_killed_worker_is_replaced_and_all_end_with_a_run_that_is_killed(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        program = start(processes, write(tmp_path, compiled=False), *SMALL)
        program.wait_for(r"step [\d,]{3,} ")
        wait_until(lambda: len(find_workers(processes)) == 2, "two workers")
        os.kill(find_workers(processes)[0], signal.SIGKILL)
        program.wait_for(r"worker\d died \(killed by SIGKILL\); restart 1 of 10")
        wait_until(lambda: len(find_workers(processes)) == 2, "another worker")
        counted = len(re.findall(r"step [\d,]+ ", program.output))
        wait_until(
            lambda: len(re.findall(r"step [\d,]+ ", program.output)) > counted + 3, "progress"
        )
        assert TRACE not in program.output
        program.send(signal.SIGKILL)
        processes.assert_nothing_left()


@pytest.mark.parametrize(
    ("sets", "what"),
    [
        (
            ["environment.args={wrong: NaN reward}"],
            r"rewards: NaN or infinity in slots? \d",
        ),
        # As `test_trainer.py` has it without workers.
        pytest.param(
            ["algorithm.state_size=3"],
            r".*shape \[4\].*state_size",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["wrong value", "wrong space"],
)
def test_a_mistake_that_a_worker_finds_ends_the_run(
    sets: list[str], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))  # for `support`
    file = write(tmp_path, env="'support.broken_envs:Broken-v0'", compiled=False)
    flags = [part for text in sets for part in ("--set", text)]
    with Processes(tmp_path) as processes:
        program = start(processes, file, "--workers", 1, *flags)
        assert program.wait(110) == 2, program
    assert re.search(rf"worker1 \| error: .*{what}", program.output)
    assert (
        "error: a worker could not be kept running; the lines above show how it ended"
        in program.output
    )
    assert TRACE not in program.output


def test_servers_that_are_given_workers_refuse(tmp_path: Path) -> None:
    experiment = load_experiment(write(tmp_path), ["learner.workers=2"])
    with pytest.raises(ConfigError, match=r"learner\.workers: 2, but only relaax train starts"):
        run_parameter_server(experiment)
