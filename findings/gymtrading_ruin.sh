#!/usr/bin/env bash
# gym-trading-env 0.3.5.
# Guess: losing everything is the worst that can happen: the game is terminated with the lowest reward.
# Seen: the reward of that step is 0, as if nothing were lost, because the default reward, a logarithm, is then left out
# (so is one of your own). Keeping a twentieth of the money pays -3.0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet gymnasium==1.4.0 numpy==1.26.4 pandas==2.2.3
"$folder/venv/bin/pip" install --quiet --no-deps gym-trading-env==0.3.5
cd "$folder"
venv/bin/python - <<'PYTHON'
import pandas
from gym_trading_env.environments import TradingEnv


def play(prices):
    index = pandas.date_range("2024-01-01", periods=len(prices), freq="h")
    table = pandas.DataFrame({"close": prices, "feature_close": prices}, index=index)
    env = TradingEnv(table, positions=[0, 5], initial_position=0, verbose=0)  # five times the money, borrowed
    env.reset(seed=1)
    env.step(1)
    _, reward, terminated, _, info = env.step(1)
    print(prices, "->", info["portfolio_valuation"], "reward", reward, "terminated", terminated)
    return float(reward), terminated


assert play([100.0, 100.0, 75.0, 75.0]) == (0, True)
reward, terminated = play([100.0, 100.0, 81.0, 75.0])
assert -3.1 < reward < -2.9 and not terminated
PYTHON
echo "as recorded"
