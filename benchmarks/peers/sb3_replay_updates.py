"""Off-policy updates in Stable-Baselines3 or SBX; run by `benchmarks.peers.replay_updates`.

    .venv-peers/bin/python -m benchmarks.peers.sb3_replay_updates [sbx]

Reads `Settings`, a line of JSON, and prints "ready". For each number that it then reads, a line
each, it makes so many updates in one call and prints the seconds that they took.
"""

import importlib
import json
import sys
import time
from typing import Any

import gymnasium
import numpy as np
import torch  # type: ignore[import-not-found]
from stable_baselines3.common import logger  # type: ignore[import-not-found]
from stable_baselines3.common.vec_env import DummyVecEnv  # type: ignore[import-not-found]

from benchmarks.peers.peer import Settings
from benchmarks.peers.replay_cases import STEPS, draw
from benchmarks.peers.update_cases import ACTION, OBSERVATION


class Spaces(gymnasium.Env[Any, Any]):
    """Spaces alone; nobody acts in it."""

    def __init__(self, discrete: bool):
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (OBSERVATION,))
        self.action_space = (
            gymnasium.spaces.Discrete(ACTION)
            if discrete
            else gymnasium.spaces.Box(-1.0, 1.0, (ACTION,))
        )


def make(settings: Settings, library: str) -> Any:
    """Makes the algorithm of a library, with steps in its buffer."""
    discrete = settings["algorithm"] == "dqn"
    make_model = importlib.import_module(f"benchmarks.peers.{library}").make_model
    model = make_model(settings, DummyVecEnv([lambda: Spaces(discrete)]))
    model.set_logger(logger.configure(None, []))
    steps = draw(settings["algorithm"])
    for i in range(STEPS):
        model.replay_buffer.add(
            steps.observations[i : i + 1],
            steps.observations[i + 1 : i + 2],
            steps.actions[i : i + 1],
            steps.rewards[i : i + 1],
            np.zeros(1, np.float32),
            [{}],
        )
    return model


def main() -> None:
    """Makes updates, as it is asked to."""
    torch.set_num_threads(1)
    settings = json.loads(sys.stdin.readline())
    model = make(settings, *(sys.argv[1:] or ["sb3"]))
    print("ready", flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        model.train(gradient_steps=int(line), batch_size=settings["hyperparameters"]["batch_size"])
        print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main()
