"""Each step that an environment took is counted once, on every road, after an orderly end.

`global_t` are those that were learned from. With placement `server` the others are reported; with
`agent` those of unfinished rollouts count, too.
"""

# covers R2

import itertools
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support.cluster import ROOT, TRACE, Cluster
from support.step_counting.slots import STATELESS, STEPS_FILE, STOP, StepCountingSlots
from support.threads import Caller, wait_until
from support.uncompiled import copy_uncompiled

from relaax_like.client.client import Retry, RlxClient
from relaax_like.client.interactor import Interactor
from relaax_like.config.loader import load_experiment
from relaax_like.launch.serial_state import read_document
from relaax_like.launch.training import make_trainer
from relaax_like.parameter_server.snapshots import read_latest
from relaax_like.runs.processes.process import Shutdown

PROGRAM = ROOT / "tests" / "support" / "step_counting"
QUICK = Retry(min_sleep_sec=0.1, max_sleep_sec=0.3)
STOPPED = 128 + signal.SIGINT
FIVE_OF_ONE = """

class FiveOfOne:
    def after_interact(self, rollout):
        return [rollout] * 5

    def after_learn(self, training_data, policy_data):
        pass


def make_data_handler(config):
    return FiveOfOne()
"""
# Three slots do not fill four columns, nor rollouts of five steps the budget.
SIZES = "state_size: 4, num_actions: 2, network: {layers: [4]}, rollout_steps: 5"
PPO = f"{SIZES}, num_steps: 20, batch_size: 10, epochs: 1"


def make_a2c(folder: Path) -> str:
    """Returns the section of an a2c."""
    return f"path: '{copy_uncompiled('a2c', folder)}', {SIZES}"


def make_ppo(folder: Path) -> str:
    """Returns the section of a ppo whose data handler makes five rollouts of one."""
    return f"path: '{copy_uncompiled('ppo', folder, FIVE_OF_ONE)}', {PPO}"


# Name of a road -> its learner, and its algorithm.
ROADS: dict[str, tuple[str, Callable[[Path], str]]] = {
    "agent": ("placement: agent", make_a2c),
    "agent, iterations": ("placement: agent", make_ppo),
    "server": ("placement: server", make_ppo),
}
TRAIN_ROADS = {
    **ROADS,
    "server, open size": ("placement: server", make_a2c),
    "workers": ("placement: server, workers: 2", make_ppo),
}


@pytest.fixture
def steps_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "steps"
    file.touch()
    monkeypatch.setenv(STEPS_FILE, str(file))
    return file


def count_steps(file: Path) -> int:
    return file.stat().st_size


def write_experiment(folder: Path, learner: str, algorithm: str, more: str = "") -> Path:
    """Writes an experiment; returns its path."""
    file = folder / "experiment.yaml"
    file.write_text(
        f"run_dir: {folder / 'run'}\n"
        f"learner: {{{learner}}}\n"
        f"algorithm: {{{algorithm}}}\n"
        f"environment: {{path: '{PROGRAM}', slots: 3}}\n"
        f"{more}"
    )
    return file


def read_counts(folder: Path) -> tuple[int, int]:
    """Returns `global_t`, and the number of steps that were not learned from."""
    state = read_latest(folder / "run" / "checkpoints")
    assert state is not None
    return state.global_t, state.statistics["unlearned_steps"]


def train(file: Path, *sets: str, stop_after: int = 0) -> int:
    """Trains in this process; returns the exit status.

    Args:
      file: the experiment's.
      sets: overrides of its keys.
      stop_after: calls of `step` after which a Ctrl-C comes; 0: none does.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    os.environ[STOP] = f"{os.getpid()} {stop_after}"
    try:
        return make_trainer(load_experiment(file, sets), sets).run(Shutdown())
    finally:
        del os.environ[STOP]
        for number, handler in handlers.items():
            signal.signal(number, handler)


@pytest.mark.parametrize(
    ("road", "ending"),
    [
        *itertools.product(("agent", "server"), ("budget", "stop")),
        # Harder than the end by a budget.
        *itertools.product(("agent, iterations", "server, open size", "workers"), ("stop",)),
        *(
            pytest.param(road, "budget", marks=pytest.mark.slow)
            for road in ("agent, iterations", "server, open size", "workers")
        ),
    ],
)
def test_in_one_process(
    road: str, ending: str, tmp_path: Path, steps_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STATELESS, "1")  # else the unfinished rollout is kept for the next start
    learner, make_algorithm = TRAIN_ROADS[road]
    file = write_experiment(tmp_path, learner, make_algorithm(tmp_path))
    if ending == "budget":
        assert train(file, "algorithm.max_global_step=200") == 0
    else:
        # In the middle of a rollout, in which no episode has ended.
        assert train(file, stop_after=72) == STOPPED
    assert count_steps(steps_file) >= 200
    check_counts(road, tmp_path, steps_file)


def check_counts(road: str, folder: Path, steps_file: Path) -> None:
    global_t, unlearned = read_counts(folder)
    assert global_t + unlearned == count_steps(steps_file)
    assert not unlearned or road.startswith(("server", "workers"))


@pytest.mark.parametrize("road", ROADS)
def test_a_stopped_run_keeps_what_it_has_not_counted_for_the_next_start(
    road: str, tmp_path: Path, steps_file: Path
) -> None:
    placement, make_algorithm = ROADS[road]
    file = write_experiment(tmp_path, placement, make_algorithm(tmp_path))
    assert train(file, stop_after=37) == STOPPED
    state = read_document(tmp_path / "run" / "serial.npz")["state"]["agents"]
    (helper,) = state["agents"]["agent"]["helpers"]
    kept = 3 * len(helper["buffer"].get("rewards", ())) + helper["uncounted"]
    learner = state["processors"]["RL"]["learner"]
    kept += learner.get("loop", learner)["env_steps"]
    assert read_counts(tmp_path) == (count_steps(steps_file) - kept, 0)
    budget = count_steps(steps_file) + 100
    assert train(file, f"algorithm.max_global_step={budget}") == 0
    assert count_steps(steps_file) >= budget
    check_counts(road, tmp_path, steps_file)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["budget", "stop"])
@pytest.mark.parametrize("road", ROADS)
def test_over_the_network(road: str, ending: str, tmp_path: Path, steps_file: Path) -> None:
    learner, make_algorithm = ROADS[road]
    sets = ["algorithm.max_global_step=300"] if ending == "budget" else []
    with Cluster(tmp_path, ROOT / "algorithms" / "ppo", *sets) as cluster:
        write_network_experiment(cluster, learner, make_algorithm(tmp_path))
        ps, rlx = cluster.start_both_servers()
        stop = threading.Event()
        clients = [start_playing(cluster.rlx_port, steps_file, seed, stop) for seed in range(2)]
        if ending == "stop":
            wait_until(lambda: count_steps(steps_file) > 300, "300 steps")
            stop.set()
        played = sum(client.get() for client in clients)
        if ending == "stop":
            rlx.stop()
            ps.stop()
        else:
            assert ps.wait() == 0, ps
        for program in (ps, rlx):
            assert TRACE not in program.output, program
    assert played == count_steps(steps_file) >= 300
    check_counts(road, tmp_path, steps_file)


@pytest.mark.slow
@pytest.mark.parametrize("road", ROADS)
def test_after_kills(road: str, tmp_path: Path, steps_file: Path) -> None:
    """No step is counted twice; what was counted stays, and of the rest only recent steps lack."""
    learner, make_algorithm = ROADS[road]
    with Cluster(tmp_path, ROOT / "algorithms" / "ppo") as cluster:
        write_network_experiment(cluster, learner, make_algorithm(tmp_path))
        ps, rlx = cluster.start_both_servers()
        played = 0
        victims = ["rlx server", "parameter server"]
        if road.startswith("agent"):
            victims.append("learner")
        for victim in victims:
            stop = threading.Event()
            clients = [start_playing(cluster.rlx_port, steps_file, seed, stop) for seed in range(2)]
            counted = cluster.wait_steps(201).global_t
            if victim == "rlx server":
                rlx.stop(signal.SIGKILL)
                rlx = cluster.start_rlx_server()
            elif victim == "learner":
                children = psutil.Process(rlx.pid).children()
                (process,) = [p for p in children if "learner_main" in " ".join(p.cmdline())]
                process.kill()
            else:
                ps.stop(signal.SIGKILL)
                ps = cluster.start_parameter_server()
            again = cluster.wait_status(lambda status: True, "the run").global_t
            assert again >= counted
            cluster.wait_steps(100)
            lacking = count_steps(steps_file) - counted
            cluster.wait_steps(100)
            stop.set()
            played += sum(client.get() for client in clients)
            assert count_steps(steps_file) == played
            least = played - lacking
            status = cluster.wait_status(
                lambda s, n=least: s.global_t + s.unlearned_steps >= n, f"{least} steps"
            )
            assert status.global_t + status.unlearned_steps <= played
        rlx.stop()
        ps.stop()
    assert least <= sum(read_counts(tmp_path)) <= played


def write_network_experiment(cluster: Cluster, learner: str, algorithm: str) -> None:
    write_experiment(
        cluster.folder,
        learner,
        algorithm,
        f"relaax-parameter-server: {{bind: 'localhost:{cluster.ps_port}'}}\n"
        f"relaax-rlx-server: {{bind: 'localhost:{cluster.rlx_port}'}}\n",
    )


def start_playing(port: int, file: Path, seed: int, stop: threading.Event) -> Caller:
    return Caller(lambda: play(port, file, seed, stop))


def play(port: int, file: Path, seed: int, stop: threading.Event) -> int:
    """Plays with three slots until the end of the training, or `stop`; returns the steps taken."""
    slots = StepCountingSlots(3, seed, file)

    spaces = slots.observation_space, slots.action_space
    name = f"client-{seed}"
    # It waits, too, while the learner is not ready.
    with RlxClient(f"localhost:{port}", *spaces, slots=3, name=name, retry=QUICK) as client:
        summary = Interactor(slots, client, stop=stop).run()
    slots.close()
    return summary.steps
