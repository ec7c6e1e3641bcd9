"""The checks of a client: what a client must do, where it is documented, and what was found."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from relaax_like.config.address import Address
from relaax_like.wire.errors import ProtocolError

OUTCOMES = PASSED, FAILED, NOT_APPLICABLE = "passed", "failed", "not applicable"
OUT_OF_TIME = ""  # instead of a check: ends a scenario
ANY_PORT = Address("127.0.0.1", 0)
CLIENT_NAME = "check-client-1"
_PROTOCOL = "docs/protocol.md#"
_PROGRAMS = "environments/README.md#what-relaax-run-passes-to-a-program"


class Check(NamedTuple):
    """One requirement on a client, and what was found.

    Attributes:
      id: "group.name", unique.
      section: page and anchor that document the requirement.
      when: what was accepted of a client that passes the check; "-": it is noted elsewhere.
      refusal: expression for "CODE field: text" of a server that refuses; "-": none does.
      expected: what a client must do.
      outcome: PASSED, FAILED or NOT_APPLICABLE.
      seen: what the client did, or why the check does not apply; "" if there is nothing to add.
    """

    id: str
    section: str
    when: str
    refusal: str
    expected: str
    outcome: str = NOT_APPLICABLE
    seen: str = ""


@dataclass
class Setting:
    """How a client is checked.

    Attributes:
      program: command that starts the client; (): its user starts it.
      bind: where the server listens; with port 0 each scenario has a port of its own.
      token: that the client must send; "": none.
      silence_sec: check that a client gives up a silent server after this time; 0: do not.
      deadline: monotonic time at which all ends.
      say: prints a line for the user.
    """

    program: Sequence[str] = ()
    bind: Address = ANY_PORT
    token: str = ""
    silence_sec: float = 0.0
    deadline: float = float("inf")
    say: Callable[[str], None] = print


class Fault(Exception):
    """What a client did wrong; its conversation cannot continue.

    Attributes:
      id: of the check that fails; OUT_OF_TIME: none.
    """

    def __init__(self, id: str, seen: str):
        super().__init__(seen)
        self.id = id


def _read_table() -> dict[str, Check]:
    lines = Path(__file__).with_name("checks.txt").read_text().splitlines()
    checks = [Check(*line.split("; ", 4)) for line in lines if not line.startswith("#")]
    return {
        check.id: check._replace(
            section=_PROGRAMS if check.section == "+" else _PROTOCOL + check.section
        )
        for check in checks
    }


CHECKS = _read_table()


def name_refusal(error: ProtocolError) -> str:
    """Returns the id of the check that a server's refusal belongs to."""
    text = f"{error.code} {error.field}: {error}"
    fits = (check.id for check in CHECKS.values() if re.match(check.refusal, text, re.DOTALL))
    return next(fits, "frames.message")
