"""Recorders of a run's curves: its event files and, if configured, Weights & Biases."""

from collections.abc import Callable
from pathlib import Path

from relaax_like.config.loader import export_experiment
from relaax_like.config.models import Experiment
from relaax_like.metrics.recorder import TensorBoardRecorder
from relaax_like.metrics.wandb_recorder import WandbRecorder, WandbRun


def make_file_recorder(
    experiment: Experiment, metrics_dir: Path, global_t: Callable[[], float] | None = None
) -> TensorBoardRecorder:
    """Opens the run's event files; if configured, also sends the curves to Weights & Biases.

    Args:
      experiment: of the run.
      metrics_dir: folder of the files.
      global_t: see `TensorBoardRecorder`.

    Raises:
      ConfigError: the folder cannot be written to, or wandb is not installed.
    """
    settings = experiment.wandb
    if settings is None:
        return TensorBoardRecorder(metrics_dir, global_t)
    run_dir = experiment.run_dir.absolute()
    run = WandbRun(
        folder=run_dir,
        project=settings.project,
        group=settings.group,
        name=settings.name or "/".join(run_dir.parts[-2:]),
        config=export_experiment(experiment),
    )
    return WandbRecorder(metrics_dir, run, global_t)
