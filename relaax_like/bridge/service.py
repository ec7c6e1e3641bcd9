"""The parameter server as agents see it: one interface, remote (stub) or in process (twin)."""

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import numpy as np

from relaax_like.bridge.manifest import Manifest
from relaax_like.bridge.moments import Moments

# Episodes in one message. Python makes objects of them, and nobody else is answered meanwhile.
MAX_EPISODES = 1_000


@dataclass(frozen=True)
class Episode:
    """One finished episode of training: undiscounted sum of rewards, and environment steps."""

    episode_return: float
    length: int


@dataclass(frozen=True, kw_only=True)
class Push:
    """What one push changes; it takes effect as a whole or not at all.

    Attributes:
      client_id: name of the pushing agent, unique in the run.
      incarnation: grows each time that client starts anew.
      sequence: 1, 2, 3, ... within one incarnation; a retry repeats it.
      gradient: [gradient_bytes] uint8, the manifest's trainable part (of `groups`), or None.
      gradient_version: version of the values that the gradient was computed at.
      gradient_epoch: epoch that those values came from; 0 when it is not known.
      env_steps: environment steps taken since the last push.
      episodes: episodes that ended since the last push.
      fingerprint: of the manifest that the gradient follows.
      statistics: name of a running statistic -> what the rows since the last push add to it.
      groups: variable groups that the gradient is for, laid out as `Manifest.select_groups` says;
        nothing else is moved, nor any other optimizer. Empty: all.
    """

    client_id: str
    incarnation: int = 0
    sequence: int = 0
    gradient: np.ndarray | None = None
    gradient_version: int = 0
    gradient_epoch: int = 0
    env_steps: int = 0
    episodes: tuple[Episode, ...] = ()
    fingerprint: int = 0
    statistics: Mapping[str, Moments] = field(default_factory=dict)
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Publish:
    """What a learner in the parameter server's process has come to; it takes effect as a whole.

    Attributes:
      number: 1, 2, 3, ... within the run; one that has been published before takes no effect.
      values: `[total_bytes] uint8`, the flat vector; copied.
      slots: variable group -> `[s, n] float32`, what its optimizer remembers; copied.
      steps: variable group -> optimizer steps since the start of the run.
      env_steps: that were learned from since the last publish.
      episodes: that ended among them.
    """

    number: int
    values: np.ndarray
    slots: Mapping[str, np.ndarray]
    steps: Mapping[str, int]
    env_steps: int = 0
    episodes: tuple[Episode, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Lease:
    """What a learner in the parameter server's process goes on from.

    Attributes:
      number: of the newest publish; 0: none yet.
      manifest: the layout of the values.
      values: `[total_bytes] uint8`, immutable.
      slots: variable group -> `[s, n] float32`, immutable.
      slot_names: variable group -> what the rows of its slots hold.
      steps: variable group -> optimizer steps so far.
      version: of the values.
      global_t: environment steps so far.
      finished: what ended the training, or "".
    """

    number: int
    manifest: Manifest
    values: np.ndarray
    slots: Mapping[str, np.ndarray]
    slot_names: Mapping[str, tuple[str, ...]]
    steps: Mapping[str, int]
    version: int
    global_t: int
    finished: str


@dataclass(frozen=True, kw_only=True)
class Experience:
    """What one agent has seen, on its way to the learner in the parameter server's process.

    Attributes:
      client_id: the sending process.
      incarnation: grows each time that process starts.
      sequence: 1, 2, 3, ... within one incarnation; sent again, it takes effect once.
      agent: who played it.
      columns: slots of the rollout.
      rollout: `[n] uint8`, a serialised `relaax.v1.Rollout`; None: there is none.
      episodes: that ended meanwhile.
      leaves: the agent sends nothing more.
    """

    client_id: str
    incarnation: int
    sequence: int
    agent: str = ""
    columns: int = 0
    rollout: np.ndarray | None = None
    episodes: tuple[Episode, ...] = ()
    leaves: bool = False


@dataclass(frozen=True)
class Progress:
    """How far the server has come with a client's experience: numbers of its sequence.

    Attributes:
      received: all up to it have been received.
      released: agents that played what came up to it act on.
    """

    received: int = 0
    released: int = 0


class ExperienceSink(abc.ABC):
    """Where experience goes that a run learns from in its parameter server. Thread-safe."""

    @property
    @abc.abstractmethod
    def max_rollout_bytes(self) -> int:
        """Longest serialised rollout that is taken."""

    @abc.abstractmethod
    def add(self, experience: Experience) -> None:
        """Takes experience; waits while there is no room.

        Raises:
          InvalidInputError: it is malformed or of another run; nothing was taken.
          ServerUnavailableError: the server closes, or there was no room for a long time.
        """

    @abc.abstractmethod
    def wait(
        self,
        client_id: str,
        incarnation: int,
        seen: Progress,
        version: int,
        timeout_sec: float,
        is_over: Callable[[], bool] = lambda: False,
    ) -> Progress:
        """Waits until a client's progress, or the version, has changed; returns the progress.

        Args:
          client_id: of the client.
          incarnation: of the client.
          seen: its progress as it is known.
          version: that is known.
          timeout_sec: longest wait.
          is_over: ends the wait when it is true; asked at each change, and at `wake`.

        Raises:
          ServerUnavailableError: the server closes, and there will be no more news.
        """

    @abc.abstractmethod
    def wake(self) -> None:
        """Has all who wait ask their `is_over`."""


class TrainReturn(NamedTuple):
    """How the training does: mean return of the newest `window` episodes, `episodes` so far."""

    mean: float
    window: int
    episodes: int


class Publisher(abc.ABC):
    """A parameter server as the one learner in its process sees it."""

    @abc.abstractmethod
    def lease(self) -> Lease:
        """Makes the caller the run's only learner: gradients of others are refused from now on."""

    @abc.abstractmethod
    def publish(self, publish: Publish) -> "Reply":
        """Has values, optimizers, steps and episodes take effect together.

        Raises:
          InvalidInputError: wrong length, or not finite; nothing took effect.
          ServerUnavailableError: the server closes; nothing took effect.
        """

    @property
    @abc.abstractmethod
    def best_score(self) -> float | None:
        """Best score of the snapshots that are kept; None: none has one."""

    @property
    @abc.abstractmethod
    def train_return(self) -> TrainReturn | None:
        """As of the newest publish; None: there are too few episodes."""

    @abc.abstractmethod
    def keep_next(self, score: float) -> None:
        """Has the next publish written to a snapshot, with this score."""

    @abc.abstractmethod
    def metrics(self) -> "Metrics":
        """Returns the recorder."""


@dataclass(frozen=True, kw_only=True)
class Values:
    """An immutable state of the flat vector. `flat`: [total_bytes] uint8, not to be written to."""

    version: int
    flat: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What the parameter server answers.

    Attributes:
      outcome: "nothing" (no gradient was pushed), "applied", "pending" (held back until others
        have come) or "dropped" (the gradient alone).
      reason: why it was dropped.
      durability: what a crash of the server can take back: "journal", nothing; "snapshot", what
        came since the newest snapshot.
      version: version after the push: 0 at first, +1 for each record with a gradient, statistics,
        or both.
      global_t: environment steps of all clients together.
      epoch: grows each time the parameter server starts.
      finished: what ended the training, or "" while it goes on.
      values: newest values when they were asked for and are newer than those at hand.
    """

    outcome: str = "nothing"
    reason: str = ""
    durability: str = "snapshot"
    version: int = 0
    global_t: int = 0
    epoch: int = 0
    finished: str = ""
    values: Values | None = None


@dataclass(frozen=True, kw_only=True)
class ClientStatus:
    """One client of the parameter server; see `relaax.v1.ClientStatus`."""

    client_id: str
    gradients: int = 0
    staleness: int | None = None
    silent_sec: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Status:
    """Numbers for people: `relaax status` and the progress line. See `relaax.v1.Status`."""

    global_t: int = 0
    version: int = 0
    epoch: int = 0
    uptime_sec: float = 0.0
    env_steps_per_sec: float = 0.0
    mean_return: float | None = None
    return_episodes: int = 0
    episodes: int = 0
    clients: int = 0
    finished: str = ""
    snapshot_global_t: int | None = None
    checkpoint_dir: str = ""
    refused: dict[str, int] = field(default_factory=dict)
    parameters: int = 0
    durability: str = "snapshot"
    unsynced_records: int = 0
    unsynced_bytes: int = 0
    journal_bytes: int = 0
    snapshot_age_sec: float | None = None
    snapshot_failures: int = 0
    client_list: tuple[ClientStatus, ...] = ()
    held_back: int = 0
    resident_bytes: int = 0
    mirrored_global_t: int | None = None
    mirror_error: str = ""
    journal_error: str = ""


class Metrics(abc.ABC):
    """Records curves; what `metrics()` returns everywhere."""

    @abc.abstractmethod
    def scalar(self, name: str, y: float, x: float | None = None) -> None:
        """Records one point. Never blocks; at most once (a point may be lost, never doubled).

        Args:
          name: of the curve, 1 to 200 characters.
          y: the value.
          x: position; None means the newest `global_t`.
        """

    def scalars(self, points: Sequence[tuple[str, float, float | None]]) -> None:
        """Records many points at once; each is (name, y, x) as of `scalar`, and was validated."""
        for name, y, x in points:
            self.scalar(name, y, x)

    def histogram(self, name: str, values: np.ndarray, x: float | None = None) -> None:
        """Records how numbers are distributed, at one position of a curve; as of `scalar`.

        Where recorders keep points only, as those over the network, they are those of three curves:
        `NAME/min`, `NAME/mean` and `NAME/max`.

        Args:
          name: of the curve, 1 to 190 characters.
          values: numbers, any shape; those that are not finite are left out, and without any
            other nothing is recorded.
          x: position; None means the newest `global_t`.
        """
        finite = select_finite(values)
        if finite.size:
            self.scalar(f"{name}/min", float(finite.min()), x)
            self.scalar(f"{name}/mean", float(finite.mean()), x)
            self.scalar(f"{name}/max", float(finite.max()), x)


def select_finite(values: np.ndarray) -> np.ndarray:
    """Returns the finite ones of some numbers, `[n] float64`."""
    flat = np.asarray(values, np.float64).ravel()
    return flat[np.isfinite(flat)]


class NullMetrics(Metrics):
    """Records nothing."""

    def scalar(self, name: str, y: float, x: float | None = None) -> None:
        """Drops the point."""


class ParameterServerBackend(abc.ABC):
    """What the parameter server itself offers; the servicer and the in-process twin call it.

    Thread-safe.
    """

    @property
    @abc.abstractmethod
    def manifest(self) -> Manifest:
        """The layout of values and gradients; constant for the life of a run."""

    @abc.abstractmethod
    def push(self, push: Push, timeout_sec: float | None = None) -> Reply:
        """Applies one record and waits until it has taken effect.

        Raises:
          InvalidInputError: malformed or not finite; nothing took effect.
          TimeoutError: it had not taken effect in time.
        """

    @abc.abstractmethod
    def count_refused(self, reason: str) -> None:
        """Counts a push that was refused before it could be handed to `push`; see `Status`."""

    @abc.abstractmethod
    def pull(self, client_id: str = "", have_version: int | None = None) -> Reply:
        """Returns the newest values, or none when `have_version` is still the newest."""

    @abc.abstractmethod
    def status(self) -> Status:
        """Returns the numbers of this moment."""

    @abc.abstractmethod
    def save_checkpoint(self) -> Path | None:
        """Writes a snapshot and returns its directory; None when none are kept.

        Raises:
          SnapshotError: it could not be written.
        """

    @abc.abstractmethod
    def request_stop(self) -> None:
        """Asks whoever runs the server to end it in order; returns at once."""

    @abc.abstractmethod
    def metrics(self) -> Metrics:
        """Returns the recorder."""


class ParameterServerClient(abc.ABC):
    """The parameter server as one agent uses it: the tutorial's four calls, and push-pull.

    A context manager. One per agent; not thread-safe.

        with bridge.parameter_server_stub(address) as parameter_server:
            values = parameter_server.get_values()
            ...
            values = parameter_server.push_pull(gradients)
    """

    @property
    @abc.abstractmethod
    def manifest(self) -> Manifest:
        """The layout of values and gradients."""

    @property
    @abc.abstractmethod
    def version(self) -> int:
        """Version of the values that this client holds."""

    @property
    @abc.abstractmethod
    def global_t(self) -> int:
        """Newest known environment steps of all clients, own unsent ones included."""

    @property
    @abc.abstractmethod
    def finished(self) -> str:
        """What ended the training, or "" while it goes on."""

    @abc.abstractmethod
    def increment_global_t(self, n: int = 1) -> int:
        """Counts `n` environment steps and returns the newest known `global_t`.

        Steps are sent with the next push, or by themselves after a while: not one call per step.
        """

    @abc.abstractmethod
    def add_episode(self, episode_return: float, length: int) -> None:
        """Reports a finished training episode; sent with the next push."""

    @abc.abstractmethod
    def add_statistics(self, name: str, moments: Moments) -> None:
        """Adds rows to a running statistic; merged until the next push, and sent with it.

        What the server has merged comes back with the values: `NAME.count`, `NAME.mean` and
        `NAME.m2` are variables of `manifest.segments`.

        Args:
          name: of the statistic, without ".count", ".mean", ".m2".
          moments: of the rows; without rows, nothing happens.

        Raises:
          InvalidInputError: no such statistic, wrong shape or dtype, or not finite; names it.
            Nothing was added.
        """

    @abc.abstractmethod
    def apply_gradients(self, gradients: Sequence[np.ndarray], groups: Sequence[str] = ()) -> None:
        """Pushes one gradient (one float32 array per trainable variable, in manifest order).

        Args:
          gradients: the arrays.
          groups: variable groups that they are for: arrays of these groups' variables alone, and
            nothing else is moved, as `manifest.select_groups(groups).trainable` lists them. None
            named: all.

        Raises:
          InvalidInputError: wrong count, shape or dtype, or not finite; nothing took effect.
          ServerUnavailableError: no answer in time.
        """

    @abc.abstractmethod
    def get_values(self) -> list[np.ndarray]:
        """Pulls the newest values: one array per variable, in manifest order. Read-only views.

        All variables: the trainable ones come first, running statistics and others behind them.
        """

    @abc.abstractmethod
    def push_pull(
        self, gradients: Sequence[np.ndarray] | None = None, groups: Sequence[str] = ()
    ) -> list[np.ndarray]:
        """Pushes a gradient (or none), steps, episodes and statistics; pulls the values with it.

        Arguments as of `apply_gradients`; all values come back, whatever was pushed.
        """

    @abc.abstractmethod
    def metrics(self) -> Metrics:
        """Returns the recorder."""

    @abc.abstractmethod
    def close(self) -> None:
        """Sends what is pending, if it can, and lets go. May be called twice."""

    def __enter__(self) -> "ParameterServerClient":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
