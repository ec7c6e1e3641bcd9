"""The rlx server's process, and the parts of it with which `relaax serve` serves a snapshot."""

import asyncio
import contextlib
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from relaax_like.bridge.client import make_client_id
from relaax_like.bridge.control import BridgeControl, Link
from relaax_like.config.address import Address
from relaax_like.config.loader import add_spaces
from relaax_like.config.models import Experiment, RlxServerConfig
from relaax_like.config.policies import POLICY
from relaax_like.core.metrics import Metrics
from relaax_like.core.records import ClientsReport
from relaax_like.core.roles import ParameterServerClient
from relaax_like.launch.agents import (
    LearnerFinder,
    make_linked_host,
    make_remote_learners,
)
from relaax_like.launch.algorithm_code import has_plain_agents
from relaax_like.launch.metrics import make_agent_metrics
from relaax_like.launch.policies import join_hosts
from relaax_like.launch.security import (
    make_client_security,
    make_server_security,
    validate_exposure,
)
from relaax_like.learn.child_learner import ChildLearner
from relaax_like.learn.remote_learners import RemoteLearners
from relaax_like.nn.settings import prepare_tensorflow
from relaax_like.nn.threads import limit_blas_threads
from relaax_like.rlx_server.admission import Admission
from relaax_like.rlx_server.greeting import Greeting
from relaax_like.rlx_server.hosting import AgentHost, BatchHost
from relaax_like.rlx_server.late_host import LateHost
from relaax_like.rlx_server.server import RlxServer, new_event_loop
from relaax_like.rlx_server.session import Session
from relaax_like.runs.processes.process import (
    EXIT_ERROR,
    EXIT_USAGE,
    Shutdown,
    end_now,
    freeze_gc,
    raise_descriptor_limit,
    validate_port_free,
)
from relaax_like.wire import tracing
from relaax_like.wire.errors import (
    ConfigError,
    NotAllowedError,
    RelaaxError,
    ServerUnavailableError,
)
from relaax_like.wire.reports import Event, Reporter
from relaax_like.wire.security import ServerSecurity
from relaax_like.wire.spaces import RunSpaces

logger = logging.getLogger(__name__)

# A client whose hello arrives while there is no parameter server must retry later.
_HELLO_WAIT_SEC = 5.0
_POLL_SEC = 1.0
_REPORT_SEC = 2.0
_LEARNER = "relaax_like.launch.learner_main"


def make_rlx_server(
    settings: RlxServerConfig,
    host: AgentHost,
    metrics: Metrics,
    security: ServerSecurity | None = None,
    reporter: Reporter | None = None,
    exploit: bool = False,
    on_session: Callable[[Session], None] = lambda session: None,
) -> RlxServer:
    """Assembles the server, without binding its address.

    Args:
      settings: of the server.
      host: makes the agents.
      metrics: records latencies.
      security: what clients must present; None: nothing.
      reporter: reports clients to `relaax run`; None: no reports.
      exploit: see `Session`.
      on_session: called with each new session, before its first message.
    """
    security = security or ServerSecurity()

    def make_session(name: str) -> Session:
        session = Session(
            name,
            host.make_agents,
            metrics,
            max_slots=settings.max_slots_per_client,
            max_message_bytes=settings.max_message_bytes,
            score_lines=settings.score_lines,
            time_limit_sec=settings.session_timeout_sec,
            tokens=security.tokens,
        )
        session.exploit = exploit
        session.report = (reporter or Reporter()).report
        on_session(session)
        return session

    server = RlxServer(
        make_session,
        Admission(settings.max_clients, settings.min_free_memory_mb),
        max_message_bytes=settings.max_message_bytes,
        hello_timeout_sec=settings.hello_timeout_sec,
        idle_timeout_sec=settings.idle_timeout_sec,
        predict=host.predict,
        tls=security.tls,
        allowed_origins=settings.allowed_origins,
    )
    host.on_ready = server.wake
    return server


def run_rlx_server(experiment: Experiment, overrides: Sequence[str] = ()) -> int:
    """Serves until a signal arrives, or an error that a retry would not cure.

    Args:
      experiment: to serve.
      overrides: with which it was loaded, for the learner's process.

    Returns:
      The exit status; see also `end_server`.

    Raises:
      ConfigError: the settings are wrong, the algorithm cannot be loaded, or other machines could
        connect without TLS or without tokens.
      RelaaxError: the port is taken, or the address cannot be used.
      Stopped: a signal arrived while the algorithm was being loaded.
    """
    settings = experiment.rlx_server
    prepare_tensorflow(experiment, learns=False)
    reporter = Reporter.from_environment()
    shutdown = Shutdown()
    security = prepare_bind(experiment)
    with contextlib.ExitStack() as ends:
        served = [
            ends.enter_context(_open_run(run, [*overrides, *more], shutdown))
            for run, more in _list_runs(experiment)
        ]
        first, host = served[0], join_hosts(experiment, [one.host for one in served])
        newest: deque[Greeting] = deque(maxlen=1)  # of clients that train

        def watch_session(session: Session) -> None:
            session.on_training = newest.append

        server = make_rlx_server(
            settings, host, first.metrics, security, reporter, on_session=watch_session
        )

        def announce() -> None:
            if all(one.wait_ready(shutdown) for one in served):
                reporter.report(Event.READY)
                links = [one.link for one in served]
                _report_clients(server, links, shutdown, newest)

        serve_until_stopped(server, settings, shutdown, announce)
    return end_server(server, shutdown)


def _list_runs(experiment: Experiment) -> Iterator[tuple[Experiment, list[str]]]:
    """Yields the run of each policy, and the overrides with which its processes load it."""
    for name, policy in experiment.policies.items():
        if has_plain_agents(policy.experiment):
            raise ConfigError(
                f"{experiment.file}: policies.{name}.algorithm: its agents run their own code "
                "(agent.py), but those of several policies act together; use another algorithm, "
                "or derive Agent from BatchAgent"
            )
        yield policy.experiment, [f"{POLICY}={name}"]
    if not experiment.policies:
        yield experiment, []


class _ServedRun(NamedTuple):
    """What the agents of one policy need.

    Attributes:
      link: to its parameter server.
      metrics: its recorder.
      learner: the link to its learner.
      host: makes its agents.
    """

    link: Link
    metrics: Metrics
    learner: RemoteLearners
    host: AgentHost

    def wait_ready(self, shutdown: Shutdown) -> bool:
        """Waits until agents can be made; returns False if this process must end."""
        ask = _ask_for_spaces if isinstance(self.host, LateHost) else _ask_for_manifest
        found = _announce_link(self.link, ask, shutdown)
        return found and _wait_for_learner(self.host, self.learner, shutdown)


@contextlib.contextmanager
def _open_run(
    experiment: Experiment, overrides: Sequence[str], shutdown: Shutdown
) -> Iterator[_ServedRun]:
    """Connects to a run's parameter server, and closes what its agents share at the end."""
    address = str(experiment.rlx_server.parameter_server.to_connect())
    with BridgeControl().connect(address, make_client_security(experiment)) as link:
        metrics = make_agent_metrics(experiment, link)
        learner = _make_learner(experiment, overrides, link, shutdown)
        host = _make_host(experiment, learner, metrics, link, shutdown)
        try:
            yield _ServedRun(link, metrics, learner, host)
        finally:
            host.close()
            learner.stop()
            if metrics is not link.metrics():
                metrics.close()


def prepare_bind(experiment: Experiment) -> ServerSecurity:
    """Checks the address of the rlx server; returns what clients must present.

    Raises:
      ConfigError, RelaaxError: see `run_rlx_server`.
    """
    bind = experiment.rlx_server.bind
    validate_exposure(bind, experiment.security, key="relaax-rlx-server.bind")
    security = make_server_security(experiment)
    validate_port_free(bind, "--bind")
    return security


def serve_until_stopped(
    server: RlxServer,
    settings: RlxServerConfig,
    shutdown: Shutdown,
    announce: Callable[[], None] = lambda: None,
) -> None:
    """Serves until a shutdown is requested, and tells all clients to reconnect.

    Args:
      server: not started yet.
      settings: contain the address.
      shutdown: ends it.
      announce: called in a separate thread once clients can connect.

    Raises:
      RelaaxError: see `RlxServer.start`.
    """
    limit_blas_threads()
    loop = new_event_loop()
    try:
        loop.run_until_complete(_serve(server, settings, shutdown, announce))
    finally:
        loop.close()


def end_server(server: RlxServer, shutdown: Shutdown) -> int:
    """Returns the exit status of a stopped server; exits immediately if an agent hangs."""
    if server.is_closing:  # Python's normal exit would wait for it
        logger.warning("an agent of a client is still busy; ending without waiting for it")
        end_now(shutdown.exit_status)
    return shutdown.exit_status


def _make_learner(
    experiment: Experiment, overrides: Sequence[str], link: Link, shutdown: Shutdown
) -> RemoteLearners:
    """Makes the link to the run's learner, without starting it."""
    if experiment.learner.publishes:
        find = None
        if experiment.learner.placement == "standalone":
            find = LearnerFinder(link, make_client_security(experiment))
        return make_remote_learners(
            link, make_client_id("rlx"), _HELLO_WAIT_SEC, shutdown, find_link=find
        )
    return ChildLearner(
        [sys.executable, "-m", _LEARNER, str(experiment.file), *overrides],
        environment=_make_environment(),
        on_global_t=link.note_global_t,
        on_failure=lambda error: shutdown.request(EXIT_USAGE),
        fatal=(EXIT_USAGE,),
    )


async def _serve(
    server: RlxServer,
    settings: RlxServerConfig,
    shutdown: Shutdown,
    announce: Callable[[], None],
) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()

    def request_stop() -> None:
        loop.call_soon_threadsafe(stopped.set)

    shutdown.on_request(request_stop)
    raise_descriptor_limit()
    freeze_gc()
    port = await server.start(settings.bind.host, settings.bind.port)
    where = Address(settings.bind.host, port)
    logger.info("rlx server on %s, waiting for environments", where)
    threading.Thread(target=announce, daemon=True).start()
    if shutdown.requested.is_set():
        stopped.set()
    await stopped.wait()
    logger.info("stopping; asking %d client(s) to reconnect", server.clients)
    await server.stop()


def _make_host(
    experiment: Experiment,
    learner: RemoteLearners,
    metrics: Metrics,
    link: Link,
    shutdown: Shutdown,
) -> AgentHost:
    """Makes the host; that of an experiment whose settings do not define its spaces waits."""

    def make_client(client_id: str) -> ParameterServerClient:
        return link.parameter_server_stub(client_id, metrics, _HELLO_WAIT_SEC)

    if not experiment.algorithm.lacks_spaces:
        with shutdown.interrupting(), tracing.span(tracing.START):
            return make_linked_host(experiment, make_client, learner, metrics)
    if isinstance(learner, ChildLearner) and not has_plain_agents(experiment):
        learner.start()  # imports TensorFlow, then requests the spaces from the parameter server

    def make_host(spaces: RunSpaces) -> AgentHost:
        complete, _ = add_spaces(experiment, *spaces)
        try:
            return make_linked_host(complete, make_client, learner, metrics)
        except RelaaxError as error:  # no client can repair that
            logger.error("%s", error)
            shutdown.request(EXIT_USAGE if isinstance(error, ConfigError) else EXIT_ERROR)
            raise ServerUnavailableError(
                "the rlx server cannot load its algorithm and ends; see its log"
            ) from None

    def wait_loaded(host: AgentHost, timeout_sec: float) -> bool:
        end = time.monotonic() + timeout_sec
        link.wait(max(timeout_sec, 0.0))
        if not (isinstance(host, BatchHost) and isinstance(learner, ChildLearner)):
            return True  # agents only need values, which the parameter server has
        return learner.wait_loaded(end - time.monotonic())

    return LateHost(link.propose_spaces, make_host, wait_loaded)


def _ask_for_manifest(link: Link) -> None:
    link.wait(10.0)


def _ask_for_spaces(link: Link) -> None:
    try:
        link.propose_spaces(None)
    except ServerUnavailableError:
        time.sleep(_POLL_SEC)
        raise


def _announce_link(link: Link, ask: Callable[[Link], None], shutdown: Shutdown) -> bool:
    """Waits for the parameter server; returns False if this process must end."""
    while not shutdown.requested.is_set():
        try:
            ask(link)
        except ServerUnavailableError:
            continue
        except RelaaxError as error:  # a retry would usually fail, too
            logger.error("%s", error)
            is_usage = isinstance(error, ConfigError | NotAllowedError)
            shutdown.request(EXIT_USAGE if is_usage else EXIT_ERROR)
            return False
        logger.info("connected to the parameter server at %s", link.address)
        return True
    return False


def _wait_for_learner(host: AgentHost, learner: RemoteLearners, shutdown: Shutdown) -> bool:
    """Waits until batch-native agents can learn; returns False if this process must end."""
    if not isinstance(host, BatchHost):
        return True
    while not shutdown.requested.is_set():
        if learner.wait_loaded(_POLL_SEC):
            return True
    return False


def _report_clients(
    server: RlxServer, links: Sequence[Link], shutdown: Shutdown, newest: deque[Greeting]
) -> None:
    """Reports the clients to parameter servers until this process ends, for `relaax status`.

    Also proposes the spaces of the newest client that trains; see `make_proposer`.
    """
    server_id = make_client_id("rlx")
    while not shutdown.requested.is_set():
        time.sleep(_REPORT_SEC)
        clients, num_clients = server.describe_clients()
        report = ClientsReport(server_id=server_id, clients=tuple(clients), num_clients=num_clients)
        for link in links:
            with contextlib.suppress(RelaaxError):  # it is not available; the next report follows
                link.report_clients(report)
                if newest and len(links) == 1:
                    greeting = newest.pop()
                    link.propose_spaces(RunSpaces(greeting.inputs, greeting.action_spaces))


def _make_environment() -> dict[str, str]:
    """Returns the learner's environment variables: it traces to the same folder as this process."""
    environment = dict(os.environ)
    if tracing.active is not None:
        environment[tracing.ENVIRONMENT_VARIABLE] = str(tracing.active.path.parent)
    return environment
