"""Runs with a learner in a process of its own: they learn, and each process can die.

covers R12, N1
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster import TRACE, Program, find_command, find_free_port, freeze, wait_until
from support.standalone import StandaloneCluster
from support.uncompiled import copy_uncompiled, write_initial_values

from relaax_like.parameter_server.snapshots import read_latest

ITERATION = 128  # environment steps
PPO = (
    "algorithm.network={layers: [32]}",
    f"algorithm.num_steps={ITERATION}",
    "algorithm.rollout_steps=16",  # of eight slots: two clients of four
    "algorithm.batch_size=64",
    "algorithm.epochs=8",
    "algorithm.learning_rate=3e-3",
    "algorithm.critic_learning_rate=3e-3",
    "algorithm.gamma=0.98",
    "algorithm.gae_lambda=0.8",
)
SPACES = ("algorithm.state_size=4", "algorithm.num_actions=2")
DQN = (
    "algorithm.network={layers: [8]}",
    "algorithm.batch_size=8",
    "algorithm.capacity=100000",
    "algorithm.warm_up_steps=64",
    "algorithm.updates_per_step=0.25",
    "algorithm.updates_at_once=4",
    *SPACES,
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path, copy_uncompiled("ppo", tmp_path), *PPO) as cluster:
        yield cluster


def wait_for_term(ps: Program, number: int) -> str:
    """Waits until so many learners have held the lease; returns the term of the last of them."""
    term = ps.wait_for(r"learns from now on \(term (\d+)\)")[1]
    for _ in range(number - 1):
        term = str(int(term) + 1)
        ps.wait_for(rf"learns from now on \(term {term}\)")
    return term


def assert_no_trace(*programs: Program) -> None:
    for program in programs:
        assert TRACE not in program.output, program


def test_two_clients_learn_cartpole_although_learner_and_parameter_server_are_killed(
    cluster: StandaloneCluster,
) -> None:
    target = ("learner.target_return=150", "learner.target_episodes=50")
    ps, rlx = cluster.start_both_servers(*target)
    first = cluster.start_learner(*target)
    clients = [cluster.start_client(name, "--num-envs", 4) for name in ("one", "two")]
    first.wait_for("waiting for the spaces|connected to the parameter server")
    cluster.wait_steps(3 * ITERATION)
    assert cluster.find_learner() == f"localhost:{cluster.learner_port}"
    # The learner dies; its agents wait, and another one continues where it was.
    assert first.stop(signal.SIGKILL) == -signal.SIGKILL
    rlx.wait_for("agents wait with their rollouts until it is back")
    told = cluster.wait_status(lambda status: True, "any answer")
    second = cluster.start_learner(*target)
    second.wait_for("holds the lease of this run|learning, ")
    second.wait_for("learning, ")
    wait_for_term(ps, 2)
    rlx.wait_for("is back")
    more = cluster.wait_steps(3 * ITERATION)
    assert more.version > told.version
    # The parameter server dies; the learner keeps what it has, and publishes it again.
    assert ps.stop(signal.SIGKILL) == -signal.SIGKILL
    ps = cluster.start_parameter_server(*target)
    after = cluster.wait_status(lambda status: status.version > more.version, "newer values")
    assert after.global_t >= more.global_t
    assert second.alive
    assert ps.wait() == 0
    ps.wait_for("reached the target 150")
    for client in clients:
        assert client.wait() == 0
    assert second.wait() == 0  # by itself, once the parameter server has gone
    assert rlx.stop() == 128 + signal.SIGTERM
    assert_no_trace(ps, rlx, second, *clients)
    saved = read_latest(cluster.folder / "run" / "checkpoints")
    assert saved is not None
    assert saved.global_t >= ITERATION * saved.version
    cluster.assert_nothing_left()


def test_steps_count_once_the_learner_has_acknowledged_them(cluster: StandaloneCluster) -> None:
    """While it is held up, its agents wait; afterwards the complete budget is learned from."""
    initial = write_initial_values(cluster.folder / "ppo", *PPO, *SPACES)
    budget = ("algorithm.max_global_step=3000", "learner.target_return=null", initial)
    ps, rlx = cluster.start_both_servers(*budget)
    learner = cluster.start_learner(*budget)
    clients = [cluster.start_client(name, "--num-envs", 4) for name in ("one", "two")]
    cluster.wait_steps(ITERATION)
    freeze(learner.pid)
    line = r"rollout\(s\) wait for the learner; none was acknowledged for \d\d s"
    rlx.wait_for(line)
    held = cluster.wait_status(lambda status: True, "any answer").global_t
    rlx.wait_for(line, after=len(rlx.lines))
    assert cluster.wait_status(lambda status: True, "any answer").global_t == held < 2000
    learner.send(signal.SIGCONT)
    assert ps.wait() == 0
    for client in clients:
        assert client.wait() == 0
    saved = read_latest(cluster.folder / "run" / "checkpoints")
    assert saved is not None
    assert ITERATION * saved.version >= 2900
    assert "not learned from" not in ps.output
    played = sum(int(client.wait_for(r"episodes, (\d+) steps$")[1]) for client in clients)
    assert 0 <= played - saved.global_t <= 8 * 2 * 16  # a rollout or two of each slot
    assert_no_trace(ps, rlx, learner, *clients)


@pytest.mark.slow
def test_a_stopped_learner_that_continues_changes_nothing(cluster: StandaloneCluster) -> None:
    """SIGSTOP, another learner takes over, SIGCONT: one history, without gaps."""
    ps, rlx = cluster.start_both_servers()
    first = cluster.start_learner()
    client = cluster.start_paced_client("one", "--num-envs", 8)
    cluster.wait_steps(2 * ITERATION)
    freeze(first.pid)
    second = cluster.start_learner(f"learner.bind=localhost:{find_free_port()}")
    # It waits for the lease, unless its start took longer than that lasts.
    wait_for_term(ps, 2)
    cluster.wait_steps(2 * ITERATION)
    before = cluster.wait_status(lambda status: True, "any answer")
    first.send(signal.SIGCONT)
    first.wait_for(f"term {wait_for_term(ps, 1)} of the lease has ended")
    assert first.wait() == 1
    after = cluster.wait_steps(2 * ITERATION)
    # Each version has the steps of an iteration: none was published twice, or by both.
    assert after.version - before.version <= (after.global_t - before.global_t) // ITERATION + 1
    assert second.alive
    assert_no_trace(ps, rlx, first, second, client)


def test_acknowledged_steps_of_a_replay_table_survive_the_learner(tmp_path: Path) -> None:
    algorithm = copy_uncompiled("dqn", tmp_path)
    initial = write_initial_values(algorithm, *DQN)
    with StandaloneCluster(tmp_path, algorithm, *DQN, initial) as cluster:
        ps, rlx = cluster.start_both_servers()
        first = cluster.start_learner()
        client = cluster.start_paced_client("one")
        cluster.wait_status(lambda status: status.version >= 3, "three publications")
        told = cluster.wait_steps(8)
        assert first.stop(signal.SIGKILL) == -signal.SIGKILL
        second = cluster.start_learner()
        filled = second.wait_for(r"replay table: ([\d,]+) rows from \S+; (\d+) steps are newer")
        assert int(filled[1].replace(",", "")) >= told.global_t
        more = cluster.wait_status(lambda s: s.version >= told.version + 3, "three more")
        assert more.global_t >= told.global_t
        assert second.stop() == 128 + signal.SIGTERM
        assert ps.stop() == 128 + signal.SIGTERM
        assert_no_trace(ps, rlx, second, client)


@pytest.mark.slow
@pytest.mark.parametrize(
    "failpoint", ["ps.after_lease_before_reply", "ps.before_publish", "ps.after_publish"]
)
def test_a_parameter_server_that_is_killed_there_loses_nothing(
    cluster: StandaloneCluster, failpoint: str
) -> None:
    number = 1 if failpoint == "ps.after_lease_before_reply" else 2
    ps = cluster.start_parameter_server(RELAAX_FAILPOINT=f"{failpoint}=kill@{number}")
    rlx = cluster.start_rlx_server()
    learner = cluster.start_learner()
    client = cluster.start_paced_client("one", "--num-envs", 8)
    assert ps.wait() == -signal.SIGKILL
    ps = cluster.start_parameter_server()
    status = cluster.wait_status(lambda status: status.version >= 4, "four publications")
    # The learner has lost nothing: each publication counts the steps of one iteration.
    assert status.global_t >= 4 * ITERATION
    ps.wait_for(r"parameter server on")
    wait_until(lambda: cluster.find_learner(), "the learner's address")
    assert learner.alive
    assert_no_trace(ps, rlx, learner, client)


def test_what_a_learner_refuses_and_computes_with(tmp_path: Path) -> None:
    """One parameter server, whose run two learners want to learn for: only the second one can."""
    show = """

_make_plain = make_algorithm


def make_algorithm(config, model, seed):
    number = tf.config.threading.get_intra_op_parallelism_threads()
    print(f"the update has {number} threads", flush=True)
    return _make_plain(config, model, seed)
"""
    algorithm = copy_uncompiled("ppo", tmp_path, show)
    initial = write_initial_values(algorithm, *PPO, *SPACES)
    with StandaloneCluster(tmp_path, algorithm, *PPO, *SPACES, initial) as cluster:
        # One with another model ends before it takes the lease; it knows the spaces, and waits.
        other = cluster.start_learner("algorithm.network={layers: [7]}")
        other.wait_for(WAITS)
        ps = cluster.start_parameter_server()
        ps.wait_for("parameter server on")
        assert other.wait() == 2
        other.wait_for(r"run has another model \(first difference: .*\); start learner and servers")
        assert cluster.find_learner() == ""
        # It computes with the threads that the file says.
        learner = cluster.start_learner("learner.backprop_workers=2")
        assert learner.wait_for(r"the update has (\d+) threads")[1] == "2"
        # It tells operators to ask the parameter server.
        wait_until(lambda: cluster.find_learner(), "the learner's address")
        for command in ("stop", "save"):
            asked = cluster.start(
                command, [find_command("relaax"), command, f"localhost:{cluster.learner_port}"]
            )
            assert asked.wait() != 0
            asked.wait_for(f"ask the parameter server, localhost:{cluster.ps_port}")
            assert_no_trace(asked)
        assert learner.alive
        assert_no_trace(other, learner, ps)


WAITS = (
    r"waiting for the parameter server at localhost:\d+ \(\d+ s\); start it with "
    "relaax-parameter-server"
)


def test_a_learner_that_waits_for_the_parameter_server_says_so(cluster: StandaloneCluster) -> None:
    learner = cluster.start_learner()
    learner.wait_for(WAITS)
    assert learner.stop() == 128 + signal.SIGTERM
    assert_no_trace(learner)
