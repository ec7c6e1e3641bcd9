"""Values outside of their boxes are reported on each road, once, and nothing is clipped."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.batch import make_config, serve_a2c
from support.rlx import ServerThread, serve_rlx
from support.served import Served

import relaax_like
from relaax_like.client import RlxClient
from relaax_like.wire.spaces import Box, Discrete

SLOTS, STEPS = 2, 30
STATE = Box(dtype="float32", shape=(2,), low=-1, high=1)
FORCE = Box(dtype="float32", shape=(1,), low=-1, high=1)
WIDE = """
import gymnasium as gym, numpy as np
class Wide(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}
    def step(self, action):
        self.t += 1
        # Only final observations are outside.
        return np.array([0, 3 if self.t == 5 else 0], np.float32), 1.0, False, self.t == 5, {}
gym.register("Wide-v0", Wide)
"""


def count(messages: list[str], label: str) -> list[str]:
    """Returns the lines about a leaf, without their numbers of steps."""
    return [message for message in messages if message.startswith(f"{label}:")]


def play(client: RlxClient, **options: Any) -> None:
    """Plays steps with observations of 2 in slot 1."""
    seen = np.array([[0, 0.5], [0, 2]], np.float32)
    nothing = np.zeros(SLOTS, bool)
    client.step(seen)
    for _ in range(STEPS):
        client.step(seen, np.ones(SLOTS), nothing, nothing, **options)


def test_batch_native_agents_watch_what_clients_send(caplog: pytest.LogCaptureFixture) -> None:
    config = make_config(
        layers=(8,), rollout_steps=4, state_size=2, action_size=1, num_actions=None
    )
    with serve_a2c(config) as server:
        served = Served(server, config)
        with ServerThread(served.rlx, "127.0.0.1", 0) as running:
            for options in ({}, {"executed": np.array([[0.5], [7]], np.float32)}):
                address = f"127.0.0.1:{running.port}"
                with RlxClient(address, STATE, FORCE, slots=SLOTS) as client:
                    play(client, **options)
        served.close()
    steps = 2 * SLOTS * (STEPS + 1)
    first, last = count(caplog.messages, "observation")
    assert "2 is outside of -1 to 1 (component 1)" in first
    assert f"50 % of {steps} " in last
    first, last = count(caplog.messages, "executed action")
    assert "7 is outside of -1 to 1 (component 0)" in first
    assert f"50 % of {SLOTS * STEPS} " in last
    # They were learned from as they came.
    assert served.rollouts[0].inputs["observation"].max() == 2


def test_plain_agents_watch_what_clients_send(
    caplog: pytest.LogCaptureFixture, backend: Any
) -> None:
    with serve_rlx(backend) as port:
        address = f"127.0.0.1:{port}"
        with RlxClient(address, STATE, Discrete(n=3), slots=SLOTS) as client:
            play(client)
    (line,) = count(caplog.messages, "observation")
    assert "2 is outside of -1 to 1 (component 1)" in line


@pytest.mark.parametrize("algorithm", ["a2c", "policy_gradient"])
def test_runs_in_one_process_watch_their_environments(
    algorithm: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "wide.py").write_text(WIDE)
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "experiment.yaml"
    file.write_text(
        f"run_dir: {tmp_path / algorithm}\n"
        f"algorithm: {{name: {algorithm}, state_size: 2, num_actions: 2, max_global_step: 400}}\n"
        "environment: {program: OpenAI_Gym, env: 'wide:Wide-v0', slots: 2}\n"
    )
    relaax_like.train(file)
    first, last = count(caplog.messages, "observation")
    assert "3 is outside of -1 to 1 (component 1)" in first
    assert last.endswith("were outside of the space")
