"""What every process does alike."""

import errno
import io
import logging
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.cluster import Processes
from support.threads import Caller

from relaax_like.config.address import Address
from relaax_like.runs.processes.process import (
    OutputHandler,
    SignalEvent,
    clear_traces,
    name_signal,
    validate_port_free,
    without_native_stderr,
)
from relaax_like.wire.errors import ConfigError, RelaaxError


def test_the_garbage_collector_passes_over_what_is_loaded():
    code = (
        "import gc; from relaax_like.runs.processes.process import freeze_gc; "
        "freeze_gc(); print(gc.get_freeze_count(), len(gc.get_objects()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    frozen, left = map(int, done.stdout.split())
    assert frozen > 100 * left


def test_a_server_may_have_as_many_descriptors_as_the_system_allows():
    code = (
        "import resource; from relaax_like.runs.processes.process import raise_descriptor_limit; "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 300)); "
        "raise_descriptor_limit(); print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["300", "300"]


def test_a_missing_library_is_one_line_where_native_code_is_loaded():
    for name, error in (("tensorflow", ConfigError), ("mine", ModuleNotFoundError)):
        with pytest.raises(error, match=name), without_native_stderr():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_each_signal_has_a_name():
    names = [name_signal(number) for number in range(1, signal.NSIG)]
    assert len(set(names)) == len(names)
    assert names[signal.SIGKILL - 1] == "SIGKILL"
    assert "signal 40" in names


def test_a_used_port_is_named_with_its_holder_and_the_flag():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(RelaaxError, match=rf"port {port} is in use by pid \d+.*--bind"):
            validate_port_free(Address("127.0.0.1", port), "--bind")


@pytest.mark.parametrize("calls", range(1, 10))
def test_a_handler_may_set_its_event_wherever_it_interrupts_the_wait(calls):
    event, left = SignalEvent(), [calls]

    def interrupt(frame, what, argument):
        left[0] -= 1
        if left[0] == 0:
            sys.setprofile(None)
            event.set()

    sys.setprofile(interrupt)
    try:
        assert event.wait(20.0)
    finally:
        sys.setprofile(None)
    event.set()
    assert event.wait()
    assert event.wait()  # and once more


def test_short_waits_end():
    assert not any(SignalEvent().wait(1e-6) for _ in range(2_000))


def test_all_who_wait_for_a_signal_hear_of_it():
    event = SignalEvent()
    callers = [Caller(event.wait) for _ in range(5)]
    assert not event.wait(0.01)
    assert not event.wait(-1.0)
    event.set()
    assert [caller.get() for caller in callers] == [True] * 5


def test_the_second_signal_ends_the_process_and_no_first_one_does():
    code = (
        "import os, signal; from relaax_like.runs.processes.process import Shutdown\n"
        "shutdown = Shutdown(); shutdown.request(1)\n"  # as a learner does that has failed
        "os.kill(os.getpid(), signal.SIGTERM); print(shutdown.exit_status, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGTERM); print('still here', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("1\n", 128 + signal.SIGTERM)


def start_unread(code: str) -> subprocess.CompletedProcess[str]:
    """Runs Python whose standard output nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        return subprocess.run(
            [sys.executable, "-c", f"from relaax_like.runs.processes.process import *\n{code}"],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            # With a buffer, most is written at the end.
            env={k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"},
        )
    finally:
        os.close(writing)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("run_main(lambda: print('answer', flush=True))", 128 + signal.SIGPIPE),
        ("run_main(lambda: print('answer') or 0)", 128 + signal.SIGPIPE),
        ("run_main(lambda: print('answer') or 3)", 3),
        ("setup_logging('INFO')\nrun_main(lambda: logger.info('line') or 3)", 3),
    ],
    ids=["at once", "at the end", "another failure", "log"],
)
def test_output_that_nobody_reads_ends_a_command_without_a_word(code: str, status: int):
    done = start_unread(code)
    assert (done.returncode, done.stderr) == (status, "")


def test_a_pipe_that_breaks_elsewhere_is_no_end_of_the_output():
    code = (
        "import os\n"
        "def main():\n"
        "    reading, writing = os.pipe()\n"
        "    os.close(reading)\n"
        "    os.write(writing, b'x')\n"
        "from relaax_like.runs.processes.process import run_main\n"
        "run_main(main)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "BrokenPipeError" in done.stderr


def test_standard_error_is_hidden_until_the_last_has_left(
    capfd: pytest.CaptureFixture[str],
) -> None:
    one, two = without_native_stderr(), without_native_stderr()
    for hiding in (one, two):
        hiding.__enter__()
        os.write(2, b"hidden")
    one.__exit__(None, None, None)
    os.write(2, b"hidden")
    two.__exit__(None, None, None)
    os.write(2, b"seen")
    assert capfd.readouterr().err == "seen"


def test_an_error_is_shown_while_another_thread_hides_standard_error():
    code = (
        "import threading\n"
        "from relaax_like.runs.processes.process import run_main, without_native_stderr\n"
        "from relaax_like.wire.errors import ConfigError\n"
        "hidden = threading.Event()\n"
        "def load():\n"
        "    with without_native_stderr():\n"
        "        hidden.set()\n"
        "        threading.Event().wait()\n"
        "def main():\n"
        "    threading.Thread(target=load, daemon=True).start()\n"
        "    hidden.wait()\n"
        "    raise ConfigError('a mistake')\n"
        "run_main(main)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (2, "error: a mistake\n")


@pytest.mark.parametrize(("code", "status"), [("0", 1), ("3", 3)])
def test_output_on_a_full_disk_is_a_line_without_a_stack_trace(code: str, status: int):
    program = (
        f"from relaax_like.runs.processes.process import *\nrun_main(lambda: print('x') or {code})"
    )
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", program],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"},
        )
    assert done.returncode == status
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: standard output cannot be written: No space left on device")


def test_traces_that_cannot_be_removed_are_named(tmp_path: Path):
    left = tmp_path / "trace" / "train-1.trace"
    left.mkdir(parents=True)  # a folder
    experiment: Any = SimpleNamespace(run_dir=tmp_path)
    with pytest.raises(ConfigError, match=r"--trace: .*train-1\.trace, .* cannot be removed"):
        clear_traces(experiment)


def test_log_lines_on_a_full_disk_are_dropped(capsys: pytest.CaptureFixture[str]):
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    handler = OutputHandler(Full())
    closed: list[bool] = []
    handler.on_closed = lambda: closed.append(True)
    for line, argument in (("line", ()), ("%d", ("wrong",))):
        handler.emit(logging.LogRecord("x", logging.INFO, __file__, 1, line, argument, None))
    assert not closed
    printed = capsys.readouterr().err
    assert "No space left" not in printed
    assert "TypeError" in printed  # a mistake of ours is shown


def test_of_two_simultaneous_requests_one_counts():
    code = (
        "from relaax_like.runs.processes.process import Shutdown\n"
        "shutdown, calls = Shutdown(), []\n"
        "shutdown.on_request(lambda: calls.append(shutdown.exit_status))\n"
        "shutdown.requested.is_set = lambda: False\n"  # as both see it
        "shutdown.request(1); shutdown.request(2); print(calls, shutdown.exit_status)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[1] 1\n"


def test_a_second_signal_does_not_wait_for_a_call_of_a_library(tmp_path: Path):
    """Python's handlers would run after it, which is never."""
    code = (
        "import hashlib\n"
        "from relaax_like.runs.processes.process import Shutdown\n"
        "shutdown = Shutdown()\n"
        "shutdown.on_repeat(lambda: print('last', flush=True))\n"
        "print('ready', flush=True)\n"
        "hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)\n"
    )
    with Processes(tmp_path) as processes:
        program = processes.start("busy", [sys.executable, "-c", code])
        program.wait_for("ready")
        # Two equal ones can become one, and of two others either can be the second.
        program.send(signal.SIGINT)
        status = program.stop(signal.SIGTERM)
        assert status in (128 + signal.SIGINT, 128 + signal.SIGTERM)
        assert program.lines[-1] == "last"


def test_what_a_second_signal_calls_is_not_cut_off(tmp_path: Path):
    """Python's handler and the thread that waits for signals both end the process."""
    code = (
        "import time\n"
        "from relaax_like.runs.processes.process import Shutdown\n"
        "shutdown = Shutdown()\n"
        "shutdown.on_repeat(lambda: (time.sleep(0.5), print('last', flush=True)))\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    time.sleep(0.01)\n"
    )
    with Processes(tmp_path) as processes:
        program = processes.start("idle", [sys.executable, "-c", code])
        program.wait_for("ready")
        program.send(signal.SIGINT)
        assert program.stop(signal.SIGTERM) in (128 + signal.SIGINT, 128 + signal.SIGTERM)
        assert "last" in program.lines


def test_a_process_that_a_call_keeps_from_ending_says_how_to_end_it(tmp_path: Path):
    code = (
        "import hashlib\n"
        "from relaax_like.runs.processes import process\n"
        "process.setup_logging('INFO', with_time=False)\n"
        "process._PATIENCE_SEC = 0.1\n"
        "shutdown = process.Shutdown()\n"
        "print('ready', flush=True)\n"
        "hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)\n"
    )
    with Processes(tmp_path) as processes:
        program = processes.start("busy", [sys.executable, "-c", code])
        program.wait_for("ready")
        program.send(signal.SIGINT)
        program.wait_for("SIGINT: still waiting, .* second signal")
        assert program.stop(signal.SIGINT) == 128 + signal.SIGINT


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "busy", ["hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)", "time.sleep(1e6)"]
)
def test_a_signal_ends_a_slow_start_with_one_line(busy: str, number: int, tmp_path: Path):
    code = (
        "import hashlib, time\n"
        "from relaax_like.runs.processes.process import Shutdown, run_main, setup_logging\n"
        "def main():\n"
        "    setup_logging('INFO', with_time=False)\n"
        "    with Shutdown().interrupting():\n"
        "        print('ready', flush=True)\n"
        f"        {busy}\n"
        "run_main(main)\n"
    )
    with Processes(tmp_path) as processes:
        program = processes.start("busy", [sys.executable, "-c", code])
        program.wait_for("ready")
        assert program.stop(number) == 128 + number
        name = signal.Signals(number).name
        assert program.lines[-2:] == ["ready", f"stopped by {name} while starting"]


def test_signals_that_belong_to_others_end_nothing():
    code = (
        "import os, signal, time\n"
        "from relaax_like.runs.processes.process import Shutdown\n"
        "shutdown, seen = Shutdown(), []\n"
        "signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))\n"
        "for count in range(1, 4):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    while len(seen) < count:\n"
        "        time.sleep(0.01)\n"
        "print(len(seen))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "3\n"
