#!/usr/bin/env bash
# gpxpy 1.6.2.
# Guess: the speed of a point is in the file that to_xml() writes, as its time and elevation are.
# Seen: it is left out without a message, since GPX 1.1 (the default) has no such element; with version="1.0" it is
# written.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet gpxpy==1.6.2
cd "$folder"
venv/bin/python - <<'PYTHON'
import gpxpy
from gpxpy import gpx

track, segment = gpx.GPXTrack(), gpx.GPXTrackSegment()
segment.points.append(gpx.GPXTrackPoint(47, 8, elevation=100, speed=5.0))
track.segments.append(segment)
file = gpx.GPX()
file.tracks.append(track)
seen = {}
for version in ("1.1", "1.0"):
    (point,) = gpxpy.parse(file.to_xml(version=version)).tracks[0].segments[0].points
    seen[version] = point.elevation, point.speed
print("elevation and speed that are read back:", seen)
assert seen == {"1.1": (100, None), "1.0": (100, 5.0)}
PYTHON
echo "as recorded"
