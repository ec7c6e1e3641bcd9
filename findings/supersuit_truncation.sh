#!/usr/bin/env bash
# SuperSuit 3.11.0 with Stable-Baselines3 2.9.2, PettingZoo 1.27.0 and mpe2 1.1.1.
# Guess: its form for Stable-Baselines3 says of a game that its step limit has cut off what that library's own vector
# environments say, TimeLimit.truncated in the info, so that the value of the last observation is added.
# Seen: the key is missing, and the end looks like a terminal state: PPO learns that nothing follows. The games cannot
# be seeded either: seed(), which Stable-Baselines3 calls if it is given a seed, raises AttributeError.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet supersuit==3.11.0 stable-baselines3==2.9.2 pettingzoo==1.27.0 mpe2==1.1.1 \
    gymnasium==1.4.0 numpy==2.4.6 torch==2.15.0
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import gymnasium
import numpy as np
import supersuit
from mpe2 import simple_spread_v3
from stable_baselines3.common.vec_env import DummyVecEnv

plain = DummyVecEnv([lambda: gymnasium.make("Pendulum-v1", max_episode_steps=5)])
plain.reset()
for _ in range(5):
    _, _, dones, infos = plain.step(np.zeros((1, 1)))
print("Pendulum-v1 after its limit:", dones, sorted(infos[0]))
assert dones[0] and infos[0]["TimeLimit.truncated"] is True

games = supersuit.pettingzoo_env_to_vec_env_v1(simple_spread_v3.parallel_env(max_cycles=5))
games = supersuit.concat_vec_envs_v1(games, 1, base_class="stable_baselines3")
games.reset()
for _ in range(5):
    _, _, dones, infos = games.step(np.zeros(games.num_envs, np.int64))
print("simple_spread_v3 after its limit:", dones, sorted(infos[0]))
assert all(dones) and not any("TimeLimit.truncated" in info for info in infos)
try:
    games.seed(1)
except AttributeError as error:
    print("seed(1):", error)
else:
    raise SystemExit("seed(1) works")
PYTHON
echo "as recorded"
