"""BridgeControl: opens either end of the bridge."""

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any

import grpc

from relaax_like.bridge import frames, messages
from relaax_like.bridge.channel import bind, make_channel, make_server
from relaax_like.bridge.collecting import CollectStream
from relaax_like.bridge.errors import PARAMETER_SERVER, ClosedChannelError, translate
from relaax_like.bridge.experience_servicer import (
    ExperienceServicer,
)
from relaax_like.bridge.joining import GroupServicer
from relaax_like.bridge.metrics_client import MetricsClient
from relaax_like.bridge.metrics_servicer import MAX_MESSAGE_BYTES as MAX_METRICS_BYTES
from relaax_like.bridge.metrics_servicer import add_metrics_servicer
from relaax_like.bridge.publishing import LeasingBackend, PublisherServicer, PublisherStub
from relaax_like.bridge.servicer import (
    ParameterServerServicer,
    max_message_bytes,
)
from relaax_like.bridge.serving import GrpcCall, add_health, add_service
from relaax_like.bridge.shared_memory_lane import SharedMemoryLane
from relaax_like.bridge.spaces_servicer import (
    Propose,
    WaitingHandler,
    make_spaces_servicer,
    propose_spaces,
)
from relaax_like.bridge.stub import (
    Health,
    ParameterServerStub,
)
from relaax_like.config.address import parse_address
from relaax_like.core.manifest import Manifest, message_to_manifest
from relaax_like.core.metrics import Metrics, NullMetrics
from relaax_like.core.records import ClientsReport, Status
from relaax_like.core.roles import ExperienceSink, ParameterServerBackend
from relaax_like.v1 import parameter_server_pb2 as pb
from relaax_like.v1 import parameter_server_pb2_grpc as pb_grpc
from relaax_like.wire.backoff import draw_pause_sec
from relaax_like.wire.closing import Closing
from relaax_like.wire.errors import NotAllowedError, ServerUnavailableError
from relaax_like.wire.reports import Reporter
from relaax_like.wire.security import ClientSecurity, ServerSecurity
from relaax_like.wire.spaces import RunSpaces
from relaax_like.wire.tls import find_tls_mistake

logger = logging.getLogger(__name__)

# A further call is refused immediately: with fewer threads than calls, it would wait forever.
_MAX_CALLS = 1024
# The same while waiting for spaces: all calls are short.
_MAX_WAITING_CALLS = 64


class Link(Closing):
    """A channel to one server, shared by all agents of a process. A context manager.

        with BridgeControl().connect("localhost:7000") as link:
            with link.parameter_server_stub() as parameter_server:
                values = parameter_server.get_values()

    Args:
      address: `host:port` of the server.
      security: token and certificates; None: no token and no TLS.
      server: what the server is, for messages.

    Attributes:
      address: as the argument.

    Raises:
      ConfigError: `address` is not `host:port`, or a file that `security` names cannot be used.
    """

    def __init__(
        self, address: str, security: ClientSecurity | None = None, server: str = PARAMETER_SERVER
    ):
        self.address = address
        self._where = parse_address(address)
        self._server = server
        self._tls = None if security is None else security.tls
        self._channel = make_channel(address, security)
        self._stub = pb_grpc.ParameterServerStub(self._channel)
        self._health = Health()
        self._metrics: MetricsClient | None = None

    def wait(self, timeout_sec: float | None = None) -> Manifest:
        """Waits until the server is available, and returns its manifest.

        Sends a request each time: a restarted server might serve another model.

        Args:
          timeout_sec: longest wait, plus up to 5 s for the last request; None: no limit.

        Raises:
          ServerUnavailableError: the server was not available in time, or this link is closed, even
            during the wait.
          NotAllowedError: one end does not trust the other; waiting does not help.
          InvalidInputError: the received manifest is not valid.
          ProtocolError: something else listens at the address, or the server has failed.
        """
        with self._explaining_tls():
            return self._wait(timeout_sec)

    def _wait(self, timeout_sec: float | None) -> Manifest:
        start = time.monotonic()
        next_note = 2.0
        attempt = 0
        while True:
            try:
                with translate(self.address, self._server):
                    message = self._stub.GetManifest(pb.GetManifestRequest(), timeout=5.0)
                    return message_to_manifest(message)
            except ClosedChannelError:
                raise
            except ServerUnavailableError:
                waited = time.monotonic() - start
                if timeout_sec is not None and waited >= timeout_sec:
                    raise
            if waited >= next_note:
                self._note_wait(waited)
                next_note = waited + 5.0
            time.sleep(draw_pause_sec(attempt, 0.1, 1.0))
            attempt += 1

    def parameter_server_stub(
        self,
        client_id: str = "",
        metrics: Metrics | None = None,
        timeout_sec: float | None = None,
        keep_stream_open: bool = False,
        use_shared_memory: bool = True,
    ) -> ParameterServerStub:
        """Returns the server as a new agent or learner sees it; waits for the server first.

        Args:
          client_id: unique in the run; "": a new name.
          metrics: the recorder; None: one that sends points to the server.
          timeout_sec: see `wait`.
          keep_stream_open: halves the time of a push, but needs a thread at each end. A model whose
            values do not fit one chunk always has a stream.
          use_shared_memory: with an open stream, send vectors through shared memory if the server
            is on this machine.

        Raises:
          RelaaxError: see `wait`.
        """
        manifest = self.wait(timeout_sec)
        return ParameterServerStub(
            self._channel,
            self.address,
            manifest,
            metrics or self.metrics(),
            client_id,
            health=self._health,
            keep_stream_open=keep_stream_open,
            use_shared_memory=use_shared_memory,
        )

    def collect_stream(
        self, client_id: str, timeout_sec: float | None = None, algorithm: str = ""
    ) -> CollectStream:
        """Returns a stream of experience to the server; waits for the server first.

        Args:
          client_id: unique in the run.
          timeout_sec: see `wait`.
          algorithm: name of the Algorithm that the experience is for; "": the only one.

        Raises:
          ServerUnavailableError: the server was not available in time, or this link is closed.
          RelaaxError: see `wait`.
        """
        manifest = self.wait(timeout_sec)
        read = frames.to_experience_reply
        call = GrpcCall(
            self._channel, frames.EXPERIENCE, "Collect", read, self.address, self._server
        )
        return CollectStream(call, manifest, client_id, algorithm)

    def publisher_stub(self) -> PublisherStub:
        """Returns the calls of a learner in a process of its own; does not wait for the server."""
        return PublisherStub(self._channel, self.address)

    def metrics(self) -> MetricsClient:
        """Returns the recorder that sends points to the server, shared by the process's agents."""
        if self._metrics is None:
            self._metrics = MetricsClient(self._channel, lambda: self.global_t)
        return self._metrics

    @property
    def global_t(self) -> int:
        """Largest `global_t` that this process has received; 0: none yet."""
        return self._health.global_t

    def note_global_t(self, global_t: int) -> None:
        """Notes a `global_t` that this process has received; any thread can call it."""
        self._health.note_global_t(global_t)

    def status(self, timeout_sec: float = 5.0) -> Status:
        """Requests the server's status.

        Raises:
          ServerUnavailableError: no answer in time, or the server is not ready or too busy.
          NotAllowedError: one end does not trust the other.
          ProtocolError: something else listens at the address, or the server has failed.
        """
        with self._explaining_tls(), translate(self.address):
            request = pb.GetStatusRequest()
            return messages.message_to_status(self._stub.GetStatus(request, timeout=timeout_sec))

    def report_clients(self, report: ClientsReport, timeout_sec: float = 5.0) -> None:
        """Reports the clients of an rlx server.

        Raises:
          InvalidInputError: there are too many clients, the server's name is empty or too long, or
            a text is too long.
          RelaaxError: see `status` for other errors.
        """
        with translate(self.address):
            self._stub.ReportClients(messages.report_to_message(report), timeout=timeout_sec)

    def propose_spaces(
        self, spaces: RunSpaces | None, timeout_sec: float = 5.0
    ) -> RunSpaces | None:
        """Proposes the spaces of the run, or requests them; see `spaces_servicer.propose_spaces`.

        Raises:
          InvalidInputError: the algorithm cannot use the spaces, or the received ones are not
            valid.
          ServerUnavailableError: no answer in time, the server is too busy, or it could not store
            the spaces.
          NotAllowedError: one end does not trust the other.
          ProtocolError: the server does not accept proposals or has failed, or something else
            listens at the address.
        """
        with self._explaining_tls():
            return propose_spaces(self._channel, self.address, spaces, timeout_sec)

    def request_save(self, timeout_sec: float = 300.0) -> str:
        """Tells the server to write a snapshot.

        Returns:
          Its path on the server's machine; "" if the run keeps no snapshots.

        Raises:
          ServerUnavailableError: no answer in time, the server is not ready or too busy, or the
            snapshot could not be written.
          LeasedError: the server is the run's learner, which writes no snapshots.
          NotAllowedError: one end does not trust the other, or an operator's token is required.
          ProtocolError: something else listens at the address, or the server has failed.
        """
        with self._explaining_tls(), translate(self.address):
            return self._stub.Save(pb.SaveRequest(), timeout=timeout_sec).path

    def request_stop(self, timeout_sec: float = 5.0) -> None:
        """Tells the server to save and stop; returns when it has acknowledged.

        Raises:
          LeasedError: the server is the run's learner, which does not end the run.
          NotAllowedError: one end does not trust the other, or an operator's token is required.
          RelaaxError: see `status` for other errors.
        """
        with self._explaining_tls(), translate(self.address):
            self._stub.Stop(pb.StopRequest(), timeout=timeout_sec)

    @contextlib.contextmanager
    def _explaining_tls(self) -> Iterator[None]:
        try:
            yield
        except ServerUnavailableError:
            self._validate_tls()
            raise

    def _note_wait(self, waited_sec: float) -> None:
        self._validate_tls()
        is_missing = self._server == PARAMETER_SERVER and not Reporter.is_started
        how = "; start it with relaax-parameter-server" if is_missing else ""
        logger.info("waiting for %s at %s (%.0f s)%s", self._server, self.address, waited_sec, how)

    def _validate_tls(self) -> None:
        mistake = find_tls_mistake(self._where.host, self._where.port, self._tls)
        if mistake:
            raise NotAllowedError(f"{self._server} at {self.address}: {mistake}")

    def close(self) -> None:
        """Sends queued metrics, if the server answers quickly, and disconnects. Idempotent."""
        if self._metrics is not None:
            self._metrics.close()
        self._channel.close()


class BridgeControl:
    """Opens the client's end and the server's end of the bridge."""

    def connect(
        self, address: str, security: ClientSecurity | None = None, server: str = PARAMETER_SERVER
    ) -> Link:
        """Returns a link to the server at `host:port`, which need not be running yet.

        Args:
          address: `host:port` of the server.
          security: token and certificates; None: no token and no TLS.
          server: what the server is, for messages.

        Raises:
          ConfigError: `address` is not `host:port`, or a file that `security` names cannot be used.
        """
        return Link(address, security, server)

    def create_server(
        self,
        address: str,
        backend: ParameterServerBackend,
        security: ServerSecurity | None = None,
        experience: ExperienceSink | Mapping[str, ExperienceSink] | None = None,
        propose: Propose | None = None,
        publisher: LeasingBackend | None = None,
    ) -> tuple[grpc.Server, int]:
        """Binds a server for `backend`; start it with `.start()`.

        Args:
          address: `host:port`; port 0 lets the system choose.
          backend: the parameter server; served over our own protocol and the tutorial's four calls,
            with health checks, and, if it records metrics, with the metrics service.
          security: what clients must present; None: nothing, and no TLS.
          experience: sink of experience, if the run learns in the server; with several Algorithms,
            name -> sink; None: the run does not learn in the server.
          propose: answers proposals of spaces; None: proposals are not accepted.
          publisher: grants the lease to a learner in another process; None: the run has no such
            learner.

        Returns:
          The server and its actual port.

        Raises:
          RelaaxError: the address cannot be used, see `channel.bind`.
        """
        message_bytes = max(max_message_bytes(backend.manifest), MAX_METRICS_BYTES)
        lanes = [SharedMemoryLane(backend.manifest)]
        server = make_server("bridge", _MAX_CALLS, security, message_bytes, lanes)
        servicers = [
            ParameterServerServicer(backend),
            ExperienceServicer(backend, experience),
            GroupServicer(backend),
            _make_tutorial_servicer(backend),
            None if publisher is None else PublisherServicer(publisher),
            None if propose is None else make_spaces_servicer(propose),
        ]
        for servicer in filter(None, servicers):
            add_service(server, servicer)
        if not isinstance(backend.metrics(), NullMetrics):
            add_metrics_servicer(server, backend.metrics())
        add_health(server)
        return server, bind(server, address, security)

    def create_waiting_server(
        self, address: str, propose: Propose, text: str, security: ServerSecurity | None = None
    ) -> tuple[grpc.Server, int]:
        """Binds a server that only accepts proposals of spaces; start it with `.start()`.

        Args:
          address: `host:port`; port 0 lets the system choose.
          propose: answers proposals.
          text: what the server is waiting for: the answer to all other calls except health checks.
          security: what clients must present; None: nothing, and no TLS.

        Returns:
          The server and its actual port.

        Raises:
          RelaaxError: the address cannot be used, see `channel.bind`.
        """
        server = make_server("waiting", _MAX_WAITING_CALLS, security)
        add_service(server, make_spaces_servicer(propose))
        add_health(server)
        server.add_generic_rpc_handlers((WaitingHandler(text),))
        return server, bind(server, address, security)


def _make_tutorial_servicer(backend: ParameterServerBackend) -> Any:
    # Only imported here: see its docstring.
    from relaax_like.bridge.tutorial_servicer import TutorialServicer

    return TutorialServicer(backend)
