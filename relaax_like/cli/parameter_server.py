"""`relaax-parameter-server`."""

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

app = make_app("Serve the weights: apply gradients, send values, save snapshots.")


@command(app)
def serve(
    config: ConfigOption,
    bind: Annotated[str | None, typer.Option(help="HOST:PORT to listen on.")] = None,
    checkpoint_dir: Annotated[str | None, typer.Option(help="Folder for the snapshots.")] = None,
    checkpoint_time_interval: Annotated[
        float | None, typer.Option(help="Seconds between snapshots.")
    ] = None,
    checkpoint_global_step_interval: Annotated[
        int | None, typer.Option(help="Environment steps between snapshots.")
    ] = None,
    metrics_dir: Annotated[str | None, typer.Option(help="Folder for the curves.")] = None,
    log_level: Annotated[str | None, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = None,
    insecure: InsecureOption = False,
    trace: TraceOption = False,
    sets: SetOption = [],  # noqa: B006 - typer wants a list
) -> int:
    """Restore the newest snapshot, and serve until training has finished, or a signal arrives."""
    flags = {
        "bind": bind,
        "checkpoint_dir": checkpoint_dir,
        "checkpoint_time_interval": checkpoint_time_interval,
        "checkpoint_global_step_interval": checkpoint_global_step_interval,
        "metrics_dir": metrics_dir,
        "log_level": log_level,
    }
    overrides = to_overrides("relaax-parameter-server", flags, allow_insecure(insecure, sets))
    experiment = load_experiment(config, overrides)
    setup_logging(experiment.parameter_server.log_level)
    start_tracing("parameter server", experiment, trace)
    from relaax_like.launch.parameter_server import run_parameter_server

    return run_parameter_server(experiment, overrides)


if __name__ == "__main__":
    app()
