"""LearnerService: serves the learners of a process to its parent, over pairs of sockets."""

import contextlib
import os
import queue
import socket
import threading
from collections.abc import Iterator, Mapping

from relaax_like.bridge import frames
from relaax_like.bridge.experience_servicer import (
    progress_to_messages,
    read_experience,
)
from relaax_like.bridge.messages import messages_to_ranges
from relaax_like.bridge.pair import Pair, receive_pairs
from relaax_like.core.manifest import Manifest
from relaax_like.core.records import LearnerUpdate, LearnRequest, Reply, StreamProgress, Values
from relaax_like.core.roles import Learner
from relaax_like.learn.rollout_messages import bytes_to_rollout

# Name -> learner, and layout of the values.
Learners = Mapping[str, tuple[Learner, Manifest]]


class LearnerService:
    """Serves one stream for each learner of this process.

        service = LearnerService(control)  # ends the process when the parent exits
        learners = load_slowly()
        service.serve(learners)  # until the parent closes its streams

    Args:
      control: this process's end of the control socket; see `bridge.pair`.
    """

    def __init__(self, control: socket.socket):
        self._failure: Exception | None = None
        # Pairs to serve; None: a stream has ended, or something has failed.
        self._pairs: queue.SimpleQueue[Pair | None] = queue.SimpleQueue()
        threading.Thread(
            target=self._receive_all, args=(control,), name="from agents", daemon=True
        ).start()

    def serve(self, learners: Learners) -> None:
        """Serves until all streams have ended, then stops the learners.

        Raises:
          ConfigError: the parameter server's run has another model, or its learners do not make
            updates together, although this one does.
          ServerUnavailableError: the parameter server is not available.
          Exception: the first other error of a stream, the error that was passed to `fail`, or an
            error of `Learner.stop`.
        """
        try:
            with contextlib.ExitStack() as stops:  # each is stopped, even if another one raises
                for learner, _ in learners.values():
                    stops.callback(learner.stop)
                open_streams = len(learners)
                while open_streams and self._failure is None:
                    pair = self._pairs.get()
                    if pair is None:
                        open_streams -= 1
                    else:
                        threading.Thread(
                            target=self._serve, args=(pair, learners), name="stream", daemon=True
                        ).start()
        except Exception:
            if self._failure is None:  # otherwise, that one came first
                raise
        if self._failure is not None:
            raise self._failure

    def fail(self, error: Exception) -> None:
        """Makes `serve` stop the learners and raise the error. Thread-safe."""
        self._failure = self._failure or error
        self._pairs.put(None)

    def _receive_all(self, control: socket.socket) -> None:
        for pair in receive_pairs(control):
            self._pairs.put(pair)
        os._exit(0)  # the parent has exited

    def _serve(self, pair: Pair, learners: Learners) -> None:
        try:
            _AlgorithmStream(pair, learners).run()
            self._pairs.put(None)
        except Exception as error:
            self.fail(error)


class _AlgorithmStream:
    """Passes one Algorithm's experience to its learner, and reports the results to the parent.

    Args:
      pair: to the parent.
      learners: by name; the stream's first message names the Algorithm.

    Raises:
      InvalidInputError: the first message is malformed.
    """

    def __init__(self, pair: Pair, learners: Learners):
        self._pair = pair
        self._requests: Iterator[frames.ExperienceRequest] = map(
            frames.to_experience_request, iter(pair.receive, None)
        )
        first = frames.get_header(next(self._requests, None), "experience")
        self._learner, self._manifest = learners[first.client_id]
        self._ranges = messages_to_ranges(first.ranges, self._manifest)
        self._lock = threading.Lock()  # guards the following attributes
        self._received = 0  # sequence number up to which everything was accepted
        self._pending: set[int] = set()  # sequence numbers that have not been answered

    def run(self) -> None:
        """Starts the learner, and passes experience to it until the parent closes the stream.

        Raises:
          ConfigError: the parameter server's run has another model, or its learners do not make
            updates together, although this one does.
          InvalidInputError: a message is malformed.
          ServerUnavailableError: the parameter server is not available.
          Exception: another error of `Learner.start`.
        """
        self._learner.start(self._answer)
        for message in self._requests:
            experience = read_experience(frames.get_header(message, "experience"), self._requests)
            if experience.is_leaving:
                self._learner.leave(experience.agent)
            rollout = experience.rollout
            request = LearnRequest(
                experience.sequence,
                None if rollout is None else bytes_to_rollout(rollout),
                experience.episodes,
                experience.env_steps,
                experience.agent,
                is_urgent=experience.is_urgent,
            )
            with self._lock:
                self._received = experience.sequence
                self._pending.add(experience.sequence)
            self._learner.submit(request)

    def _answer(self, update: LearnerUpdate) -> None:
        """Sends progress, counts and values to the parent; never called by two threads at once."""
        with self._lock:
            self._pending.difference_update(update.numbers)
            released = min(self._pending, default=self._received + 1) - 1
            progress = StreamProgress(self._received, released)
        values = None
        if update.values is not None:
            values = Values(version=update.version, flat=self._manifest.pack(update.values))
        reply = Reply(
            version=update.version,
            global_t=update.global_t,
            epoch=os.getpid(),  # of this start: the next process has another one
            finished=update.finished,
            values=values,
        )
        try:
            for part in progress_to_messages(progress, reply, self._ranges):
                self._pair.send(part)
        except OSError:
            os._exit(0)  # nobody is left to learn for
