"""Fuzzing by time: hypothesis runs again, with other seeds, until a target's seconds are used up.

RELAAX_FUZZ_SEC is for all targets of tests/fuzz together. Without it 15 seconds, with the same
seeds each time: what others have changed is tested, and not their luck; with it, seeds never seen.
A failure prints the smallest example, a line `@reproduce_failure(...)` that brings it back, and
RELAAX_FUZZ_SEED, which makes another run begin with the seed that failed.
"""

import contextlib
import itertools
import os
import secrets
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

TOTAL_SEC = float(os.environ.get("RELAAX_FUZZ_SEC", "15"))
# A failure takes minutes more: its example is made small.
TIMEOUT_SEC = TOTAL_SEC + 600
_SETTINGS = settings(
    max_examples=100,
    deadline=None,
    database=None,
    derandomize=False,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
_FIRST_SEED = secrets.randbits(60) if "RELAAX_FUZZ_SEC" in os.environ else 0
_seeds = itertools.count(int(os.environ.get("RELAAX_FUZZ_SEED", _FIRST_SEED)))
# Numbers at the borders of varints, and where sizes overflow.
_NUMBERS = [0, 1, 127, 128, 255, 256, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1]


def fuzz(check: Callable[..., None], share: float, **strategies: st.SearchStrategy[Any]) -> None:
    """Calls `check` with what is drawn, for a share of the whole time, at least a hundred times."""
    end = time.monotonic() + share * TOTAL_SEC
    while True:
        with _next_seed() as number:
            seed(number)(_SETTINGS(given(**strategies)(check)))()
        if time.monotonic() >= end:
            return


def fuzz_machine(machine: type[RuleBasedStateMachine], share: float, steps: int = 30) -> None:
    """Runs a state machine for a share of the whole time, at least ten times."""
    end = time.monotonic() + share * TOTAL_SEC
    while True:
        with _next_seed() as number:
            run_state_machine_as_test(  # type: ignore[no-untyped-call]
                seed(number)(machine),
                settings=settings(_SETTINGS, max_examples=10, stateful_step_count=steps),
            )
        if time.monotonic() >= end:
            return


@contextlib.contextmanager
def _next_seed() -> Iterator[int]:
    """Gives the next seed, and prints it when what is done with it fails."""
    number = next(_seeds)
    try:
        yield number
    except BaseException:
        print(f"RELAAX_FUZZ_SEED={number}")
        raise


def pack_varint(number: int) -> bytes:
    """Returns a number as protobuf writes it."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


@st.composite
def mutations(draw: st.DrawFn, samples: Sequence[bytes]) -> bytes:
    """Draws a good sample, now and then as it is, else with parts changed, moved or missing."""
    data = bytearray(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        to = draw(st.integers(at, min(len(data), at + 32)))
        kind = draw(st.sampled_from(["flip", "bytes", "number", "cut", "repeat", "splice"]))
        if kind == "flip" and at < len(data):
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "bytes":
            data[at:to] = draw(st.binary(max_size=12))
        elif kind == "number":
            number = draw(st.sampled_from(_NUMBERS))
            packed = [pack_varint(number), struct.pack("<Q", number), struct.pack("<Q", number)[:4]]
            data[at:to] = draw(st.sampled_from(packed))
        elif kind == "cut":
            del data[at:to]
        elif kind == "repeat":
            data[at:at] = data[at:to] * draw(st.integers(1, 3))
        elif kind == "splice":
            data[at:] = draw(st.sampled_from(samples))[at:]
    return bytes(data)
