"""ExperienceService: the learner of `placement: server`, in the parameter server's process."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from google.protobuf.message import DecodeError

from relaax_like.bridge.service import Experience, ExperienceSink, Progress
from relaax_like.experience.rollout import Rollout
from relaax_like.learner.holding import Holding
from relaax_like.learner.messages import message_to_rollout
from relaax_like.v1 import learner_pb2
from relaax_like.wire.errors import (
    CollectorClosedError,
    CollectorFullError,
    InvalidInputError,
    RelaaxError,
    ServerUnavailableError,
)

if TYPE_CHECKING:  # It imports TensorFlow.
    from relaax_like.learner.iteration_learner import IterationLearner

logger = logging.getLogger(__name__)

# How long a client's rollout waits for room; then its stream ends, and it may try again.
_ROOM_SEC = 10.0
_POLL_SEC = 0.5
_STOP_SEC = 5.0
# Clients that are remembered; the one that was heard of the longest ago is forgotten first.
_MAX_CLIENTS = 1_000
_NAME_LENGTH = 200


@dataclass
class _Client:
    """One client: its newest incarnation, and what of it is under way."""

    incarnation: int
    received: int = 0
    pending: dict[int, int] = field(default_factory=dict)  # sequence -> ticket

    @property
    def progress(self) -> Progress:
        released = min(self.pending) - 1 if self.pending else self.received
        return Progress(self.received, released)


class ExperienceService(ExperienceSink):
    """Collects what clients send, and learns from it in a thread of its own.

        service = ExperienceService(make_learner, columns=8, max_rollout_bytes=1 << 20)
        service.start()
        BridgeControl().create_server(address, parameter_server, experience=service)
        service.stop()

    A rollout takes effect once, however often it is sent. What was received but not learned from is
    lost with the process.

    Args:
      make_learner: called in the thread, as it may import TensorFlow.
      columns: rollouts of one slot in an iteration.
      max_rollout_bytes: longest serialised rollout that is taken.
      on_failure: called, from the thread, when learning has failed for good.
    """

    def __init__(
        self,
        make_learner: Callable[[], "IterationLearner"],
        columns: int,
        max_rollout_bytes: int,
        on_failure: Callable[[Exception], None] = lambda error: None,
    ):
        self._make_learner = make_learner
        self._columns = columns
        self._max_rollout_bytes = max_rollout_bytes
        self._on_failure = on_failure
        self._changed = threading.Condition()  # guards all that follows, and notifies of changes
        self._learner: IterationLearner | None = None
        self._holding = Holding()
        self._clients: dict[str, _Client] = {}
        self._by_ticket: dict[int, tuple[_Client, int]] = {}
        self._version = 0
        self._finished = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="learner", daemon=True)

    @property
    def max_rollout_bytes(self) -> int:
        """Longest serialised rollout that is taken."""
        return self._max_rollout_bytes

    def start(self) -> None:
        """Loads the learner, and begins to learn; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Ends after the iteration at hand, and tells what was not learned from. Idempotent."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(_STOP_SEC)

    def add(self, experience: Experience) -> None:
        """Takes experience; see `ExperienceSink`."""
        _validate_name(experience.agent)
        rollout = None
        if experience.rollout is not None:
            rollout = _read_rollout(experience.rollout, experience.columns)
        deadline = time.monotonic() + _ROOM_SEC
        while not self._try_to_add(experience, rollout):
            with self._changed:
                if self._stopping or time.monotonic() > deadline:
                    raise ServerUnavailableError("experience: there is no room; try again later")
                self._changed.wait(_POLL_SEC)

    def wait(
        self, client_id: str, incarnation: int, seen: Progress, version: int, timeout_sec: float
    ) -> Progress:
        """Waits for news of a client; see `ExperienceSink`."""

        def progress() -> Progress:
            client = self._clients.get(client_id)
            if client is None or client.incarnation != incarnation:
                return Progress()
            return client.progress

        with self._changed:
            self._changed.wait_for(
                lambda: progress() != seen or self._version > version or self._stopping,
                timeout_sec,
            )
            return progress()

    def _try_to_add(self, experience: Experience, rollout: Rollout | None) -> bool:
        """Adds experience, unless it was added before; False: there is no room, or no learner."""
        with self._changed:
            client = self._get_client(experience)
            if experience.sequence <= client.received:
                return True
            agent = f"{experience.client_id}/{experience.agent}"
            if experience.leaves:
                self._holding.leave(agent)
            if rollout is not None and not self._finished:
                if self._learner is None:
                    return False
                try:
                    ticket = self._learner.add(rollout, experience.episodes)
                except (CollectorFullError, CollectorClosedError):
                    return False
                self._holding.add(agent, ticket, experience.columns)
                self._by_ticket[ticket] = (client, experience.sequence)
                client.pending[experience.sequence] = ticket
            elif self._learner is not None:
                self._learner.add_episodes(experience.episodes)
            client.received = experience.sequence
            self._release_vain()
            self._changed.notify_all()
            return True

    def _get_client(self, experience: Experience) -> _Client:
        client = self._clients.pop(experience.client_id, None)
        if client is None or client.incarnation < experience.incarnation:
            client = _Client(experience.incarnation)
        self._clients[experience.client_id] = client  # the newest at the end
        if client.incarnation > experience.incarnation:
            raise InvalidInputError(
                f"experience: of life {experience.incarnation} of client {experience.client_id}, "
                f"which began life {client.incarnation} since",
                "incarnation",
            )
        if len(self._clients) > _MAX_CLIENTS:
            del self._clients[next(iter(self._clients))]
        return client

    def _release_vain(self) -> None:
        """Lets those act on who would wait for ever."""
        assert self._learner is not None or not self._by_ticket
        if self._learner is None:
            return
        missing = self._columns - self._learner.waiting_columns
        if missing > 0:
            self._release(self._holding.find_released(missing))

    def _release(self, tickets: list[int] | tuple[int, ...]) -> None:
        self._holding.release(tickets)
        for ticket in tickets:
            client, sequence = self._by_ticket.pop(ticket, (None, 0))
            if client is not None:
                client.pending.pop(sequence, None)

    # In the learner's thread.

    def _run(self) -> None:
        try:
            self._learn_all()
        except Exception as error:
            logger.error("learning has failed: %s", error, exc_info=_get_traceback(error))
            with self._changed:
                self._stopping = True
                self._changed.notify_all()
            self._on_failure(error)

    def _learn_all(self) -> None:
        learner = self._make_learner()
        first = learner.load()
        with self._changed:
            self._learner, self._version = learner, first.version
            self._finished = bool(first.finished)
            self._changed.notify_all()
        logger.info("learning in the parameter server, %d rollouts at a time", self._columns)
        while not self._stopping and not self._finished:
            learned = learner.learn(_POLL_SEC)
            with self._changed:
                if learned is not None:
                    self._version, self._finished = learned.version, bool(learned.finished)
                    # A rollout that reaches into the next iteration was sent by an agent that waits
                    # for that one.
                    self._release(learned.numbers)  # type: ignore[arg-type]
                self._release_vain()
                if self._finished:
                    self._release(list(self._by_ticket))
                self._changed.notify_all()
        learner.close()
        if learner.waiting_columns:
            logger.info(
                "%d rollout(s) of one slot were received and not learned from",
                learner.waiting_columns,
            )


def _read_rollout(data: np.ndarray, columns: int) -> Rollout:
    """Reads a rollout that came over the network.

    Raises:
      InvalidInputError: it is none, or has numbers that are not finite.
    """
    try:
        message = learner_pb2.Rollout.FromString(data.tobytes())
    except DecodeError:
        raise InvalidInputError("rollout: these bytes are none", "rollout") from None
    rollout = message_to_rollout(message)
    if rollout.slots != columns:
        raise InvalidInputError(
            f"columns: {columns}, but the rollout has {rollout.slots} slots", "columns"
        )
    arrays = {
        **rollout.inputs,
        **rollout.next_inputs,
        **rollout.states,
        "rewards": rollout.rewards,
        "log_prob": rollout.log_prob,
        "next_alive": rollout.next_alive,
    }
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise InvalidInputError(f"rollout: {name} has NaN or infinity", name)
    return rollout


def _validate_name(agent: str) -> None:
    if len(agent) > _NAME_LENGTH or not (agent.isprintable() or not agent):
        raise InvalidInputError(
            f"agent: {agent[:60]!r}, expected at most {_NAME_LENGTH} printable characters", "agent"
        )


def _get_traceback(error: Exception) -> Exception | None:
    return None if isinstance(error, RelaaxError) else error
