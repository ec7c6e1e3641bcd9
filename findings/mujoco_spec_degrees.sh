#!/usr/bin/env bash
# mujoco 4.0.0.
# Guess: a joint that is added to an MjSpec in Python takes its range in radians, as all other calls of the API do.
# Seen: MjSpec takes degrees, like a file in XML. A hinge of +-1.57 compiles to +-0.0274 rad without a message, and
# to_xml() then writes the small range with angle="radian". `spec.compiler.degree = False` takes radians.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet mujoco==4.0.0
"$folder/venv/bin/python" - <<'PYTHON'
import mujoco


def compile_range(**compiler):
    spec = mujoco.MjSpec()
    for key, value in compiler.items():
        setattr(spec.compiler, key, value)
    body = spec.worldbody.add_body()
    body.add_geom(size=[0.1, 0, 0])
    body.add_joint(type=mujoco.mjtJoint.mjJNT_HINGE, axis=[0, 1, 0], range=[-1.57, 1.57])
    return round(float(spec.compile().jnt_range[0, 1]), 4)


seen = compile_range(), compile_range(degree=False)
print("upper end of the range by default, and with degree=False:", seen)
assert seen == (0.0274, 1.57)
PYTHON
echo "as recorded"
