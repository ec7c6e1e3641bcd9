#!/usr/bin/env bash
# Box2D 2.3.10 (the package box2d).
# Guess: a free body at 200 m/s moves by 200 m/s times the step in each step.
# Seen: it moves by 2 units at most, and its speed becomes 2 units per step: 120 at 60 steps per second. At 100 m/s
#   it moves as expected. Games in pixels reach this soon.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet box2d==2.3.10
cd "$folder"
venv/bin/python - <<'PYTHON'
from Box2D import b2World

STEP = 1 / 60
moved = {}
for speed in (100, 200, 1000):
    world = b2World(gravity=(0, 0))
    body = world.CreateDynamicBody(position=(0, 0))
    body.CreateCircleFixture(radius=0.5, density=1)
    body.linearVelocity = (speed, 0)
    world.Step(STEP, 8, 3)
    moved[speed] = body.position.x, body.linearVelocity.x
    print(speed, "expected", speed * STEP, "moved and speed", moved[speed])
assert abs(moved[100][0] - 100 * STEP) < 1e-4
for speed in (200, 1000):
    assert abs(moved[speed][0] - 2) < 1e-4 and abs(moved[speed][1] - 2 / STEP) < 1e-3
PYTHON
echo "as recorded"
