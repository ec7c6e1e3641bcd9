"""The recorder of processes that host agents or learn."""

from relaax_like.bridge.control import Link
from relaax_like.bridge.metrics_client import MetricsClient
from relaax_like.config.models import Experiment
from relaax_like.launch.security import make_client_security


def make_agent_metrics(experiment: Experiment, link: Link) -> MetricsClient:
    """Returns a recorder that sends to the metrics server, or without one to the parameter server.

    Raises:
      ConfigError: see `make_client_security`.
    """
    if experiment.metrics_server is not None:
        address = experiment.metrics_server.bind.to_connect()
        security = make_client_security(experiment)
        return MetricsClient(address, lambda: link.global_t, security=security)
    return link.metrics()
