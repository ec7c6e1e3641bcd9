"""Samplers in this process and in others: the same trajectories, and clear errors."""

# covers P1, P2, P16, P17, P26, P27

import contextlib
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from support.cluster import ROOT, Processes, wait_until
from support.compare import compare
from support.sampling_roads import (
    MAX_TRAJ_LEN,
    make_experiment,
    make_optim,
    play,
    play_alone,
)

from relaax_like.addons.sampling.ppo_optim import PPOOptim
from relaax_like.addons.sampling.remote_sampler import RemoteSampler
from relaax_like.algorithm.model import get_variables
from relaax_like.launch.algorithm_code import make_model
from relaax_like.launch.samplers import open_sampler, open_samplers
from relaax_like.wire.errors import ConfigError, InvalidInputError, RelaaxError

HUNG = """
import time
import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
class Hung(CartPoleEnv):
    def step(self, action):
        print("hangs", flush=True)
        time.sleep(600)
gymnasium.register("Hung-v0", Hung, disable_env_checker=True)
"""
OWNER = """
import sys
from relaax_like.config.loader import load_experiment
from relaax_like.launch.samplers import open_samplers
with open_samplers(load_experiment(sys.argv[1]), 1, "processes") as (sampler,):
    sampler.sample_traj(9)
"""


def find_children() -> list[psutil.Process]:
    """Returns the processes of samplers that this one has started, in the order of their starts."""
    found = []
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if "relaax_like.launch.sampler_main" in process.cmdline():
                found.append(process)
    return sorted(found, key=lambda process: process.pid)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("samplers")


@pytest.fixture(scope="module")
def optim(folder: Path) -> PPOOptim:
    return make_optim(make_experiment(folder))


@pytest.fixture(scope="module")
def alone(folder: Path, optim: PPOOptim) -> tuple[dict[str, np.ndarray], list[Any]]:
    """The state before, and what is played from there."""
    begin = optim.state_dict()
    return begin, play_alone(make_experiment(folder), optim)


@pytest.mark.parametrize("where", ["inline", "processes"])
def test_ppo_is_bit_identical_to_samplers_that_play_one_after_the_other(
    where: str, folder: Path, optim: PPOOptim, alone: tuple[dict[str, np.ndarray], list[Any]]
) -> None:
    begin, want = alone
    optim.load_state_dict(begin)
    found = play(make_experiment(folder), optim, where)
    assert compare(want, found) == ""
    first, values, evaluation, second, learned = found
    assert len(first["rewards"]) >= 128
    assert len(second["rewards"]) >= 128
    assert len(evaluation["terminal_values"]) == 8  # rounds of four
    for state in (first, evaluation, second):
        assert np.diff(state["traj_idx"]).max() <= MAX_TRAJ_LEN
    # All observations of all samplers are in the optimiser's statistics, with which they play on.
    assert values["value/observation.count"] == len(first["rewards"])
    total = len(first["rewards"]) + len(second["rewards"])
    assert learned["value/observation.count"] == total
    assert not find_children()


def test_what_happens_to_a_process_arrives_as_an_error(folder: Path) -> None:
    experiment = make_experiment(folder)
    with (
        open_samplers(experiment, 2, "processes") as (there, killed),
        open_sampler(experiment, 1) as here,
    ):
        assert isinstance(there, RemoteSampler)
        values = [variable.value for variable in get_variables(make_model(experiment))]
        for count in (1, 2):  # the copy's own statistics move until the next values
            want, _ = here.sample_traj(9, update_normalization_param=True)
            found, timing = there.sample_traj(9, update_normalization_param=True)
            assert compare(want.get_state(), found.get_state()) == "", count
            assert timing.env_steps == len(found)
        statistics = vars(here.get_statistic("observation"))
        assert statistics["count"] > 9
        moved = vars(there.get_statistic("observation"))
        assert compare(statistics, moved) == ""
        there.sync_policy(values, 1)
        assert there.get_statistic("observation").count == 0

        there.start_traj(9)  # a reply that nobody waits for is not that of the next request
        with pytest.raises(ConfigError, match=r"^sampler 1: max_traj_len: 0, expected"):
            there.sample_traj(0)

        find_children()[1].kill()
        for _ in range(2):
            with pytest.raises(RelaaxError, match=r"^sampler 2: .*killed by SIGKILL"):
                killed.sample_traj(9)
        assert len(there.sample_traj(9)[0])  # the others continue
    assert not find_children()


def test_a_process_that_does_not_answer_is_ended(folder: Path) -> None:
    """It cannot have been loaded after so short a time."""
    with (
        pytest.raises(RelaaxError, match=r"^sampler 1: no answer within 0\.1 s"),
        open_samplers(make_experiment(folder), 1, "processes", timeout_sec=0.1),
    ):
        pass
    assert not find_children()


def test_an_environment_that_fails_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'tests'}")
    broken = make_experiment(folder, env="support.broken_envs:Broken-v0")
    assert broken.environment is not None
    broken.environment.args["wrong"] = "two rewards"
    with (
        open_samplers(broken, 1, "processes") as (sampler,),
        pytest.raises(InvalidInputError, match=r"^sampler 1: environment .*Broken-v0: ") as caught,
    ):
        sampler.sample_traj(9)
    assert caught.value.field == "rewards"
    missing = make_experiment(folder, env="NoSuchEnvironment-v0")
    with pytest.raises(ConfigError, match=r"^sampler 1: .*NoSuchEnvironment"):
        with open_samplers(missing, 1, "processes"):
            pass
    assert not find_children()


def test_processes_end_with_an_owner_that_is_killed(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        file = make_experiment(tmp_path, env="hung:Hung-v0").file
        argv = [sys.executable, "-c", OWNER, file]
        env = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}:{tmp_path}"}
        (tmp_path / "hung.py").write_text(HUNG)
        owner = processes.start("owner", argv, **env)
        owner.wait_for(r"^sampler 1 \| hangs$")
        owner.stop(signal.SIGKILL)
        wait_until(lambda: not processes.find_left(), "the end of all processes", 20)


@pytest.mark.parametrize(
    ("samplers", "where", "timeout_sec", "field"),
    [
        (0, "inline", 1.0, "samplers"),
        (1, "processes", 0.0, "timeout_sec"),
        (1, "threads", 1.0, "where"),
    ],
)
def test_arguments_out_of_range_are_refused(
    folder: Path, samplers: int, where: str, timeout_sec: float, field: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^open_samplers: .*{field}"):
        with open_samplers(make_experiment(folder), samplers, where, timeout_sec):
            pass
