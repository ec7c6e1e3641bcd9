"""`relaax check-client`: the requirements on a client in any language, one line per check."""

import json
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from relaax_like.client_checks import checks
from relaax_like.client_checks.checks import CHECKS, Check, Setting
from relaax_like.client_checks.run import check_client
from relaax_like.config.address import parse_address
from relaax_like.wire.errors import ConfigError
from relaax_like.wire.framing import DEFAULT_PORT
from relaax_like.wire.security import read_token

# For all checks, of a client that its user starts again and again, too.
_TIME_LIMIT_SEC = 900.0


def show_client_checks(
    program: Sequence[str],
    bind: str | None,
    token_file: Path | None,
    silence_sec: float,
    as_json: bool,
) -> int:
    """Checks a client and prints the results; returns 1 if a check has failed or time is up.

    Args:
      program: command that starts the client; (): its user starts it.
      bind: "HOST:PORT" to listen on; None: a free port, or the default port without a program.
      token_file: file with the token that the client must send; None: none.
      silence_sec: see `Setting`.
      as_json: print JSON instead of a table.

    Raises:
      ConfigError: a bad address, or a program that does not exist.
    """
    if program and shutil.which(program[0]) is None:
        raise ConfigError(f"{program[0]}: not found, or not executable; expected a client")
    if program and token_file is not None:
        program = [*program, "--token-file", str(token_file)]
    setting = Setting(
        program=program,
        bind=parse_address(bind or ("127.0.0.1:0" if program else f"localhost:{DEFAULT_PORT}")),
        token="" if token_file is None else read_token(token_file),
        silence_sec=silence_sec,
        deadline=time.monotonic() + _TIME_LIMIT_SEC,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    results = check_client(setting)
    (_print_json if as_json else _print_table)(results)
    is_late = time.monotonic() > setting.deadline
    return int(is_late or any(one.outcome == checks.FAILED for one in results))


def list_checks() -> int:
    """Prints all checks, and makes none."""
    for one in CHECKS.values():
        print(f"{one.id:29}  {one.expected} ({one.section})")
    return 0


def _print_table(results: Sequence[Check]) -> None:
    for one in results:
        text = f"{one.expected}: {one.seen}" if one.seen else one.expected
        if one.outcome == checks.FAILED:
            text = f"{one.seen} (expected: {one.expected}; see {one.section})"
        print(f"{one.outcome:14}  {one.id:29}  {text}")
    count = Counter(one.outcome for one in results)
    print(", ".join(f"{count[outcome]} {outcome}" for outcome in checks.OUTCOMES))


def _print_json(results: Sequence[Check]) -> None:
    names = ("id", "outcome", "expected", "seen", "section")
    rows = [{name: getattr(one, name) for name in names} for one in results]
    print(json.dumps(rows, indent=1))
