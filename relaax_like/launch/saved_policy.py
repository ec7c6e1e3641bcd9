"""A run's policy in a snapshot: selects the snapshot, and makes agents that act with it."""

import threading

import numpy as np

from relaax_like.bridge.in_process import InProcessClient
from relaax_like.config.models import Experiment
from relaax_like.core.metrics import NullMetrics
from relaax_like.core.roles import ParameterServerClient
from relaax_like.launch.frozen_agents import make_frozen_host
from relaax_like.learn.frozen_policy import FrozenPolicy
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.snapshot_format import State
from relaax_like.parameter_server.snapshots import (
    list_names,
    read_best,
    read_latest,
    read_version,
)
from relaax_like.parameter_server.store import Store
from relaax_like.wire.closing import Closing
from relaax_like.wire.errors import ConfigError, SnapshotError

LATEST, BEST = "latest", "best"
# Python does not convert texts of thousands of digits.
_DIGITS = 20


def read_snapshot(experiment: Experiment, version: str = LATEST) -> State:
    """Reads a snapshot of a run. Takes no lock and writes nothing: the run can be training.

    Args:
      experiment: defines the folder.
      version: "latest"; "best", the saved one with the best mean return; or the number of a
        version.

    Raises:
      ConfigError: `version` is something else.
      SnapshotError: there is no such snapshot, or it cannot be used.
    """
    directory = experiment.parameter_server.checkpoint_dir
    if version == BEST:
        state = read_best(directory)
        if state is None and list_names(directory):
            raise SnapshotError(
                f"{directory}: no snapshot has a score yet; a score needs an evaluation "
                "(learner.eval_freq) or, without evaluations, a full window of episodes "
                "(learner.target_episodes); until then, use version latest"
            )
    elif version == LATEST:
        state = read_latest(directory)
    else:
        if not (version.isascii() and version.isdecimal() and len(version) <= _DIGITS):
            raise ConfigError(
                f"version: {version[:40]!r}, expected {LATEST}, {BEST}, or the number of a version"
            )
        return read_version(directory, int(version))
    if state is None:
        raise SnapshotError(f"{directory}: no snapshot to act with; train the run first")
    return state


def open_server(experiment: Experiment, state: State) -> ParameterServer:
    """Makes a parameter server in this process with a snapshot's state; it writes nothing.

    Raises:
      ConfigError: see `Store`.
      SnapshotError: see `Store.import_state`.
      InvalidInputError: see `Store.import_state`.
    """
    # Zeros, because errors in initial values have another cure than those in a snapshot.
    zeros = np.zeros(state.manifest.total_bytes, np.uint8)
    store = Store(state.manifest, zeros, experiment.optimizers, expects_gradients=False)
    folder = experiment.parameter_server.checkpoint_dir
    store.import_state(state, f"the snapshot of version {state.version} in {folder}")
    return ParameterServer(store, metrics=NullMetrics())


class SavedPolicy(Closing):
    """Agents of a run's algorithm that act with a snapshot. A context manager.

        with SavedPolicy(experiment, read_snapshot(experiment, "best"), "serve") as policy:
            agents = policy.host.make_slot_agents(SlotSpec(..., exploit=True))

    Agents must be made with `exploit=True`: then nothing is learned.

    Attributes:
      version: of the weights.
      global_t: environment steps of the run at that version.
      host: makes the agents.

    Args:
      experiment: defines the algorithm.
      state: the snapshot; see `read_snapshot`.
      client_id: of the agents; the seed of their random numbers depends on it.

    Raises:
      ConfigError: the algorithm cannot be loaded.
      SnapshotError: the snapshot belongs to another model.
      InvalidInputError: see `open_server`; only for agents with several Algorithms.
    """

    def __init__(self, experiment: Experiment, state: State, client_id: str):
        self._experiment = experiment
        self._state = state
        self.version, self.global_t = state.version, state.global_t
        self._lock = threading.Lock()  # guards the creation of _server
        self._server: ParameterServer | None = None
        values = state.manifest.unpack(state.values)
        fixed = FrozenPolicy(values, self.version, self.global_t)
        self.host = make_frozen_host(experiment, self._make_client, fixed, client_id)

    def close(self) -> None:
        """Closes the host; its agents must not be used afterwards. Idempotent."""
        self.host.close()
        if self._server is not None:
            self._server.close()

    def _make_client(self, name: str) -> ParameterServerClient:
        """Opens a view of the state, for agents that read it by themselves."""
        with self._lock:
            if self._server is None:
                self._server = open_server(self._experiment, self._state)
        return InProcessClient(self._server, name)
