"""Statistics of a training run: newest returns, speed, clients, refusals."""

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from relaax_like.core.records import ClientStatus, Episode

DEFAULT_WINDOW = 100
_RATE_WINDOW_SEC = 10.0
# Steps in intervals of this length are counted together, so that a rate needs only a few numbers.
_RATE_BUCKET_SEC = 0.5
_CLIENT_SEC = 15.0
_MAX_CLIENTS = 10_000
_MAX_LISTED = 100
_MAX_REASONS = 64
_OTHER = "other"


@dataclass
class _Client:
    seen: float = 0.0
    gradients: int = 0
    staleness: int | None = None


class EpisodeMeans(NamedTuple):
    """Means over the newest episodes, all taken at the same moment.

    Attributes:
      mean_return: mean return; None before the first episode.
      mean_length: in environment steps; None before the first episode whose length is known.
      return_episodes: number of episodes in the mean return, at most the window.
      episodes: number of episodes since the start of the run.
    """

    mean_return: float | None
    mean_length: float | None
    return_episodes: int
    episodes: int


class Statistics:
    """The numbers of `relaax status`, and the mean return that can end the training. Thread-safe.

    Returns are floats from the start, so that integer returns do not lead to truncated means.
    """

    def __init__(self, window: int = DEFAULT_WINDOW, clock: Callable[[], float] = time.monotonic):
        """Starts without episodes, clients and refusals.

        Args:
          window: number of newest episodes in the mean return; 1 or more.
          clock: returns monotonic seconds.

        Raises:
          ValueError: `window` is below 1.
        """
        if window < 1:
            raise ValueError(f"window: {window} episodes, expected 1 or more")
        self._clock = clock
        self._lock = threading.Lock()  # guards all attributes below
        self._started = clock()
        self._returns: deque[float] = deque(maxlen=window)
        self._lengths: deque[int] = deque(maxlen=window)
        self._episodes = 0
        self._buckets: deque[tuple[float, int]] = deque()
        self._clients: dict[str, _Client] = {}  # the one silent for the longest time first
        self._refused: dict[str, int] = {}

    def add(self, env_steps: int, episodes: Iterable[Episode] = ()) -> None:
        """Counts environment steps that were just taken, and episodes that ended."""
        with self._lock:
            if env_steps:
                self._add_steps(env_steps)
            for episode in episodes:
                self._returns.append(float(episode.episode_return))
                self._lengths.append(int(episode.length))
                self._episodes += 1

    def see_client(self, client_id: str) -> None:
        """Notes a client as present. Beyond 10 000, the client silent the longest is forgotten."""
        with self._lock:
            client = self._clients.pop(client_id, None) or _Client()
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
    def episodes(self) -> int:
        """Number of episodes since the start of the run."""
        return self._episodes

    @property
    def is_window_full(self) -> bool:
        """Whether the mean return is over a full window of episodes."""
        return len(self._returns) == self._returns.maxlen

    @property
    def mean_return(self) -> float | None:
        """Mean return of the newest episodes; None before the first one."""
        return self.means.mean_return

    @property
    def means(self) -> EpisodeMeans:
        """Mean return and length of the newest episodes."""
        with self._lock:
            return EpisodeMeans(
                _mean(self._returns), _mean(self._lengths), len(self._returns), self._episodes
            )

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

    def to_dict(self) -> dict[str, Any]:
        """Returns what a snapshot contains, in JSON types. Speed and clients are not saved."""
        with self._lock:
            return {
                "returns": list(self._returns),
                "lengths": list(self._lengths),
                "episodes": self._episodes,
                "refused": dict(self._refused),
            }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restores what `to_dict` returned; a smaller window keeps the newest episodes."""
        with self._lock:
            self._returns.clear()
            self._returns.extend(map(float, saved.get("returns", ())))
            self._lengths.clear()
            self._lengths.extend(map(int, saved.get("lengths", ())))
            self._episodes = int(saved.get("episodes", 0))
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


def _mean(numbers: deque[Any]) -> float | None:
    if not numbers:
        return None
    try:
        return math.fsum(numbers) / len(numbers)
    except OverflowError:  # returns near the largest float
        return math.fsum(x / len(numbers) for x in numbers)
