"""`relaax eval` of a run without environments of its own: clients connect and play."""

import json
import re
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from support.cluster import TRACE, Processes, Program, find_command
from support.here import run_relaax
from support.saved_runs import ALGORITHMS, write_run

from relaax_like.client import RlxClient
from relaax_like.launch.client_evaluation import ClientEpisodes
from relaax_like.rlx_server.transition import EndedEpisode
from relaax_like.wire.spaces import Box, Discrete


def end(episodes: ClientEpisodes, session: str, *returns: tuple[int, float]) -> None:
    """Ends episodes of a session: (slot, return)."""
    episodes.add(session, [EndedEpisode(slot, score, 1) for slot, score in returns])


def get_returns(episodes: Sequence[EndedEpisode]) -> list[float]:
    return [episode.episode_return for episode in episodes]


def test_each_slot_counts_with_as_many_episodes() -> None:
    episodes = ClientEpisodes(4)
    episodes.join("one", 2, "client")
    end(episodes, "one", (0, 1.0))
    end(episodes, "one", (0, 2.0))
    end(episodes, "one", (0, 3.0))
    end(episodes, "one", (0, 4.0))
    # Four have ended, but all in the slot whose episodes are short.
    assert (episodes.taken, episodes.count) == ([], 0)
    end(episodes, "one", (1, 10.0))
    assert (episodes.taken, episodes.count) == ([], 2)
    end(episodes, "one", (1, 20.0))
    assert get_returns(episodes.taken) == [1.0, 10.0, 2.0, 20.0]
    end(episodes, "one", (0, 5.0))
    assert len(episodes.taken) == 4


def test_a_client_that_has_left_holds_nobody_up() -> None:
    episodes = ClientEpisodes(3)
    episodes.join("one", 1, "client")
    episodes.join("other", 1, "client")
    end(episodes, "one", (0, 1.0))
    end(episodes, "other", (0, 10.0))
    end(episodes, "one", (0, 2.0))
    assert (episodes.taken, episodes.count) == ([], 2)
    episodes.leave("other")
    assert get_returns(episodes.taken) == [10.0, 1.0, 2.0]


def test_episodes_count_when_all_clients_have_left() -> None:
    episodes = ClientEpisodes(2)
    for session in ("one", "other"):
        episodes.join(session, 1, "client")
        end(episodes, session, (0, 1.0))
        episodes.leave(session)
    episodes.leave("never here")
    assert len(episodes.taken) == 2


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluated") / "run"
    settings = "relaax-rlx-server: {bind: 'localhost:0', min_free_memory_mb: 0}"
    return write_run(folder, ALGORITHMS["ppo, normalised"], settings, versions=(2, 3))


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path) as started:
        yield started


def evaluate(processes: Processes, run: Path, *flags: object) -> Program:
    return processes.start("eval", [find_command("relaax"), "eval", run, *flags])


def play(program: Program, slots: int) -> str:
    """Plays episodes of two steps, of return 2 and 4 in turn, until the end; returns its text."""
    port = program.wait_for(r"rlx server on localhost:(\d+)")[1]
    spaces = Box(dtype="float32", shape=(4,)), Discrete(n=3)
    observation = np.zeros((slots, 4), np.float32)
    nowhere, everywhere = np.zeros(slots, np.bool_), np.ones(slots, np.bool_)
    with RlxClient(f"localhost:{port}", *spaces, slots=slots, name=f"of-{slots}") as client:
        result, number = client.step(observation), 0
        while not result.finished:
            rewards = np.full(slots, 1.0 + number // 2 % 2)
            ended = everywhere if number % 2 else nowhere
            result = client.step(observation, rewards, ended, nowhere)
            number += 1
        return result.finished


def test_clients_play_until_there_are_enough_episodes(processes: Processes, run: Path) -> None:
    program = evaluate(processes, run, "--episodes", 8)
    ends = []
    players = [
        threading.Thread(target=lambda slots=slots: ends.append(play(program, slots)))
        for slots in (1, 3)
    ]
    for player in players:
        player.start()
    for player in players:
        player.join()
    assert ends == ["the evaluation has its 8 episodes"] * 2
    assert program.wait() == 0
    assert TRACE not in program.output
    want = "min 2, max 4, 8 greedy episodes, mean length 2.0; weights of step 300, version 3"
    assert program.lines[-1].endswith(want)


def test_json_alone_is_printed_and_the_best_version_plays(processes: Processes, run: Path) -> None:
    program = evaluate(processes, run, "--episodes", 2, "--version", "best", "--json")
    play(program, 2)
    assert program.wait() == 0
    (line,) = [line for line in program.lines if line.startswith("{")]
    found = json.loads(line)
    assert (found["mean"], found["episodes"], found["version"]) == (2.0, 2, 2)


def test_silence_ends_it_with_what_is_missing(run: Path) -> None:
    done = run_relaax("eval", run, "--episodes", 5, "--timeout", 0.1)
    assert done.status == 1
    wanted = "^error: 0 of 5 episodes: no client has sent anything for 0.1 s; connect"
    assert re.search(wanted, done.output, re.MULTILINE)
    assert TRACE not in done.output


def test_ctrl_c_while_it_waits_is_no_stack_trace(processes: Processes, run: Path) -> None:
    program = evaluate(processes, run)
    program.wait_for("rlx server on")
    assert program.stop(signal.SIGINT) == 128 + signal.SIGINT
    assert TRACE not in program.output


def test_a_video_needs_an_environment(run: Path) -> None:
    done = run_relaax("eval", run, "--video", "out.mp4")
    assert done.status == 2
    assert re.search("^error: .*--video needs an `environment` section", done.output)
