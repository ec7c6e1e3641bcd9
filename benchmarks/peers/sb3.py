"""Stable-Baselines3 on CartPole-v1; run by `benchmarks.peers.run` with the peers' own Python.

    .venv-peers/bin/python -m benchmarks.peers.sb3 a2c SEED STARTED LIMIT_SEC

Trains with the hyperparameters of rl-baselines3-zoo (hyperparams/a2c.yml and ppo.yml) on one torch
thread, until the mean return of the last 100 training episodes is 475. Prints a JSON line. STARTED
is the monotonic time of the process's start, for what imports cost.
"""

import argparse
import json
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import gymnasium
import stable_baselines3  # type: ignore[import-not-found]
import torch  # type: ignore[import-not-found]
from stable_baselines3.common.callbacks import BaseCallback  # type: ignore[import-not-found]
from stable_baselines3.common.env_util import make_vec_env  # type: ignore[import-not-found]

TARGET, EPISODES = 475.0, 100


def _linear(initial: float) -> Callable[[float], float]:
    """The zoo's `lin_` schedule: from the initial value to 0 at the end of the budget."""
    return lambda remaining: remaining * initial


STEPS = {"a2c": 500_000, "ppo": 100_000}
HYPERPARAMETERS: dict[str, dict[str, Any]] = {
    "a2c": {"ent_coef": 0.0},
    "ppo": {
        "n_steps": 32,
        "batch_size": 256,
        "gae_lambda": 0.8,
        "gamma": 0.98,
        "n_epochs": 20,
        "ent_coef": 0.0,
        "learning_rate": _linear(0.001),
        "clip_range": _linear(0.2),
    },
}


class StopAtTarget(BaseCallback):
    """Ends the training at the target, or when its time is over.

    Attributes:
      mean_return: of the last 100 episodes, or of all while there are fewer.
      reached: whether it ended at the target.
    """

    def __init__(self, deadline: float):
        super().__init__()
        self.mean_return = 0.0
        self.reached = False
        self._deadline = deadline
        self._returns: deque[float] = deque(maxlen=EPISODES)

    def _on_step(self) -> bool:
        ended = [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        if ended:
            self._returns.extend(ended)
            self.mean_return = sum(self._returns) / len(self._returns)
            self.reached = len(self._returns) == EPISODES and self.mean_return >= TARGET
        return not self.reached and time.monotonic() < self._deadline


def main() -> None:
    """Trains once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("algorithm", choices=STEPS)
    parser.add_argument("seed", type=int)
    parser.add_argument("started", type=float)
    parser.add_argument("limit_sec", type=float)
    args = parser.parse_args()
    began = time.monotonic()
    torch.set_num_threads(1)
    env = make_vec_env("CartPole-v1", n_envs=8, seed=args.seed)
    algorithm = {"a2c": stable_baselines3.A2C, "ppo": stable_baselines3.PPO}[args.algorithm]
    model = algorithm(
        "MlpPolicy", env, seed=args.seed, device="cpu", **HYPERPARAMETERS[args.algorithm]
    )
    stop = StopAtTarget(args.started + args.limit_sec)
    model.learn(STEPS[args.algorithm], callback=stop)
    result = {
        "reached": stop.reached,
        "env_steps": model.num_timesteps,
        "mean_return": stop.mean_return,
        "start_up_sec": began - args.started,
        "learning_sec": time.monotonic() - began,
        "versions": {m.__name__: m.__version__ for m in (stable_baselines3, torch, gymnasium)},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
