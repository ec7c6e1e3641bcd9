"""What all our processes have in common: logging, signals, and errors without stack traces."""

import contextlib
import gc
import logging
import os
import resource
import select
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn, TextIO

from relaax_like.config.address import Address
from relaax_like.config.models import Experiment
from relaax_like.extras import naming_missing
from relaax_like.wire import tracing
from relaax_like.wire.errors import ConfigError, NotAllowedError, RelaaxError, print_error
from relaax_like.wire.ports import bind_socket, describe_bind_failure

logger = logging.getLogger(__name__)

# Subfolder of a run's folder.
TRACE_FOLDER = "trace"
# Limit of open files of a server, if the system allows it.
_DESCRIPTORS = 65_536
EXIT_ERROR = 1
EXIT_USAGE = 2
# Status that a shell reports if standard output is no longer read, as with `| head`.
EXIT_OUTPUT_CLOSED = 128 + signal.SIGPIPE


class OutputHandler(logging.StreamHandler[TextIO]):
    """Writes log lines; drops those that cannot be written, as on a full disk.

    Attributes:
      on_closed: called, in any thread, for each line that is dropped because the output is no
        longer read.
    """

    def __init__(self, stream: TextIO):
        super().__init__(stream)
        self.on_closed: Callable[[], None] = lambda: None

    def handleError(self, record: logging.LogRecord) -> None:
        """Drops a line that cannot be written; called in the handler of an exception."""
        error = sys.exc_info()[1]
        if isinstance(error, BrokenPipeError):
            self.on_closed()
        elif not isinstance(error, OSError):
            super().handleError(record)


def setup_logging(level: str, stream: TextIO | None = None, with_time: bool = True) -> None:
    """Sends log lines to standard output, or to `stream`: time and message.

    They do not name the process: `relaax run`, and `relaax train` for its workers, add its name
    when they print them.

    Args:
      level: lowest level of the lines that are written, such as "INFO".
      stream: where they are written; None: standard output.
      with_time: whether to include the time; False: the process that reads the lines
        adds it.
    """
    # Level of TensorFlow's own messages, in the processes that load it.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    logging.basicConfig(
        level=level,
        format="%(asctime)s %(message)s" if with_time else "%(message)s",
        datefmt="%H:%M:%S",
        handlers=[OutputHandler(stream or sys.stdout)],
        force=True,
    )


def get_process_start() -> float:
    """Returns the `time.perf_counter()` of this process's start; without /proc, the current one."""
    now = time.perf_counter()
    with contextlib.suppress(OSError, ValueError):
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        # After the name, which can contain anything, the 20th field is in clock ticks since boot.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return now - (uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK"))
    return now


def start_tracing(role: str, experiment: Experiment, wanted: bool) -> None:
    """Starts to trace this process, to RUN/trace or to the folder that RELAAX_TRACE names.

    Args:
      role: of this process.
      experiment: defines the run's folder.
      wanted: whether to trace to RUN/trace; False: only if RELAAX_TRACE is set.

    Raises:
      ConfigError: the file cannot be created.
    """
    if wanted:
        tracing.start(experiment.run_dir / TRACE_FOLDER, role)
    else:
        tracing.start_from_environment(role)
    if tracing.active is not None:
        folder = tracing.active.path.parent
        quoted = shlex.quote(str(folder))
        logger.info("tracing to %s; afterwards run: relaax trace %s", folder, quoted)


def clear_traces(experiment: Experiment) -> None:
    """Removes earlier starts' traces from RUN/trace: `relaax trace` would merge all of them.

    Raises:
      ConfigError: one of them cannot be removed.
    """
    for path in (experiment.run_dir / TRACE_FOLDER).glob(f"*{tracing.SUFFIX}"):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(
                f"--trace: {path}, of an earlier start, cannot be removed: {error.strerror}; "
                "remove it, or choose another run_dir"
            ) from None


class _HiddenStderr:
    """Discards standard error while at least one thread requests it, or until `show`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted = 0
        self._saved = -1

    def begin(self) -> None:
        with self._lock:
            self._wanted += 1
            if self._wanted == 1:
                sys.stderr.flush()
                self._saved = os.dup(2)
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, 2)
                os.close(null)

    def end(self) -> None:
        with self._lock:
            self._wanted -= 1
            if not self._wanted:
                self._show()

    def show(self) -> None:
        """Shows standard error, although threads request the opposite."""
        with self._lock:
            self._show()

    def _show(self) -> None:
        if self._saved >= 0:
            os.dup2(self._saved, 2)
            os.close(self._saved)
            self._saved = -1


_hidden_stderr = _HiddenStderr()


@contextlib.contextmanager
def without_native_stderr() -> Iterator[None]:
    """Discards what the process writes to standard error, such as TensorFlow's native messages.

    Python's exceptions pass. Several threads can use it at once: the output of all threads is
    discarded until the last one of them leaves its block.

    Raises:
      ConfigError: see `naming_missing`.
    """
    _hidden_stderr.begin()
    try:
        with naming_missing():
            yield
    finally:
        _hidden_stderr.end()


class Stopped(BaseException):
    """Ends the block of `Shutdown.interrupting`; its argument is the exit status.

    Not an Exception, like KeyboardInterrupt.
    """


_LOOK_SEC = 0.05
# Time that a call of a library has to end after a signal, while a process starts.
_INTERRUPT_SEC = 0.3
# Time that one thread has to call what ends the process, while another waits to do the same.
_END_SEC = 1.0
# A process that has not ended this long after the first signal says how to end it.
_PATIENCE_SEC = 5.0


class SignalEvent(threading.Event):
    """An event that a signal handler can set at any moment; it is never cleared.

    `threading.Event.set` takes a lock. If the handler interrupts the thread that holds it, as a
    thread that waits for the event sometimes does, both would wait forever. This class takes no
    lock: a waiting thread polls 20 times per second.
    """

    def __init__(self) -> None:
        super().__init__()
        self._happened = False

    def is_set(self) -> bool:
        """Returns whether the event has been set."""
        return self._happened

    def set(self) -> None:
        """Sets the event; safe in signal handlers and in any thread."""
        self._happened = True

    def wait(self, timeout: float | None = None) -> bool:
        """Waits up to `timeout` seconds, None: forever; returns whether the event is set."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._happened:
            left = _LOOK_SEC if deadline is None else deadline - time.monotonic()
            if left <= 0:
                break
            # Not time.sleep, which fails under libfaketime, with which tests make the clock jump.
            select.select([], [], [], min(left, _LOOK_SEC))
        return self._happened


class Shutdown:
    """Sets an event at the first SIGTERM or SIGINT; a second one ends the process immediately.

    Python's handlers run between two steps of the main thread, so not while it executes a call of a
    library, such as a step of an environment. The second signal is therefore handled in a thread.

    Create it in the main thread: only there can signal handlers be set.

        shutdown = Shutdown()
        with shutdown.interrupting():
            model = load_slowly()
        serve(model)
        shutdown.requested.wait()

    Attributes:
      requested: set when the process must end.
      exit_status: 0 before the first request to end; after it, 128 + the signal's number, or the
        argument of `request`.

    Raises:
      ValueError: created in another thread.
    """

    def __init__(self) -> None:
        self.requested: threading.Event = SignalEvent()
        # Acquired by the first request, and never released; no request waits for it.
        self._first = threading.Lock()
        self._ending = threading.RLock()  # a handler can interrupt another one
        self.exit_status = 0
        self._callbacks: list[Callable[[], None]] = []
        self._last_callbacks: list[Callable[[], None]] = []
        self._interrupting = False
        self._signalled = False
        signal.signal(signal.SIGTERM, self._handle_signal)
        signal.signal(signal.SIGINT, self._handle_signal)
        arrived, at = os.pipe()
        os.set_blocking(at, False)
        signal.set_wakeup_fd(at, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=(arrived,), daemon=True).start()

    def request(self, exit_status: int) -> None:
        """Requests the process to end; only the first request has an effect. Thread-safe.

        Unlike a signal, it does not end a block of `interrupting` that has begun.
        """
        if self.requested.is_set() or not self._first.acquire(blocking=False):
            return
        self.exit_status = exit_status
        self.requested.set()
        for callback in self._callbacks:
            callback()

    def end_with_output(self) -> None:
        """Requests the end, too, if the process's log is no longer read, as with `| head`."""
        for handler in logging.getLogger().handlers:
            if isinstance(handler, OutputHandler):
                handler.on_closed = self.note_output_closed

    def note_output_closed(self) -> None:
        """Requests the end because the process's output is no longer read. Thread-safe."""
        self.request(EXIT_OUTPUT_CLOSED)

    def on_request(self, callback: Callable[[], None]) -> None:
        """Calls `callback` when the end is requested: in the signal handler, or in `request`.

        A callback that is added after the request is not called.
        """
        self._callbacks.append(callback)

    def on_repeat(self, callback: Callable[[], None]) -> None:
        """Calls `callback` just before a second signal ends the process; it can be called twice."""
        self._last_callbacks.append(callback)

    @contextlib.contextmanager
    def interrupting(self) -> Iterator[None]:
        """Makes a signal end the block immediately; for slow preparations in the main thread.

        If the main thread executes a call of a library, such as the drawing of large weights, the
        process ends without cleaning up: nothing in the block must need that.

        Runners such as honcho wait five seconds between SIGTERM and SIGKILL, and loading TensorFlow
        takes longer.

        Raises:
          Stopped: a signal arrived in the block, or the end had been requested before it;
            `run_main` converts it to the exit status.
        """
        self._interrupting = True
        try:
            if self.requested.is_set():
                raise Stopped(self.exit_status)
            yield
        finally:
            self._interrupting = False

    def _watch(self, arrived: int) -> None:
        """Ends the process at the second signal, also while the main thread executes a call."""
        signalled = False
        while True:
            (number,) = os.read(arrived, 1)
            # Later, the signals can belong to somebody else.
            if signal.getsignal(number) == self._handle_signal:
                if signalled:
                    self._end_now(number)
                signalled = True
                if self._interrupting:
                    time.sleep(_INTERRUPT_SEC)
                if self._interrupting:  # the main thread is still in that call
                    _log_stopped(128 + number)
                    self._end_now(number)
                if not select.select([arrived], [], [], _PATIENCE_SEC)[0]:
                    self._log_waiting(number)

    def _log_waiting(self, number: int) -> None:
        if signal.getsignal(number) == self._handle_signal:
            logger.info(
                "%s: still waiting, such as for a running call of an environment; a second signal "
                "(Ctrl-C) ends the process immediately",
                name_signal(number),
            )

    def _end_now(self, number: int) -> None:
        # The main thread and that of `_watch` can both be here: the first one has time to finish.
        self._ending.acquire(timeout=_END_SEC)
        for callback in self._last_callbacks:
            callback()
        os._exit(128 + number)

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        if self._signalled:
            self._end_now(number)
        self._signalled = True
        self.request(128 + number)  # if nothing else has requested it
        if self._interrupting:
            self._interrupting = False
            # Another thread might have requested the end just now, and not set its status yet.
            raise Stopped(self.exit_status or 128 + number)


def validate_port_free(address: Address, flag: str) -> None:
    """Checks that a port is free, before slow preparations; port 0 always is.

    Args:
      address: on which a server will listen.
      flag: command-line flag of the address, for the error.

    Raises:
      RelaaxError: the port is taken, or the address cannot be used on this machine; the error names
        the process that holds the port, if possible, and the flag that chooses another address.
    """
    if address.port == 0:
        return
    try:
        bind_socket(address.host, address.port).close()
    except OSError as error:
        raise RelaaxError(
            f"cannot bind {address}: {describe_bind_failure(address.host, address.port)} "
            f"with {flag}"
        ) from error


def name_signal(number: int) -> str:
    """Returns the name of a signal, such as "SIGKILL"; most real-time signals have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def end_now(exit_status: int) -> NoReturn:
    """Ends the process without waiting for its threads, which might be busy for a long time."""
    logging.shutdown()
    with contextlib.suppress(OSError):  # no longer read, or a full disk
        sys.stdout.flush()
    os._exit(exit_status)


def freeze_gc() -> None:
    """Excludes all current objects from garbage collection; call it when serving begins.

    A full collection would scan every library, which takes 60 ms with numba, during which no
    request is answered.
    """
    gc.collect()
    gc.freeze()


def raise_descriptor_limit() -> None:
    """Raises the limit of open files and connections: each client of a server takes one or two.

    The usual limit, 1 024, is meant for programs that use select(2).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def run_main(main: Callable[[], int]) -> None:
    """Runs a command and exits with its status; prints users' mistakes without a stack trace.

    The status is 2 after a ConfigError, a NotAllowedError, or if a library of an extra is missing;
    1 after any other RelaaxError. If a command has not failed, but its output is no longer read,
    as with `| head -1`, it exits silently with status 141; if the end of its output cannot be
    written, as on a full disk, with status 1.
    """
    try:
        try:
            with naming_missing():
                status = main()
        except BaseException:
            _hidden_stderr.show()  # another thread might still be loading TensorFlow
            raise
    except (ConfigError, NotAllowedError) as error:
        print_error("error", error)
        status = EXIT_USAGE
    except RelaaxError as error:
        print_error("error", error)
        status = EXIT_ERROR
    except Stopped as stopped:
        status = stopped.args[0]
        _log_stopped(status)
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    except BrokenPipeError:
        if not _is_output_closed():
            raise
        status = EXIT_OUTPUT_CLOSED
    try:
        sys.stdout.flush()
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            status = status or EXIT_OUTPUT_CLOSED
        else:
            with contextlib.suppress(OSError):  # standard error might be the same file
                print(
                    f"error: standard output cannot be written: {error.strerror}; free disk "
                    "space, or write it to another place",
                    file=sys.stderr,
                )
            status = status or EXIT_ERROR
        # The rest would be written, and fail again, when the interpreter exits.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    gc.freeze()  # otherwise the interpreter's exit collects garbage, for a quarter of a second
    sys.exit(status)


def _log_stopped(exit_status: int) -> None:
    if exit_status > 128:
        logger.info("stopped by %s while starting", name_signal(exit_status - 128))


def _is_output_closed() -> bool:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # only errors
    return bool(poll.poll(0))
