#!/usr/bin/env bash
# gym-anytrading 2.0.0.
# Guess: in its stock market, the more the rewards sum up to, the more is earned: info["total_profit"].
# Seen: only a sale is rewarded, and without the fees: shares that are held until the end count for the profit, but are
# rewarded with 0; many small trades are rewarded and lose money.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet gym-anytrading==2.0.0 gymnasium==1.4.0 numpy==1.26.4 pandas==2.2.3
cd "$folder"
venv/bin/python - <<'PYTHON'
import itertools

import numpy as np
import pandas
from gym_anytrading.envs import Actions, StocksEnv


def play(prices, actions):
    env = StocksEnv(pandas.DataFrame({"Close": prices}), window_size=2, frame_bound=(2, len(prices)))
    env.reset(seed=1)
    rewards, truncated = 0, False
    while not truncated:
        _, reward, _, truncated, info = env.step(next(actions).value)
        rewards += float(reward)
    return rewards, float(info["total_profit"])


rewards, profit = play(np.linspace(100, 200, 11), itertools.repeat(Actions.Buy))
print("bought once and held: rewards", rewards, "money is multiplied by", profit)
assert rewards == 0 and profit > 1.5
rewards, profit = play(np.linspace(100, 102, 21), itertools.cycle([Actions.Buy, Actions.Sell]))
print("bought and sold again and again: rewards", rewards, "money is multiplied by", profit)
assert rewards > 0.5 and profit < 0.95
PYTHON
echo "as recorded"
