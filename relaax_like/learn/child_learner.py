"""ChildLearner: a learner in a child of this process, beside the agents.

The agents' event loop then does not share the learner's interpreter: a gradient only costs the time
for sending the rollout.
"""

import contextlib
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence

from relaax_like.bridge import frames
from relaax_like.bridge.collecting import Call, CollectStream
from relaax_like.bridge.errors import LEARNER
from relaax_like.bridge.pair import Pair, open_pair
from relaax_like.core.manifest import Manifest
from relaax_like.learn.remote_learner import RemoteLearner
from relaax_like.learn.remote_learners import RemoteLearners
from relaax_like.wire.errors import ConfigError, RelaaxError, ServerUnavailableError

logger = logging.getLogger(__name__)

# A learner that has work but is silent for this long hangs. Its first gradient takes seconds.
_SILENCE_SEC = 120.0
# Longest wait for the process to exit after its streams have ended.
_END_SEC = 3.0


class ChildLearner(RemoteLearners):
    """Starts a program that learns, and opens a stream of experience to it for each Algorithm.

        child = ChildLearner([sys.executable, "-m", "relaax_like.launch.learner_main", ...])
        child.start()
        learner = child.learner("RL", manifest)
        processor = ComputationDataProcessor(actor, learner, metrics)
        ...
        child.stop()

    A stream ends when the program ends, and never before. A `RemoteLearner` that opens the next
    stream restarts the program; requests in progress are lost, because they might have been learned
    from. A program that hangs (it has work, but has not answered for two minutes) is killed.

    Args:
      argv: the program; the file descriptor of its control socket is appended. It must exit when
        that socket is closed.
      environment: environment variables of the program; None: those of this process.
      on_global_t: called, from another thread, with the newest known environment steps of the run.
      on_failure: called, from another thread, once for each Algorithm, when retrying is useless, as
        after an exit with a status in `fatal`; the program is then not restarted.
      fatal: exit statuses after which a restart would fail in the same way.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str] | None = None,
        on_global_t: Callable[[int], None] = lambda global_t: None,
        on_failure: Callable[[RelaaxError], None] = lambda error: None,
        fatal: Sequence[int] = (),
    ):
        super().__init__(self._make_remote)
        self._argv = list(argv)
        self._environment = environment
        self._on_global_t = on_global_t
        self._on_failure = on_failure
        self._fatal = fatal
        self._lock = threading.Lock()  # guards the child; none must be started after a stop
        self._child: _Child | None = None
        self._stopping = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="learner watch", daemon=True)

    def start(self) -> None:
        """Starts the process, without waiting for it. Idempotent.

        After `stop` it has no effect: learners then raise ServerUnavailableError.

        Raises:
          ConfigError: it was started before, and has exited with a status in `fatal`.
        """
        with contextlib.suppress(ServerUnavailableError):  # the first stream retries
            self._get_child()
        if not (self._watcher.is_alive() or self._stopping.is_set()):
            self._watcher.start()

    def stop(self) -> None:
        """Lets the process finish the submitted work, for some seconds, and ends it. Idempotent."""
        self._stopping.set()
        super().stop()
        with self._lock:
            if self._child is not None:
                self._child.end()

    def _make_remote(self, name: str, manifest: Manifest | None) -> RemoteLearner:
        assert manifest is not None, "a child's values are those of its Algorithm"

        def open_stream() -> CollectStream:
            return CollectStream(self._get_child().open_call(), manifest, name)

        return RemoteLearner(
            open_stream,
            name,
            on_global_t=self._on_global_t,
            on_failure=self._on_failure,
            is_child=True,
            server=LEARNER,
        )

    def _get_child(self) -> "_Child":
        """Returns the child, and starts one if there is none.

        Raises:
          ConfigError: the child has exited with a status in `fatal`.
          ServerUnavailableError: the child cannot be started, or this process is shutting down.
        """
        with self._lock:
            if self._stopping.is_set():
                raise ServerUnavailableError("this process is shutting down; reconnect later")
            if self._child is not None and not self._child.is_running:
                error = self._child.note_end()
                if isinstance(error, ConfigError):
                    raise error
                self._child = None
            if self._child is None:
                try:
                    self._child = _Child(self._argv, self._environment, self._fatal)
                except OSError as error:
                    logger.error("cannot start the learner's process: %s; retrying", error)
                    raise ServerUnavailableError(
                        f"the learner cannot be started ({error.strerror or error}); retry later"
                    ) from None
            return self._child

    def _watch(self) -> None:
        while not self._stopping.wait(_SILENCE_SEC / 10):
            silent = max((remote.silent_sec for remote in self._learners), default=0.0)
            with self._lock:
                if silent >= _SILENCE_SEC and self._child is not None:
                    logger.error("no message from the learner for %.0f s; killing it", silent)
                    self._child.process.kill()


class _Child:
    """One start of the program, with one end of a control socket.

    The program's output is copied to the standard output of this process.

    Raises:
      OSError: the program cannot be started.
    """

    def __init__(
        self, argv: Sequence[str], environment: Mapping[str, str] | None, fatal: Sequence[int]
    ):
        self._fatal = fatal
        self._is_noted = False  # its end has been logged
        self._control, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            try:
                self.process = subprocess.Popen(
                    [*argv, str(number)],
                    stdin=subprocess.DEVNULL,
                    # Not our own: a runner waits until all processes have closed its output.
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    pass_fds=[number],
                    env=environment,
                )
            except OSError:
                self._control.close()
                raise
        threading.Thread(target=self._copy_lines, name="learner output", daemon=True).start()

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def open_call(self) -> Call:
        """Opens a stream, which the program reads once it has loaded.

        Raises:
          RelaaxError: the program has ended, or was killed because no descriptor is left; see
            `note_end`.
        """
        try:
            return _PairCall(self, open_pair(self._control))
        except OSError:
            raise self.note_end() from None

    def note_end(self) -> RelaaxError:
        """Waits for the exit of a process whose sockets are closed; returns the error to raise.

        Kills the process if it takes too long.
        """
        try:
            status = self.process.wait(_END_SEC)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self._control.close()
        if status and not self._is_noted:
            self._is_noted = True
            logger.error("the learner's process ended with status %d", status)
        if status in self._fatal:
            return ConfigError(
                "the learner cannot run with these settings or this algorithm; see its error above"
            )
        return ServerUnavailableError("the learner is being restarted")

    def end(self) -> None:
        """Kills the process, unless it has ended. Idempotent and thread-safe."""
        self._is_noted = True
        self.process.kill()
        self.process.wait()
        self._control.close()

    def _copy_lines(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                encoding = sys.stdout.encoding or "utf-8"
                text = line.decode(errors="replace").encode(encoding, "replace").decode(encoding)
                with contextlib.suppress(OSError, ValueError):  # a full disk: the line is lost
                    sys.stdout.write(text)
                    sys.stdout.flush()


class _PairCall(Call):
    """A call to the program, which ends with it."""

    def __init__(self, child: _Child, pair: Pair):
        self._child = child
        self._pair = pair
        self._has_answered = False
        self._has_ended = False

    def __next__(self) -> frames.ExperienceReply:
        data = self._pair.receive()
        if data is None:
            self._has_ended = True
            self._pair.close()
            raise self._child.note_end()
        self._has_answered = True
        return frames.to_experience_reply(data)

    def put(self, part: frames.ExperienceRequest | None) -> None:
        if part is None:
            self._pair.end()
            return
        with contextlib.suppress(OSError):  # the program has ended: the receiver notices, too
            self._pair.send(part)

    def is_active(self) -> bool:
        return self._has_answered and not self._has_ended  # no agent waits while it is loading

    def cancel(self) -> None:
        self._child.end()
        self._pair.close()
