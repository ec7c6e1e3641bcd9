"""A parameter server without spaces in its settings waits for those of the first environment."""

import contextlib
import logging
import threading
from collections.abc import Callable

from relaax_like.bridge.control import BridgeControl
from relaax_like.bridge.spaces_servicer import Propose
from relaax_like.config.address import Address
from relaax_like.config.loader import add_spaces
from relaax_like.config.models import Experiment
from relaax_like.config.run_spaces import find_run_spaces, keep_run_spaces, write_run_spaces
from relaax_like.config.spaces import validate_run_spaces
from relaax_like.runs.processes.process import Shutdown, without_native_stderr
from relaax_like.wire import failpoints
from relaax_like.wire.errors import ConfigError, InvalidInputError, ServerUnavailableError
from relaax_like.wire.security import ServerSecurity
from relaax_like.wire.spaces import RunSpaces

logger = logging.getLogger(__name__)

WAITING = (
    "waiting for spaces: the first environment that connects for training brings them, and no "
    "environment has connected yet"
)
# Grace period for the answer to the proposal.
_ANSWER_SEC = 2.0
_POLL_SEC = 0.1


def wait_for_spaces(
    experiment: Experiment,
    security: ServerSecurity,
    shutdown: Shutdown,
    on_ready: Callable[[], None],
) -> RunSpaces | None:
    """Serves proposals at the parameter server's address until the first usable one.

    RUN/spaces.json is written before that proposal is answered.

    Args:
      experiment: whose algorithm `lacks_spaces`; its run's folder exists.
      security: what clients must present.
      shutdown: ends the wait.
      on_ready: called when the server can be reached.

    Returns:
      The spaces; None: a shutdown was requested.

    Raises:
      RelaaxError: the port is taken, or the address cannot be used.
    """
    agreement = _Agreement(experiment)
    bind = experiment.parameter_server.bind
    server, port = BridgeControl().create_waiting_server(
        str(bind), agreement.propose, WAITING, security
    )
    server.start()
    try:
        logger.info("parameter server on %s, %s", Address(bind.host, port), WAITING)
        on_ready()
        learner = experiment.learner
        if learner.placement == "server" and learner.backprop_workers == 1:  # its threads are known
            threading.Thread(target=_load_tensorflow, daemon=True).start()
        while not (shutdown.requested.is_set() or agreement.reached.wait(_POLL_SEC)):
            pass
    finally:
        server.stop(grace=_ANSWER_SEC).wait()
    return agreement.spaces


def make_proposer(experiment: Experiment) -> Propose:
    """Returns the function that answers proposals once the spaces are fixed.

    The first one that fits is written to RUN/spaces.json if there is no such file: an
    environment's spaces say more than the settings.

    Raises:
      ConfigError: RUN/spaces.json cannot be used.
    """
    spaces = find_run_spaces(experiment)
    lock = threading.Lock()  # guards the writing

    def propose(proposal: RunSpaces | None) -> RunSpaces:
        if proposal is not None:
            # Clients are compared with the settings by the agents' host.
            with lock, contextlib.suppress(ConfigError, InvalidInputError):
                validate_run_spaces(experiment.algorithm, *proposal)
                keep_run_spaces(experiment.run_dir, proposal)
        if not (spaces.observations and spaces.actions):
            raise InvalidInputError(
                "spaces: the settings of this server do not define observation and "
                "action spaces; start server and agents with the same experiment file"
            )
        return spaces

    return propose


class _Agreement:
    """Accepts the first usable proposal. Thread-safe.

    Attributes:
      spaces: of the run; None: no usable spaces were proposed yet.
      reached: set once there are spaces.
    """

    def __init__(self, experiment: Experiment):
        self.spaces: RunSpaces | None = None
        self.reached = threading.Event()
        self._experiment = experiment
        self._lock = threading.Lock()  # guards spaces

    def propose(self, proposal: RunSpaces | None) -> RunSpaces | None:
        """Makes the first proposal the run's spaces, and returns the run's spaces.

        Writes the first proposal to the run's folder, and sets `reached`. Ignores later ones.
        Without a proposal (None), returns the spaces, or None if there are none yet.

        Raises:
          InvalidInputError: the algorithm cannot use the proposed spaces.
          ServerUnavailableError: the spaces cannot be written to the run's folder.
        """
        with self._lock:
            if self.spaces is not None or proposal is None:
                return self.spaces
            try:
                add_spaces(self._experiment, *proposal)
            except ConfigError as error:
                raise InvalidInputError(str(error), "observation_spaces") from None
            try:
                write_run_spaces(self._experiment.run_dir, proposal)
            except ConfigError as error:
                logger.error("%s", error)
                raise ServerUnavailableError(str(error)) from None
            failpoints.hit("ps.after_spaces_before_reply")
            self.spaces = proposal
        self.reached.set()
        return proposal


def _load_tensorflow() -> None:
    """Imports TensorFlow, which takes seconds, while there is nothing to compute."""
    with without_native_stderr():
        from relaax_like.nn import runtime  # noqa: F401
