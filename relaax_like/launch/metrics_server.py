"""The metrics server's process: one recorder for all roles, outside the parameter server."""

import logging

from relaax_like.bridge.metrics_servicer import create_metrics_server
from relaax_like.config.address import Address
from relaax_like.config.models import Experiment, MetricsServerConfig
from relaax_like.launch.security import make_server_security, validate_exposure
from relaax_like.runs.folders.recording import make_file_recorder
from relaax_like.runs.processes.process import Shutdown, validate_port_free
from relaax_like.wire.errors import ConfigError

logger = logging.getLogger(__name__)


def get_metrics_settings(experiment: Experiment) -> MetricsServerConfig:
    """Returns the experiment's `relaax-metrics-server` section.

    Raises:
      ConfigError: there is no such section.
    """
    if experiment.metrics_server is None:
        raise ConfigError(
            f"{experiment.file}: no `relaax-metrics-server` section; add one (bind: "
            "localhost:7002), so that the other processes send their metrics to it"
        )
    return experiment.metrics_server


def run_metrics_server(experiment: Experiment) -> int:
    """Serves until a signal arrives; returns the exit status.

    Raises:
      ConfigError: the file has no section `relaax-metrics-server`, a file of `security` cannot be
        used, other machines could connect without TLS or without tokens, or see
        `make_file_recorder`.
      RelaaxError: the port is taken, or the address cannot be used.
    """
    settings = get_metrics_settings(experiment)
    shutdown = Shutdown()
    validate_exposure(settings.bind, experiment.security, key="relaax-metrics-server.bind")
    security = make_server_security(experiment)
    validate_port_free(settings.bind, "--bind")
    with make_file_recorder(experiment, settings.metrics_dir) as recorder:
        server, port = create_metrics_server(settings.bind, recorder, security)
        server.start()
        logger.info("metrics server on %s", Address(settings.bind.host, port))
        shutdown.requested.wait()
        server.stop(grace=1.0).wait()
    return shutdown.exit_status
