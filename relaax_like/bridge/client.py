"""Base of the stub and the in-process client: holds data for the next push, and current values."""

import abc
import itertools
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence

import numpy as np

from relaax_like.core.episode_reports import validate_reports
from relaax_like.core.manifest import Manifest
from relaax_like.core.metrics import Metrics
from relaax_like.core.moments import Moments
from relaax_like.core.records import (
    MAX_ENV_STEPS,
    MAX_EPISODES,
    EpisodeReport,
    GroupReply,
    GroupRequest,
    Push,
    Reply,
    Values,
)
from relaax_like.core.roles import GroupConnection, ParameterServerClient
from relaax_like.wire.errors import InvalidInputError, ServerUnavailableError

logger = logging.getLogger(__name__)

_NUMBERS = itertools.count(1)
# Steps of an agent that pushes rarely are sent separately at this interval.
FLUSH_SEC = 1.0
_DROPPED_LINE_SEC = 10.0


def make_client_id(role: str = "agent") -> str:
    """Returns a name that is unique in the run: host, process, number, and a random part.

    Containers can share a host name and process ids; with a shared name, pushes would be lost.
    """
    place = f"{socket.gethostname()[:60]}-{os.getpid()}-{next(_NUMBERS)}"
    return f"{role}-{place}-{secrets.token_hex(3)}"


class BufferingClient(ParameterServerClient):
    """A `ParameterServerClient` over three calls that subclasses implement.

    While the server is not available (there is no answer, or it is busy or closing), agents
    continue with their current values: a push is discarded completely (gradient, steps, episodes
    and statistics) and counted in `discarded_pushes`. If the server refuses a push with a gradient
    as invalid, its steps and episodes are sent with the next push, but its statistics are lost. Any
    other refused push is lost completely.

    Args:
      manifest: of the run.
      client_id: unique in the run.
      metrics: the recorder.

    Attributes:
      client_id: as the argument.
      discarded_pushes: number of pushes for which the server was not available; some can have been
        applied.
    """

    def __init__(self, manifest: Manifest, client_id: str, metrics: Metrics):
        self.client_id = client_id
        self.discarded_pushes = 0
        self._manifest = manifest
        self._metrics = metrics
        self._incarnation = time.time_ns()
        self._sequence = 0
        self._env_steps = 0
        self._episodes: list[EpisodeReport] = []
        self._statistics: dict[str, Moments] = {}
        self._values: Values | None = None
        self._values_epoch = 0
        self._reply = Reply()
        self._away = False
        self._dropped = 0
        self._next_dropped_line = 0.0
        self._steps_since = 0.0

    @abc.abstractmethod
    def _call_push_pull(self, push: Push, want_values: bool, have_version: int) -> Reply:
        """Sends one push.

        Args:
          push: to send.
          want_values: whether the reply contains values newer than `have_version`.
          have_version: version of the values that this client holds.

        Raises:
          ServerUnavailableError: there was no answer in time, or the server is busy or closing.
          InvalidInputError: the push is not valid.
          LeasedError: the run learns from experience, and the push has a gradient or statistics.
          RelaaxError: another error of `ParameterServerStub`.
        """

    @abc.abstractmethod
    def _call_pull(self, have_version: int | None) -> Reply:
        """Pulls the newest values, unless their version is `have_version`; None: in any case.

        Raises:
          ServerUnavailableError: there was no answer in time, or the server is not ready.
          InvalidInputError: the name of this client is not valid.
          RelaaxError: another error of `ParameterServerStub`.
        """

    @abc.abstractmethod
    def _open_group(self) -> GroupConnection:
        """Opens this client's connection to the group."""

    @property
    def manifest(self) -> Manifest:
        """The layout of values and gradients."""
        return self._manifest

    @property
    def version(self) -> int:
        """Version of the current values; 0 while there are none."""
        return self._values.version if self._values else 0

    @property
    def global_t(self) -> int:
        """Newest known environment steps of all clients, including this client's unsent steps."""
        return self._reply.global_t + self._env_steps

    @property
    def finished(self) -> str:
        """What ended the training; "": it has not ended."""
        return self._reply.finished

    def increment_global_t(self, n: int = 1) -> int:
        """Counts steps; see `ParameterServerClient`, also for errors."""
        if not 0 <= n <= MAX_ENV_STEPS:
            raise InvalidInputError(f"n: {n} environment steps, expected 0 to 2^40")
        now = time.monotonic()
        if not self._env_steps:
            # Not since the newest push: steps that are followed by a gradient are sent with it.
            self._steps_since = now
        self._env_steps += n
        if now - self._steps_since >= FLUSH_SEC:
            self._exchange(None, want_values=False)
        return self.global_t

    def add_episodes(self, reports: Sequence[EpisodeReport]) -> None:
        """Adds what is sent with the next push; see `ParameterServerClient`, also for errors."""
        validate_reports(reports)  # the server would refuse each push that has an invalid one
        self._episodes += reports

    def add_statistics(self, name: str, moments: Moments) -> None:
        """Adds rows to a running statistic; see `ParameterServerClient`."""
        if moments.count == 0:
            return
        self._manifest.validate_moments(name, moments)
        pending = self._statistics.get(name)
        self._statistics[name] = moments if pending is None else pending.merge(moments)

    def apply_gradients(self, gradients: Sequence[np.ndarray], groups: Sequence[str] = ()) -> None:
        """Pushes one gradient; see `ParameterServerClient`."""
        self._exchange(self._pack(gradients, groups), want_values=False, groups=groups)

    def get_values(self) -> list[np.ndarray]:
        """Pulls the newest values; returns the current ones while the server is not available.

        Raises:
          ServerUnavailableError: the server is not available, and there are no current values.
          InvalidInputError: the name of this client is not valid.
        """
        try:
            self._take(self._call_pull(self._values.version if self._values else None))
            self._refresh()
        except ServerUnavailableError as error:
            if self._values is None:
                raise
            self._note_away(error)
        return self._unpacked()

    def push_pull(
        self, gradients: Sequence[np.ndarray] | None = None, groups: Sequence[str] = ()
    ) -> list[np.ndarray]:
        """Pushes and pulls in one call; see `ParameterServerClient`.

        While the server is not available, the push is discarded, and the current values are
        returned.

        Raises:
          InvalidInputError: the push, or the name of this client, is not valid; the push had no
            effect.
          LeasedError: the run learns from experience, and there is a gradient or a statistic.
          ServerUnavailableError: the server is not available, and there are no current values.
        """
        if self._values is None:
            self.get_values()
        flat = None if gradients is None else self._pack(gradients, groups)
        self._exchange(flat, want_values=True, groups=groups)
        return self._unpacked()

    def metrics(self) -> Metrics:
        """Returns the recorder."""
        return self._metrics

    def join_group(self) -> GroupConnection:
        """Joins the learners that make each update together; see `ParameterServerClient`."""
        return _JoinedGroup(self._open_group(), self._take)

    def close(self) -> None:
        """Sends pending steps, episodes and statistics, if the server is available."""
        if self._env_steps or self._episodes or self._statistics:
            self._exchange(None, want_values=False)

    def _pack(self, gradients: Sequence[np.ndarray], groups: Sequence[str]) -> np.ndarray:
        layout, buffer = self._manifest.select_groups(groups), self._get_gradient_buffer()
        out = None if buffer is None else buffer[: layout.gradient_bytes]
        return layout.pack(gradients, gradient=True, out=out)

    def _get_gradient_buffer(self) -> np.ndarray | None:
        """Returns a buffer for the gradient, `[gradient_bytes] uint8`; None: any can be used."""
        return None

    def _exchange(
        self, gradient: np.ndarray | None, want_values: bool, groups: Sequence[str] = ()
    ) -> None:
        while len(self._episodes) > MAX_EPISODES:
            episodes, self._episodes = (
                self._episodes[:MAX_EPISODES],
                self._episodes[MAX_EPISODES:],
            )
            self._push(episodes)
        episodes, self._episodes = self._episodes, []
        self._push(episodes, gradient, want_values, groups)

    def _push(
        self,
        episodes: Sequence[EpisodeReport],
        gradient: np.ndarray | None = None,
        want_values: bool = False,
        groups: Sequence[str] = (),
    ) -> None:
        self._sequence += 1
        push = Push(
            client_id=self.client_id,
            incarnation=self._incarnation,
            sequence=self._sequence,
            gradient=gradient,
            gradient_version=self.version,
            gradient_epoch=self._values_epoch,
            env_steps=self._env_steps,
            episodes=tuple(episodes),
            fingerprint=self._manifest.fingerprint,
            statistics=self._statistics,
            groups=() if gradient is None else tuple(groups),
        )
        # The record is sent as a unit: the pending data was in it, whatever the answer.
        self._env_steps, self._statistics = 0, {}
        try:
            self._take(self._call_push_pull(push, want_values, self.version))
        except ServerUnavailableError as error:
            self.discarded_pushes += 1
            self._note_away(error)
            return
        except InvalidInputError:
            if gradient is not None:  # the gradient is the cause: the push had no effect
                self._env_steps += push.env_steps
                self._episodes = [*push.episodes, *self._episodes]
            raise
        try:
            self._refresh()
        except ServerUnavailableError as error:  # the next exchange pulls them
            self._note_away(error)

    def _take(self, reply: Reply) -> None:
        if self._away:
            logger.info("%s: the parameter server is back", self.client_id)
            self._away = False
        if reply.outcome == "dropped" and not reply.finished:
            self._note_dropped(reply.reason)
        self._reply = reply
        if reply.values is not None:
            self._values = reply.values
            self._values_epoch = reply.epoch

    def _note_dropped(self, reason: str) -> None:
        self._dropped += 1
        now = time.monotonic()
        if now >= self._next_dropped_line:
            self._next_dropped_line = now + _DROPPED_LINE_SEC
            logger.warning(
                "%s: push dropped (%d so far): %s", self.client_id, self._dropped, reason
            )

    def _refresh(self) -> None:
        """Pulls all values after a restart of the server: a version can then have other values."""
        if self._values is not None and self._values_epoch != self._reply.epoch:
            self._take(self._call_pull(None))

    def _note_away(self, error: ServerUnavailableError) -> None:
        if not self._away:
            logger.warning(
                "%s: %s; continuing with version %d of the values, and discarding pushes "
                "until it is back",
                self.client_id,
                error,
                self.version,
            )
            self._away = True

    def _unpacked(self) -> list[np.ndarray]:
        assert self._values is not None
        return self._manifest.unpack(self._values.flat)


class _JoinedGroup(GroupConnection):
    """Wraps a connection to the group; passes the values in its answers to the client."""

    def __init__(self, connection: GroupConnection, take: Callable[[Reply], None]):
        self._connection = connection
        self._take = take

    def exchange(self, request: GroupRequest) -> GroupReply:
        reply = self._connection.exchange(request)
        if reply.reply.values is not None:
            self._take(reply.reply)
        return reply

    def close(self) -> None:
        self._connection.close()
