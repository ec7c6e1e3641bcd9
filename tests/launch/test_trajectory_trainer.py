"""`relaax train` with workers: it learns, stops, goes on, and says what it cannot do."""

# covers P9, P16, P20, P23, P26

import re
import signal

import numpy as np
import pytest
from support.cluster import ROOT, TRACE, Cluster, find_command

from relaax_like.config.loader import load_experiment
from relaax_like.experience.buffer import Buffer
from relaax_like.launch.trajectory_trainer import find_episodes
from relaax_like.metrics.curves import read_curves
from relaax_like.parameter_server.snapshots import read_latest
from relaax_like.wire.errors import ConfigError

ARGUMENTS = (
    *("--workers", 2, "--max-traj-len", 300, "--num-steps", 2000, "--rollout-steps", 200),
    *("--batch-size", 125, "--epochs", 5, "--a-lr", 1e-3, "--c-lr", 1e-3),
)
CONFIG = """
run_dir: run
relaax-rlx-server: {{score_lines: false}}
algorithm: {{path: {folder}, state_size: {size}, num_actions: 2, network: {{layers: {layers}}}}}
environment: {{program: OpenAI_Gym, env: {env}, slots: 2}}
"""


@pytest.fixture
def cluster(tmp_path):
    with Cluster(tmp_path) as cluster:
        yield cluster


def train(cluster, *arguments, layers="[32, 32]", size=4, env="CartPole-v1", algorithm="ppo"):
    file = cluster.folder / "trajectories.yaml"
    folder = ROOT / "algorithms" / algorithm
    file.write_text(CONFIG.format(folder=folder, layers=layers, size=size, env=env))
    return cluster.start("train", [find_command("relaax"), "train", file, *ARGUMENTS, *arguments])


def test_it_learns_cartpole(cluster):
    program = train(cluster, "--target-return", 100, "--target-episodes", 50)
    assert program.wait() == 0, program
    program.wait_for(r"finished: mean return [\d.]+ of the last 50 episodes reached")
    assert TRACE not in program.output
    curves = read_curves(cluster.folder / "run" / "metrics")
    assert {
        *("Train/Return", "Optimizer/KL", "Optimizer/actor", "Optimizer/critic"),
        *("Time/Sample Time", "Time/Sample Rate", "Time/Ideal Sample Rate", "Time/Overhead Loss"),
        *("Time/Optimize Time", "Time/Timesteps per Iteration", "Time/Discarded Timesteps"),
    } <= set(curves)
    assert min(curves["Time/Timesteps per Iteration"].y) >= 2000


def test_a_recurrent_policy_learns_from_trajectories_and_a_stopped_run_goes_on(cluster):
    settings = {"layers": "[8, {lstm: 8}]", "size": 2, "env": "MaskedCartPole-v1"}
    arguments = (
        *("--batch-size", 8, "--epochs", 2, "--update-norm", "--max-traj-len", 20),
        *("--set", "relaax-parameter-server.progress_interval_sec=0.1"),
    )
    program = train(cluster, *arguments, **settings)
    program.wait_for(r"step [\d,]{2,} ")
    assert program.stop(signal.SIGINT) == 128 + signal.SIGINT
    assert TRACE not in program.output
    first = read_latest(cluster.folder / "run" / "checkpoints")
    assert first.global_t >= 2000
    budget = ("--max-global-step", first.global_t + 3000, "--resume")
    program = train(cluster, *arguments, *budget, **settings)
    assert program.wait() == 0, program
    second = read_latest(cluster.folder / "run" / "checkpoints")
    assert second.version == first.version + 2
    names = [segment.name for segment in second.manifest.segments]
    values = dict(zip(names, second.manifest.unpack(second.values), strict=True))
    # Each step was seen once, and no padding.
    assert values["observation.count"] == second.global_t
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"algorithm": "a2c"},
            r"learner\.workers: 2, but this algorithm does not learn from whole",
        ),
        ({"size": 3}, r"sampling worker \d ended with status 2"),
    ],
    ids=["an algorithm of single gradients", "spaces that the policy cannot use"],
)
def test_what_cannot_be_is_said_in_one_line(cluster, options, message):
    if options.get("algorithm"):
        file = cluster.folder / "trajectories.yaml"
        folder = ROOT / "algorithms" / options["algorithm"]
        file.write_text(CONFIG.format(folder=folder, layers=[8], size=4, env="CartPole-v1"))
        with pytest.raises(ConfigError, match=message):
            load_experiment(file, ["learner.workers=2"])
        return
    program = train(cluster, **options)
    assert program.wait() in (1, 2), program
    assert re.search(message, program.output), program
    assert "state_size" in program.output
    assert TRACE not in program.output


def test_servers_that_are_given_workers_say_so(cluster):
    file = cluster.folder / "trajectories.yaml"
    folder = ROOT / "algorithms" / "ppo"
    file.write_text(CONFIG.format(folder=folder, layers=[8], size=4, env="CartPole-v1"))
    command = [find_command("relaax-parameter-server"), file, "--set", "learner.workers=2"]
    program = cluster.start("server", command)
    assert program.wait() == 2
    assert "learner.workers: 2, but only relaax train samples with workers" in program.output
