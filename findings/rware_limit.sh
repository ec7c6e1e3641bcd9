#!/usr/bin/env bash
# rware 2.0.0 and lbforaging 2.0.0 with Gymnasium 1.4.0.
# Guess: what ends a game after its limit of steps is truncated, and the limit stands in the environment's spec.
# Seen: it is terminated (500 steps, and 50), so the value of the last state is lost; spec.max_episode_steps is None.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet rware==2.0.0 lbforaging==2.0.0 gymnasium==1.4.0
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import gymnasium
import lbforaging
import rware

# All agents stand still: actions 0 do nothing in both.
for name, limit in (("rware-tiny-2ag-v2", 500), ("Foraging-8x8-2p-1f-v3", 50)):
    env = gymnasium.make(name)
    env.reset(seed=3)
    steps, ended = 0, False
    while not ended:
        _, rewards, terminated, truncated, _ = env.step((0, 0))
        steps, ended = steps + 1, terminated or truncated
    limit_in_spec = env.spec.max_episode_steps
    print(name, steps, "steps, rewards", rewards, "terminated", terminated, "truncated", truncated, "spec", limit_in_spec)
    assert (steps, bool(terminated), bool(truncated), limit_in_spec) == (limit, True, False, None)
    assert sum(rewards) == 0
PYTHON
echo "as recorded"
