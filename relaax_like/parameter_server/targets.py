"""Targets: variables that follow others after optimizer steps of a variable group.

What a group's step does is one record of settings, its optimizer and the targets that follow its
variables: so the journal and snapshots hold both, and a replay mixes as the run did.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import Field

from relaax_like.config.base import Settings
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.core.manifest import TARGET, TRAINABLE, Follow, Manifest, Segment
from relaax_like.wire.errors import ConfigError
from relaax_like.wire.ndarray import DTYPES


class TargetRule(Settings):
    """How one target follows its source; see `relaax_like.nn.target.Target`."""

    name: str
    """Of the target variable."""
    source: str
    """Of the trainable variable."""
    every: int | None = Field(default=None, ge=1)
    """Optimizer steps of the source's group between two copies; null with tau."""
    tau: float | None = Field(default=None, gt=0, le=1)
    """Share of the source in each mix; null with every."""


class GroupStep(OptimizerConfig):
    """What a step of one variable group does."""

    targets: tuple[TargetRule, ...] = ()
    """Targets that follow the group's variables."""


def make_group_steps(
    manifest: Manifest,
    optimizers: Mapping[str, OptimizerConfig],
    follows: Mapping[str, Follow],
) -> dict[str, GroupStep]:
    """Returns what the step of each group does.

    Args:
      manifest: the layout of the run.
      optimizers: group -> settings.
      follows: target variable -> how it follows.

    Raises:
      ConfigError: a target follows a variable that is not trainable, or that it does not fit.
    """
    segments = {segment.name: segment for segment in manifest.segments}
    rules: dict[str, list[TargetRule]] = {group: [] for group in optimizers}
    for name, follow in follows.items():
        target, source = segments[name], segments.get(follow.source)
        if source is None or source.kind != TRAINABLE or source.shape != target.shape:
            raise ConfigError(
                f"{name}: a target of {follow.source!r}, expected a trainable variable of shape "
                f"{list(target.shape)}"
            )
        rule = TargetRule(name=name, source=source.name, every=follow.every, tau=follow.tau)
        rules[source.group].append(rule)
    return {
        group: GroupStep(**{**one.model_dump(), "targets": tuple(rules[group])})
        for group, one in optimizers.items()
    }


def get_follows(steps: Mapping[str, GroupStep]) -> dict[str, Follow]:
    """Returns target variable -> what it follows; of settings that `make_group_steps` made."""
    rules = [rule for step in steps.values() for rule in step.targets]
    return {rule.name: Follow(rule.source, rule.every, rule.tau) for rule in rules}


def find_unfollowed(manifest: Manifest, steps: Mapping[str, GroupStep]) -> str:
    """Returns a target variable that follows nothing, if any: a step must not leave it as it is."""
    known = {rule.name for step in steps.values() for rule in step.targets}
    return next((s.name for s in manifest.segments if s.kind == TARGET and s.name not in known), "")


def mix(
    values: np.ndarray, segments: Mapping[str, Segment], rules: Sequence[TargetRule], step: int
) -> None:
    """Lets targets follow after a step of their group.

    Args:
      values: `[total_bytes] uint8`, with the weights after the step; written to.
      segments: name -> segment.
      rules: of the group.
      step: number of the group's step, 1 for the first.
    """
    for rule in rules:
        target, source = (_view(values, segments[name]) for name in (rule.name, rule.source))
        if rule.tau is not None:
            target *= np.float32(1.0 - rule.tau)
            target += np.float32(rule.tau) * source
        elif rule.every is not None and step % rule.every == 0:
            target[...] = source


def _view(values: np.ndarray, segment: Segment) -> np.ndarray:
    part = values[segment.offset : segment.offset + segment.num_bytes]
    return part.view(DTYPES[segment.dtype])
