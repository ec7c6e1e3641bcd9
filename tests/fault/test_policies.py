"""Runs of two policies whose servers are killed: all is counted once, in the policy of its agent.

covers PE20, R24
"""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from support.cluster import TRACE, Processes, Program, find_free_port, wait_until
from support.crowd.slots import COLOURS, ENV_STEPS, EPISODES, RETURNS, Crowd
from support.threads import Caller
from support.uncompiled import copy_uncompiled

from relaax_like.bridge.control import BridgeControl
from relaax_like.client import Interactor, Retry, RlxClient
from relaax_like.client.interactor import get_agents
from relaax_like.core.records import Status
from relaax_like.parameter_server.snapshot_format import State
from relaax_like.parameter_server.snapshots import read_latest
from relaax_like.wire.errors import ServerUnavailableError

QUICK = Retry(min_sleep_sec=0.1, max_sleep_sec=0.3)
STOPPED = 128 + signal.SIGINT


class Run(Processes):
    """A run of `relaax run`, and a client of 64 agents in this process."""

    def __init__(self, folder: Path, placement: str):
        super().__init__(folder)
        path = copy_uncompiled("a2c", folder)
        self.ports = {name: find_free_port() for name in COLOURS}
        self.rlx_port = find_free_port()
        idle = folder / "idle.py"  # an environment that never plays: only ours does
        idle.write_text("import time\ntime.sleep(1e6)\n")
        policies = ", ".join(
            f"{name}: {{agents: ['{name}_*'], relaax-parameter-server: "
            f"{{bind: 'localhost:{port}'}}}}"
            for name, port in self.ports.items()
        )
        (folder / "experiment.yaml").write_text(
            "run_dir: run\n"
            f"algorithm: {{path: '{path}', state_size: 2, num_actions: 3, network: {{layers: [4]}},"
            " rollout_steps: 4, num_steps: 4}\n"
            f"learner: {{placement: {placement}, target_episodes: 1000}}\n"
            f"policies: {{{policies}}}\n"
            f"environment: {{path: '{idle}'}}\n"
            f"relaax-rlx-server: {{bind: 'localhost:{self.rlx_port}'}}\n"
        )
        self.crowd = Crowd()
        self.runner: Program

    def start_run(self, *arguments: str) -> None:
        """Starts `relaax run` or `relaax resume`."""
        command = [sys.executable, "-m", "relaax_like.cli.main", *arguments]
        self.runner = self.start(arguments[0], command)

    def play(self) -> "Playing":
        """Begins to play."""
        return Playing(self.crowd, self.rlx_port)

    def status(self, policy: str) -> Status | None:
        """Asks a policy's parameter server; None while it does not answer."""
        with BridgeControl().connect(f"localhost:{self.ports[policy]}") as link:
            try:
                return link.status(timeout_sec=1.0)
            except ServerUnavailableError:
                return None

    def wait_steps(self, more: int) -> dict[str, Status]:
        """Waits until each policy has counted so many more steps; returns the numbers then."""
        before = {name: count_steps(self.wait_answer(name)) for name in COLOURS}

        def look() -> dict[str, Status] | None:
            found = {name: self.wait_answer(name) for name in COLOURS}
            enough = all(count_steps(one) >= before[name] + more for name, one in found.items())
            return found if enough else None

        return wait_until(look, (f"{more} more steps", self.runner), poll_sec=0.1)

    def wait_answer(self, policy: str) -> Status:
        return wait_until(lambda: self.status(policy), (policy, self.runner), poll_sec=0.1)

    def kill(self, *words: str) -> None:
        """Kills a server, which the run then starts again."""
        (process,) = [
            child
            for child in psutil.Process(self.runner.pid).children()
            if set(words) <= set(child.cmdline())
        ]
        process.kill()

    def wait_counts(self) -> None:
        """Waits until each policy has counted exactly what was played."""
        for name in COLOURS:
            played = self.crowd.count(name)
            wait_until(
                lambda n=name, p=played: (
                    count_steps(self.wait_answer(n)) == p[ENV_STEPS]
                    and self.wait_answer(n).episodes == p[EPISODES]
                ),
                Shown(lambda n=name, p=played: (n, p, self.wait_answer(n), self.runner)),
                poll_sec=0.1,
            )

    def read_state(self, policy: str) -> State:
        """Returns a policy's last snapshot."""
        state = read_latest(self.folder / "run" / "policies" / policy / "checkpoints")
        assert state is not None
        return state

    def stop_run(self) -> None:
        assert self.runner.stop(signal.SIGINT) == STOPPED
        assert TRACE not in self.runner.output, self.runner
        self.assert_nothing_left()


class Shown:
    """Shows what a function returns at the moment of a failure."""

    def __init__(self, describe):
        self._describe = describe

    def __repr__(self) -> str:
        return repr(self._describe())


class Playing:
    """A client that plays in a thread, until the end of a game."""

    def __init__(self, crowd: Crowd, port: int):
        self._crowd, self._port = crowd, port
        self._interactor: Interactor | None = None
        self._caller = Caller(self._run)

    def stop(self) -> None:
        """Waits until the game has ended, and the client has left."""
        wait_until(lambda: self._interactor, "a session")
        assert self._interactor is not None
        self._interactor.end_episodes()
        self._caller.get()

    def _run(self) -> None:
        crowd = self._crowd
        spaces = crowd.observation_space, crowd.action_space
        more = {"slots": crowd.slots, "retry": QUICK, **get_agents(crowd)}
        with RlxClient(f"localhost:{self._port}", *spaces, name="crowd", **more) as client:
            self._interactor = Interactor(crowd, client)
            self._interactor.run()


def count_steps(status: Status) -> int:
    return status.global_t + status.unlearned_steps


@pytest.fixture
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Run]:
    with Run(tmp_path, request.param) as run:
        run.start_run("run", "experiment.yaml")
        yield run


@pytest.mark.slow
@pytest.mark.parametrize("run", ["server"], indirect=True)
def test_all_is_counted_through_the_death_of_a_parameter_server_and_a_resume(run: Run) -> None:
    """Agents wait until their learner, the parameter server, is back."""
    playing = run.play()
    before = run.wait_steps(200)
    run.kill("parameter_server", "policy=red")
    after = run.wait_steps(200)
    for name, status in before.items():
        assert after[name].episodes >= status.episodes
    playing.stop()
    assert len(run.crowd.counts) == 1  # the session lived on
    run.wait_counts()
    run.stop_run()
    for name in COLOURS:
        players = run.read_state(name).statistics["players"].values()
        returns = sum(np.sum(slot["returns"]) for slots in players for slot in slots)
        assert returns == run.crowd.count(name)[RETURNS]

    run.start_run("resume", "run")
    playing = run.play()
    run.wait_steps(200)
    playing.stop()
    run.wait_counts()
    run.stop_run()
    assert len(run.crowd.counts) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "victim"),
    [
        # Without it, agents keep acting with the values that they have; their pushes are discarded.
        ("agent", ("parameter_server", "policy=red")),
        ("agent", ("rlx_server",)),
        ("server", ("rlx_server",)),
    ],
    indirect=["run"],
)
def test_what_was_acknowledged_is_counted_and_nothing_twice(
    run: Run, victim: tuple[str, ...]
) -> None:
    playing = run.play()
    before = run.wait_steps(200)
    run.kill(*victim)
    if victim == ("rlx_server",):
        wait_until(lambda: len(run.crowd.counts) == 2, ("a new session", run.runner))
    run.wait_steps(200)
    playing.stop()
    first, *others = run.crowd.counts
    assert len(others) == (victim == ("rlx_server",))
    later = {name: sum((one[name] for one in others), np.zeros(3)) for name in COLOURS}
    for name in COLOURS:  # a session that left in order is counted completely
        least = count_steps(before[name]) + later[name][ENV_STEPS]
        wait_until(lambda n=name, m=least: count_steps(run.wait_answer(n)) >= m, name)
    run.stop_run()
    for name in COLOURS:
        state = run.read_state(name)
        steps = state.global_t + state.statistics["unlearned_steps"] - later[name][ENV_STEPS]
        episodes = state.statistics["episodes"] - later[name][EPISODES]
        assert count_steps(before[name]) <= steps <= first[name][ENV_STEPS]
        assert before[name].episodes <= episodes <= first[name][EPISODES]
