"""Stable-Baselines3 and SBX, each in an environment of its own: installed, given settings, run."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, TypedDict

CHECKOUT = Path(__file__).parents[2]
# Library -> what is installed, and where.
PEERS = {
    "sb3": ("requirements.txt", ".venv-peers"),
    "sbx": ("sbx.txt", ".venv-sbx"),
    "maze": ("maze.txt", ".venv-maze"),
}


class Settings(TypedDict):
    """What `benchmarks.peers.sb3` or `benchmarks.peers.sbx` is to train.

    Attributes:
      algorithm: "a2c", "ppo", "dqn", "sac", "td3" or "ddpg"; with SBX, "sac" or "crossq".
      env: Gymnasium's name.
      env_args: of its constructor.
      n_envs: environments side by side; of games, agents of all games together.
      steps: of all environments together, at most.
      seed: of all that is drawn.
      hyperparameters: arguments of the algorithm.
      falling: names of those that fall to 0 at the end of the steps, in a straight line.
      policy: `policy_kwargs`; `activation_fn` is "tanh" or "relu".
      action_noise: standard deviation of the noise that td3 and ddpg explore with; None: none.
      normalize_observations: by a VecNormalize.
      normalize_rewards: by the same.
      target: mean return of the last 100 training episodes at which it ends; None: not before.
      limit_sec: ends it at the latest, seconds after `started`.
      started: monotonic time of the program's start.
      eval_episodes: with the best actions, after the training; 0: none.
      evaluations: during the training; the weights of the best one then play `eval_episodes`; 0:
        the last weights do.
      evaluation_episodes: of each of these.
    """

    algorithm: str
    env: str
    env_args: dict[str, Any]
    n_envs: int
    steps: int
    seed: int
    hyperparameters: dict[str, Any]
    falling: list[str]
    policy: dict[str, Any]
    action_noise: float | None
    normalize_observations: bool
    normalize_rewards: bool
    target: float | None
    limit_sec: float
    started: float
    eval_episodes: int
    evaluations: int
    evaluation_episodes: int


class Evaluation(TypedDict):
    """Mean return of episodes with the best actions, and half of its 95 % interval."""

    greedy_mean: float
    greedy_half_95: float
    greedy_episodes: int


class Result(TypedDict):
    """What came of it. Times are seconds since the program's start.

    Attributes:
      reached: whether it ended at the target.
      env_steps: taken.
      training_mean: return of the last `training_episodes` episodes; None without an episode.
      training_episodes: at most 100.
      imported_sec: libraries are loaded.
      ended_sec: the training is over.
      updates: beginning and end of each update.
      versions: of the libraries.
      evaluation: None without one.
    """

    reached: bool
    env_steps: int
    training_mean: float | None
    training_episodes: int
    imported_sec: float
    ended_sec: float
    updates: list[tuple[float, float]]
    versions: dict[str, str]
    evaluation: Evaluation | None


def install(library: str = "sb3") -> Path:
    """Installs a library, unless just its requirements are there; returns its Python."""
    name, folder = PEERS[library]
    requirements, venv = Path(__file__).parent / name, CHECKOUT / folder
    python, installed = venv / "bin" / "python", venv / "installed.txt"
    wanted = requirements.read_text()
    if not installed.exists() or installed.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--requirement", str(requirements)]
        subprocess.run(pip, check=True)
        installed.write_text(wanted)
    return python


def start_peer(module: str, *arguments: str, library: str = "sb3") -> subprocess.Popen[str]:
    """Starts one of our modules with a library's Python, on one thread; its ends are pipes."""
    return subprocess.Popen(
        [install(library), "-m", module, *arguments],
        cwd=CHECKOUT,
        # pygame would greet on the output.
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYGAME_HIDE_SUPPORT_PROMPT": "1",
            "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def run_peer(settings: Settings, library: str = "sb3") -> tuple[Result, float]:
    """Trains with a library; `settings["started"]` is set to now.

    Returns:
      What came of it, and the seconds of the whole program.

    Raises:
      RuntimeError: it failed; what it said stands above.
    """
    return train_with(f"benchmarks.peers.{library}", settings, library=library)


def train_with(
    module: str, settings: Settings, *arguments: str, library: str = "sb3"
) -> tuple[Any, float]:
    """Runs one of our modules, as `run_peer` does; returns its JSON, and the seconds."""
    install(library)
    started = time.monotonic()
    with start_peer(module, *arguments, library=library) as process:
        try:
            output, _ = process.communicate(json.dumps({**settings, "started": started}))
        except BaseException:
            process.terminate()
            raise
    wall_sec = time.monotonic() - started
    if process.returncode:
        raise RuntimeError(f"{module} ended with status {process.returncode}")
    return json.loads(output), wall_sec
