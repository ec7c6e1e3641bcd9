"""Vectors in memory that client and server share, if both run on one machine as the same user.

The client makes anonymous memory that can neither shrink nor grow, and sends the server its process
id and file descriptor; the server opens it through /proc, which the kernel only allows for the same
user and for root. The memory has no name in any file system, so nothing is left behind when either
process dies.

    with SharedVectors.create(gradient_bytes, values_bytes) as vectors:  # the client
        ...
    vectors = SharedVectors.attach(offer, gradient_bytes, values_bytes)  # the server
"""

import contextlib
import fcntl
import itertools
import mmap
import os
import secrets
from collections.abc import Iterator

import numpy as np

from relaax_like.bridge import mailbox
from relaax_like.bridge.mailbox import Mailbox
from relaax_like.v1 import parameter_server_pb2 as pb

# Seals, and their commands: linux/fcntl.h; Python 3.12 and newer only defines some of them.
_ADD_SEALS, _GET_SEALS = 1033, 1034
_SEALS = 0x1 | 0x2 | 0x4  # no more seals, no shrinking, no growing
_NONCE_BYTES = 16
_NAME = "relaax vectors"
_PAGE = 4096


class UnusableError(Exception):
    """The two processes cannot share memory; the text says why."""


class SharedVectors:
    """A gradient and a vector of values in shared memory, and a mailbox in each direction.

    Made by `create` and `attach`.

    Attributes:
      requests: for the client's messages.
      replies: for the server's.
      offer: for the other process.
      gradient: `[gradient_bytes] uint8`.
      values: `[values_bytes] uint8`.
    """

    def __init__(
        self,
        memory: mmap.mmap,
        offer: pb.SharedMemoryOffer,
        gradient_bytes: int,
        values_bytes: int,
    ):
        everything = np.frombuffer(memory, np.uint8)  # keeps the memory mapped
        _, requests, replies, gradient, values, _ = _list_starts(gradient_bytes, values_bytes)
        self.requests = Mailbox(everything[requests:replies])
        self.replies = Mailbox(everything[replies:gradient])
        self.gradient = everything[gradient : gradient + gradient_bytes]
        self.values = everything[values : values + values_bytes]
        self.offer = offer

    @classmethod
    @contextlib.contextmanager
    def create(cls, gradient_bytes: int, values_bytes: int) -> Iterator["SharedVectors"]:
        """Makes the memory; the block must last until the other process has attached to it.

        Raises:
          UnusableError: this system does not support such memory, or has too little memory; or the
            block raised an OSError.
        """
        num_bytes = _list_starts(gradient_bytes, values_bytes)[-1]
        nonce = secrets.token_bytes(_NONCE_BYTES)
        try:
            flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
            descriptor = os.memfd_create(_NAME, flags)
        except (AttributeError, OSError) as error:
            raise UnusableError(f"anonymous memory is not available: {error}") from None
        try:
            os.ftruncate(descriptor, num_bytes)
            fcntl.fcntl(descriptor, _ADD_SEALS, _SEALS)
            memory = mmap.mmap(descriptor, num_bytes)
            memory[:_NONCE_BYTES] = nonce
            offer = pb.SharedMemoryOffer(
                pid=os.getpid(),
                descriptor=descriptor,
                nonce=nonce,  # as another process might have the same pid and descriptor
                mailboxes=mailbox.SUPPORTED,
            )
            yield cls(memory, offer, gradient_bytes, values_bytes)
        except OSError as error:
            raise UnusableError(f"anonymous memory is not available: {error}") from None
        finally:
            os.close(descriptor)

    @classmethod
    def attach(
        cls, offer: pb.SharedMemoryOffer, gradient_bytes: int, values_bytes: int
    ) -> "SharedVectors":
        """Opens the memory that another process has made.

        Raises:
          UnusableError: the memory is on another machine, belongs to another process or user, has
            another length, is not such memory, or cannot be mapped; or this machine does not
            support mailboxes.
        """
        if offer.mailboxes and not mailbox.SUPPORTED:
            raise UnusableError(
                "the client uses mailboxes, which this kind of machine does not support"
            )
        num_bytes = _list_starts(gradient_bytes, values_bytes)[-1]
        path = f"/proc/{int(offer.pid)}/fd/{int(offer.descriptor)}"
        try:
            # Nothing else is opened: that can affect a device, and a terminal might become the
            # server's controlling terminal.
            if not os.readlink(path).startswith(f"/memfd:{_NAME}"):
                raise UnusableError("the descriptor is not anonymous memory of relaax_like")
            flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
            descriptor = os.open(path, flags)
        except OSError as error:
            raise UnusableError(f"{path} is not accessible: {error.strerror}") from None
        try:
            # Only such memory has these seals, so this cannot be one of our files.
            if fcntl.fcntl(descriptor, _GET_SEALS) & _SEALS != _SEALS:
                raise UnusableError("the memory could be shrunk or enlarged")
            size = os.fstat(descriptor).st_size
            if size != num_bytes:
                raise UnusableError(f"the memory has {size} bytes, expected {num_bytes}")
            memory = mmap.mmap(descriptor, num_bytes)
        except OSError as error:
            raise UnusableError(f"the memory cannot be mapped: {error.strerror}") from None
        finally:
            os.close(descriptor)
        if not secrets.compare_digest(memory[:_NONCE_BYTES], offer.nonce):
            raise UnusableError("the memory belongs to another process")
        return cls(memory, offer, gradient_bytes, values_bytes)


def _round_up(num_bytes: int) -> int:
    return -(-num_bytes // _PAGE) * _PAGE


def _list_starts(gradient_bytes: int, values_bytes: int) -> list[int]:
    """Returns the starts of nonce, requests, replies, gradient and values, and the end of all."""
    parts = (
        _PAGE,
        mailbox.NUM_BYTES,
        mailbox.NUM_BYTES,
        _round_up(gradient_bytes),
        _round_up(values_bytes),
    )
    return list(itertools.accumulate(parts, initial=0))
