"""Statistics of a training run: newest returns, speed, clients, refusals."""

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from relaax_like.core.records import (
    MAX_SERVED_CLIENTS,
    ClientsReport,
    ClientStatus,
    EpisodeReport,
    Playing,
    ServedClient,
)
from relaax_like.parameter_server.training_returns import EpisodeMeans, TrainingReturns

DEFAULT_WINDOW = 100
_RATE_WINDOW_SEC = 10.0
# Steps in intervals of this length are counted together, so that a rate needs only a few numbers.
_RATE_BUCKET_SEC = 0.5
_CLIENT_SEC = 15.0
_REPORT_SEC = 10.0
_MAX_SERVERS = 1000
_MAX_CLIENTS = 10_000
_MAX_LISTED = 100
_MAX_REASONS = 64
_OTHER = "other"


@dataclass
class _SeenClient:
    seen: float = 0.0
    gradients: int = 0
    staleness: int | None = None


class Statistics:
    """The numbers of `relaax status`, and the mean return that can end the training. Thread-safe.

    Attributes:
      unlearned_steps: environment steps that were not learned from, and do not count.
      episodes: number of episodes since the start of the run.
    """

    def __init__(self, window: int = DEFAULT_WINDOW, clock: Callable[[], float] = time.monotonic):
        """Starts without episodes, clients and refusals.

        Args:
          window: number of newest episodes in the mean return; 1 or more. See `TrainingReturns`.
          clock: returns monotonic seconds.

        Raises:
          ValueError: `window` is below 1.
        """
        if window < 1:
            raise ValueError(f"window: {window} episodes, expected 1 or more")
        self._clock = clock
        self._lock = threading.Lock()  # guards all attributes below
        self._started = clock()
        self._window = window
        self._training = TrainingReturns(window)
        self.episodes = 0
        self.unlearned_steps = 0
        self._buckets: deque[tuple[float, int]] = deque()
        self._clients: dict[str, _SeenClient] = {}  # the one silent for the longest time first
        self._refused: dict[str, int] = {}
        self._reports: dict[str, tuple[float, ClientsReport]] = {}  # oldest first

    def add(self, env_steps: int, reports: Iterable[EpisodeReport] = (), sender: str = "") -> None:
        """Counts environment steps that were just taken, and takes what agents report.

        Args:
          env_steps: number of steps.
          reports: agents that play, and episodes that ended, in their order.
          sender: plays with one slot if it reports no agents that play; "": it does not play.
        """
        with self._lock:
            now = self._clock()
            if env_steps:
                self._add_steps(env_steps)
            reports = tuple(reports)
            if sender and env_steps and not any(isinstance(one, Playing) for one in reports):
                self._training.report(sender, 1, env_steps, now)
            for one in reports:
                player = one.player or sender
                if isinstance(one, Playing):
                    self._training.report(player, one.slots, one.env_steps, now)
                    self.unlearned_steps += one.unlearned_steps
                else:
                    self._training.end(
                        player, one.slot, float(one.episode_return), int(one.length), now
                    )
                    self.episodes += 1

    def see_client(self, client_id: str) -> None:
        """Notes a client as present. Beyond 10 000, the client silent the longest is forgotten."""
        with self._lock:
            client = self._clients.pop(client_id, None) or _SeenClient()
            client.seen = self._clock()
            self._clients[client_id] = client
            if len(self._clients) > _MAX_CLIENTS:
                del self._clients[next(iter(self._clients))]

    def add_gradient(self, client_id: str, staleness: int) -> None:
        """Counts a gradient of a known client, computed with values `staleness` versions old."""
        with self._lock:
            if (client := self._clients.get(client_id)) is not None:
                client.gradients += 1
                client.staleness = staleness

    def count_refused(self, reason: str) -> None:
        """Counts a refused push. Beyond 64 reasons, all others are counted together."""
        with self._lock:
            if reason not in self._refused and len(self._refused) >= _MAX_REASONS:
                reason = _OTHER
            self._refused[reason] = self._refused.get(reason, 0) + 1

    @property
    def means(self) -> EpisodeMeans:
        """Mean return and length of the newest episodes of each slot."""
        with self._lock:
            return self._training.compute(self.episodes)

    @property
    def players(self) -> set[str]:
        """See `TrainingReturns.players`."""
        with self._lock:
            return self._training.players

    def take_score(self) -> float | None:
        """Returns the mean return since the last call; see `TrainingReturns.take_score`."""
        with self._lock:
            return self._training.take_score()

    @property
    def env_steps_per_sec(self) -> float:
        """Environment steps per second over the last 10 s (or since the start, at least 1 s).

        The start is that of this object, or the newest `restart_speed`.
        """
        with self._lock:
            now = self._clock()
            self._drop_old_buckets(now)
            steps = sum(count for _, count in self._buckets)
            return steps / min(max(now - self._started, 1.0), _RATE_WINDOW_SEC)

    @property
    def clients(self) -> int:
        """Number of clients that were seen in the last 15 s."""
        return len(self.client_ids)

    @property
    def client_ids(self) -> set[str]:
        """Names of the clients that were seen in the last 15 s."""
        with self._lock:
            oldest = self._clock() - _CLIENT_SEC
            return {name for name, client in self._clients.items() if client.seen >= oldest}

    @property
    def client_list(self) -> tuple[ClientStatus, ...]:
        """At most 100 of the clients seen in the last 15 s, the most recently seen first."""
        with self._lock:
            now = self._clock()
            newest = itertools.islice(reversed(self._clients.items()), _MAX_LISTED)
            return tuple(
                ClientStatus(
                    client_id=name,
                    gradients=client.gradients,
                    staleness=client.staleness,
                    silent_sec=now - client.seen,
                )
                for name, client in newest
                if now - client.seen <= _CLIENT_SEC
            )

    @property
    def refused(self) -> dict[str, int]:
        """Reason -> number of pushes refused for it."""
        with self._lock:
            return dict(self._refused)

    def take_report(self, report: ClientsReport) -> None:
        """Stores an rlx server's report about its clients, which replaces its previous one.

        It is kept for ten seconds. Beyond 1000 servers, the oldest report is forgotten.
        """
        with self._lock:
            self._reports.pop(report.server_id, None)
            self._reports[report.server_id] = self._clock(), report
            if len(self._reports) > _MAX_SERVERS:
                del self._reports[next(iter(self._reports))]

    @property
    def served(self) -> tuple[tuple[ServedClient, ...], int]:
        """At most 100 of the clients of rlx servers, and the number of all.

        Clients that stall come first, then those with the most late answers.
        """
        with self._lock:
            oldest = self._clock() - _REPORT_SEC
            reports = [report for came, report in self._reports.values() if came >= oldest]
        clients = [client for report in reports for client in report.clients]
        clients.sort(key=lambda client: (bool(client.stall), client.late), reverse=True)
        return tuple(clients[:MAX_SERVED_CLIENTS]), sum(r.num_clients for r in reports)

    def to_dict(self) -> dict[str, Any]:
        """Returns what a snapshot contains, in JSON types. Speed and clients are not saved."""
        with self._lock:
            means = self._training.compute(self.episodes)
            return {
                "mean_return": means.mean_return,
                "return_episodes": means.return_episodes,
                "players": self._training.export(),
                "episodes": self.episodes,
                "unlearned_steps": self.unlearned_steps,
                "refused": dict(self._refused),
            }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restores what `to_dict` returned; a smaller window keeps the newest episodes."""
        with self._lock:
            self._training = TrainingReturns(self._window)
            self._training.restore(saved.get("players", {}), self._clock())
            self.episodes = int(saved.get("episodes", 0))
            self.unlearned_steps = int(saved.get("unlearned_steps", 0))
            self._refused = {str(k): int(v) for k, v in saved.get("refused", {}).items()}

    def restart_speed(self) -> None:
        """Measures the speed from now on; steps that were counted before are left out."""
        with self._lock:
            self._buckets.clear()
            self._started = self._clock()

    def _add_steps(self, env_steps: int) -> None:
        now = self._clock()
        if self._buckets and now - self._buckets[-1][0] < _RATE_BUCKET_SEC:
            start, count = self._buckets.pop()
            self._buckets.append((start, count + env_steps))
        else:
            self._drop_old_buckets(now)
            self._buckets.append((now, env_steps))

    def _drop_old_buckets(self, now: float) -> None:
        while self._buckets and self._buckets[0][0] <= now - _RATE_WINDOW_SEC:
            self._buckets.popleft()
