"""Several Algorithms that learn in the parameter server: over the network, and with workers."""

# covers F2, F10, F11, P9, R2

import signal
from functools import partial
from pathlib import Path

import pytest
from support.cluster import ROOT, TRACE, Cluster, Processes, find_command, wait_until
from support.cues.slots import CueSlots
from support.hierarchy import FOLDER
from support.threads import Caller

from relaax_like.client import Interactor, RlxClient
from relaax_like.client.client import Retry
from relaax_like.metrics.curves import read_curves
from relaax_like.parameter_server.snapshot_format import State
from relaax_like.parameter_server.snapshots import read_latest

ROLLOUTS = "algorithm.rollouts={goal: 4, control: 4}"
SETS = (
    *("learner.placement=server", ROLLOUTS, "learner.target_return=5.5"),
    *("learner.target_episodes=50", "algorithm.max_global_step=60000"),
)
COSTS = {"Optimizer/goal/default", "Optimizer/control/default"}


def read_state(folder: Path) -> State:
    state = read_latest(folder / "run" / "checkpoints")
    assert state is not None
    return state


def assert_learned(folder: Path) -> State:
    state = read_state(folder)
    assert state.global_t < 60000  # no policy of one Algorithm alone has a mean return above 0
    # Each iteration of either is one publication, and one step of its own optimizer.
    assert state.statistics["published"] == state.version == sum(state.steps.values())
    assert min(state.steps.values()) > 10
    curves = read_curves(folder / "run" / "metrics")
    assert set(curves) >= COSTS
    return state


def play(port: int, slots: int, end: str = "reached the target 5.5") -> int:
    """Plays until the training has finished; returns the steps of all slots."""
    env = CueSlots(slots, slots)
    with RlxClient(
        f"localhost:{port}",
        env.observation_space,
        env.action_space,
        slots=slots,
        retry=Retry(min_sleep_sec=0.2, max_sleep_sec=0.5),
    ) as client:
        run = Interactor(env, client).run()
    assert end in run.finished
    return run.steps


@pytest.fixture
def cluster(tmp_path: Path):
    with Cluster(tmp_path, FOLDER, *SETS) as cluster:
        yield cluster


@pytest.mark.slow
def test_a_hierarchy_learns_over_the_network(cluster: Cluster, tmp_path: Path) -> None:
    ps, rlx = cluster.start_both_servers()
    players = [Caller(partial(play, cluster.rlx_port, slots)) for slots in (2, 5)]
    steps = sum(player.get() for player in players)
    assert ps.wait() == 0, ps
    rlx.stop()
    for program in (ps, rlx):
        assert TRACE not in program.output, program
    state = assert_learned(tmp_path)
    # Each once, whichever Algorithms learned from it.
    assert state.global_t + state.statistics["unlearned_steps"] == steps


@pytest.mark.slow
def test_a_killed_parameter_server_continues_with_all_algorithms(
    cluster: Cluster, tmp_path: Path
) -> None:
    ps, rlx = cluster.start_both_servers("learner.target_return=1000")
    player = Caller(partial(play, cluster.rlx_port, 4))
    cluster.wait_status(lambda status: status.version > 20, "20 publications")
    counted = cluster.wait_steps(100).global_t
    ps.stop(signal.SIGKILL)
    ps = cluster.start_parameter_server()
    restored = ps.wait_for(r"restored publication (\d+), step (\d+)")
    assert int(restored[1]) > 20
    assert int(restored[2]) >= counted
    steps = player.get()
    assert ps.wait() == 0, ps
    rlx.stop()
    for program in (ps, rlx):
        assert TRACE not in program.output, program
    assert assert_learned(tmp_path).global_t <= steps


@pytest.mark.slow
def test_the_replay_tables_of_all_algorithms_survive_the_parameter_server(tmp_path: Path) -> None:
    sets = ("algorithm.replayed=[goal,control]", "learner.target_return=1000")
    # So many that the agents wait for both learners' first updates, however slowly these compile.
    with Cluster(tmp_path, FOLDER, *SETS, *sets, "algorithm.max_global_step=4000") as cluster:
        ps, rlx = cluster.start_both_servers()
        player = Caller(partial(play, cluster.rlx_port, 4, "budget of 4000 env steps"))
        cluster.wait_steps(500)
        wait_until(
            lambda: read_curves(tmp_path / "run" / "metrics").keys() >= COSTS, "updates of both"
        )
        ps.stop(signal.SIGKILL)
        ps = cluster.start_parameter_server()
        for name in ("goal", "control"):
            ps.wait_for(rf"replay table: [1-9]\S* rows from \S*/replay-{name};")
        steps = player.get()
        assert ps.wait() == 0, ps
        rlx.stop()
        for program in (ps, rlx):
            assert TRACE not in program.output, program
    state = read_state(tmp_path)
    assert state.global_t <= steps
    assert min(state.steps.values()) > 0


@pytest.mark.slow
def test_a_hierarchy_learns_with_workers(tmp_path: Path) -> None:
    file = tmp_path / "experiment.yaml"
    file.write_text(
        f"run_dir: run\nalgorithm: {{path: '{FOLDER}'}}\n"
        f"environment: {{path: '{ROOT / 'tests' / 'support' / 'cues'}', slots: 3}}\n"
    )
    sets = [part for text in SETS for part in ("--set", text)]
    with Processes(tmp_path) as processes:
        argv = [find_command("relaax"), "train", file, *sets, "--workers", 2]
        program = processes.start("train", argv)
        assert program.wait() == 0, program
    program.wait_for("finished: mean return .* reached the target 5.5")
    assert TRACE not in program.output
    assert_learned(tmp_path)


# `test_serial_algorithms.py` has this and others in one process.
@pytest.mark.slow
def test_plans_that_do_not_fit_end_the_server_with_one_line(tmp_path: Path) -> None:
    sets = ("learner.placement=server", "algorithm.rollouts={goal: 4}")
    with Cluster(tmp_path, FOLDER, *sets) as cluster:
        ps = cluster.start_parameter_server()
        assert ps.wait() == 2
    assert (
        ps.output.count("plan has the Algorithms goal, but make_algorithms makes goal, control")
        == 1
    )
    assert TRACE not in ps.output
