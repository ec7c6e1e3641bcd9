#!/usr/bin/env bash
# gym-pusht 0.1.8 with pymunk 6.11.1.
# Guess: reset(options={"reset_to_state": observation}) brings the state of that observation back.
# Seen: the agent and the angle are right, but the block lies up to some 90 units elsewhere, in a field of 512: its angle
# is set after its position, and turns it about its centre of mass.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet gym-pusht==0.1.8 gymnasium==1.4.0 numpy==2.4.6 pymunk==6.11.1 pygame==2.6.1 \
    shapely==2.2.0
cd "$folder"
SDL_VIDEODRIVER=dummy venv/bin/python -W ignore - <<'PYTHON'
import gym_pusht  # registers the environment
import gymnasium
import numpy as np

env = gymnasium.make("gym_pusht/PushT-v0")
moved = []
for seed in range(5):
    wanted, _ = env.reset(seed=seed)
    seen, _ = env.reset(options={"reset_to_state": wanted})
    print(wanted.round(1), "->", seen.round(1))
    assert np.allclose(seen[[0, 1, 4]], wanted[[0, 1, 4]], atol=1e-6)
    moved.append(np.linalg.norm(seen[2:4] - wanted[2:4]))
print("the block is moved by", np.round(moved, 1))
assert max(moved) > 70
PYTHON
echo "as recorded"
