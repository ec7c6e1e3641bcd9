#!/usr/bin/env bash
# pymunk 7.3.1.
# Guess: a shape with a density gives its body a mass at once.
# Seen: the shape knows its mass, but the body has mass 0 and moment 0 until body and shape are added to a space.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pymunk==7.3.1
cd "$folder"
venv/bin/python - <<'PYTHON'
import pymunk

body = pymunk.Body()
shape = pymunk.Circle(body, 10)
shape.density = 1
before = body.mass, body.moment
space = pymunk.Space()
space.add(body, shape)
print("mass of the shape:", shape.mass, "of the body before:", before, "after:", body.mass)
assert before == (0, 0)
assert 314 < shape.mass == body.mass < 315
PYTHON
echo "as recorded"
