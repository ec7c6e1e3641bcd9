"""`relaax train` with `learner.workers`: processes that play, and push gradients or experience."""

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from relaax_like.bridge.control import BridgeControl
from relaax_like.config.address import Address
from relaax_like.config.models import Experiment
from relaax_like.config.run_folder import CONFIG_NAME
from relaax_like.launch.parameter_server import make_experience_services
from relaax_like.launch.security import (
    make_client_security,
    make_server_security,
    validate_exposure,
)
from relaax_like.launch.waiting import make_proposer
from relaax_like.learn.experience_services import ExperienceServices
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.runs.processes.launcher import Launcher
from relaax_like.runs.processes.manager import TERM_SEC, Manager
from relaax_like.runs.processes.process import EXIT_USAGE
from relaax_like.runs.processes.ray_launcher import RayLauncher
from relaax_like.runs.processes.run_record import RunRecord
from relaax_like.runs.processes.topology import Edge, Node, Topology
from relaax_like.wire import tracing
from relaax_like.wire.errors import ConfigError, RelaaxError
from relaax_like.wire.security import ServerSecurity

logger = logging.getLogger(__name__)

_WORKER = "relaax_like.launch.worker_main"
_POLL_SEC = 0.05
# Time after the end of training for the last steps of the environments.
_LAST_STEPS_SEC = 5.0
# Grace period at the end for calls that do not end by themselves.
_CALLS_SEC = 3.0


def train_with_workers(
    experiment: Experiment,
    server: ParameterServer,
    stop: threading.Event,
    on_ready: Callable[[], None] = lambda: None,
    ray: Any = None,
) -> None:
    """Serves the parameter server to workers, until the end of training or `stop`.

    Each worker runs its environments and their agents in one process, and connects to this process
    as an rlx server connects to a parameter server. Workers that die are restarted.

    Args:
      experiment: to train; its config.yaml is in the run's folder.
      server: in this process; with `learner.placement: server` this process also learns.
      stop: ends the training.
      on_ready: called repeatedly, in another thread, once steps or experience have arrived.
      ray: the module, connected to the cluster on whose machines the workers run; None: they run
        on this machine.

    Raises:
      ConfigError: other machines could connect without TLS or without tokens; the workers' token is
        missing; a file of `security` cannot be used; there is no environment; or a worker has found
        a mistake in the settings.
      RelaaxError: the workers could not be started or kept alive, or the cluster does not have the
        processors that they ask for.
      Exception: the first error of a learner, if learning has failed.
    """
    if experiment.environment is None:
        raise ConfigError(f"{experiment.file}: training needs an `environment` section; add one")
    failures: list[Exception] = []
    services = None
    if experiment.learner.publishes:
        services = make_experience_services(experiment, server, failures.append)
    config = (experiment.run_dir / CONFIG_NAME).absolute()
    with _serving(experiment, server, services, ray) as address:
        topology = _make_topology(experiment, config, address)
        with _make_launcher(experiment, server, topology, config, ray) as launcher:
            manager = Manager(topology, write_line=_log_line, launcher=launcher)
            with _watching(manager, server, services, stop, failures, on_ready):
                status = manager.run()
    if failures:
        raise failures[0]
    if status and not stop.is_set():
        if services is not None:
            services.join()  # standard error is hidden while TensorFlow is being loaded
        error = ConfigError if status == EXIT_USAGE else RelaaxError
        raise error("a worker could not be kept running; the lines above show how it ended")


@contextlib.contextmanager
def _serving(
    experiment: Experiment, server: ParameterServer, services: ExperienceServices | None, ray: Any
) -> Iterator[str]:
    """Serves the parameter server, and learns, within the context; yields the address.

    Raises:
      ConfigError, RelaaxError: see `train_with_workers`.
    """
    host = "127.0.0.1" if ray is None else ray.util.get_node_ip_address()
    bind = Address(host, 0)
    security = _make_security(experiment, bind, on_ray=ray is not None)
    sinks = None if services is None else services.sinks
    grpc_server, port = BridgeControl().create_server(
        str(bind), server, security, sinks, make_proposer(experiment)
    )
    grpc_server.start()
    try:
        if services is not None:
            services.start()
        yield str(Address(host, port))
    finally:
        if services is not None:
            # TensorFlow must not be in the middle of an update when this process ends.
            services.stop(timeout_sec=None)
        grpc_server.stop(grace=1.0).wait(_CALLS_SEC)


def _make_security(experiment: Experiment, bind: Address, on_ray: bool) -> ServerSecurity:
    """Returns what workers must present.

    Raises:
      ConfigError: see `train_with_workers`.
    """
    validate_exposure(bind, experiment.security, on_ray=on_ray)
    security = make_server_security(experiment)
    if bind.is_loopback:  # workers need a token if the run has tokens, but no TLS
        security = ServerSecurity(tokens=security.tokens)
    make_client_security(experiment)  # reports a missing token here, not in each worker
    return security


def _make_topology(experiment: Experiment, config: Path, address: str) -> Topology:
    env = {}
    if tracing.active is not None:
        env[tracing.ENVIRONMENT_VARIABLE] = str(tracing.active.path.parent)
    nodes = [
        Node(
            name=f"worker{number}",
            role="worker",
            argv=[sys.executable, "-m", _WORKER, str(config), str(number), address],
            env=env,
        )
        for number in range(1, experiment.learner.workers + 1)
    ]
    return Topology(
        nodes=nodes,
        edges=[
            Edge(source=node.name, target=None, protocol="bridge", address=address)
            for node in nodes
        ],
    )


def _log_line(name: str, line: str) -> None:
    logger.info("%s | %s", name, line)


@contextlib.contextmanager
def _make_launcher(
    experiment: Experiment, server: ParameterServer, topology: Topology, config: Path, ray: Any
) -> Iterator[Launcher | None]:
    """Yields what starts workers on a cluster, whose run record it keeps; None: on this machine."""
    if ray is None:
        yield None
        return
    with (
        RayLauncher(ray, topology, config, lambda addresses: [], TERM_SEC) as launcher,
        RunRecord(ray, experiment.run_dir).following(lambda: (server.global_t, server.version)),
    ):
        yield launcher


@contextlib.contextmanager
def _watching(
    manager: Manager,
    server: ParameterServer,
    services: ExperienceServices | None,
    stop: threading.Event,
    failures: list[Exception],
    on_ready: Callable[[], None],
) -> Iterator[None]:
    """Stops the manager at the end of training, on `stop` and on failures, within the context."""
    ended = threading.Event()

    def watch() -> None:
        first = server.global_t
        while not (ended.wait(_POLL_SEC) or stop.is_set() or failures or server.finished):
            if server.global_t != first or (services is not None and services.has_agents):
                on_ready()
        if server.finished and not stop.is_set():
            ended.wait(_LAST_STEPS_SEC)  # workers are notified of the end and exit by themselves
        manager.stop()

    watcher = threading.Thread(target=watch, name="workers", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
