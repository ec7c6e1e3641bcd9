#!/usr/bin/env bash
# gym-trading-env 0.3.5.
# Guess: reset(seed=5) begins the same game each time, and max_episode_duration=10 truncates it after 10 steps.
# Seen: the place in the table and the first position are drawn from NumPy's global generator, which the seed does not
# reach. The game has 9 steps. With `windows`, the first observation shows positions that an earlier game has taken in
# the hours before.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet gymnasium==1.4.0 numpy==1.26.4 pandas==2.2.3
"$folder/venv/bin/pip" install --quiet --no-deps gym-trading-env==0.3.5
cd "$folder"
venv/bin/python - <<'PYTHON'
import numpy as np
import pandas
from gym_trading_env.environments import TradingEnv

np.random.seed(0)
prices = np.arange(100.0, 200.0)
index = pandas.date_range("2024-01-01", periods=len(prices), freq="h")
table = pandas.DataFrame({"close": prices, "feature_close": prices}, index=index)
env = TradingEnv(table, positions=[0, 1], max_episode_duration=10, verbose=0)
starts = []
for _ in range(6):
    _, info = env.reset(seed=5)
    steps = 1
    while not env.step(0)[3]:
        steps += 1
    assert steps == 9
    starts.append((info["idx"], int(info["position"])))
print("places and positions after reset(seed=5):", starts)
assert len({place for place, _ in starts}) > 1 and len({position for _, position in starts}) == 2

env = TradingEnv(table, positions=[0, 1], initial_position=0, windows=5, max_episode_duration=20, verbose=0)
firsts = []
for _ in range(6):
    observation, _ = env.reset(seed=5)
    firsts.append(observation[:, 1].tolist())
    while not env.step(1)[3]:
        pass
print("last positions in the first observations:", *firsts, sep="\n  ")
assert not any(firsts[0]) and any(map(any, firsts[1:]))
PYTHON
echo "as recorded"
