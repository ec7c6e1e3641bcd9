"""The small client of `support/broken_clients.py` plays with a real server, unless it is broken."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import broken_clients
from support.rlx import serve_rlx

PROGRAM = Path(broken_clients.__file__)
STEPS = 150
# Number of the error that a server answers -> faults. It notices no others.
REFUSED = {
    "error 1:": ("little_endian_length",),
    "error 4:": (
        *("bounds_swapped", "flags_as_floats", "no_final_observations", "one_row_after_reset"),
        *("other_dtype", "sends_nan", "unsorted_features", "unnumbered_steps"),
    ),
    "error 5:": (
        *("hello_twice", "no_outcome", "pings_unasked", "rewards_first", "step_before_hello"),
    ),
}


class Driver:
    """Chooses actions at random, until its budget of steps is used up."""

    def __init__(self, config: Any, parameter_server: Any):
        self.random = np.random.default_rng(1)
        self.steps = 0

    def act(self, state):
        self.steps += 1
        if self.steps > STEPS:
            return None
        return {"gear": self.random.integers(3), "steer": self.random.integers(2)}

    def reward_and_act(self, reward, state):
        return self.act(state)

    def reward_and_reset(self, reward):
        return reward


def play(*words: str) -> subprocess.CompletedProcess[str]:
    with serve_rlx(None, Driver, make_client=lambda client_id: Backend()) as port:  # type: ignore[arg-type]
        flags = ["--rlx-server", f"127.0.0.1:{port}", "--name", "cart"]
        return subprocess.run(
            [sys.executable, str(PROGRAM), *flags, *words],
            capture_output=True,
            text=True,
            timeout=60,
        )


class Backend:
    """What an agent sees of a parameter server that does nothing."""

    finished = ""
    version = 1

    def add_episodes(self, episodes: Any) -> None:
        """Forgets them."""

    def close(self) -> None:
        """Does nothing: there is nothing to release."""


@pytest.mark.parametrize("oddity", ["", *broken_clients.ODDITIES])
def test_unusual_clients_play_with_a_server(oddity: str) -> None:
    done = play(*filter(None, [oddity]))
    assert (done.returncode, done.stderr) == (0, "")
    assert "finished: the agent's budget is used up" in done.stdout


@pytest.mark.parametrize("code", REFUSED)
def test_a_server_refuses_some_broken_clients(code: str) -> None:
    for fault in REFUSED[code]:
        done = play(fault)
        assert code in done.stderr, (fault, done)
        assert done.returncode == 1, (fault, done)
