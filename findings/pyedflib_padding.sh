#!/usr/bin/env bash
# pyedflib 0.1.42.
# Guess: 150 samples at 100 Hz are read back as 150 samples.
# Seen: as 200. The file consists of complete seconds; the rest is filled with a physical 0, or, where the range does not
# include 0, with its lower end, which looks like a measurement.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyedflib==0.1.42
cd "$folder"
venv/bin/python - <<'PYTHON'
import numpy as np
import pyedflib

writer = pyedflib.EdfWriter("x.edf", 1, file_type=pyedflib.FILETYPE_EDFPLUS)
header = {"label": "a", "dimension": "uV", "sample_frequency": 100, "transducer": "", "prefilter": ""}
limits = {"physical_min": 10, "physical_max": 100, "digital_min": -32768, "digital_max": 32767}
writer.setSignalHeader(0, header | limits)
writer.writeSamples([np.full(150, 50.0)])
writer.close()
samples = pyedflib.EdfReader("x.edf").readSignal(0)
print(len(samples), "samples; number 149:", samples[149], "number 150:", samples[150])
assert len(samples) == 200
assert abs(samples[149] - 50) < 0.01 and np.allclose(samples[150:], 10)
PYTHON
echo "as recorded"
