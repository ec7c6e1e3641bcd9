"""The values from which a run's parameter server starts: built, or of a file or another run."""

import logging
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from relaax_like.config.models import Experiment
from relaax_like.core.manifest import Follow, Manifest, Variable, find_follows, make_manifest
from relaax_like.nn.initializers import LARGE
from relaax_like.parameter_server.applier import RECIPE
from relaax_like.parameter_server.initial_values import (
    compute_initial_values,
    load_variables,
    open_temporary_folder,
    save_variables,
)
from relaax_like.parameter_server.push_journal import holds_records
from relaax_like.parameter_server.snapshot_format import unpack_layout, unpack_optimizers
from relaax_like.parameter_server.snapshots import read_newest_manifest
from relaax_like.parameter_server.targets import get_follows
from relaax_like.runs.folders.previous import load_previous
from relaax_like.wire.errors import ConfigError, InvalidInputError

logger = logging.getLogger(__name__)

_INITIAL_VALUES = "relaax_like.launch.initial_values_main"
_INITIAL_VALUES_TIMEOUT_SEC = 300.0
# Builds the initial values of a run.
BuildValues = Callable[[], list[Variable]]


def make_start(
    experiment: Experiment, overrides: Sequence[str], build: BuildValues | None
) -> tuple[Manifest, np.ndarray, dict[str, Follow]]:
    """Returns the manifest, the initial values `[total_bytes] uint8`, and what targets follow.

    If there is a snapshot with these settings, the manifest is the snapshot's, whose values will be
    restored: initial values are neither built nor read, and zeros are returned. With a file
    `initial_values`, that is always read.

    Args:
      experiment: to train.
      overrides: with which it was loaded, for the process that builds the values.
      build: builds the values in this process; None: in another process.

    Raises:
      ConfigError: the values cannot be built, or `learner.previous` cannot be used.
      InvalidInputError: the file `initial_values` cannot be used, or the algorithm's initial values
        are not valid.
      SnapshotError: a snapshot has an unknown format, or those of `learner.previous` cannot be
        read; or the folder of snapshots cannot be read.
      JournalError: see `holds_records`.
    """
    settings = experiment.parameter_server
    if settings.initial_values is None:
        newest = read_newest_manifest(settings.checkpoint_dir)
        if newest is not None and newest["statistics"].get(RECIPE) == find_recipe(experiment):
            manifest = unpack_layout(newest)
            follows = get_follows(unpack_optimizers(newest["optimizers"]))
            _warn_if_large(experiment, manifest)
            return manifest, np.zeros(manifest.total_bytes, np.uint8), follows
    variables = _load_initial_values(experiment, overrides, build)
    manifest = make_manifest(variables)
    _warn_if_large(experiment, manifest)
    by_name = {variable.name: variable.value for variable in variables}
    flat = manifest.pack([by_name[segment.name] for segment in manifest.segments])
    return manifest, flat, find_follows(variables)


def _warn_if_large(experiment: Experiment, manifest: Manifest) -> None:
    weights = manifest.gradient_bytes // 4
    if weights > LARGE:
        arrays = 1 + max(len(one.slot_names) for one in experiment.optimizers.values())
        logger.warning(
            "%.4g million weights: up to %.3g GB in memory and in each snapshot, with those of the "
            "optimizers; if that is too much, make layers or observations smaller",
            *(weights / 1e6, arrays * manifest.total_bytes / 1e9),
        )


def find_recipe(experiment: Experiment) -> str:
    """Returns a checksum of what an algorithm's initial values depend on, except for its code.

    That is the path of the algorithm's folder, its settings and the seed.
    """
    recipe = f"{experiment.algorithm_folder} {experiment.algorithm!r} {experiment.seed}"
    return f"{zlib.crc32(recipe.encode()):08x}"


def _load_initial_values(
    experiment: Experiment, overrides: Sequence[str], build: BuildValues | None
) -> list[Variable]:
    """Returns the values of the file `initial_values`, of `learner.previous`, or the algorithm's.

    The algorithm's are built once per run and stored, so that a restart needs no TensorFlow.
    """
    settings = experiment.parameter_server
    if settings.initial_values is not None:
        return load_variables(settings.initial_values)
    own = _compute_initial_values(experiment, overrides, build)
    previous = experiment.learner.previous
    return own if previous is None else load_previous(experiment, previous, own)


def _compute_initial_values(
    experiment: Experiment, overrides: Sequence[str], build: BuildValues | None
) -> list[Variable]:
    settings = experiment.parameter_server
    kept = settings.checkpoint_dir / f"initial-{find_recipe(experiment)}.npz"
    if kept.exists():
        try:
            return load_variables(kept)
        except InvalidInputError as error:
            _validate_rebuildable(kept)
            logger.warning("%s; building them again", error)
    logger.info("building the initial values of %s", experiment.algorithm_folder.name)
    variables = _run_initial_values(experiment, overrides) if build is None else build()
    save_variables(kept, variables)
    return variables


def _validate_rebuildable(kept: Path) -> None:
    """Checks that damaged initial values can be built again, because nothing depends on them.

    Raises:
      ConfigError: the journal has pushes that were applied to these values, and there is no usable
        snapshot.
    """
    checkpoints = kept.parent
    if read_newest_manifest(checkpoints) is None and holds_records(checkpoints / "journal"):
        raise ConfigError(
            f"{kept}: damaged or unreadable, and the journal next to it has records without a "
            "usable snapshot before them; restore this file or the snapshots, or use another "
            "checkpoint_dir"
        )


def _run_initial_values(experiment: Experiment, overrides: Sequence[str]) -> list[Variable]:
    """Builds the values in another process; raises the error that it reports, if any."""
    with open_temporary_folder("relaax-error-") as folder:
        told = folder / "error"
        command = [sys.executable, "-m", _INITIAL_VALUES, f"--error={told}", str(experiment.file)]
        try:
            return compute_initial_values([*command, *overrides], _INITIAL_VALUES_TIMEOUT_SEC)
        except ConfigError:
            why = told.read_text("utf-8", errors="replace") if told.exists() else ""
            if why:  # on a full disk, the file is empty
                raise ConfigError(why) from None
            raise
