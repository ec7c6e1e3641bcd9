"""Failpoints: off, armed, and at the Nth time."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from relaax_like.wire import failpoints
from relaax_like.wire.errors import ConfigError

PLACE = "ps.before_journal"


@pytest.fixture(autouse=True)
def disarmed():
    yield
    failpoints.arm("")


def test_nothing_happens_where_nothing_is_armed():
    failpoints.hit(PLACE)
    failpoints.arm("ps.in_snapshot=error")
    failpoints.hit(PLACE)


def test_an_error_is_raised_each_time_or_the_nth_time():
    failpoints.arm(f"{PLACE}=error")
    for _ in range(2):
        with pytest.raises(OSError, match=PLACE):
            failpoints.hit(PLACE)
    failpoints.arm(f"{PLACE}=error@2, ps.in_snapshot=error")
    failpoints.hit(PLACE)
    with pytest.raises(OSError, match=PLACE):
        failpoints.hit(PLACE)
    failpoints.hit(PLACE)
    with pytest.raises(OSError, match="in_snapshot"):
        failpoints.hit("ps.in_snapshot")


def test_a_sleep_takes_its_time():
    failpoints.arm(f"{PLACE}=sleep:0.05")
    start = time.monotonic()
    failpoints.hit(PLACE)
    assert time.monotonic() - start >= 0.05


@pytest.mark.posix
def test_a_kill_is_one():
    code = (
        "from relaax_like.wire import failpoints as f; f.arm_from_environment();"
        f"f.hit('{PLACE}'); print('once', flush=True); f.hit('{PLACE}'); print('never')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"RELAAX_FAILPOINT": f"{PLACE}=kill@2", "PATH": "/usr/bin:/bin"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "once\n")


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("ps.nowhere=kill", "unknown failpoint 'ps.nowhere'; expected one of ps.before_journal"),
        (PLACE, "expected NAME=kill"),
        (f"{PLACE}=explode", "expected NAME=kill"),
        (f"{PLACE}=kill:3", "expected NAME=kill"),
        (f"{PLACE}=sleep:long", "sleep:SECONDS"),
        (f"{PLACE}=sleep:nan", "sleep:SECONDS"),
        (f"{PLACE}=kill@", "expected @1 or more"),
        (f"{PLACE}=kill@0", "expected @1 or more"),
        ("ps.after_journal_before_apply=error", "use kill instead"),
        (f"{PLACE}=kill@x", "expected @1 or more"),
    ],
)
def test_a_wrong_text_is_refused_and_arms_nothing(text, want):
    with pytest.raises(ConfigError, match=want):
        failpoints.arm(text)
    failpoints.hit(PLACE)


def test_every_failpoint_is_somewhere():
    package = Path(failpoints.__file__).parents[1]
    paths = [path for path in package.rglob("*.py") if "failpoints" not in path.name]
    sources = "".join(path.read_text() for path in paths)
    for name in failpoints.NAMES:
        assert sources.count(f'failpoints.hit("{name}")') == 1, name
