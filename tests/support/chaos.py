"""Simulates a bad network: loses requests and replies of pushes, and repeats pushes in progress.

    RELAAX_CHAOS=request_lost=0.1,reply_lost=0.1,in_flight=0.05,seed=3

One random number is drawn for each attempt to send a push. `set_environment` makes programs do so
that are started afterwards: Python then imports chaos_site/sitecustomize.py when it starts.
"""

import contextlib
import copy
import os
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path

import pytest

from relaax_like.bridge.push_stream import PushStream
from relaax_like.bridge.stub import ParameterServerStub
from relaax_like.core.buffers import BufferPool
from relaax_like.core.records import Push, Reply
from relaax_like.wire.errors import RelaaxError, ServerUnavailableError

ENVIRONMENT_VARIABLE = "RELAAX_CHAOS"
_TESTS = Path(__file__).parents[1]
_send = ParameterServerStub._send


@dataclass
class Chaos:
    """Probabilities of the failures of a call.

    Attributes:
      request_lost: probability that the server does not receive the call.
      reply_lost: probability that the call takes effect, but its caller receives no reply.
      in_flight: probability that the caller gives up immediately and repeats the call while it is
        still in progress.
      seed: seed of the random numbers.
    """

    request_lost: float = 0.0
    reply_lost: float = 0.0
    in_flight: float = 0.0
    seed: int = 0
    _random: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def call(self, call: Callable[[], Reply]) -> Reply:
        """Makes a call, or simulates a failure.

        Raises:
          ServerUnavailableError: the request or the reply was lost, or the caller is to repeat the
            call while it is in progress.
          Exception: what the call itself raised.
        """
        draw = self._random.random()
        if draw < self.request_lost:
            raise ServerUnavailableError(f"{ENVIRONMENT_VARIABLE}: the request was lost")
        draw -= self.request_lost
        if draw < self.in_flight:
            threading.Thread(target=_forget, args=(call,), name="in flight", daemon=True).start()
            raise ServerUnavailableError(f"{ENVIRONMENT_VARIABLE}: repeated while in progress")
        draw -= self.in_flight
        reply = call()
        if draw < self.reply_lost:
            raise ServerUnavailableError(f"{ENVIRONMENT_VARIABLE}: the reply was lost")
        return reply


def _forget(call: Callable[[], Reply]) -> None:
    with contextlib.suppress(RelaaxError):  # the caller receives it when it repeats the call
        call()


def parse(text: str) -> Chaos:
    """Parses `NAME=PROBABILITY` and `seed=N`, separated by commas."""
    values = dict(part.split("=") for part in text.split(","))
    assert values.keys() <= {one.name for one in fields(Chaos) if one.init}, text
    seed = int(values.pop("seed", "0"))
    return Chaos(**{name: float(value) for name, value in values.items()}, seed=seed)


def make_send(chaos: Chaos) -> Callable[[ParameterServerStub, Push, bool, int], Reply]:
    """Returns what replaces `ParameterServerStub._send`.

    Each attempt has a stream and buffers of its own, since several can be in progress.
    """

    def send(stub: ParameterServerStub, push: Push, want_values: bool, have_version: int) -> Reply:
        def send_alone() -> Reply:
            alone = copy.copy(stub)
            alone._pool = BufferPool(stub.manifest.total_bytes)
            if stub._push_stream is None:
                return _send(alone, push, want_values, have_version)
            shares = stub._push_stream._use_shared_memory
            stream = PushStream(stub._channel, stub.manifest, alone._pool, shares)
            with contextlib.closing(stream) as alone._push_stream:
                return _send(alone, push, want_values, have_version)

        return chaos.call(send_alone)

    return send


def install(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Simulates a bad network in this process."""
    monkeypatch.setattr(ParameterServerStub, "_send", make_send(parse(text)))


def install_from_environment() -> None:
    """Does the same in a program that was started with `set_environment`."""
    ParameterServerStub._send = make_send(parse(os.environ[ENVIRONMENT_VARIABLE]))  # type: ignore[method-assign]


def set_environment(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Makes programs simulate a bad network that are started from now on."""
    paths = [str(Path(__file__).parent / "chaos_site"), str(_TESTS)]
    if known := os.environ.get("PYTHONPATH"):
        paths.append(known)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, text)
