#!/usr/bin/env bash
# rosbags 0.11.9.
# Guess: an array of another type is converted to the field's type or refused.
# Seen: it is refused only if its items have another size. Integers of 64 bits in a field of float64 are written bit by
# bit without a message: joint positions [1, 2] are read back as [5e-324, 1e-323].
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet rosbags==0.11.9 numpy==2.4.6
cd "$folder"
venv/bin/python -W error - <<'PYTHON'
import numpy as np
from rosbags.typesys import Stores, get_typestore

NAME = "sensor_msgs/msg/JointState"
store = get_typestore(Stores.ROS2_HUMBLE)


def written(position):
    stamp = store.types["builtin_interfaces/msg/Time"](sec=0, nanosec=0)
    header = store.types["std_msgs/msg/Header"](stamp=stamp, frame_id="")
    none = np.zeros(0)
    message = store.types[NAME](header=header, name=["a", "b"], position=position, velocity=none, effort=none)
    read = store.deserialize_cdr(store.serialize_cdr(message, NAME), NAME).position
    print(position.dtype, position, "->", read.dtype, read)
    return read


assert list(written(np.array([1.0, 2.0]))) == [1, 2]
read = written(np.array([1, 2], np.int64))
assert read.dtype == np.float64 and list(read) == [5e-324, 1e-323]
try:
    written(np.array([1.0, 2.0], np.float32))
except ValueError as error:
    print("float32:", error)
else:
    raise SystemExit("float32 is accepted")
PYTHON
echo "as recorded"
