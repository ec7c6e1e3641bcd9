"""`relaax serve`: a run's policy for clients, without training."""

from collections.abc import Sequence
from pathlib import Path

from relaax_like.config.loader import load_experiment
from relaax_like.config.run_folder import find_experiment
from relaax_like.supervision.process import setup_logging


def serve_run(run: Path, version: str, overrides: Sequence[str]) -> int:
    """Serves a run's policy until a signal arrives; returns the exit status.

    Args:
      run: the run's folder, its YAML file, or the name of a shipped experiment.
      version: of the snapshot; see `read_snapshot`.
      overrides: of keys of the file.

    Raises:
      ConfigError: see `find_experiment` and `load_experiment`.
      RelaaxError, Stopped: see `run_policy_server`.
    """
    file, folders = find_experiment(run)
    experiment = load_experiment(file, [*folders, *overrides])
    setup_logging(experiment.rlx_server.log_level)
    from relaax_like.launch.serving import run_policy_server

    return run_policy_server(experiment, version)
