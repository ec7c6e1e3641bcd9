#!/usr/bin/env bash
# laspy 2.7.0.
# Guess: points that are appended to a file keep their coordinates, as points that are written to a new one do.
# Seen: only write_points converts to the file's scale and offset. append_points copies the stored integers, so that
# points of a file with another scale lie elsewhere, without a message.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet laspy==2.7.0 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'PYTHON'
import laspy
import numpy as np

points = laspy.create()  # its default scale is 0.01
points.x, points.y, points.z = np.array([[1234.5], [20.0], [3.0]])
header = laspy.LasHeader(point_format=points.header.point_format, version=points.header.version)
header.scales = np.full(3, 0.001)
header.offsets = np.array([1000.0, 0.0, 0.0])
with laspy.open("x.las", "w", header=header) as file:
    file.write_points(points.points)
with laspy.open("x.las", "a") as file:
    file.append_points(points.points)
read = laspy.read("x.las").xyz
print("written: ", read[0])
print("appended:", read[1])
assert np.allclose(read[0], [1234.5, 20, 3])
assert np.allclose(read[1], [1123.45, 2, 0.3])
PYTHON
echo "as recorded"
