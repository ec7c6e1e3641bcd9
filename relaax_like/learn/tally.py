"""Tally: counts what a learner has accepted, until a publication or push contains it."""

import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from relaax_like.core.records import Counts, EpisodeReport, Origin, Received

# Number of episodes that can wait to be counted; if there are more, the oldest are dropped.
_MAX_EPISODES = 100_000
# Number of clients that are remembered; the one that was silent for the longest is dropped first.
_MAX_CLIENTS = 1_000


class Tally:
    """Counts environment steps once each, and tracks the experience that contained them.

        tally = Tally()
        tally.load(lease.received)
        tally.add(env_steps, episodes, origin, ticket)   # with a rollout
        tally.add(env_steps, episodes, origin)           # without one
        counts = tally.take(tickets_that_were_learned_from)

    Thread-safe.

    Attributes:
      lock: reentrant; held by callers that add something else together with counts.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()  # guards all following attributes
        self._env_steps = 0
        self._episodes: deque[EpisodeReport] = deque(maxlen=_MAX_EPISODES)
        self._received: dict[str, Received] = {}
        self._newest: dict[str, int] = {}  # client id -> sequence number, of this start
        self._waiting: dict[int, Origin] = {}  # ticket -> origin; not learned from yet

    @property
    def received(self) -> Mapping[str, Received]:
        """Client id -> its progress: `counted` as of now, `learned` as of the newest `take`.

        Before the first `take`, `learned` is what was loaded.
        """
        with self.lock:
            return dict(self._received)

    def load(self, received: Mapping[str, Received]) -> None:
        """Continues with the progress that a lease contains."""
        with self.lock:
            self._received = dict(received)

    def add(
        self,
        env_steps: int,
        episodes: Iterable[EpisodeReport] = (),
        origin: Origin | None = None,
        ticket: int | None = None,
    ) -> None:
        """Adds what was accepted.

        Args:
          env_steps: 0 or more.
          episodes: those that ended within these steps; if more than 100 000 wait to be counted,
            the oldest are dropped.
          origin: the message that contained steps and episodes; None: they are from this process.
          ticket: of the rollout in that message; None: no rollout.
        """
        with self.lock:
            self._env_steps += env_steps
            self._episodes.extend(episodes)
            if origin is not None:
                self._note_origin(origin, ticket)

    def take(self, tickets: Sequence[int] = ()) -> Counts:
        """Removes and returns what was added since the last call, for a publication.

        Args:
          tickets: of the rollouts all of whose columns were learned from before the publication.
        """
        with self.lock:
            for ticket in tickets:
                self._waiting.pop(ticket, None)
            self._note_learned()
            counts = Counts(
                env_steps=self._env_steps, episodes=tuple(self._episodes), received=self.received
            )
            self._env_steps = 0
            self._episodes.clear()
        return counts

    def _note_origin(self, origin: Origin, ticket: int | None) -> None:
        known = self._received.pop(origin.client_id, None)
        if known is None or known.incarnation != origin.incarnation:
            known = Received(origin.incarnation, 0, 0)
        counted = max(known.counted, origin.sequence)
        self._received[origin.client_id] = known._replace(counted=counted)
        self._newest[origin.client_id] = origin.sequence
        if ticket is not None:
            self._waiting[ticket] = origin
        if len(self._received) > _MAX_CLIENTS:
            oldest = next(iter(self._received))
            del self._received[oldest]
            self._newest.pop(oldest, None)

    def _note_learned(self) -> None:
        first: dict[tuple[str, int], int] = {}  # client and incarnation -> oldest waiting one
        for origin in self._waiting.values():
            first.setdefault((origin.client_id, origin.incarnation), origin.sequence)
        # Other clients have sent nothing since this server started: they can still resend
        # experience that was lost.
        for client_id, newest in self._newest.items():
            known = self._received[client_id]
            learned = first.get((client_id, known.incarnation), newest + 1) - 1
            self._received[client_id] = known._replace(learned=max(known.learned, learned))
