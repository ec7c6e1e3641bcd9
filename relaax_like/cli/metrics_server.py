"""`relaax-metrics-server`."""

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

app = make_app("Record the metrics of all roles for TensorBoard.")


@command(app)
def serve(
    config: ConfigOption,
    bind: Annotated[str | None, typer.Option(help="HOST:PORT to listen on.")] = None,
    metrics_dir: Annotated[str | None, typer.Option(help="Folder for the curves.")] = None,
    log_level: Annotated[str | None, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = None,
    insecure: InsecureOption = False,
    trace: TraceOption = False,
    sets: SetOption = [],  # noqa: B006 - typer wants a list
) -> int:
    """Serve until a signal arrives."""
    flags = {"bind": bind, "metrics_dir": metrics_dir, "log_level": log_level}
    experiment = load_experiment(
        config, to_overrides("relaax-metrics-server", flags, allow_insecure(insecure, sets))
    )
    from relaax_like.launch.metrics_server import get_metrics_settings, run_metrics_server

    setup_logging(get_metrics_settings(experiment).log_level)
    start_tracing("metrics server", experiment, trace)
    return run_metrics_server(experiment)


if __name__ == "__main__":
    app()
