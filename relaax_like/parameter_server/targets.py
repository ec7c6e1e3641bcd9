"""Targets: variables that follow others after optimizer steps of a variable group.

One record of settings, `GroupStep`, describes a group's step: its optimizer, the targets that
follow its variables, and which of these are scaled to unit norm. So the journal and snapshots
contain all of it, and a replay updates targets exactly as the run did.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import Field

from relaax_like.config.base import Settings
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.core.manifest import PUSHED, TARGET, Follow, Manifest, Segment
from relaax_like.wire.errors import ConfigError
from relaax_like.wire.ndarray import DTYPES


class TargetRule(Settings):
    """How one target follows its source; see `relaax_like.nn.target.Target`."""

    name: str
    """Name of the target variable; that of the source, if it is scaled to unit norm."""
    source: str
    """Name of the trainable variable."""
    every: int | None = Field(default=None, ge=1)
    """Optimizer steps of the source's group between two updates; null: 1."""
    tau: float | None = Field(default=None, gt=0, le=1)
    """Proportion of the source in each update; null: 1, the source is copied."""


class GroupStep(OptimizerConfig):
    """Settings of a step of one variable group."""

    targets: tuple[TargetRule, ...] = ()
    """Targets that follow the group's variables, after those that are scaled to unit norm."""


def make_group_steps(
    manifest: Manifest,
    optimizers: Mapping[str, OptimizerConfig],
    follows: Mapping[str, Follow],
) -> dict[str, GroupStep]:
    """Returns the settings of each group's step.

    Args:
      manifest: the layout of the run.
      optimizers: group -> settings.
      follows: variable -> how it follows.

    Raises:
      ConfigError: a target follows a variable that is not trainable, or has another shape; or its
        `every` or `tau` is out of range.
    """
    segments = {segment.name: segment for segment in manifest.segments}
    rules: dict[str, list[TargetRule]] = {group: [] for group in optimizers}
    for name, follow in follows.items():
        target, source = segments[name], segments.get(follow.source)
        if source is None or source.kind not in PUSHED or source.shape != target.shape:
            found = "is not a variable of the run"
            if source is not None:
                found = f"is of kind {source.kind} and shape {list(source.shape)}"
            raise ConfigError(
                f"{name} follows {follow.source!r}, which {found}; expected a trainable variable "
                f"of shape {list(target.shape)}; in the model, make a Target only of modules whose "
                "variables are trainable, other than those of a Normalizer"
            )
        try:
            rule = TargetRule(name=name, source=source.name, every=follow.every, tau=follow.tau)
        except ValueError:
            raise ConfigError(
                f"{name} follows {source.name} with every={follow.every!r} and tau="
                f"{follow.tau!r}; expected every to be an integer of 1 or more, and tau a number "
                "above 0 and at most 1, or None for either"
            ) from None
        rules[source.group].append(rule)
    return {
        group: GroupStep(
            **{
                **one.model_dump(),
                "targets": tuple(sorted(rules[group], key=lambda rule: rule.name != rule.source)),
            }
        )
        for group, one in optimizers.items()
    }


def get_follows(steps: Mapping[str, GroupStep]) -> dict[str, Follow]:
    """Returns variable -> what it follows, for settings made by `make_group_steps`."""
    rules = [rule for step in steps.values() for rule in step.targets]
    return {rule.name: Follow(rule.source, rule.every, rule.tau) for rule in rules}


def find_unfollowed(manifest: Manifest, steps: Mapping[str, GroupStep]) -> str:
    """Returns the first target variable that follows nothing; "": there is no such variable."""
    known = {rule.name for step in steps.values() for rule in step.targets}
    return next((s.name for s in manifest.segments if s.kind == TARGET and s.name not in known), "")


def mix(
    values: np.ndarray, segments: Mapping[str, Segment], rules: Sequence[TargetRule], step: int
) -> None:
    """Updates targets after a step of their group, each when due by its `every`.

    The update is target = (1 - tau) target + tau source. Before that, variables that follow
    themselves are scaled to unit norm.

    Args:
      values: `[total_bytes] uint8`, with the weights after the step; written to.
      segments: name -> segment.
      rules: rules of the group.
      step: number of the group's step, 1 for the first.
    """
    for rule in rules:
        if rule.every is not None and step % rule.every != 0:
            continue
        if rule.name == rule.source:
            segment = segments[rule.name]
            _view(values, segment)[...] = scale_to_unit_norm(
                _view(values, segment).reshape(segment.shape)
            ).ravel()
            continue
        target, source = (_view(values, segments[name]) for name in (rule.name, rule.source))
        if rule.tau is not None:
            target *= np.float32(1.0 - rule.tau)
            target += np.float32(rule.tau) * source
        else:
            target[...] = source


def scale_to_unit_norm(weights: np.ndarray) -> np.ndarray:
    """Divides `[..., n]` by the norms of the n units' weights; units of zeros stay as they are."""
    axes = tuple(range(weights.ndim - 1))
    norms = np.sqrt(np.sum(weights * weights, axis=axes, keepdims=True))
    return weights / np.where(norms > 0, norms, np.float32(1.0))


def _view(values: np.ndarray, segment: Segment) -> np.ndarray:
    part = values[segment.offset : segment.offset + segment.num_bytes]
    return part.view(DTYPES[segment.dtype])
