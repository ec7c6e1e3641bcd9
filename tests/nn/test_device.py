"""The device of a role: read, and refused where it cannot be had. covers D4, F30"""

import os
import subprocess
import sys
import threading

import pytest
from support.cluster import find_command
from support.threads import Caller

from relaax_like.nn import device

_NO_GPU = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}


def test_the_cpu_is_used_if_it_is_named() -> None:
    """So it is by default, without a GPU, as in all other tests."""
    code = (
        "from relaax_like.nn.device import set_device\n"
        "set_device('cpu', 'learner.device')\n"
        "from relaax_like.nn.runtime import tf\n"
        "print([one.device_type for one in tf.config.get_visible_devices()])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=_NO_GPU, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "['CPU']", done.stderr


def test_a_gpu_that_is_not_there_is_refused_by_name(tmp_path: object) -> None:
    done = subprocess.run(
        [find_command("relaax"), "train", "a2c", "--set", "learner.device=gpu"],
        cwd=str(tmp_path),
        env=_NO_GPU,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "learner.device: gpu, but TensorFlow finds no GPU" in done.stderr
    assert "Traceback" not in done.stderr


def test_threads_that_compute_on_a_gpu_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_has_gpu", True)
    inside = threading.Event()

    def compute() -> None:
        with device.hold_gpu():
            inside.set()

    with device.hold_gpu(), device.hold_gpu():  # one thread can take it twice
        other = Caller(compute)
        assert not inside.wait(0.2)
    other.get()
    assert inside.is_set()
    monkeypatch.setattr(device, "_has_gpu", False)
    with device.hold_gpu():
        Caller(compute).get()
