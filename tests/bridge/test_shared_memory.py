"""Vectors in shared memory: between processes, and refused where it is not what it should be."""

import gc
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from relaax_like.bridge.shared_memory import SharedVectors, UnusableError
from relaax_like.v1 import parameter_server_pb2 as pb

CHILD = """
import sys, numpy as np
from relaax_like.bridge.shared_memory import SharedVectors
from relaax_like.v1 import parameter_server_pb2 as pb
pid, descriptor, nonce = int(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3])
vectors = SharedVectors.attach(
    pb.SharedMemoryOffer(pid=pid, descriptor=descriptor, nonce=nonce), 5000, 300
)
vectors.values[...] = vectors.gradient[:300] + 1
"""


def test_both_processes_see_the_same_bytes():
    with SharedVectors.create(5000, 300) as vectors:
        vectors.gradient[...] = np.arange(5000) % 200
        one = vectors.offer
        argv = [str(one.pid), str(one.descriptor), one.nonce.hex()]
        subprocess.run([sys.executable, "-c", CHILD, *argv], check=True, timeout=60)
    np.testing.assert_array_equal(vectors.values, np.arange(300) % 200 + 1)


def test_it_lasts_as_long_as_somebody_uses_it_and_no_longer():
    gc.collect()  # of what other tests have left
    with SharedVectors.create(10_000_000, 10) as one:
        other = SharedVectors.attach(one.offer, 10_000_000, 10)
    part = one.gradient[5:9]
    del one
    other.gradient[5:9] = 7
    assert part.tolist() == [7, 7, 7, 7]
    del other, part
    descriptors = Path("/proc/self/fd").iterdir()
    assert not [one for one in descriptors if "relaax vectors" in os.path.realpath(one)]
    with open("/proc/self/maps") as maps:
        assert "relaax vectors" not in maps.read()


def make_offer(pid, descriptor, nonce):
    return pb.SharedMemoryOffer(pid=pid, descriptor=descriptor, nonce=nonce)


def refuse(address, match, sizes=(5000, 300)):
    with pytest.raises(UnusableError, match=match):
        SharedVectors.attach(address, *sizes)


def test_what_is_not_such_memory_is_refused_and_stays_as_it_is():
    with SharedVectors.create(5000, 300) as vectors:
        one = vectors.offer
        refuse(make_offer(one.pid, one.descriptor, bytes(16)), "belongs to another process")
        refuse(make_offer(one.pid, 9999, one.nonce), "not accessible")
        refuse(make_offer(2**31 - 1, one.descriptor, one.nonce), "not accessible")
        refuse(one, "bytes, expected", (5000, 5000))
    with tempfile.TemporaryFile() as file:
        file.write(bytes(16 * 4096))
        file.flush()
        refuse(make_offer(os.getpid(), file.fileno(), bytes(16)), "not anonymous memory")
    unsealed = os.memfd_create("relaax vectors", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(unsealed, 3 * 4096 + 4096)
        refuse(make_offer(os.getpid(), unsealed, bytes(16)), "the memory could be shrunk")
    finally:
        os.close(unsealed)
    for one, other in (os.pipe(), os.openpty()):
        try:
            refuse(make_offer(os.getpid(), one, bytes(16)), "not anonymous memory")
            refuse(make_offer(os.getpid(), other, bytes(16)), "not anonymous memory")
        finally:
            os.close(one)
            os.close(other)


def test_too_much_is_refused_when_it_is_made():
    with pytest.raises(UnusableError), SharedVectors.create(1 << 60, 1 << 60):
        pass


def test_nobody_can_shrink_it():
    with SharedVectors.create(5000, 300) as vectors:
        with pytest.raises(PermissionError):
            os.ftruncate(vectors.offer.descriptor, 0)
