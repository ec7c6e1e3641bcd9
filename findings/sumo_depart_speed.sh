#!/usr/bin/env bash
# SUMO (eclipse-sumo) 1.28.0.
# Guess: a vehicle without departSpeed enters the road standing, and accelerates.
# Seen: it enters at the speed limit. With departSpeed="0" it needs 2 s more for 2 km.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet eclipse-sumo==1.28.0
cd "$folder"
venv/bin/python - <<'PYTHON'
from pathlib import Path
from subprocess import run

import sumo

folder = Path(sumo.SUMO_HOME)
Path("net.nod.xml").write_text("<nodes><node id=\"a\" x=\"0\" y=\"0\"/><node id=\"b\" x=\"2000\" y=\"0\"/></nodes>")
Path("net.edg.xml").write_text("<edges><edge id=\"e\" from=\"a\" to=\"b\" numLanes=\"1\" speed=\"13.89\"/></edges>")
netconvert = [folder / "bin" / "netconvert", "-n", "net.nod.xml", "-e", "net.edg.xml", "-o", "net.xml"]
run(netconvert, check=True, capture_output=True)

def measure(attributes):
    routes = (
        '<routes><vType id="t" sigma="0" speedDev="0"/><route id="r" edges="e"/>'
        f'<vehicle id="v" type="t" route="r" depart="0" {attributes}/></routes>'
    )
    Path("r.xml").write_text(routes)
    command = [folder / "bin" / "sumo", "-n", "net.xml", "-r", "r.xml", "--tripinfo-output", "out.xml"]
    run([*command, "--no-step-log"], check=True, capture_output=True)
    words = Path("out.xml").read_text().partition("<tripinfo ")[2].split('"')
    return float(words[words.index(" departSpeed=") + 1]), float(words[words.index(" duration=") + 1])


seen = measure(""), measure('departSpeed="0"')
print("speed at departure and duration, by default and with departSpeed 0:", seen)
assert seen[0][0] == 13.89 and seen[1][0] == 0
assert seen[1][1] > seen[0][1]
PYTHON
echo "as recorded"
