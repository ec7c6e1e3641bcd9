"""A training with Stable-Baselines3; run by the programs beside it with the peers' own Python.

    .venv-peers/bin/python -m benchmarks.peers.sb3 < settings.json

Reads `benchmarks.peers.peer.Settings`, trains on one torch thread, prints `Result` as JSON.
"""

import json
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3  # type: ignore[import-not-found]
import torch  # type: ignore[import-not-found]
from stable_baselines3.common.callbacks import (  # type: ignore[import-not-found]
    BaseCallback,
    EvalCallback,
)
from stable_baselines3.common.env_util import make_vec_env  # type: ignore[import-not-found]
from stable_baselines3.common.evaluation import evaluate_policy  # type: ignore[import-not-found]
from stable_baselines3.common.noise import NormalActionNoise  # type: ignore[import-not-found]
from stable_baselines3.common.vec_env import (  # type: ignore[import-not-found]
    VecNormalize,
    sync_envs_normalization,
)

from benchmarks.peers.peer import Evaluation, Result, Settings

EPISODES = 100
# Added to the seed of environments in which nothing is learned.
_EVALUATION_SEED = 1_000_000


class Watch(BaseCallback):
    """Ends the training at the target, or when its time is over.

    Attributes:
      returns: of the last `episodes` episodes.
      reached: whether it ended at the target.
    """

    def __init__(self, target: float | None, deadline: float, episodes: int = EPISODES):
        super().__init__()
        self.returns: deque[float] = deque(maxlen=episodes)
        self.reached = False
        self._target = target
        self._deadline = deadline

    def _on_step(self) -> bool:
        ended = [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        self.returns.extend(ended)
        if ended and self._target is not None and len(self.returns) == self.returns.maxlen:
            self.reached = statistics.fmean(self.returns) >= self._target
        return not self.reached and time.monotonic() < self._deadline


def make_environment(settings: Settings, seed: int) -> Any:
    """Makes the environments, normalised where the settings say so."""
    env = make_vec_env(
        settings["env"], n_envs=settings["n_envs"], seed=seed, env_kwargs=settings["env_args"]
    )
    return normalize(settings, env)


def normalize(settings: Settings, env: Any) -> Any:
    """Returns the environments, normalised where the settings say so."""
    look, scale = settings["normalize_observations"], settings["normalize_rewards"]
    if not look and not scale:
        return env
    gamma = settings["hyperparameters"].get("gamma", 0.99)
    return VecNormalize(env, norm_obs=look, norm_reward=scale, gamma=gamma)


def make_model(settings: Settings, env: Any, algorithm: Any = None, **more: Any) -> Any:
    """Makes the algorithm.

    Args:
      settings: all of them.
      env: to learn from.
      algorithm: its class; None: the one of the settings.
      **more: further arguments of the class.
    """
    hyperparameters = dict(settings["hyperparameters"])
    for name in settings["falling"]:
        initial = hyperparameters[name]
        hyperparameters[name] = lambda remaining, initial=initial: remaining * initial
    policy = dict(settings["policy"])
    if "activation_fn" in policy:
        policy["activation_fn"] = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}[
            policy["activation_fn"]
        ]
    if settings["action_noise"] is not None:
        zeros = np.zeros(env.action_space.shape)
        noise = NormalActionNoise(zeros, zeros + settings["action_noise"])
        hyperparameters["action_noise"] = noise
    algorithm = algorithm or getattr(stable_baselines3, settings["algorithm"].upper())
    return algorithm(
        "MlpPolicy",
        env,
        seed=settings["seed"],
        device="cpu",
        policy_kwargs=policy,
        **hyperparameters,
        **more,
    )


def record_updates(model: Any) -> list[tuple[float, float]]:
    """Makes the model note when each of its updates begins and ends, in monotonic seconds."""
    train, moments = model.train, []

    def train_and_note(**arguments: Any) -> None:
        began = time.monotonic()
        train(**arguments)
        moments.append((began, time.monotonic()))

    model.train = train_and_note
    return moments


def evaluate(settings: Settings, model: Any, env: Any) -> Evaluation:
    """Plays fresh episodes with the best actions."""
    fresh = make_environment(settings, settings["seed"] + _EVALUATION_SEED)
    if isinstance(fresh, VecNormalize):
        sync_envs_normalization(env, fresh)
        fresh.training = fresh.norm_reward = False
    returns, _ = evaluate_policy(
        model,
        fresh,
        n_eval_episodes=settings["eval_episodes"],
        deterministic=True,
        return_episode_rewards=True,
    )
    half = 1.96 * statistics.stdev(returns) / len(returns) ** 0.5
    return {
        "greedy_mean": round(statistics.mean(returns), 2),
        "greedy_half_95": round(half, 2),
        "greedy_episodes": len(returns),
    }


def make_evaluations(settings: Settings, folder: str) -> list[Any]:
    """Makes what evaluates during the training, and saves the best weights in the folder."""
    if not settings["evaluations"]:
        return []
    calls = settings["steps"] // settings["evaluations"] // settings["n_envs"]
    return [
        EvalCallback(
            make_environment(settings, settings["seed"] + 2 * _EVALUATION_SEED),
            n_eval_episodes=settings["evaluation_episodes"],
            eval_freq=calls,
            best_model_save_path=folder,
            verbose=0,
        )
    ]


def run(settings: Settings, make: Any = make_model, libraries: Sequence[Any] = ()) -> Result:
    """Trains once.

    Args:
      settings: all of them.
      make: makes the algorithm from settings and environments.
      libraries: further ones whose versions are in the result.
    """
    imported = time.monotonic()
    torch.set_num_threads(1)
    started = settings["started"]
    env = make_environment(settings, settings["seed"])
    model = make(settings, env)
    moments = record_updates(model)
    watch = Watch(settings["target"], started + settings["limit_sec"])
    with tempfile.TemporaryDirectory() as folder:
        model.learn(settings["steps"], callback=[watch, *make_evaluations(settings, folder)])
        ended = time.monotonic()
        if settings["evaluations"]:
            model.set_parameters(str(Path(folder) / "best_model.zip"), device="cpu")
    modules = (stable_baselines3, torch, gymnasium, *libraries)
    return {
        "reached": watch.reached,
        "env_steps": model.num_timesteps,
        "training_mean": statistics.mean(watch.returns) if watch.returns else None,
        "training_episodes": len(watch.returns),
        "imported_sec": imported - started,
        "ended_sec": ended - started,
        "updates": [(begin - started, end - started) for begin, end in moments],
        "versions": {module.__name__: module.__version__ for module in modules},
        "evaluation": evaluate(settings, model, env) if settings["eval_episodes"] else None,
    }


if __name__ == "__main__":
    print(json.dumps(run(json.load(sys.stdin))))
