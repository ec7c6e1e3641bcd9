"""`relaax serve`: a run's policy for rlx clients, without training or a parameter server."""

import collections
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from relaax_like.bridge.client import make_client_id
from relaax_like.config.models import Experiment
from relaax_like.core.metrics import NullMetrics
from relaax_like.launch.rlx_server import (
    end_server,
    make_rlx_server,
    prepare_bind,
    serve_until_stopped,
)
from relaax_like.launch.saved_policy import LATEST, SavedPolicy, read_snapshot
from relaax_like.nn.settings import prepare_tensorflow
from relaax_like.rlx_server.server import RlxServer
from relaax_like.rlx_server.session import Session
from relaax_like.rlx_server.transition import EndedEpisode
from relaax_like.runs.processes.process import Shutdown

logger = logging.getLogger(__name__)


class PlayedEpisodes:
    """Counts the episodes of all clients, and averages the newest returns. Thread-safe.

    Args:
      window: number of newest episodes in the mean.
    """

    def __init__(self, window: int):
        self._lock = threading.Lock()  # guards all attributes below
        self._newest: collections.deque[float] = collections.deque(maxlen=window)
        self._count = 0

    def add(self, episodes: Sequence[EndedEpisode]) -> None:
        """Adds episodes that have ended."""
        with self._lock:
            self._count += len(episodes)
            self._newest.extend(episode.episode_return for episode in episodes)

    def format(self, clients: int) -> str:
        """Returns the progress line; `clients` is the number of connected ones."""
        with self._lock:
            parts = [f"clients {clients}", f"{self._count:,} episodes"]
            if self._newest:
                mean, number = np.mean(self._newest), len(self._newest)
                parts.append(f"mean return {mean:.1f} (last {number})")
        return " | ".join(parts)


def run_policy_server(experiment: Experiment, version: str = LATEST) -> int:
    """Answers all clients with the best actions of a run's policy, until a signal arrives.

    The run's folder is only read, so the run can be training meanwhile. Nothing is learned from the
    clients. A newer snapshot requires a restart.

    Args:
      experiment: of the run; its `relaax-rlx-server` section contains the address.
      version: see `read_snapshot`.

    Returns:
      The exit status; see also `end_server`.

    Raises:
      ConfigError: other machines can reach the address without TLS or without tokens, a file of
        `security` cannot be used, or see `SavedPolicy`.
      RelaaxError: see `validate_port_free`.
      SnapshotError: see `SavedPolicy`.
      Stopped: a signal arrived while the policy was being loaded.
    """
    shutdown = Shutdown()
    played = PlayedEpisodes(experiment.learner.target_episodes)

    def count_episodes(session: Session) -> None:
        session.on_episodes = played.add

    with open_policy_server(experiment, version, shutdown, count_episodes) as (server, policy):

        def show_progress() -> None:
            interval = experiment.parameter_server.progress_interval_sec
            shown = played.format(0)
            while not shutdown.requested.wait(interval):
                line = played.format(server.clients)
                if line != shown:
                    logger.info("%s", line)
                    shown = line

        logger.info(
            "serving the policy of step %s, version %s, greedily; nothing is learned",
            f"{policy.global_t:,}",
            f"{policy.version:,}",
        )
        serve_until_stopped(server, experiment.rlx_server, shutdown, show_progress)
    logger.info("stopped: %s", played.format(0))
    return end_server(server, shutdown)


@contextlib.contextmanager
def open_policy_server(
    experiment: Experiment,
    version: str,
    shutdown: Shutdown,
    on_session: Callable[[Session], None],
) -> Iterator[tuple[RlxServer, SavedPolicy]]:
    """Makes an rlx server, not started yet, whose agents act with a snapshot.

    Args:
      experiment: of the run.
      version: see `read_snapshot`.
      shutdown: interrupts the loading.
      on_session: called with each new session, before its first message.

    Yields:
      The server, and the policy with which its agents act.

    Raises:
      RelaaxError: see `run_policy_server`.
      Stopped: see `run_policy_server`.
    """
    settings = experiment.rlx_server
    prepare_tensorflow(experiment, learns=False)
    security = prepare_bind(experiment)
    with shutdown.interrupting():
        policy = SavedPolicy(
            experiment, read_snapshot(experiment, version), make_client_id("serve")
        )
    with policy:
        server = make_rlx_server(
            settings,
            policy.host,
            NullMetrics(),
            security,
            exploit=True,
            on_session=on_session,
        )
        yield server, policy
