"""`python -m ...`: the learner's process of an rlx server.

Its arguments are the YAML file, overrides, and the file descriptor of its end of the control socket
(see `bridge.pair`). It exits when the rlx server, which has the other end, exits.
"""

import contextlib
import os
import signal
import socket
import sys
import time

from relaax_like.bridge.client import make_client_id
from relaax_like.bridge.control import BridgeControl, Link
from relaax_like.config.loader import add_spaces, load_experiment
from relaax_like.config.models import Experiment
from relaax_like.core.roles import ParameterServerClient
from relaax_like.launch.learners import make_learners
from relaax_like.launch.metrics import make_agent_metrics
from relaax_like.launch.security import make_client_security
from relaax_like.learn.learner_service import LearnerService
from relaax_like.nn.device import set_device
from relaax_like.runs.processes.process import (
    EXIT_USAGE,
    end_now,
    run_main,
    setup_logging,
    start_tracing,
    without_native_stderr,
)
from relaax_like.wire import tracing
from relaax_like.wire.errors import ConfigError, ServerUnavailableError

# Seconds between two requests for the spaces.
_POLL_SEC = 0.1


def main() -> int:
    """Serves the rlx server until it closes its streams or exits."""
    # The rlx server receives the signals, too, and then ends its streams.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    file, *overrides, number = sys.argv[1:]
    service = LearnerService(socket.socket(fileno=int(number)))
    experiment = load_experiment(file, overrides)
    settings = experiment.rlx_server
    set_device(experiment.learner.device, "learner.device")
    setup_logging(settings.log_level)
    start_tracing("learner", experiment, wanted=False)
    address = str(settings.parameter_server.to_connect())
    with BridgeControl().connect(address, make_client_security(experiment)) as link:
        if experiment.algorithm.lacks_spaces:
            experiment = _wait_for_spaces(experiment, link)
        metrics = make_agent_metrics(experiment, link)

        def make_client(client_id: str) -> ParameterServerClient:
            return link.parameter_server_stub(client_id, metrics, keep_stream_open=True)

        with tracing.span(tracing.START):
            learners = make_learners(
                experiment,
                make_client,
                make_client_id("rlx"),
                compile_in_background=True,
                on_failure=service.fail,
            )
        status = 0
        try:
            service.serve({name: (one, one.manifest) for name, one in learners.items()})
        except ConfigError as error:
            print(f"error: {error}", file=sys.stderr)
            status = EXIT_USAGE
        if metrics is not link.metrics():
            metrics.close()
    # A slow gradient might still be being computed: Python's normal exit would abort in it.
    end_now(status)


def _wait_for_spaces(experiment: Experiment, link: Link) -> Experiment:
    """Waits until the parameter server knows the spaces, and returns the complete experiment."""
    parent = os.getppid()
    with without_native_stderr():
        from relaax_like.nn import runtime  # noqa: F401 - meanwhile, as it takes seconds
    while os.getppid() == parent:
        with contextlib.suppress(ServerUnavailableError):
            spaces = link.propose_spaces(None)
            if spaces is not None:
                return add_spaces(experiment, *spaces)[0]
        time.sleep(_POLL_SEC)
    end_now(0)


if __name__ == "__main__":
    run_main(main)
