"""The learner's process, from inside: serves the agents at the other end of a socket."""

import contextlib
import functools
import logging
import os
import queue
import threading
from collections.abc import Mapping

from relaax_like.core.records import LearnerUpdate
from relaax_like.core.roles import Learner
from relaax_like.learn.channel import Channel
from relaax_like.learn.messages import message_to_request, update_to_message
from relaax_like.v1 import learner_pb2
from relaax_like.wire.errors import RelaaxError

logger = logging.getLogger(__name__)

WorkerChannel = Channel[learner_pb2.Learned, learner_pb2.LearnerRequest]


class LearnerWorker:
    """Reads works from the beginning, and answers them once there are learners.

        worker = LearnerWorker(channel)  # ends the process when the other side has gone
        learners = load_slowly()
        worker.serve(learners)  # until it is told to stop

    Args:
      channel: to the agents.
    """

    def __init__(self, channel: WorkerChannel):
        self._channel = channel
        self._serving = False
        self._failure: RelaaxError | None = None
        self._queue: queue.SimpleQueue[learner_pb2.Work | None] = queue.SimpleQueue()
        threading.Thread(target=self._receive_all, name="from agents", daemon=True).start()

    def serve(self, learners: Mapping[str, Learner]) -> None:
        """Starts the learners and hands them works until a stop comes; then stops them.

        Raises:
          ServerUnavailableError: there is no parameter server.
          RelaaxError: what `fail` was called with.
        """
        self._serving = True
        for task, learner in learners.items():
            learner.start(functools.partial(self._answer, task))
        while (message := self._queue.get()) is not None:
            learners[message.task].submit(message_to_request(message))
        with contextlib.ExitStack() as stops:  # each is stopped, whatever another raises
            for learner in learners.values():
                stops.callback(learner.stop)
        if self._failure is not None:
            raise self._failure

    def fail(self, error: RelaaxError) -> None:
        """Makes `serve` stop the learners and raise the error; from any thread."""
        self._failure = self._failure or error
        self._queue.put(None)

    def _receive_all(self) -> None:
        while (request := self._channel.receive()) is not None:
            if request.HasField("stop"):
                if not self._serving:
                    break  # still loading: nothing was learned, and nothing is pending
                self._queue.put(None)
            else:
                self._queue.put(request.work)
        self._leave()

    def _answer(self, task: str, learned: LearnerUpdate) -> None:
        try:
            self._channel.send(update_to_message(learned, task))
        except OSError:
            self._leave()

    def _leave(self) -> None:
        """Ends the process at once: nobody is left to learn for."""
        os._exit(0)
