"""SamplerPool: real processes that sample, die, and are told to stop."""

# covers P2, P8, P20, P26

import os
import signal
import sys
import threading
import time

import numpy as np
import psutil
import pytest
from support.cluster import ROOT, wait_until

from relaax_like.algorithm.model import get_variables
from relaax_like.config.loader import load_experiment
from relaax_like.launch.learners import load_model_module
from relaax_like.sampling import sampler_pool
from relaax_like.sampling.sampler_pool import SamplerPool
from relaax_like.wire.errors import RelaaxError

WORKER = [sys.executable, "-m", "relaax_like.launch.sampler_main"]
WORKERS, SLOTS = 2, 2
CONFIG = """
run_dir: run
algorithm: {{path: {ppo}, state_size: 4, num_actions: 2, network: {{layers: [8]}}}}
environment: {{program: OpenAI_Gym, env: {env}, slots: {slots}}}
"""


def write_config(folder, env="CartPole-v1"):
    file = folder / f"{env}.yaml"
    file.write_text(CONFIG.format(ppo=ROOT / "algorithms" / "ppo", env=env, slots=SLOTS))
    return file


def open_pool(file):
    argv = [*WORKER, str(file)]
    return SamplerPool(argv, WORKERS, slots=SLOTS, discount=0.99, gae_lambda=0.95)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write_config(tmp_path_factory.mktemp("pool"))


@pytest.fixture
def pool(file):
    with open_pool(file) as pool:
        yield pool


@pytest.fixture
def make_values(file):
    """Values of a policy that pushes to one side only, and so ends episodes soon."""
    experiment = load_experiment(file)
    model = load_model_module(experiment).make_model(experiment.algorithm, 0)
    variables = get_variables(model)

    def make(action):
        bias = np.array([-50.0, 50.0] if action else [50.0, -50.0], np.float32)
        return [bias if v.name == "policy.out.b" else v.value for v in variables]

    return make


def get_actions(buffer):
    return set(buffer.rows().actions["action"].tolist())


def test_a_sample_is_of_whole_trajectories_of_the_newest_policy_alone(pool, make_values):
    pool.sync_policy(make_values(1), 1)
    buffer, timing = pool.sample(200, max_traj_len=300)
    assert get_actions(buffer) == {1}
    assert len(buffer) == timing.env_steps >= 200
    # It would have ended one trajectory before.
    assert buffer.traj_idx[-2] < 200
    # Pushed to one side a pole falls in about ten steps.
    lengths = np.diff(buffer.traj_idx)
    assert lengths.min() >= 8
    assert lengths.max() <= 11
    assert set(buffer.terminal_values) == {0.0}
    assert (timing.discarded_trajectories, timing.discarded_steps) == (0, 0)
    assert timing.ideal_sec > 0
    assert timing.sample_sec > 0

    # What was under way is forgotten, and what ended after the sample was complete.
    discarded = steps = 0
    for version in (2, 3, 4):
        pool.sync_policy(make_values(version % 2), version)
        buffer, timing = pool.sample(200, max_traj_len=300)
        assert get_actions(buffer) == {version % 2}
        discarded += timing.discarded_trajectories
        steps += timing.discarded_steps
    assert 0 < discarded <= steps <= discarded * 11


def test_the_same_policy_goes_on_with_what_is_under_way(pool, make_values):
    pool.sync_policy(make_values(1), 1)
    steps = 0
    for _ in range(4):
        pool.sync_policy(make_values(0), 1)  # of a version that the workers have
        buffer, timing = pool.sample(30, max_traj_len=300)
        assert get_actions(buffer) == {1}
        assert (timing.discarded_trajectories, timing.discarded_steps) == (0, 0)
        steps += len(buffer)
    assert steps >= 120


def test_long_trajectories_are_cut_off(pool, make_values):
    pool.sync_policy(make_values(1), 1)
    buffer, _ = pool.sample(60, max_traj_len=5)
    assert set(np.diff(buffer.traj_idx)) == {5}
    # The value of a state from which the pole still falls is no end.
    assert 0.0 not in buffer.terminal_values


def test_workers_rest_between_two_samples(pool, make_values):
    pool.sync_policy(make_values(1), 1)
    pool.sample(200, max_traj_len=300)

    def rest():
        before = [sum(psutil.Process(pid).cpu_times()[:2]) for pid in pool.pids]
        time.sleep(0.2)
        return before == [sum(psutil.Process(pid).cpu_times()[:2]) for pid in pool.pids]

    wait_until(rest, "the workers' rest", 10)


def test_a_killed_worker_is_replaced_and_its_trajectories_are_counted(pool, make_values, caplog):
    pool.sync_policy(make_values(1), 1)
    pool.sample(50, max_traj_len=300)
    first, second = pool.pids
    samples = []
    sampling = threading.Thread(target=lambda: samples.append(pool.sample(20_000, 300)))
    sampling.start()
    os.kill(first, signal.SIGKILL)
    sampling.join(60)
    ((buffer, timing),) = samples
    assert len(buffer) >= 20_000
    assert get_actions(buffer) == {1}
    assert timing.discarded_trajectories == SLOTS
    assert "sampling worker 0 ended with status -9" in caplog.text
    assert pool.pids[0] != first
    assert pool.pids[1] == second
    # The new one has the policy, and plays.
    os.kill(second, signal.SIGKILL)
    assert get_actions(pool.sample(2_000, 300)[0]) == {1}


def test_a_worker_that_reads_nothing_is_replaced(file, make_values, caplog, monkeypatch):
    monkeypatch.setattr(sampler_pool, "_SEND_SEC", 1)
    with open_pool(file) as pool:
        pool.sync_policy(make_values(1), 1)
        pool.sample(100, max_traj_len=300)
        stopped = pool.pids[0]
        os.kill(stopped, signal.SIGSTOP)
        version = 1
        while "no longer reads its input" not in caplog.text:  # all that fits is sent first
            version += 1
            pool.sync_policy(make_values(1), version)
        buffer, _ = pool.sample(200, max_traj_len=300)
        assert len(buffer) >= 200
        wait_until(lambda: not psutil.pid_exists(stopped), "its end")


def test_workers_that_cannot_start_end_the_run(tmp_path, capfd):
    with open_pool(write_config(tmp_path, "NoSuchEnv-v0")) as pool:
        pool.sync_policy([], 1)
        with pytest.raises(RelaaxError, match=r"sampling worker \d ended with status 2"):
            pool.sample(10, 10)
    wait_until(lambda: "NoSuchEnv-v0" in capfd.readouterr().out, "what the worker said", 10)


def test_a_sample_is_given_up_when_the_run_stops(pool, make_values):
    stop = threading.Event()
    pool.sync_policy(make_values(1), 1)
    threading.Timer(0.2, stop.set).start()
    assert pool.sample(10**9, 300, stop) is None


def test_nothing_is_left_after_the_end(file):
    pool = open_pool(file)
    pids = pool.pids
    assert all(psutil.pid_exists(pid) for pid in pids)
    pool.close()
    pool.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)
