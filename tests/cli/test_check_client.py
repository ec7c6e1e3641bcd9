"""`relaax check-client` as its users start it."""

import json
import signal
import subprocess
import sys
from pathlib import Path

from support import broken_clients
from support.cluster import find_command
from support.here import refuse_here, run_here

CART = [sys.executable, broken_clients.__file__]
RELAAX = find_command("relaax")
COMMAND = [RELAAX, "check-client"]


def call(*arguments: str, status: int = 0) -> str:
    found, output = run_here("check-client", *arguments)
    assert found == status, output
    return output


def test_the_checks_are_listed() -> None:
    lines = call("--list").splitlines()
    assert len(lines) >= 60
    assert lines[0].startswith("frames.carrier ")
    assert lines[0].endswith("(docs/protocol.md#frames)")


def test_a_right_client_passes_and_a_broken_one_does_not(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123456789abcdef")
    token.chmod(0o600)
    shown = call("--json", "--token-file", str(token), "--", *CART, "later_features")
    found = {one["id"]: one for one in json.loads(shown)}
    assert found["hello.token"]["outcome"] == "passed"
    assert found["answers.silence"]["outcome"] == "not applicable"
    lines = call("--", *CART, "sends_nan", status=1).splitlines()
    (line,) = (line for line in lines if line.startswith("failed"))
    assert "steps.values" in line
    assert "expected: Observations are finite" in line
    assert "see docs/protocol.md#spaces" in line
    assert ", 1 failed, " in lines[-1]


def test_ctrl_c_ends_the_command_and_the_client() -> None:
    with subprocess.Popen([*COMMAND, "--bind", "127.0.0.1:0"], stderr=subprocess.PIPE) as by_hand:
        assert by_hand.stderr is not None
        assert b"waiting for the client at 127.0.0.1:" in by_hand.stderr.readline()
        by_hand.send_signal(signal.SIGINT)
        try:
            _, rest = by_hand.communicate(timeout=60)
        finally:
            by_hand.kill()
    assert (by_hand.returncode, rest) == (130, b"")


def test_what_cannot_be_checked_is_refused() -> None:
    for arguments, text in (
        (["--", "no-such-program"], "error: no-such-program: not found, or not executable"),
        (["--bind", "nowhere"], "error: 'nowhere': port missing"),
        (["--token-file", "nothing", "--", *CART], "error: token file nothing"),
    ):
        assert refuse_here("check-client", *arguments).startswith(text)
