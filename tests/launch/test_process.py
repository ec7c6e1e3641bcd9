"""What every process does alike."""

import socket
import subprocess
import sys

import pytest

from relaax_like.config.address import Address
from relaax_like.launch.process import validate_port_free
from relaax_like.wire.errors import RelaaxError


def test_the_garbage_collector_passes_over_what_is_loaded():
    code = (
        "import gc; from relaax_like.launch.process import keep_what_is_loaded; "
        "keep_what_is_loaded(); print(gc.get_freeze_count(), len(gc.get_objects()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    frozen, left = map(int, done.stdout.split())
    assert frozen > 100 * left


def test_a_used_port_is_named_with_its_holder_and_the_flag():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(RelaaxError, match=rf"port {port} is in use by pid \d+.*--bind"):
            validate_port_free(Address("127.0.0.1", port), "--bind")
