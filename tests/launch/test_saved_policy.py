"""Commands that use a run's policy: those that act in NumPy load neither TensorFlow
nor numba, which takes seconds."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.cluster import Processes
from support.saved_runs import find_spaces, write_run

from relaax_like.client import RlxClient
from relaax_like.config.loader import load_experiment

CARTPOLE = "environment: {program: OpenAI_Gym, env: CartPole-v1}"
PENDULUM = "environment: {program: OpenAI_Gym, env: Pendulum-v1}"
POLICIES = {
    "ppo": ("state_size: 4, num_actions: 2, update_norm: true", CARTPOLE),
    "dqn": ("state_size: 4, num_actions: 2", CARTPOLE),
    "sac": ("state_size: 3, action_size: 1, action_low: -2, action_high: 2", PENDULUM),
}
COMMAND = """
import sys
from relaax_like.cli.entry import relaax
try:
    relaax()
finally:
    print("loaded:", [name for name in ("tensorflow", "numba") if name in sys.modules])
"""
LOAD = """
import sys
import relaax_like
with relaax_like.load(sys.argv[1]) as policy:
    policy.act([0.0] * int(sys.argv[2]))
print("loaded:", [name for name in ("tensorflow", "numba") if name in sys.modules])
"""


@pytest.mark.parametrize("name", POLICIES)
def test_a_dense_policy_loads_neither(name: str, tmp_path: Path) -> None:
    settings, environment = POLICIES[name]
    algorithm = f"name: {name}, network: {{layers: [64, 64]}}, {settings}"
    run = write_run(tmp_path / "run", algorithm, environment)
    observations, actions = find_spaces(load_experiment(run / "config.yaml"))

    calls = [(LOAD, [run, observations.shape[0]]), (COMMAND, ["eval", run, "--episodes", 1])]
    for code, arguments in calls if name == "ppo" else calls[:1]:
        argv = [sys.executable, "-c", code, *map(str, arguments)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        assert "loaded: []" in done.stdout
    if name != "ppo":  # commands load any policy in the same way
        return

    with Processes(tmp_path) as processes:
        argv = [sys.executable, "-c", COMMAND, "serve", str(run), "--bind", "localhost:0"]
        served = processes.start("serve", argv)
        port = served.wait_for(r"rlx server on localhost:(\d+), waiting")[1]
        with RlxClient(f"localhost:{port}", observations, actions) as client:
            client.act([0.0] * observations.shape[0])
        assert served.stop(signal.SIGINT) == 128 + signal.SIGINT
        served.wait_for(r"loaded: \[\]")
