"""TensorFlow's parts are loaded when they are used, and then are what they always are. covers F8"""

import json
import subprocess
import sys

import pytest

# Prints all names of TensorFlow's API, and what each of them is.
WALK = """
import json
import types

def walk(module, path, found):
    for name in sorted(set(dir(module)) - {"__getattr__", "__dir__"}):
        value = getattr(module, name)
        if isinstance(value, types.ModuleType):
            # Keras loads itself late.
            is_plain = type(value) is types.ModuleType
            file = str(getattr(value, "__file__", "")) if is_plain else ""
            if "_api/v2" in file and file not in found:
                found[file] = path
                walk(value, f"{path}.{name}", found)
        elif not name.startswith("__"):
            kind = value if hasattr(value, "__qualname__") else type(value)
            found[f"{path}.{name}"] = f"{kind.__module__}.{kind.__qualname__}"

found = {}
walk(tf, "tf", found)
print(json.dumps(found))
"""
OURS = """
import sys
import threading

from relaax_like.nn import late_modules
from relaax_like.nn.runtime import tf

assert float(tf.reduce_sum(tf.nn.relu(tf.constant([-1.0, 2.0]))[1:] + tf.math.erf(0.0))) == 2
loaded = set(sys.modules)
assert not {"tensorflow.python.keras", "tensorflow.python.feature_column"} & loaded
for module in list(sys.modules.values()):  # as `inspect` does
    getattr(module, "__wrapped__", None)
assert set(sys.modules) == loaded

gate = threading.Barrier(4)
lists = []

def use():
    gate.wait()
    lists.append([tf.feature_column.numeric_column, tf.lite.Interpreter])

threads = [threading.Thread(target=use) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(lists) == 4 and all(one == lists[0] for one in lists)
late_modules._set_packages(importing=True)  # as while another thread loads a part
assert tf.lite.Interpreter is lists[0][1]
late_modules._set_packages(importing=False)
try:
    tf.nn.no_such_name
except AttributeError as error:
    assert "no_such_name" in str(error)
else:
    raise AssertionError
"""
WRAPPERS = {f"RNNCell{kind}Wrapper" for kind in ("Device", "Dropout", "Residual")}


@pytest.fixture(scope="module")
def names() -> list[dict[str, str]]:
    """The names after an import through `runtime`, and after one without it."""
    programs = [OURS + WALK, "import tensorflow as tf" + WALK]
    children = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for program in programs
    ]
    results = []
    for child in children:
        output, errors = child.communicate(timeout=100)
        assert child.returncode == 0, errors
        results.append(json.loads(output.splitlines()[-1]))
    return results


def test_every_name_is_what_it_is_without_us(names: list[dict[str, str]]) -> None:
    """Except three classes of the previous Keras, which are functions that make such objects."""
    late, plain = names
    assert len(plain) > 5000
    differing = {name for name in late.keys() | plain.keys() if late.get(name) != plain.get(name)}
    assert {name.rpartition(".")[2] for name in differing} == WRAPPERS
    assert all(name in late for name in differing)
