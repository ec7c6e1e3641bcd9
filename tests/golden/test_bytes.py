"""Bytes that processes and files exchange stay as they were recorded, and are read as before.

    python tests/golden/test_bytes.py    # records all again

Each line of bytes.txt is a case of messages.py, and a message of it in hexadecimal; of a long
message its beginning, length and SHA-256. conversations.txt has what a client and an rlx server say
over each carrier, calls.txt what clients of a parameter server send over gRPC, and its answers.
What rlx clients of the first protocol version said is in tests/fixtures/wire.
"""

# covers R13

import dataclasses
import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from golden.calls import CALLS, make_calls
from golden.conversations import CONVERSATIONS, play
from golden.messages import CASES

RECORDED = Path(__file__).parent / "bytes.txt"
CONVERSED = Path(__file__).parent / "conversations.txt"
CALLED = Path(__file__).parent / "calls.txt"
_LONGEST, _BEGINNING = 400, 48


def describe(name: str, messages: Iterable[bytes]) -> list[str]:
    return [f"{name}: {_to_text(message)}" for message in messages]


def _to_text(message: bytes) -> str:
    if len(message) <= _LONGEST:
        return message.hex()
    digest = hashlib.sha256(message).hexdigest()
    return f"{message[:_BEGINNING].hex()}... {len(message)} bytes, {digest}"


def read_recorded() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in RECORDED.read_text().splitlines():
        found.setdefault(line.rpartition(": ")[0], []).append(line)
    return found


@pytest.mark.parametrize("name", CASES)
def test_what_is_written_is_what_was_recorded_and_is_read_as_it_was(name: str) -> None:
    case = CASES[name]
    messages = list(case.write(case.value))
    assert describe(name, messages) == read_recorded()[name]
    if case.read is not None:
        difference = find_difference(case.value, case.read(messages))
        assert not difference, difference


def test_each_recorded_message_has_its_case() -> None:
    assert read_recorded().keys() == CASES.keys()


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_conversation_has_the_recorded_bytes(name: str) -> None:
    recorded = CONVERSED.read_text().splitlines()
    assert play(name) == [line for line in recorded if line.startswith((f"{name} >", f"{name} <"))]


@pytest.mark.parametrize("name", CALLS)
def test_a_call_has_the_recorded_bytes(name: str) -> None:
    recorded = CALLED.read_text().splitlines()
    assert describe_calls(name) == [line for line in recorded if line.startswith(f"{name}: ")]


def describe_calls(name: str) -> list[str]:
    return [line for what, messages in make_calls(name) for line in describe(what, messages)]


def find_difference(want: Any, came: Any, place: str = "it") -> str:
    """Returns where two records differ; "" if they are the same."""
    if isinstance(want, np.ndarray):
        if (want.dtype, want.shape) != (came.dtype, came.shape) or want.tobytes() != came.tobytes():
            return f"{place}: {came!r}, expected {want!r}"
        return ""
    if dataclasses.is_dataclass(want) and type(want) is type(came):
        want, came = vars(want), vars(came)
    if isinstance(want, Mapping) and isinstance(came, Mapping):
        if want.keys() != came.keys():
            return f"{place}: keys {list(came)}, expected {list(want)}"
        places = [(want[key], came[key], f"{place}.{key}") for key in want]
    elif isinstance(want, Sequence) and not isinstance(want, str | bytes):
        if len(want) != len(came):
            return f"{place}: {len(came)} items, expected {len(want)}"
        both = enumerate(zip(want, came, strict=True))
        places = [(*pair, f"{place}[{index}]") for index, pair in both]
    else:
        return (
            "" if type(want) is type(came) and want == came else f"{place}: {came!r}, not {want!r}"
        )
    return next(filter(None, (find_difference(*one) for one in places)), "")


if __name__ == "__main__":
    lines = [
        line for name, case in CASES.items() for line in describe(name, case.write(case.value))
    ]
    RECORDED.write_text("\n".join(lines) + "\n")
    lines = [line for name in CONVERSATIONS for line in play(name)]
    CONVERSED.write_text("\n".join(lines) + "\n")
    lines = [line for name in CALLS for line in describe_calls(name)]
    CALLED.write_text("\n".join(lines) + "\n")
