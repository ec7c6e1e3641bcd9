#!/usr/bin/env bash
# python-can 4.6.1.
# Guess: a log that is written and read again has the same times, channels and directions in each format.
# Seen: only .blf has. .asc starts at time 0.0; .csv and .db lose the channel and show sent messages as received; .log
# reads channel 0 as "can0"; .trc numbers channels from 1, so channel 0 is read as 1.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet python-can==4.6.1
cd "$folder"
venv/bin/python - <<'PYTHON'
import can
from can.io import SqliteReader

TIME = 1700000000.123456
seen = {}
for suffix in ("asc", "blf", "csv", "db", "log", "trc"):
    message = can.Message(timestamp=TIME, arbitration_id=0x123, is_extended_id=False, data=[1], channel=0, is_rx=False)
    with can.Logger(f"x.{suffix}") as log:
        log(message)
    with SqliteReader("x.db") if suffix == "db" else can.LogReader(f"x.{suffix}") as reader:
        (read,) = reader
    seen[suffix] = read.timestamp, read.channel, read.is_rx
    print(suffix, *seen[suffix])
assert seen == {
    "asc": (0.0, 0, False),
    "blf": (TIME, 0, False),
    "csv": (TIME, None, True),
    "db": (TIME, None, True),
    "log": (TIME, "can0", False),
    "trc": (TIME, 1, False),
}
PYTHON
echo "as recorded"
