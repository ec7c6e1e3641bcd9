"""`relaax-learner`."""

from typing import Annotated

import typer

from relaax_like.cli.options import (
    ConfigOption,
    InsecureOption,
    SetOption,
    TraceOption,
    allow_insecure,
    command,
    make_app,
    to_overrides,
)
from relaax_like.config.loader import load_experiment
from relaax_like.supervision.process import setup_logging, start_tracing

app = make_app("Learn from the experience of all agents, in a process of its own.")


@command(app)
def serve(
    config: ConfigOption,
    bind: Annotated[str | None, typer.Option(help="HOST:PORT to listen on.")] = None,
    advertise: Annotated[
        str | None, typer.Option(help="HOST:PORT under which rlx servers reach the learner.")
    ] = None,
    parameter_server: Annotated[
        str | None, typer.Option(help="HOST:PORT of the parameter server.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = None,
    insecure: InsecureOption = False,
    trace: TraceOption = False,
    sets: SetOption = [],  # noqa: B006 - typer wants a list
) -> int:
    """Learn until the training has finished, or a signal arrives."""
    links = {"parameter_server": parameter_server, "log_level": log_level}
    overrides = to_overrides("relaax-rlx-server", links, allow_insecure(insecure, sets))
    flags = {"placement": "standalone", "bind": bind, "advertise": advertise}
    overrides = to_overrides("learner", flags, overrides)
    experiment = load_experiment(config, overrides)
    setup_logging(experiment.rlx_server.log_level)
    start_tracing("learner", experiment, trace)
    from relaax_like.launch.learner import run_learner

    return run_learner(experiment)


if __name__ == "__main__":
    app()
