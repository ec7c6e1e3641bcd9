"""The learner's process of a run with `learner.placement: standalone`."""

import functools
import itertools
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from relaax_like.algorithm.model import get_variables
from relaax_like.bridge.client import make_client_id
from relaax_like.bridge.control import BridgeControl, Link
from relaax_like.config.address import Address
from relaax_like.config.loader import add_spaces
from relaax_like.config.models import Experiment
from relaax_like.config.plan import get_plan, list_plans
from relaax_like.core.manifest import Manifest, Segment, make_manifest
from relaax_like.core.metrics import Metrics
from relaax_like.core.records import ClientsReport, Push, Reply, Status
from relaax_like.core.roles import ParameterServerBackend
from relaax_like.launch.algorithm_code import load_model_module, make_model
from relaax_like.launch.metrics import make_agent_metrics
from relaax_like.launch.parameter_server import end_without_learner, make_experience_services
from relaax_like.launch.security import (
    make_client_security,
    make_server_security,
    validate_exposure,
)
from relaax_like.launch.waiting import make_proposer
from relaax_like.learn.remote_publisher import RemotePublisher
from relaax_like.nn.settings import prepare_tensorflow
from relaax_like.runs.processes.process import (
    Shutdown,
    end_now,
    freeze_gc,
    raise_descriptor_limit,
    validate_port_free,
    without_native_stderr,
)
from relaax_like.wire.errors import ConfigError, LeasedError, ServerUnavailableError
from relaax_like.wire.reports import Event, Reporter
from relaax_like.wire.security import ServerSecurity

logger = logging.getLogger(__name__)

_POLL_SEC = 0.05
_WAIT_SEC = 2.0
# Until the first log line about a parameter server that does not answer, and between two of them.
_FIRST_NOTE_SEC, _NOTE_SEC = 2.0, 10.0
# Grace period at the end for streams of experience.
_GRACE_SEC = 3.0
# Once the training has finished and the parameter server has been silent for so long, this process
# ends, too.
_GONE_SEC = 6.0
_Answer = TypeVar("_Answer")


class PublishedValues(ParameterServerBackend):
    """The parameter server, as agents see it through the learner: its newest published values.

    Args:
      manifest: of the values.
      publisher: publishes the values.
      link: to the parameter server.
    """

    def __init__(self, manifest: Manifest, publisher: RemotePublisher, link: Link):
        self._manifest = manifest
        self._publisher = publisher
        self._link = link
        self._where = link.address

    @property
    def manifest(self) -> Manifest:
        """The layout of the values."""
        return self._manifest

    def push(self, push: Push, timeout_sec: float | None = None) -> Reply:
        """Raises LeasedError: pushes are for the parameter server."""
        raise LeasedError(
            "this is the learner of the run (learner.placement: standalone), which takes "
            "experience, but no pushes; send experience instead of gradients and statistics, and "
            f"other pushes to the parameter server, {self._where}"
        )

    def count_refused(self, reason: str) -> None:
        """Does nothing: what a learner refuses is in its log."""

    def pull(self, client_id: str = "", have_version: int | None = None) -> Reply:
        """Returns the newest published values; see `RemotePublisher.pull`, also for errors."""
        return self._publisher.pull(have_version)

    def status(self) -> Status:
        """Returns the parameter server's numbers; see `Link.status`, also for errors."""
        return self._link.status()

    def report_clients(self, report: ClientsReport) -> None:
        """Forwards a report to the parameter server; see `Link.report_clients`, also for errors."""
        self._link.report_clients(report)

    def save_checkpoint(self) -> Path | None:
        """Raises LeasedError: snapshots are written by the parameter server."""
        raise LeasedError(
            "this is the run's learner, which writes no snapshots; ask the parameter server, "
            f"{self._where}"
        )

    def request_stop(self) -> None:
        """Raises LeasedError: the parameter server ends the run."""
        raise LeasedError(
            "this is the run's learner, which does not end the run; ask the parameter server, "
            f"{self._where}"
        )

    def metrics(self) -> Metrics:
        """Returns the recorder of metrics."""
        return self._publisher.metrics()


def run_learner(experiment: Experiment) -> int:
    """Learns until the training has finished, a signal arrives or learning fails.

    Then ends the process.

    Args:
      experiment: has `learner.placement: standalone`.

    Raises:
      ConfigError: the settings are wrong, other machines could connect without TLS or without
        tokens, or the parameter server's run has another model.
      RelaaxError: the port is taken, or the address cannot be used; a certificate or token is not
        accepted; another server listens at the parameter server's address; or the settings of the
        parameter server do not define the spaces, either.
    """
    settings = experiment.learner
    prepare_tensorflow(experiment, learns=True)
    reporter = Reporter.from_environment()
    shutdown = Shutdown()
    if settings.placement != "standalone":
        raise ConfigError(
            f"learner.placement: {settings.placement}, but this is the learner of a run with "
            "placement standalone; add --set learner.placement=standalone, also for the servers, "
            "or do without relaax-learner, which no other placement needs"
        )
    validate_exposure(settings.bind, experiment.security, key="learner.bind")
    security = make_server_security(experiment)
    validate_port_free(settings.bind, "--set learner.bind=HOST:PORT")
    address = str(experiment.rlx_server.parameter_server.to_connect())
    if settings.backprop_workers == 1:  # otherwise its threads are chosen before it is loaded
        with without_native_stderr():
            from relaax_like.nn import runtime  # noqa: F401 - takes seconds, and is needed anyway
    with BridgeControl().connect(address, make_client_security(experiment)) as link:
        if experiment.algorithm.lacks_spaces:
            logger.info("waiting for the spaces of the first environment")
            reporter.report(Event.READY)
            spaces = _wait(lambda: link.propose_spaces(None), address, shutdown)
            experiment, _ = add_spaces(experiment, *spaces)
        manifest = _wait(lambda: link.wait(_WAIT_SEC), address, shutdown)
        _validate_model(experiment, manifest)
        logger.info("connected to the parameter server at %s", address)
        _learn(experiment, link, manifest, security, reporter, shutdown)
    # TensorFlow's normal exit takes seconds, and aborts while an iteration is being computed.
    end_now(shutdown.exit_status)


def _learn(
    experiment: Experiment,
    link: Link,
    manifest: Manifest,
    security: ServerSecurity,
    reporter: Reporter,
    shutdown: Shutdown,
) -> None:
    """Serves agents and learns, until the training has finished or a shutdown is requested."""
    settings = experiment.learner
    metrics = make_agent_metrics(experiment, link)

    end = functools.partial(end_without_learner, shutdown=shutdown)
    plans = list_plans(get_plan(experiment.algorithm))
    publisher = RemotePublisher(
        link.publisher_stub(),
        make_client_id("learner"),
        manifest,
        metrics,
        on_lost=end,
        on_global_t=link.note_global_t,
        publishes_ahead=all(one.has_table for one in plans),
    )
    publisher.is_stopping = shutdown.requested.is_set
    services = make_experience_services(experiment, publisher, end)
    values = PublishedValues(manifest, publisher, link)
    proposer = make_proposer(experiment)
    server, port = BridgeControl().create_server(
        str(settings.bind), values, security, services.sinks, proposer
    )
    where = settings.advertise or Address(settings.bind.to_connect().host, port)
    publisher.address = str(where)
    publisher.get_table_status = lambda: services.table_status
    raise_descriptor_limit()
    server.start()
    services.start()
    logger.info("learner on %s", Address(settings.bind.host, port))
    freeze_gc()
    reporter.report(Event.READY)
    while not shutdown.requested.wait(_POLL_SEC):
        # Agents still report their last steps, which the parameter server waits for.
        if publisher.finished and not services.has_agents:
            services.stop()  # counts them
        if publisher.finished and publisher.silent_sec > _GONE_SEC:
            break
    services.stop()
    publisher.close()
    server.stop(grace=1.0).wait(_GRACE_SEC)
    if metrics is not link.metrics():
        metrics.close()


def _validate_model(experiment: Experiment, manifest: Manifest) -> None:
    """Checks that this learner has the run's model, before it takes the lease.

    Raises:
      ConfigError: the learner has another model.
    """
    if load_model_module(experiment) is None:  # several Algorithms check their parts
        return
    own = make_manifest(get_variables(make_model(experiment)))
    if own.fingerprint != manifest.fingerprint:
        pairs = itertools.zip_longest(own.segments, manifest.segments)
        here, there = next((pair for pair in pairs if pair[0] != pair[1]), (None, None))
        raise ConfigError(
            "the parameter server's run has another model (first difference: "
            f"{_describe_segment(there)} there, {_describe_segment(here)} here); start learner and "
            "servers with the same settings, environment and algorithm's code"
        )


def _describe_segment(segment: Segment | None) -> str:
    if segment is None:
        return "no variable"
    return f"{segment.name} {segment.dtype} {list(segment.shape)} of group {segment.group!r}"


def _wait(ask: Callable[[], _Answer | None], address: str, shutdown: Shutdown) -> _Answer:
    """Asks the parameter server until it answers; ends the process if a signal comes first."""
    began = time.monotonic()
    noted = began + _FIRST_NOTE_SEC - _NOTE_SEC
    while not shutdown.requested.wait(_POLL_SEC):
        try:
            answer = ask()
            if answer is not None:
                return answer
        except ServerUnavailableError:
            now = time.monotonic()
            if now - noted >= _NOTE_SEC:
                noted = now
                how = "" if Reporter.is_started else "; start it with relaax-parameter-server"
                logger.info(
                    "waiting for the parameter server at %s (%.0f s)%s", address, now - began, how
                )
    end_now(shutdown.exit_status)
