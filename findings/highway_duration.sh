#!/usr/bin/env bash
# highway-env 1.12.1.
# Guess: duration=10 (seconds) with policy_frequency=5 ends an episode without a crash after 50 steps.
# Seen: after 51. The steps' 0.2 s are added up in floating point and miss 10 by a rounding error; with a
# policy_frequency of 1 or 2 the steps are 10 and 20.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet highway-env==1.12.1 gymnasium==1.3.0
cd "$folder"
venv/bin/python - <<'PYTHON'
import gymnasium
import highway_env  # noqa: F401 - registers the names

seen = []
for frequency in (1, 2, 5):
    config = {"duration": 10, "policy_frequency": frequency, "vehicles_count": 0}
    env = gymnasium.make("highway-fast-v0", config=config)
    env.reset(seed=0)
    steps, truncated = 0, False
    while not truncated:
        *_, truncated, _ = env.step(1)
        steps += 1
    seen.append(steps)
print("steps of 10 s with 1, 2 and 5 steps per second:", seen)
assert seen == [10, 20, 51]
PYTHON
echo "as recorded"
