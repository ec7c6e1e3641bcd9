"""Starts a run from the weights of another run, which is not changed."""

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from relaax_like.config.base import Settings
from relaax_like.config.loader import load_experiment
from relaax_like.config.models import ALGORITHM, ENVIRONMENT, Experiment
from relaax_like.config.run_folder import CONFIG_NAME, find_experiment
from relaax_like.core.manifest import Variable, make_manifest
from relaax_like.parameter_server.schedules import compute_learning_rate
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

    Logs the settings of the algorithm and the environment that differ, and what begins again.

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
    again = ["learning rates", "moments of the optimizers"]
    again += [f"algorithm.{key}" for key in experiment.algorithm.schedules]
    if warm_up := getattr(experiment.algorithm, "warm_up_steps", 0):
        again.append(f"algorithm.warm_up_steps ({warm_up:,})")
    logger.warning(
        "only the weights continue; steps count from 0, so that these begin again: %s",
        ", ".join(again),
    )
    _tell_jumps((other, state.global_t), (experiment, 0))
    values = dict(
        zip(
            (segment.name for segment in own.segments),
            state.manifest.unpack(state.values),
            strict=True,
        )
    )
    return [replace(variable, value=values[variable.name].copy()) for variable in variables]


def tell_jumps_at_resume(experiment: Experiment, global_t: int) -> None:
    """Logs what its schedules change at once, compared with the newest start of the run.

    Args:
      experiment: of this start, whose config.yaml has not been written yet.
      global_t: at which the run resumes.
    """
    if not (experiment.run_dir / CONFIG_NAME).is_file():
        return
    try:
        before = load_experiment(*find_experiment(experiment.run_dir))
    except ConfigError as error:
        logger.info("settings of the newest start are not compared: %s", error)
    else:
        _tell_jumps((before, global_t), (experiment, global_t))


def _tell_jumps(before: tuple[Experiment, int], now: tuple[Experiment, int]) -> None:
    old, new = _compute_scheduled(*before), _compute_scheduled(*now)
    for key, value in new.items():
        if key in old and not math.isclose(old[key], value, rel_tol=1e-3):
            logger.warning("%s jumps: %.4g -> %.4g", key, old[key], value)


def _compute_scheduled(experiment: Experiment, global_t: int) -> dict[str, float]:
    """Returns what depends on the environment steps."""
    schedules, optimizers = experiment.algorithm.schedules, experiment.optimizers
    values = {f"algorithm.{key}": one.compute(global_t) for key, one in schedules.items()}
    for group, optimizer in optimizers.items():
        values[f"learning rate of {group}"] = compute_learning_rate(optimizer, global_t)
    return values


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
