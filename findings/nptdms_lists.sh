#!/usr/bin/env bash
# npTDMS 1.13.0.
# Guess: a channel's values are read back as they were written.
# Seen: a list whose first value is an int is written as integers, and its fractions are cut off: [0, 0.5, -1.5] is read
# back as [0, 0, -1]. An array in the other byte order is written without swapping. Neither gives a message.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet nptdms==1.13.0 numpy==2.4.6
cd "$folder"
venv/bin/python -W error - <<'PYTHON'
import numpy as np
from nptdms import ChannelObject, TdmsFile, TdmsWriter


def written(values):
    with TdmsWriter("x.tdms") as file:
        file.write_segment([ChannelObject("group", "channel", values)])
    read = TdmsFile.read("x.tdms")["group"]["channel"][:]
    print(repr(values), "->", read.dtype, read)
    return read


assert list(written([0.0, 0.5, -1.5])) == [0, 0.5, -1.5]
read = written([0, 0.5, -1.5])
assert read.dtype == np.int8 and list(read) == [0, 0, -1]
read = written(np.array([1.0, 2.0], ">f8"))
assert read.dtype == np.float64 and list(read) == list(np.array([1.0, 2.0], ">f8").view("<f8"))
assert 0 < read[0] < 1e-300
PYTHON
echo "as recorded"
