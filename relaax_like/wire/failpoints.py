"""Failpoints: named places where a process is made to fail, so that recovery can be tested.

    RELAAX_FAILPOINT=ps.after_journal_before_apply=kill@7 relaax-parameter-server --config F

Off by default; then each costs one check of an empty dict. The names are in `NAMES`.
"""

import errno
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from relaax_like.wire.errors import ConfigError

ENVIRONMENT_VARIABLE = "RELAAX_FAILPOINT"

# Name -> description of the place.
NAMES = {
    "ps.before_journal": "a push is valid and next in line; nothing is written yet",
    "ps.after_journal_before_apply": "a push is in the journal; its version is not yet visible",
    "ps.after_apply_before_reply": "a push took effect; no client has been notified",
    "ps.before_publish": "a publication of a standalone learner is accepted; nothing has changed",
    "ps.after_lease_before_reply": "a lease is written; its holder is not yet notified",
    "ps.after_publish": "a publication is written and visible; its learner is not yet notified",
    "ps.in_snapshot": "a snapshot's files are written under a temporary name",
    "ps.after_snapshot_before_drop": "a snapshot is in place; the old journal segments still exist",
    "ps.in_replay": "a record of the journal has been replayed during the start",
    "ps.after_spaces_before_reply": "a run's spaces are written; the proposal is not answered",
    "jobs.before_journal": "a change of the coordinator's queue is valid; nothing is written yet",
    "jobs.after_journal": "a change of the coordinator's queue is written; it is not acknowledged",
    "jobs.in_version": "files of a job's version are written under a temporary name",
    "jobs.after_version": "a job's version is in place; it is not recorded yet",
}


@dataclass
class _Armed:
    act: Callable[[str], None]
    at: int  # acts when it has been reached this many times; 0: each time
    reached: int = 0


_armed: dict[str, _Armed] = {}
_lock = threading.Lock()


def hit(name: str) -> None:
    """Executes the action armed for this place, if any.

    Raises:
      OSError: the action is `error`.
    """
    if not _armed:
        return
    armed = _armed.get(name)
    if armed is None:
        return
    with _lock:
        armed.reached += 1
        due = armed.at in (0, armed.reached)
    if due:
        armed.act(name)


def arm(text: str) -> None:
    """Arms failpoints: `NAME=ACTION[@N]`, separated by commas; replaces earlier ones.

    Actions: `kill` (SIGKILL to this process), `error` (an input/output error), `sleep:SECONDS`.
    With `@N` only when the place is reached for the Nth time, otherwise each time.

    Raises:
      ConfigError: a name, action or count is not valid, or the place cannot have this action.
    """
    armed = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, action = part.partition("=")
        action, at, count = action.partition("@")
        if name not in NAMES:
            raise ConfigError(
                f"{ENVIRONMENT_VARIABLE}: unknown failpoint {name!r}; expected one of "
                f"{', '.join(NAMES)}"
            )
        if action == "error" and name == "ps.after_journal_before_apply":
            raise ConfigError(
                f"{ENVIRONMENT_VARIABLE}: {part!r}: an error is not possible here, because "
                "what is in the journal must be applied; use kill instead"
            )
        if at and not (count.isdecimal() and int(count) > 0):
            raise ConfigError(
                f"{ENVIRONMENT_VARIABLE}: {part!r}: expected @1 or more, got @{count}"
            )
        armed[name] = _Armed(_parse_action(part, action), int(count or 0))
    _armed.clear()
    _armed.update(armed)


def arm_from_environment() -> None:
    """Arms the failpoints in the environment variable.

    Raises:
      ConfigError: see `arm`.
    """
    arm(os.environ.get(ENVIRONMENT_VARIABLE, ""))


def _parse_action(part: str, action: str) -> Callable[[str], None]:
    kind, _, argument = action.partition(":")
    if kind == "sleep":
        try:
            seconds = float(argument)
        except ValueError:
            seconds = -1.0
        if 0 <= seconds < 1e6:
            return lambda name: time.sleep(seconds)
    elif not argument and kind in _ACTIONS:
        return _ACTIONS[kind]
    raise ConfigError(
        f"{ENVIRONMENT_VARIABLE}: {part!r}: expected NAME=kill, NAME=error or NAME=sleep:SECONDS "
        "(0 or more, and less than 1e6)"
    )


def _kill(name: str) -> None:
    # On Windows, any signal ends a process immediately.
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))


def _fail(name: str) -> None:
    raise OSError(errno.EIO, f"failpoint {name}")


_ACTIONS = {"kill": _kill, "error": _fail}
