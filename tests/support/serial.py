"""Runs in one process that are stopped and resumed, and all that they leave behind."""

import os
import signal
from pathlib import Path
from typing import Any

from relaax_like.config.loader import load_experiment
from relaax_like.launch.serial_state import read_document
from relaax_like.launch.training import make_trainer
from relaax_like.parameter_server.snapshots import read_latest
from relaax_like.runs.processes.process import Shutdown
from support.cluster import ROOT
from support.uncompiled import copy_uncompiled

STOP_AT = "RELAAX_TEST_STOP_AT"
STOPPED = 128 + signal.SIGINT
_PROGRAM = ROOT / "tests" / "support" / "stopping"
# Iterations of 8 rollouts of 16 steps.
PPO = {
    "placement": "server",
    "algorithm": "{name: ppo, state_size: 4, num_actions: 2, network: {layers: [8]}, "
    "num_steps: 128, rollout_steps: 16, batch_size: 32, epochs: 2}",
}
# The same, with phases, schedules, random draws in updates, and targets in two forms.
TARGETS = {
    "placement": "server",
    "algorithm": f"{{path: '{ROOT / 'tests' / 'support' / 'targets'}'}}",
}


def make_uncompiled_ppo(folder: Path) -> dict[str, str]:
    """Returns PPO without XLA, as a copy in a folder."""
    path = copy_uncompiled("ppo", folder)
    return PPO | {"algorithm": PPO["algorithm"].replace("name: ppo", f"path: '{path}'")}


def write_experiment(folder: Path, placement: str, algorithm: str) -> Path:
    """Writes an experiment on CartPole-v1, which is interrupted where `train` says."""
    folder.mkdir(exist_ok=True)
    file = folder / "experiment.yaml"
    file.write_text(
        f"run_dir: {folder / 'run'}\n"
        "relaax-parameter-server: {progress_interval_sec: 1000}\n"
        f"learner: {{placement: {placement}}}\n"
        f"algorithm: {algorithm}\n"
        f"environment: {{path: '{_PROGRAM}', env: CartPole-v1, slots: 4}}\n"
    )
    return file


def train(file: Path, *sets: str, stop_at: int = 0) -> int:
    """Trains in this process, as a process of its own would; returns the exit status.

    Args:
      file: the experiment's.
      sets: overrides of its keys.
      stop_at: steps of all slots at once after which a Ctrl-C comes; 0: none does.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    os.environ[STOP_AT] = str(stop_at)
    try:
        return make_trainer(load_experiment(file, sets, several=True), sets).run(Shutdown())
    finally:
        del os.environ[STOP_AT]
        for number, handler in handlers.items():
            signal.signal(number, handler)


def read_run(folder: Path) -> dict[str, Any]:
    """Returns all of a run that decides how it continues."""
    state = read_latest(folder / "checkpoints")
    assert state is not None
    return {
        "version": state.version,
        "global_t": state.global_t,
        "values": state.values,
        "slots": dict(state.slots),
        "steps": dict(state.steps),
        "statistics": {k: state.statistics[k] for k in ("players", "episodes", "unlearned_steps")},
        "published": state.statistics.get("published"),
        "serial": read_document(folder / "serial.npz"),
    }
