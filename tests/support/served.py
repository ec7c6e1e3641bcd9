"""An rlx server with batch-native agents, whose learner and whose predictions can be held."""

import threading
from typing import Any

from relaax_like.core.metrics import NullMetrics
from relaax_like.core.prediction import ONLY_NAME
from relaax_like.experience.rollout import Rollout
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.rlx_server.admission import Admission
from relaax_like.rlx_server.hosting import BatchHost
from relaax_like.rlx_server.server import RlxServer
from relaax_like.rlx_server.session import Session
from support.batch import make_processor


class Served:
    """A server that is not started yet; see `support.rlx.ServerThread`.

    Args:
      server: of the values.
      config: of the algorithm.
      algorithm: its name.
      options: of the learner.

    Attributes:
      rlx: the server.
      learns: while it is not set, rollouts are held.
      predicts: while it is not set, predictions are held.
      rollouts: all that agents have submitted.
    """

    def __init__(
        self, server: ParameterServer, config: Any, algorithm: str = "a2c", **options: Any
    ):
        processor = make_processor(config, server, xla=False, algorithm=algorithm, **options)
        self.learns, self.predicts = threading.Event(), threading.Event()
        self.learns.set()
        self.predicts.set()
        self.rollouts: list[Rollout] = []
        self._held: list[Any] = []
        submit, predict = processor.submit, processor.predict

        def hold(rollout: Rollout, *rest: Any) -> None:
            self.rollouts.append(rollout)
            if self.learns.is_set():
                submit(rollout, *rest)
            else:
                self._held.append((rollout, *rest))

        def wait(requests: Any) -> Any:
            assert self.predicts.wait(20)
            return predict(requests)

        processor.submit, processor.predict = hold, wait
        self._submit = submit
        self.host = BatchHost(config, lambda: {ONLY_NAME: processor})
        self.rlx = RlxServer(
            lambda name: Session(
                name, self.host.make_agents, NullMetrics(), max_slots=64, max_message_bytes=1 << 20
            ),
            Admission(16, 0),
            max_message_bytes=1 << 20,
            hello_timeout_sec=10,
            idle_timeout_sec=60,
            predict=lambda requests: self.host.predict(requests),
        )
        self.host.on_ready = self.rlx.wake

    def release(self) -> None:
        """Submits the rollouts that were held, and holds no more."""
        self.learns.set()
        for arguments in self._held:
            self._submit(*arguments)
        self._held = []

    def close(self) -> None:
        """Stops the learner; after the server."""
        self.predicts.set()
        self.host.close()
