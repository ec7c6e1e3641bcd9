"""Starts a run from the weights of another run, which is not changed."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from relaax_like.config.base import Settings
from relaax_like.config.loader import ALGORITHM, ENVIRONMENT, load_experiment
from relaax_like.config.models import Experiment
from relaax_like.config.run_folder import find_experiment
from relaax_like.core.manifest import Variable, make_manifest
from relaax_like.parameter_server.snapshot_format import State
from relaax_like.parameter_server.snapshots import describe_difference, read_latest
from relaax_like.wire.errors import ConfigError

logger = logging.getLogger(__name__)


def read_previous(previous: Path) -> tuple[Experiment, State]:
    """Returns another run's experiment and newest snapshot.

    Args:
      previous: folder of the run, or its YAML file.

    Raises:
      ConfigError: there is no such run, its settings are not valid, or it has no snapshot.
      SnapshotError: its snapshots cannot be read.
    """
    try:
        other = load_experiment(*find_experiment(previous))
    except ConfigError as error:
        raise ConfigError(f"learner.previous: {error}") from None
    checkpoints = other.parameter_server.checkpoint_dir
    state = read_latest(checkpoints)
    if state is None:
        raise ConfigError(
            f"learner.previous: {checkpoints} contains no snapshot; train that run first"
        )
    return other, state


def load_previous(
    experiment: Experiment, previous: Path, variables: Sequence[Variable]
) -> list[Variable]:
    """Returns this run's variables with the values of another run's newest snapshot.

    Logs the settings of the algorithm and the environment that differ.

    Args:
      experiment: of this run.
      previous: folder of the other run, or its YAML file.
      variables: of this run.

    Raises:
      ConfigError: there is no such run, its settings are not valid, it has no snapshot, or it has
        another model.
      SnapshotError: the snapshots of the run cannot be read.
    """
    other, state = read_previous(previous)
    own = make_manifest(variables)
    if state.manifest.fingerprint != own.fingerprint:
        raise ConfigError(
            f"learner.previous: {previous} has a different model: "
            f"{describe_difference(state.manifest, own)}; use that run's network, spaces and "
            "normalisation"
        )
    _tell_differences(ALGORITHM, experiment.algorithm, other.algorithm)
    _tell_differences(ENVIRONMENT, experiment.environment, other.environment)
    logger.info("starting from the weights of %s at step %s", previous, f"{state.global_t:,}")
    values = dict(
        zip(
            (segment.name for segment in own.segments),
            state.manifest.unpack(state.values),
            strict=True,
        )
    )
    return [replace(variable, value=values[variable.name].copy()) for variable in variables]


def _tell_differences(section: str, ours: Settings | None, theirs: Settings | None) -> None:
    here = {} if ours is None else ours.model_dump(mode="json")
    there = {} if theirs is None else theirs.model_dump(mode="json")
    for key in sorted({*here, *there}):
        if here.get(key) != there.get(key):
            logger.warning(
                "%s.%s is %r, in the previous run it was %r",
                section,
                key,
                here.get(key),
                there.get(key),
            )
