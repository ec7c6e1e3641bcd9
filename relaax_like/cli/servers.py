"""The commands of the servers, each with a program of its own, such as `relaax-rlx-server`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from relaax_like.cli.options import TraceOption, command, make_app, to_overrides
from relaax_like.config.loader import load_experiment
from relaax_like.runs.processes.process import setup_logging, start_tracing

# Role -> its app; `python -m relaax_like.cli.servers ROLE` runs it, too.
APPS = {
    "parameter_server": make_app(
        "Serve the weights: apply gradients, send values, save snapshots."
    ),
    "rlx_server": make_app("Accept environments over TCP and host their agents."),
    "metrics_server": make_app("Record the metrics of all roles for TensorBoard."),
    "learner": make_app("Learn from the experience of all agents, in a process of its own."),
}
ConfigOption = Annotated[
    Path,
    typer.Option(
        "--config",
        "-c",
        help="The experiment's YAML file, or a name listed by `relaax examples`.",
        show_default=False,
    ),
]
BindOption = Annotated[str | None, typer.Option(help="HOST:PORT to listen on.")]
ServerOption = Annotated[str | None, typer.Option(help="HOST:PORT of the parameter server.")]
CurvesOption = Annotated[str | None, typer.Option(help="Folder for the curves.")]
LevelOption = Annotated[str | None, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")]


@command(APPS["parameter_server"])
def serve_weights(
    config: ConfigOption,
    overrides: list[str],
    bind: BindOption = None,
    checkpoint_dir: Annotated[str | None, typer.Option(help="Folder for the snapshots.")] = None,
    checkpoint_time_interval: Annotated[
        float | None, typer.Option(help="Seconds between snapshots.")
    ] = None,
    checkpoint_global_step_interval: Annotated[
        int | None, typer.Option(help="Environment steps between snapshots.")
    ] = None,
    metrics_dir: CurvesOption = None,
    log_level: LevelOption = None,
    trace: TraceOption = False,
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
    overrides = to_overrides("relaax-parameter-server", flags, overrides)
    experiment = load_experiment(config, overrides)
    setup_logging(experiment.parameter_server.log_level)
    start_tracing("parameter server", experiment, trace)
    from relaax_like.launch.parameter_server import run_parameter_server

    return run_parameter_server(experiment, overrides)


@command(APPS["rlx_server"])
def serve_agents(
    config: ConfigOption,
    overrides: list[str],
    bind: BindOption = None,
    parameter_server: ServerOption = None,
    log_level: LevelOption = None,
    trace: TraceOption = False,
) -> int:
    """Serve until a signal arrives."""
    flags = {"bind": bind, "parameter_server": parameter_server, "log_level": log_level}
    overrides = to_overrides("relaax-rlx-server", flags, overrides)
    experiment = load_experiment(config, overrides, several=True)
    setup_logging(experiment.rlx_server.log_level)
    start_tracing("rlx server", experiment, trace)
    from relaax_like.launch.rlx_server import run_rlx_server

    return run_rlx_server(experiment, overrides)


@command(APPS["metrics_server"])
def serve_metrics(
    config: ConfigOption,
    overrides: list[str],
    bind: BindOption = None,
    metrics_dir: CurvesOption = None,
    log_level: LevelOption = None,
    trace: TraceOption = False,
) -> int:
    """Serve until a signal arrives."""
    flags = {"bind": bind, "metrics_dir": metrics_dir, "log_level": log_level}
    overrides = to_overrides("relaax-metrics-server", flags, overrides)
    experiment = load_experiment(config, overrides)
    from relaax_like.launch.metrics_server import get_metrics_settings, run_metrics_server

    setup_logging(get_metrics_settings(experiment).log_level)
    start_tracing("metrics server", experiment, trace)
    return run_metrics_server(experiment)


@command(APPS["learner"])
def serve_learner(
    config: ConfigOption,
    overrides: list[str],
    bind: BindOption = None,
    advertise: Annotated[
        str | None, typer.Option(help="HOST:PORT under which rlx servers reach the learner.")
    ] = None,
    parameter_server: ServerOption = None,
    log_level: LevelOption = None,
    trace: TraceOption = False,
) -> int:
    """Learn until the training has finished, or a signal arrives."""
    links = {"parameter_server": parameter_server, "log_level": log_level}
    flags = {"placement": "standalone", "bind": bind, "advertise": advertise}
    overrides = to_overrides("relaax-rlx-server", links, overrides)
    experiment = load_experiment(config, to_overrides("learner", flags, overrides))
    setup_logging(experiment.rlx_server.log_level)
    start_tracing("learner", experiment, trace)
    from relaax_like.launch.learner import run_learner

    return run_learner(experiment)


if __name__ == "__main__":
    APPS[sys.argv.pop(1)]()
