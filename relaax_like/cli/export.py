"""`relaax export`: writes a run's policy to files that do not need relaax_like."""

from collections.abc import Sequence
from pathlib import Path

from relaax_like.config.loader import load_experiment
from relaax_like.config.run_folder import find_experiment
from relaax_like.supervision.process import setup_logging


def export_run(run: Path, version: str, folder: Path | None, overrides: Sequence[str]) -> int:
    """Exports a run's policy; prints the files, what they contain and how they were checked.

    Args:
      run: the run's folder, its YAML file, or the name of a shipped experiment.
      version: of the snapshot; see `read_snapshot`.
      folder: to write to; None: RUN/export/VERSION.
      overrides: of keys of the file.

    Raises:
      ConfigError: see `find_experiment` and `load_experiment`.
      RelaaxError: see `export_policy`.
    """
    file, folders = find_experiment(run)
    experiment = load_experiment(file, [*folders, *overrides])
    setup_logging("WARNING")
    from relaax_like.launch.export import export_policy

    exported = export_policy(experiment, version, folder)
    print(f"policy of step {exported.global_t:,}, version {exported.version:,}:")
    for kind, path in exported.files.items():
        print(f"  {path}  ({kind})")
    print("  inputs   " + "; ".join(exported.inputs))
    print("  outputs  " + "; ".join(exported.outputs))
    for kind, error in exported.errors.items():
        print(
            f"{kind} computes the same as the run's own agents: {exported.compared:,} random "
            f"inputs, largest difference {error:.1e}"
        )
    return 0
