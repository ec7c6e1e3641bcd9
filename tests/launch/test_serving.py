"""`relaax serve`: clients are answered by a run's policy, without training."""

import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from support.certificates import ENVIRONMENT, write_tokens
from support.cluster import TRACE, Processes, Program, accepts, find_command
from support.here import run_relaax
from support.rlx import ServerThread
from support.saved_runs import (
    ALGORITHMS,
    draw_ends,
    draw_observations,
    find_spaces,
    play,
    play_greedily,
    write_case,
    write_run,
)

from relaax_like.client import RlxClient
from relaax_like.config.models import RlxServerConfig
from relaax_like.core.metrics import NullMetrics
from relaax_like.launch.rlx_server import make_rlx_server
from relaax_like.launch.saved_policy import SavedPolicy, read_snapshot
from relaax_like.launch.serving import PlayedEpisodes
from relaax_like.parameter_server.snapshots import Snapshots
from relaax_like.rlx_server.transition import EndedEpisode
from relaax_like.wire.errors import NotAllowedError, ProtocolError
from relaax_like.wire.spaces import Box, Discrete

STEPS, SLOTS = 5, 2
# One of each kind of agent and of network; tests/test_load.py has all.
SERVED = (
    "a2c, lstm, several choices",
    "a2c, images, history",
    "a2c, several leaves",
    "policy_gradient",
)
OBSERVATION, ACTION = Box(dtype="float32", shape=(4,)), Discrete(n=3)


@pytest.mark.parametrize("name", SERVED)
def test_a_training_client_gets_what_the_run_s_own_agents_do(name: str, tmp_path: Path) -> None:
    experiment = write_case(tmp_path / "run", name)
    observations, ends = draw_observations(experiment, STEPS, SLOTS), draw_ends(STEPS, SLOTS)
    wanted = play_greedily(experiment, observations, ends)
    settings = RlxServerConfig(min_free_memory_mb=0)
    with SavedPolicy(experiment, read_snapshot(experiment), "test") as policy:
        server = make_rlx_server(settings, policy.host, NullMetrics(), exploit=True)
        with (
            ServerThread(server, "127.0.0.1", 0) as running,
            RlxClient(f"localhost:{running.port}", *find_spaces(experiment), slots=SLOTS) as client,
        ):
            actions = play(client.step, observations, ends)
    for action, own in zip(actions, wanted, strict=True):
        np.testing.assert_array_equal(action, own)


def test_the_progress_line_has_the_mean_of_the_newest_episodes() -> None:
    played = PlayedEpisodes(window=2)
    assert played.format(0) == "clients 0 | 0 episodes"
    played.add([EndedEpisode(0, 100.0, 5), EndedEpisode(1, 2.0, 5)])
    played.add([EndedEpisode(0, 3.0, 5)])
    assert played.format(4) == "clients 4 | 3 episodes | mean return 2.5 (last 2)"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "run"
    return write_run(
        folder,
        ALGORITHMS["ppo, normalised"],
        "relaax-parameter-server: {progress_interval_sec: 0.05}",
        "relaax-rlx-server: {score_lines: true, min_free_memory_mb: 0}",
        versions=(2, 3),
    )


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path) as started:
        yield started


def serve(processes: Processes, run: Path, *flags: str) -> Program:
    return processes.start("serve", [find_command("relaax"), "serve", run, *flags])


def wait_for_port(program: Program) -> int:
    return int(program.wait_for(r"rlx server on localhost:(\d+), waiting")[1])


def test_it_serves_beside_a_training_and_ends_with_ctrl_c(processes: Processes, run: Path) -> None:
    with Snapshots(run / "checkpoints", keep=3):  # as a parameter server holds the folder
        before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
        program = serve(processes, run, "--bind", "localhost:0", "--version", "best")
        port = wait_for_port(program)
        program.wait_for("serving the policy of step 200, version 2")
        with pytest.raises(ProtocolError, match=r"\(5 numbers\), .* keeps its spaces") as refused:
            RlxClient(f"localhost:{port}", Box(dtype="float32", shape=(5,)), ACTION)
        assert "set it to" not in str(refused.value)
        clients = [
            RlxClient(f"localhost:{port}", OBSERVATION, ACTION, name=f"robot-{number}")
            for number in range(2)
        ]
        for client in clients:
            with client:
                assert client.act(np.zeros(4, np.float32)) in range(3)
                client.scalar("height", 1.0)
                client.reward_and_act(1.5, np.ones(4, np.float32))
                assert client.reward_and_reset(0.5) == 2.0
        program.wait_for("robot-1 slot 0: episode 1, score 2, 2 steps")
        program.wait_for(r"clients \d \| 2 episodes \| mean return 2.0 \(last 2\)")
        assert program.stop(signal.SIGINT) == 128 + signal.SIGINT
        program.wait_for(r"stopped: clients 0 \| 2 episodes")
        assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    assert TRACE not in program.output
    assert not accepts(port)


MISTAKES = {
    "open to other machines": (
        ("--bind", "0.0.0.0:0"),
        2,
        r"error: relaax-rlx-server\.bind: 0\.0\.0\.0:0 can be reached from other machines, but has "
        "no TLS and no tokens",
    ),
    "version": (
        ("--bind", "localhost:0", "--version", "9"),
        1,
        "error: .*no snapshot of version 9; the versions are 2, 3$",
    ),
}


@pytest.mark.parametrize(("flags", "status", "want"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line(run: Path, flags: tuple[str, ...], status: int, want: str) -> None:
    assert_refused(run, flags, status, want)


def assert_refused(run: Path, flags: Sequence[str], status: int, want: str) -> None:
    done = run_relaax("serve", run, *flags)
    assert done.status == status
    (line,) = done.lines
    assert re.search(want, line)


def test_a_port_that_is_taken_is_named_with_the_flag(processes: Processes, run: Path) -> None:
    first = serve(processes, run, "--bind", "localhost:0")
    port = wait_for_port(first)
    bind = ("--bind", f"localhost:{port}")
    assert_refused(run, bind, 1, rf"error: cannot bind localhost:{port}: .*--bind")


def test_clients_need_the_token_that_training_would_ask_for(
    processes: Processes, run: Path, tmp_path: Path
) -> None:
    tokens = write_tokens(tmp_path / "tokens")
    sets = ("--set", f"security.tokens_file={tokens}", "--bind", "localhost:0")
    address = f"localhost:{wait_for_port(serve(processes, run, *sets))}"
    with pytest.raises(NotAllowedError, match="no token was sent"):
        RlxClient(address, OBSERVATION, ACTION)
    with RlxClient(address, OBSERVATION, ACTION, token=ENVIRONMENT) as client:
        assert client.act(np.zeros(4, np.float32)) in range(3)
