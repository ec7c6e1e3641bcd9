"""`relaax export`: writes a run's policy to files that do not need relaax_like."""

from collections.abc import Sequence
from pathlib import Path

from relaax_like.config.loader import load_experiment
from relaax_like.config.run_folder import find_experiment
from relaax_like.supervision.process import setup_logging


def export_run(run: Path, version: str, folder: Path | None, overrides: Sequence[str]) -> int:
    """Writes the files, and prints what they contain and how they were checked."""
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
