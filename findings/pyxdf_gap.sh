#!/usr/bin/env bash
# pyxdf 1.17.5.
# Guess: a pause in a regular stream is kept if it is longer than jitter_break_threshold_seconds, which is 1.
# Seen: it must be longer than 500 samples too: at 10 Hz, a pause of 20 s is spread over all samples by default, which
# moves time stamps by seconds. Only the log mentions another rate. `dejitter_timestamps=False` keeps the stamps.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyxdf==1.17.5 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'PYTHON'
import struct

import numpy as np
import pyxdf


def chunk(tag, content):
    return struct.pack("<BIH", 4, len(content) + 2, tag) + content


def write(stamps):
    number = struct.pack("<I", 1)
    fields = {"name": "x", "type": "x", "channel_count": 1, "nominal_srate": 10, "channel_format": "double64"}
    header = "".join(f"<{key}>{value}</{key}>" for key, value in fields.items())
    samples = b"".join(struct.pack("<Bdd", 8, stamp, 0.0) for stamp in stamps)
    with open("x.xdf", "wb") as file:
        file.write(b"XDF:" + chunk(1, b"<info><version>1.0</version></info>"))
        file.write(chunk(2, number + f"<info>{header}</info>".encode()))
        file.write(chunk(3, number + struct.pack("<BI", 4, len(stamps)) + samples))
        file.write(chunk(6, number + b"<info></info>"))


def moved(pause, **options):
    stamps = np.arange(600) / 10
    stamps[300:] += pause
    write(stamps)
    (stream,), _ = pyxdf.load_xdf("x.xdf", **options)
    distance = np.abs(stream["time_stamps"] - stamps).max()
    print(f"pause of {pause} s {options}: time stamps are moved by up to {distance:.3f} s")
    return distance


assert moved(60) < 1e-6
assert moved(20) > 4
assert moved(20, dejitter_timestamps=False) == 0
assert moved(20, jitter_break_threshold_samples=10) < 1e-6
PYTHON
echo "as recorded"
