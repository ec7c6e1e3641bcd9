"""`relaax train` with workers: it learns, stops, goes on, and says what it cannot do."""

# covers P9, P16, P20, P23, P26

import logging
import re
import signal
import threading

import numpy as np
import pytest
from support.cluster import ROOT, TRACE, Cluster, find_command, wait_until

from relaax_like.config.loader import load_experiment
from relaax_like.experience.buffer import Buffer
from relaax_like.launch import trajectory_trainer
from relaax_like.launch.local import open_slots
from relaax_like.launch.parameter_server import run_parameter_server
from relaax_like.launch.process import Shutdown
from relaax_like.launch.sampler_main import make_sampler
from relaax_like.launch.trainer import Trainer
from relaax_like.launch.trajectory_trainer import find_episodes
from relaax_like.metrics.curves import read_curves
from relaax_like.parameter_server.snapshots import read_latest
from relaax_like.wire.errors import ConfigError, RelaaxError

ARGUMENTS = (
    *("--workers", 2, "--max-traj-len", 300, "--num-steps", 2000, "--rollout-steps", 200),
    *("--batch-size", 125, "--epochs", 5, "--learning-rate", 1e-3, "--critic-learning-rate", 1e-3),
    *("--target-return", 100, "--target-episodes", 50),
)
CONFIG = """
run_dir: run
algorithm: {{path: {folder}, state_size: {size}, num_actions: 2, network: {{layers: {layers}}}}}
environment: {{program: OpenAI_Gym, env: {env}, slots: 2}}
"""


def write(folder, layers="[32, 32]", size=4, env="CartPole-v1", algorithm="ppo"):
    file, path = folder / "trajectories.yaml", ROOT / "algorithms" / algorithm
    file.write_text(CONFIG.format(folder=path, layers=layers, size=size, env=env))
    return file


def test_it_learns_cartpole(tmp_path):
    command = [find_command("relaax"), "train", write(tmp_path), *ARGUMENTS]
    with Cluster(tmp_path) as cluster:
        program = cluster.start("train", command)
        assert program.wait(110) == 0, program
    program.wait_for(r"finished: mean return [\d.]+ of the last 50 episodes reached")
    assert TRACE not in program.output
    curves = read_curves(tmp_path / "run" / "metrics")
    assert {
        *("Train/Return", "Optimizer/KL", "Optimizer/actor", "Optimizer/critic"),
        *("Time/Sample Time", "Time/Sample Rate", "Time/Ideal Sample Rate", "Time/Overhead Loss"),
        *("Time/Optimize Time", "Time/Timesteps per Iteration", "Time/Discarded Timesteps"),
    } <= set(curves)
    assert min(curves["Time/Timesteps per Iteration"].values) >= 2000


def train_here(file, *sets, until=None):
    """Trains in this process; returns the exit status, and what is left.

    Args:
      file: the experiment's.
      sets: overrides of its keys.
      until: tells when a Ctrl-C comes; None: none does.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    experiment, shutdown = load_experiment(file, sets), Shutdown()

    def interrupt():
        wait_until(until, "what the interrupt waits for")
        shutdown.request(128 + signal.SIGINT)

    try:
        if until is not None:
            threading.Thread(target=interrupt).start()
        status = Trainer(experiment, sets).run(shutdown)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    state = read_latest(experiment.parameter_server.checkpoint_dir)
    assert state is not None
    return status, state


def test_a_recurrent_policy_learns_from_trajectories_and_a_stopped_run_goes_on(
    tmp_path, caplog, monkeypatch
):
    caplog.set_level(logging.INFO)
    learned_from = []

    def find(buffer):
        learned_from.append(len(buffer))
        return find_episodes(buffer)

    monkeypatch.setattr(trajectory_trainer, "find_episodes", find)
    file = write(tmp_path, layers="[{lstm: 4}]", size=2, env="MaskedCartPole-v1")
    sets = (
        f"run_dir={tmp_path / 'run'}",
        "relaax-parameter-server.progress_interval_sec=0.1",
        *("learner.workers=2", "learner.max_traj_len=20", "algorithm.update_norm=true"),
        *("algorithm.num_steps=400", "algorithm.rollout_steps=40"),
        *("algorithm.batch_size=8", "algorithm.epochs=2"),
    )
    learned = lambda: re.search(r"step [\d,]{3,} ", caplog.text)  # noqa: E731
    status, first = train_here(file, *sets, until=learned)
    assert status == 128 + signal.SIGINT
    assert first.global_t >= 400
    budget = f"algorithm.max_global_step={first.global_t + 500}"
    status, second = train_here(file, *sets, budget)
    assert status == 0
    assert second.version == len(learned_from) > first.version
    names = [segment.name for segment in second.manifest.segments]
    values = dict(zip(names, second.manifest.unpack(second.values), strict=True))
    # Each step was seen once, and no padding. Those of discarded trajectories count, too.
    assert values["observation.count"] == sum(learned_from)
    assert second.global_t > sum(learned_from)
    # No episode is longer than a trajectory.
    assert second.statistics["returns"]
    assert max(second.statistics["returns"]) <= 20


def test_episodes_of_a_buffer():
    buffer = Buffer(0.9, 0.9)
    for rewards in ([1.0, 2.0, 3.0], [4.0], [5.0, -6.0]):
        zeros = np.zeros(len(rewards))
        buffer.push_trajectory({"x": zeros}, {"action": zeros}, rewards, zeros)
    found = [(episode.episode_return, episode.length) for episode in find_episodes(buffer)]
    assert found == [(6, 3), (4, 1), (-1, 2)]


def test_spaces_that_the_policy_cannot_use_are_refused(tmp_path):
    experiment = load_experiment(write(tmp_path, size=3))
    with (
        open_slots(experiment, "train") as slots,
        pytest.raises(ConfigError, match=r"shape \[4\].*state_size"),
    ):
        make_sampler(experiment, slots, "0")


def test_a_wrong_value_of_an_environment_ends_the_run(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))  # the workers look there for `support`
    file = write(tmp_path, layers="[4]", env="'support.broken_envs:Broken-v0'")
    with pytest.raises(RelaaxError, match=r"worker 0 ended with status 2; see its error above"):
        train_here(
            file,
            f"run_dir={tmp_path / 'run'}",
            "learner.workers=1",
            "environment.args={wrong: NaN reward}",
        )
    assert "rewards: NaN or infinity in slot" in capfd.readouterr().out


def test_an_algorithm_of_single_gradients_is_refused(tmp_path):
    file = write(tmp_path, algorithm="a2c")
    with pytest.raises(
        ConfigError, match=r"this algorithm does not learn from complete trajectories"
    ):
        load_experiment(file, ["learner.workers=2"])


def test_servers_that_are_given_workers_refuse(tmp_path):
    experiment = load_experiment(write(tmp_path), ["learner.workers=2"])
    with pytest.raises(ConfigError, match=r"learner\.workers: 2, but only relaax train samples"):
        run_parameter_server(experiment)
