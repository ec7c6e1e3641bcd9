"""Games of several agents, learned by Stable-Baselines3; run by `benchmarks.games`.

    .venv-peers/bin/python -m benchmarks.peers.sb3_games connect_four < settings.json

Reads `benchmarks.peers.peer.Settings`, trains one policy for all agents on one torch thread, plays
as `benchmarks.playing` has it, and prints the results as JSON. Each decision of an agent is a step.

Board games are learned by sb3-contrib's MaskablePPO. `Turns` is one environment in which the
learner has the seat whose turn it is, as in PettingZoo's tutorial. With that alone, the loser never
sees its loss, and what the opponent can expect counts as the mover's own. So `SeatBuffer` computes
returns and advantages of each seat from its own moves, with the opponent's reward counting against
it, as ours does. The moves of both seats are learned from.

Where all agents act at once, the games are SuperSuit's `pettingzoo_env_to_vec_env_v1` and
`concat_vec_envs_v1`, learned by PPO. `Agents` repairs SuperSuit's form for Stable-Baselines3
(3.11.0) in two points: it does not tell episodes that were cut off from those that ended, so that
PPO expects nothing after the last step; and it cannot be seeded.
"""

import importlib
import json
import statistics
import sys
import time
from math import ceil
from typing import Any

import gymnasium
import numpy as np
import pettingzoo
import sb3_contrib  # type: ignore[import-not-found]
import stable_baselines3  # type: ignore[import-not-found]
import supersuit  # type: ignore[import-not-found]
import torch  # type: ignore[import-not-found]
from sb3_contrib.common.maskable.buffers import (  # type: ignore[import-not-found]
    MaskableRolloutBuffer,
)
from stable_baselines3.common.vec_env import (  # type: ignore[import-not-found]
    DummyVecEnv,
    VecMonitor,
    VecNormalize,
)
from supersuit.vector.sb3_vector_wrapper import (  # type: ignore[import-not-found]
    SB3VecEnvWrapper,
)

from benchmarks.peers.peer import Settings
from benchmarks.peers.sb3 import EPISODES, Watch, make_model, normalize
from benchmarks.playing import PLAYS

_SEATS = 2


class Turns(gymnasium.Env):
    """A board game of PettingZoo; each step is a move of the seat whose turn it is.

    A reward is the mover's; the other seat earns its opposite.

    Args:
      game: with two seats, masks, and rewards at its end only.
    """

    def __init__(self, game: Any):
        self._game = game
        self.observation_space = game.observation_space(game.possible_agents[0])["observation"]
        self.action_space = game.action_space(game.possible_agents[0])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """Begins a game."""
        super().reset(seed=seed)
        self._game.reset(seed=seed)
        return self._look()["observation"], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        """Makes a move."""
        mover = self._game.agent_selection
        self._game.step(int(action))
        ended = all(self._game.terminations.values())
        return self._look()["observation"], self._game.rewards[mover], ended, False, {}

    def action_masks(self) -> np.ndarray:
        """Returns which moves are legal."""
        return self._look()["action_mask"].astype(bool)

    def _look(self) -> Any:
        return self._game.observe(self._game.agent_selection)


class SeatBuffer(MaskableRolloutBuffer):
    """Rollouts of `Turns`: what follows a row, for its seat, is the row after the next one."""

    def compute_returns_and_advantage(self, last_values: Any, dones: np.ndarray) -> None:
        """Computes generalised advantages, and the returns, of each seat by itself.

        Args:
          last_values: `[n, 1]`, of what is seen after the last row, for the seat that moves then;
            its opposite is what the other seat can expect.
          dones: `[n]`, whether the game ended with the last row.
        """
        steps = self.buffer_size
        last = last_values.clone().cpu().numpy().reshape(1, -1)
        goes_on = 1.0 - np.vstack([self.episode_starts[1:], dones])  # [T, n]
        rewards = self.rewards.copy()
        rewards[:-1] -= goes_on[:-1] * self.rewards[1:]
        moves_again = goes_on.copy()
        moves_again[:-1] *= goes_on[1:]
        following = np.vstack([self.gamma * np.vstack([self.values[2:], last]), -last])
        traces = np.zeros((steps + _SEATS, self.n_envs), np.float32)
        for t in reversed(range(steps)):
            later = following[t] + self.gamma * self.gae_lambda * traces[t + _SEATS]
            traces[t] = rewards[t] + moves_again[t] * later - self.values[t]
        self.advantages = traces[:steps]
        self.returns = self.advantages + self.values


class Agents(SB3VecEnvWrapper):
    """SuperSuit's form for Stable-Baselines3, with seeds, and knowing which episodes were cut off.

    Args:
      games: what `concat_vec_envs_v1` returns for Gymnasium.
    """

    def __init__(self, games: Any):
        super().__init__(games)
        self._seed: int | None = None

    def seed(self, seed: int | None = None) -> list[int | None]:
        """Seeds game i with seed + i at the next reset."""
        self._seed = seed
        return [seed] * self.num_envs

    def reset(self) -> Any:
        """Begins all games; later ones continue the random stream of each."""
        seen, self.reset_infos = self.venv.reset(seed=self._seed)
        self._seed = None
        return seen

    def step_wait(self) -> tuple[Any, Any, Any, Any]:
        """Returns what came of the last actions."""
        seen, rewards, terminated, truncated, infos = self.venv.step_wait()
        for info, ended, cut in zip(infos, terminated, truncated, strict=True):
            info["TimeLimit.truncated"] = bool(cut and not ended)
        return seen, rewards, np.logical_or(terminated, truncated), infos


def make_learner(settings: Settings) -> tuple[Any, Any]:
    """Makes the games of the settings, and what learns from them."""
    module = importlib.import_module(settings["env"].split(":")[1])
    if hasattr(module, "parallel_env"):
        game = supersuit.pettingzoo_env_to_vec_env_v1(module.parallel_env(**settings["env_args"]))
        number = settings["n_envs"] // game.num_envs
        games = supersuit.concat_vec_envs_v1(game, number, base_class="gymnasium")
        env = normalize(settings, VecMonitor(Agents(games)))
        return env, make_model(settings, env)
    number = settings["n_envs"] // _SEATS
    made = [lambda: Turns(module.env(**settings["env_args"]))] * number
    env = normalize(settings, DummyVecEnv(made))
    # Its policy has discrete actions only.
    policy = {key: value for key, value in settings["policy"].items() if key != "log_std_init"}
    discrete: Settings = {**settings, "policy": policy}
    algorithm = sb3_contrib.MaskablePPO
    return env, make_model(discrete, env, algorithm, rollout_buffer_class=SeatBuffer)


def run(name: str, settings: Settings) -> dict[str, Any]:
    """Trains once, and plays the game of that name."""
    torch.set_num_threads(1)
    env, model = make_learner(settings)
    watch = Watch(None, float("inf"), ceil(EPISODES / env.num_envs) * env.num_envs)
    model.learn(settings["steps"], callback=watch)
    minutes = (time.monotonic() - settings["started"]) / 60

    def choose(seen: Any) -> int:
        more = {}
        if isinstance(seen, dict):
            more["action_masks"] = seen["action_mask"].astype(bool)
            seen = seen["observation"]
        if isinstance(env, VecNormalize):
            seen = env.normalize_obs(seen)
        return int(model.predict(seen, deterministic=True, **more)[0])

    modules = (stable_baselines3, sb3_contrib, torch, gymnasium, pettingzoo, supersuit)
    training = {}
    if watch.returns:
        training["training_mean"] = round(statistics.fmean(watch.returns), 3)
        training["training_episodes"] = len(watch.returns)
    return {
        "agent_steps": model.num_timesteps,
        **training,
        **PLAYS[name](choose, settings["seed"]),
        "minutes": round(minutes, 1),
        "versions": {module.__name__: module.__version__ for module in modules},
    }


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], json.load(sys.stdin))))
