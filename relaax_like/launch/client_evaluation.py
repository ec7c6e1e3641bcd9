"""Greedy evaluation of a run whose environments are clients, which connect to this process."""

import asyncio
import logging
import threading
import time
from collections.abc import Sequence

import numpy as np

from relaax_like.config.models import Experiment
from relaax_like.launch.evaluation import EvaluationResult, Patience
from relaax_like.launch.rlx_server import end_server, serve_until_stopped
from relaax_like.launch.serving import open_policy_server
from relaax_like.rlx_server.server import RlxServer
from relaax_like.rlx_server.session import Session
from relaax_like.rlx_server.transition import EndedEpisode
from relaax_like.runs.processes.process import EXIT_ERROR, Shutdown, Stopped
from relaax_like.wire.errors import RelaaxError
from relaax_like.wire.reports import Event

logger = logging.getLogger(__name__)

_POLL_SEC = 0.05
# Longest wait for clients to be notified of the end.
_FAREWELL_SEC = 3.0


class ClientEpisodes:
    """Collects episodes of clients that come and go, the same number from each slot. Thread-safe.

    The first episodes to end, of all slots together, would be the short ones. So only complete
    rounds count: in a round, each connected slot has ended one more episode. The episodes of a slot
    whose client has left still count.

    Args:
      wanted: number of episodes.

    Attributes:
      taken: the episodes to evaluate, round by round; [] until there are enough.
    """

    def __init__(self, wanted: int):
        self._wanted = wanted
        self._lock = threading.Lock()  # guards all attributes below
        self._patience: dict[str, Patience] = {}  # by session
        # Session -> episodes of each slot.
        self._open: dict[str, list[list[EndedEpisode]]] = {}
        self._left: list[list[EndedEpisode]] = []
        self.taken: list[EndedEpisode] = []

    def watch(self, session: Session) -> None:
        """Collects the episodes of a new session, and ends it when there are enough."""

        def report(event: Event, client: str) -> None:
            if event == Event.JOINED:
                self.join(session.name, session.slots, client)
            elif event == Event.LEFT:
                self.leave(session.name)

        done = f"the evaluation has its {self._wanted} episodes"
        session.report = report
        session.on_episodes = lambda ended: self.add(session.name, ended)
        session.get_end = lambda: done if self.taken else ""

    def join(self, session: str, slots: int, client: str) -> None:
        """Adds a client's slots; `session` is the unique name of its connection."""
        with self._lock:
            self._patience[session] = Patience(slots, client)
            self._open[session] = [[] for _ in range(slots)]

    def leave(self, session: str) -> None:
        """Notes that a client has left."""
        with self._lock:
            self._left += self._open.pop(session, [])
            self._patience.pop(session, None)
            self._look()

    def add(self, session: str, episodes: Sequence[EndedEpisode]) -> None:
        """Adds episodes of a client that have ended."""
        with self._lock:
            for episode in episodes:
                self._open[session][episode.slot].append(episode)
                self._patience[session].begin(episode.slot)
            self._look()

    def check(self) -> None:
        """Warns of slots that have not ended an episode for a long time."""
        with self._lock:
            for patience in self._patience.values():
                patience.check()

    @property
    def count(self) -> int:
        """Number of episodes that count so far."""
        with self._lock:
            return len(self._list_rounds())

    def _look(self) -> None:
        rounds = [] if self.taken else self._list_rounds()
        if len(rounds) >= self._wanted:
            self.taken = rounds[: self._wanted]

    def _list_rounds(self) -> list[EndedEpisode]:
        playing = [own for slots in self._open.values() for own in slots]
        everybody = [*self._left, *playing]
        rounds = min(map(len, playing), default=max(map(len, everybody), default=0))
        return [own[number] for number in range(rounds) for own in everybody if number < len(own)]


def evaluate_with_clients(
    experiment: Experiment, episodes: int, version: str, timeout_sec: float
) -> EvaluationResult:
    """Waits for clients, and lets them play with a snapshot; ends when there are enough episodes.

    Clients are notified as at the end of training. A running training is not affected.

    Args:
      experiment: of the run; its `relaax-rlx-server` section contains the address.
      episodes: number to play; see `ClientEpisodes`.
      version: see `read_snapshot`.
      timeout_sec: longest time without a message from any client.

    Raises:
      RelaaxError: no client has sent anything for `timeout_sec`; or see `run_policy_server`.
      Stopped: a signal arrived before there were enough episodes.
    """
    shutdown = Shutdown()
    played = ClientEpisodes(episodes)
    with open_policy_server(experiment, version, shutdown, played.watch) as (server, policy):

        def start_waiting() -> None:
            waiting = _wait_for_episodes(server, played, shutdown, timeout_sec)
            server.loop.call_soon_threadsafe(lambda: server.run(waiting))

        serve_until_stopped(server, experiment.rlx_server, shutdown, start_waiting)
    status = end_server(server, shutdown)
    if status == EXIT_ERROR:
        raise RelaaxError(
            f"{played.count} of {episodes} episodes: no client has sent anything for "
            f"{timeout_sec:g} s; connect environments to the address that the log names, or raise "
            "--timeout"
        )
    if not played.taken:
        raise Stopped(status)
    return EvaluationResult(
        returns=np.array([episode.episode_return for episode in played.taken]),
        lengths=np.array([episode.length for episode in played.taken]),
        global_t=policy.global_t,
        version=policy.version,
    )


async def _wait_for_episodes(
    server: RlxServer, played: ClientEpisodes, shutdown: Shutdown, timeout_sec: float
) -> None:
    """Ends the process when there are enough episodes, or no client sends anything."""
    heard = time.monotonic()
    while not played.taken:
        played.check()
        greeted = [c.last_heard for c in server.connections if c.session.greeted]
        heard = max([heard, *greeted])
        if time.monotonic() - heard > timeout_sec:
            shutdown.request(EXIT_ERROR)
            return
        await asyncio.sleep(_POLL_SEC)
    deadline = time.monotonic() + _FAREWELL_SEC
    while server.clients and time.monotonic() < deadline:
        await asyncio.sleep(_POLL_SEC)
    shutdown.request(0)
