"""`relaax-rlx-server`."""

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

app = make_app("Accept environments over TCP and host their agents.")


@command(app)
def serve(
    config: ConfigOption,
    bind: Annotated[str | None, typer.Option(help="HOST:PORT to listen on.")] = None,
    parameter_server: Annotated[
        str | None, typer.Option(help="HOST:PORT of the parameter server.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = None,
    insecure: InsecureOption = False,
    trace: TraceOption = False,
    sets: SetOption = [],  # noqa: B006 - typer wants a list
) -> int:
    """Serve until a signal arrives."""
    flags = {"bind": bind, "parameter_server": parameter_server, "log_level": log_level}
    overrides = to_overrides("relaax-rlx-server", flags, allow_insecure(insecure, sets))
    experiment = load_experiment(config, overrides)
    setup_logging(experiment.rlx_server.log_level)
    start_tracing("rlx server", experiment, trace)
    from relaax_like.launch.rlx_server import run_rlx_server

    return run_rlx_server(experiment, overrides)


if __name__ == "__main__":
    app()
