"""The parameter server's status for Prometheus: the data of `relaax status` as a web page."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from relaax_like.config.address import Address
from relaax_like.core.records import Status
from relaax_like.wire.closing import Closing
from relaax_like.wire.errors import ConfigError
from relaax_like.wire.ports import describe_bind_failure

# Name after "relaax_" -> attribute of Status, and description.
_COUNTERS = {
    "env_steps": ("global_t", "Environment steps of all clients together."),
    "episodes": ("episodes", "Finished training episodes."),
    "snapshot_failures": ("snapshot_failures", "Automatic snapshots that could not be written."),
}
_GAUGES = {
    "version": ("version", "Version of the values."),
    "epoch": ("epoch", "Number of the parameter server's current start."),
    "uptime_seconds": ("uptime_sec", "Seconds since the parameter server started."),
    "env_steps_per_second": (
        "env_steps_per_sec",
        "Environment steps per second over the last ten seconds.",
    ),
    "mean_return": ("mean_return", "Mean return of the most recent training episodes."),
    "clients": ("clients", "Clients active in the last few seconds."),
    "parameters": ("parameters", "Number of trainable parameters."),
    "snapshot_env_steps": ("snapshot_global_t", "Environment steps in the newest snapshot."),
    "snapshot_age_seconds": ("snapshot_age_sec", "Seconds since the newest snapshot was verified."),
    "journal_bytes": ("journal_bytes", "Size of the journal in bytes."),
    "journal_unsynced_bytes": (
        "unsynced_bytes",
        "Bytes of the journal that are not synced; a power failure would lose them.",
    ),
    "journal_unsynced_records": (
        "unsynced_records",
        "Acknowledged pushes that are not synced; a power failure would lose them.",
    ),
    "journal_given_up_version": (
        "given_up_version",
        "Version at which the journal was given up; absent: it was not.",
    ),
    "replay_given_up_step": (
        "given_up_step",
        "Step at which the replay table's journal was given up; absent: it was not.",
    ),
    "environments": ("served_clients", "Environments that are connected to rlx servers."),
    "held_back_gradients": ("held_back", "Gradients held back until others arrive."),
    "unlearned_steps": (
        "unlearned_steps",
        "Environment steps that were not learned from and do not count.",
    ),
    "overdue_updates": (
        "overdue_updates",
        "Updates from a replay table that are due by updates_per_step and have not been made.",
    ),
    "resident_memory_bytes": ("resident_bytes", "Resident memory of the process in bytes."),
}


class StatusCollector(Collector):
    """Converts the status to metrics at each scrape; unknown values are left out.

    Args:
      get_status: returns the status.
    """

    def __init__(self, get_status: Callable[[], Status]):
        self._get_status = get_status

    def collect(self) -> Iterator[Metric]:
        """Yields the current metrics."""
        status = self._get_status()
        for name, (attribute, text) in _COUNTERS.items():
            yield CounterMetricFamily(f"relaax_{name}", text, value=getattr(status, attribute))
        for name, (attribute, text) in _GAUGES.items():
            value = getattr(status, attribute)
            if value is not None:
                yield GaugeMetricFamily(f"relaax_{name}", text, value=value)
        refused = CounterMetricFamily(
            "relaax_refused_pushes", "Pushes that were refused.", labels=["reason"]
        )
        for reason, count in status.refused.items():
            refused.add_metric([reason], count)
        yield refused
        loses = status.durability == "snapshot" or bool(status.journal_error)
        loses = loses or status.given_up_step is not None
        yield GaugeMetricFamily(
            "relaax_crash_loses_updates",
            "1: a crash loses the pushes since the newest snapshot, or pushes or experience that a "
            "full or failing disk did not store. 0: it loses nothing that was acknowledged, or, if "
            "a learner publishes, what was learned since the newest publication that was written.",
            value=float(loses),
        )
        staleness = GaugeMetricFamily(
            "relaax_client_staleness",
            "Staleness of the client's newest gradient, in versions.",
            labels=["client"],
        )
        for client in status.client_list:
            if client.staleness is not None:
                staleness.add_metric([client.client_id], client.staleness)
        yield staleness
        yield from _describe_served(status)


def _describe_served(status: Status) -> Iterator[Metric]:
    labels = ["client", "session"]
    late = CounterMetricFamily(
        "relaax_late_answers", "Answers that took longer than max_wait_ms.", labels=labels
    )
    discarded = CounterMetricFamily(
        "relaax_discarded_steps",
        "Environment steps that were counted but not learned from.",
        labels=labels,
    )
    p99 = GaugeMetricFamily(
        "relaax_answer_seconds_p99",
        "99th percentile of the time from a complete step to its answer.",
        labels=labels,
    )
    for client in status.served:
        names = [client.name, client.session]
        late.add_metric(names, client.late)
        discarded.add_metric(names, client.discarded_steps)
        if client.p99_ms is not None:
            p99.add_metric(names, client.p99_ms / 1e3)
    yield from (late, discarded, p99)


class PrometheusPage(Closing):
    """Serves the metrics at `http://HOST:PORT/metrics` until the end of its `with` block.

    Args:
      bind: address to listen on; port 0 means any free port.
      get_status: called at each scrape, in another thread.

    Attributes:
      port: the actual port.

    Raises:
      ConfigError: the port is taken, or the address cannot be used on this machine.
    """

    def __init__(self, bind: Address, get_status: Callable[[], Status]):
        registry = CollectorRegistry(auto_describe=False)
        registry.register(StatusCollector(get_status))
        try:
            self._server, self._thread = start_http_server(bind.port, bind.host, registry)
        except OSError:
            reason = describe_bind_failure(bind.host, bind.port)
            raise ConfigError(
                f"relaax-parameter-server.prometheus_bind: cannot listen on {bind}: {reason}"
            ) from None
        self.port = self._server.server_port

    def close(self) -> None:
        """Stops serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
