"""`python -m ...`: a worker of `relaax train`, which runs environments and their agents.

Its arguments are the run's config.yaml, the worker's number, and the address of the parameter
server.
"""

import contextlib
import itertools
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any

from relaax_like.bridge.control import BridgeControl, Link
from relaax_like.config.address import parse_address
from relaax_like.config.loader import load_experiment
from relaax_like.config.models import Experiment
from relaax_like.config.seeds import derive_seed
from relaax_like.core.roles import ParameterServerClient
from relaax_like.launch.agents import (
    make_agent_host,
    make_linked_host,
    make_remote_learners,
)
from relaax_like.launch.local import (
    LocalAgents,
    keep_slots_versions,
    make_interactor,
    open_slots,
)
from relaax_like.launch.metrics import make_agent_metrics
from relaax_like.launch.security import make_client_security
from relaax_like.learn.remote_learners import RemoteLearners
from relaax_like.nn.settings import prepare_tensorflow
from relaax_like.nn.threads import limit_blas_threads
from relaax_like.rlx_server.hosting import AgentHost
from relaax_like.runs.processes.process import (
    Shutdown,
    Stopped,
    end_now,
    run_main,
    setup_logging,
    start_tracing,
)
from relaax_like.wire import tracing
from relaax_like.wire.errors import ConfigError, InvalidInputError, ProtocolError, RelaaxError
from relaax_like.wire.reports import Event, Reporter
from relaax_like.wire.security import ClientSecurity

logger = logging.getLogger(__name__)

_SERVER_WAIT_SEC = 5.0
_POLL_SEC = 0.2


def main() -> int:
    """Plays until the end of training or a signal, then ends the process with the exit status."""
    shutdown = Shutdown()
    reporter = Reporter.from_environment()
    file, number, address = sys.argv[1:]
    experiment = load_experiment(file)
    setup_logging(experiment.parameter_server.log_level, with_time=False)
    name = f"worker-{number}"
    start_tracing(name, experiment, wanted=False)
    prepare_tensorflow(experiment, learns=True)
    limit_blas_threads()
    security = make_client_security(experiment)
    if parse_address(address).is_loopback:  # without TLS
        security = ClientSecurity(token_file=security.token_file)
    with BridgeControl().connect(address, security) as link:
        try:
            play(experiment, name, link, shutdown, reporter)
        except (InvalidInputError, ProtocolError) as error:
            # A mistake of the environment: its spaces, or a wrong value. That ends the run.
            raise ConfigError(str(error)) from error
    # A slow gradient might still be being computed: Python's normal exit would abort in it.
    end_now(shutdown.exit_status)


def play(
    experiment: Experiment, name: str, link: Link, shutdown: Shutdown, reporter: Reporter
) -> None:
    """Runs the environments of one worker until the end of training or a signal.

    Args:
      experiment: to train.
      name: of the worker, the same after a restart.
      link: to the parameter server.
      shutdown: of this process.
      reporter: is notified of the first rollout.

    Raises:
      ConfigError: the algorithm or the environment cannot be loaded.
      InvalidInputError: an environment has returned a wrong value.
      ProtocolError: the algorithm cannot use the environments' spaces.
      ServerUnavailableError: the parameter server is not available.
      RelaaxError: another error of `Link.wait`.
      Exception: an error of the agent class or of a learner's hook.
      Stopped: a signal arrived before the first step, or the learner refuses this worker.
    """
    # How long this process has sampled, excluding waits for the learner; once it plays.
    times: list[Callable[[], float]] = []
    with contextlib.ExitStack() as ends:
        with shutdown.interrupting(), tracing.span(tracing.START):
            learner = None
            if experiment.learner.publishes:
                learner = make_remote_learners(
                    link, name, _SERVER_WAIT_SEC, shutdown, lambda: times[0]() if times else 0.0
                )
            host = _make_host(experiment, name, link, learner)
            # A worker that replaces a dead one must play other episodes.
            purpose = f"{name} from step {link.status().global_t}"
            slots = ends.enter_context(open_slots(experiment, purpose))
            if learner is not None:
                ends.callback(learner.stop)
                _wait_for_learner(learner, shutdown)
            agents = LocalAgents(slots, host, stop=shutdown.requested, resumable=False, name=name)
            ends.callback(agents.close)
            keep_slots_versions(experiment, name, slots)
            with contextlib.suppress(RelaaxError):  # too large, or not the first ones
                link.propose_spaces(agents.spaces)
        options = {"stop": shutdown.requested, "seed": derive_seed(experiment.seed, purpose)}
        count_step = _make_step_counter(experiment.algorithm, reporter)
        interactor = make_interactor(experiment, slots, agents, on_step=count_step, **options)
        times.append(lambda: interactor.busy_sec - agents.waiting_sec)
        interactor.run()


def _make_host(
    experiment: Experiment, name: str, link: Link, learner: RemoteLearners | None
) -> AgentHost:
    """Makes the host of agents that learn in this process, or elsewhere if there is a learner."""
    metrics = make_agent_metrics(experiment, link)

    def make_client(client_id: str) -> ParameterServerClient:
        return link.parameter_server_stub(client_id, metrics, _SERVER_WAIT_SEC)

    if learner is None:
        return make_agent_host(experiment, make_client, name)
    return make_linked_host(experiment, make_client, learner, metrics, name)


def _wait_for_learner(learner: RemoteLearners, shutdown: Shutdown) -> None:
    while not learner.wait_loaded(_POLL_SEC):
        if shutdown.requested.is_set():  # it was refused, and a retry is useless
            raise Stopped(shutdown.exit_status)


def _make_step_counter(config: Any, reporter: Reporter) -> Callable[[], None]:
    """Returns what is called after each step of all slots.

    Reports when the first rollout is complete: a worker that gets this far is healthy.
    """
    steps = getattr(config, "rollout_steps", 1)
    last = max(steps.values()) if isinstance(steps, Mapping) else int(steps)
    numbers = itertools.count(1)

    def count_step() -> None:
        if next(numbers) == last:
            reporter.report(Event.WORKED)

    return count_step


if __name__ == "__main__":
    run_main(main)
