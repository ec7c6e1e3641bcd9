"""Agents of an rlx server without spaces in its settings: the first client provides them."""

import threading
import time
from collections.abc import Callable, Sequence

from relaax_like.core.prediction import Prediction, Request
from relaax_like.rlx_server.hosting import AgentHost
from relaax_like.rlx_server.session import PREPARING_SEC
from relaax_like.rlx_server.slots import Slots, SlotSpec
from relaax_like.wire.errors import (
    ConfigError,
    InvalidInputError,
    NotAllowedError,
    ProtocolError,
    ServerUnavailableError,
)
from relaax_like.wire.spaces import RunSpaces

# Longest time that a hello waits for parameter server and learner to start: clients wait 60 s,
# unless they are pinged.
_HOLD_SEC = 45.0
_POLL_SEC = 0.2


class LateHost(AgentHost):
    """Creates the real host once the spaces of the run are known, and delegates to it.

    Args:
      propose: proposes a client's spaces to the parameter server, or requests those of the run;
        see `Link.propose_spaces`.
      make_host: creates the host for the run's spaces.
      wait_loaded: waits up to the given number of seconds for parameter server and learner;
        returns whether they are ready.
    """

    def __init__(
        self,
        propose: Callable[[RunSpaces | None], RunSpaces | None],
        make_host: Callable[[RunSpaces], AgentHost],
        wait_loaded: Callable[[AgentHost, float], bool],
    ):
        super().__init__()
        self._propose = propose
        self._make_host = make_host
        self._wait_loaded = wait_loaded
        self._lock = threading.Lock()  # guards the making of _host
        self._host: AgentHost | None = None

    def make_slot_agents(self, spec: SlotSpec) -> Slots:
        """Builds the agents of k slots; the first client that trains defines the run's spaces.

        Blocks until parameter server and learner are ready, for about 45 s at most, or for 10
        minutes if the client is pinged.

        Raises:
          ProtocolError: SPACE_MISMATCH: the algorithm cannot use the spaces, or the run has others;
            or the parameter server does not accept proposals, or has failed.
          ConfigError, InvalidInputError, RelaaxError, Exception: see `AgentHost`.
          ServerUnavailableError: the parameter server or the learner is not ready in time; the
            parameter server and this server do not trust each other; this server cannot load its
            algorithm, and ends; or the client exploits, and the spaces are not known yet.
        """
        spaces = RunSpaces(spec.observation_spaces, spec.action_spaces)
        longest_sec = PREPARING_SEC if spec.is_pinged else _HOLD_SEC
        host = self._prepare(None if spec.exploit and not spec.draws else spaces, longest_sec)
        return host.make_slot_agents(spec)

    def predict(self, requests: Sequence[Request]) -> list[Prediction]:
        """Answers the requests of batch-native agents; see `AgentHost.predict`."""
        assert self._host is not None, "agents have been made"
        return self._host.predict(requests)

    def close(self) -> None:
        """Releases what the agents share; see `AgentHost.close`."""
        if self._host is not None:
            self._host.close()

    def _prepare(self, proposal: RunSpaces | None, longest_sec: float) -> AgentHost:
        end = time.monotonic() + longest_sec
        host = self._get_host(proposal, end)
        if not self._wait_loaded(host, end - time.monotonic()):
            raise ServerUnavailableError(
                "the parameter server or the learner is not ready; retry later"
            )
        return host

    def _get_host(self, proposal: RunSpaces | None, end: float) -> AgentHost:
        if not self._lock.acquire(timeout=max(end - time.monotonic(), 0.0)):
            raise ServerUnavailableError("the parameter server is not ready; retry later")
        try:
            if self._host is None:
                try:
                    host = self._make_host(self._agree(proposal, end))
                except (ConfigError, InvalidInputError) as error:
                    raise ProtocolError(
                        str(error), "SPACE_MISMATCH", "observation_spaces"
                    ) from error
                host.on_ready = lambda: self.on_ready()
                self._host = host
            return self._host
        finally:
            self._lock.release()

    def _agree(self, proposal: RunSpaces | None, end: float) -> RunSpaces:
        while True:
            try:
                spaces = self._propose(proposal)
            except NotAllowedError as error:
                raise ServerUnavailableError(str(error)) from None
            except ServerUnavailableError:
                if time.monotonic() >= end:
                    raise
                time.sleep(_POLL_SEC)
                continue
            if spaces is None:
                raise ServerUnavailableError(
                    "the run's spaces are not known, because no environment has connected for "
                    "training yet; retry later"
                )
            return spaces
