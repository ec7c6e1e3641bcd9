#!/usr/bin/env bash
# nasim 0.12.0 with Gymnasium 1.4.0.
# Guess: an environment accepts what its own action space draws.
# Seen: nasim:Tiny-v0 raises an AssertionError, because Discrete draws a NumPy integer; the same number as an int is accepted.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet nasim==0.12.0 gymnasium==1.4.0
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import gymnasium

env = gymnasium.make("nasim:Tiny-v0")
env.action_space.seed(0)
env.reset(seed=0)
action = env.action_space.sample()
assert env.action_space.contains(action)
try:
    env.step(action)
except AssertionError as error:
    print(type(action).__name__, "refused:", error)
else:
    raise SystemExit("it was accepted")
env.step(int(action))
print("int accepted")
PYTHON
echo "as recorded"
