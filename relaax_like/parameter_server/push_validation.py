"""Validation of pushes and counts: the parameter server checks them before they are queued."""

import contextlib
import math
from collections.abc import Iterator, Sequence

import numpy as np

from relaax_like.core.episode_reports import validate_reports
from relaax_like.core.manifest import Manifest
from relaax_like.core.records import (
    MAX_ENV_STEPS,
    MAX_EPISODES,
    Counts,
    EpisodeReport,
    Publication,
    Push,
)
from relaax_like.parameter_server.store import find_not_finite, get_not_finite, view_gradient
from relaax_like.wire.errors import InvalidInputError

MAX_CLIENT_ID = 200
_MAX_GLOBAL_T = 1 << 62


class Refused(InvalidInputError):
    """A push, or the name of a client, is invalid.

    Attributes:
      reason: short reason under which a refused push is counted.
    """

    def __init__(self, reason: str, message: str, field: str | None = None):
        super().__init__(message, field)
        self.reason = reason


@contextlib.contextmanager
def _refusing(reason: str) -> Iterator[None]:
    """Gives an error of its block the reason under which it is counted."""
    try:
        yield
    except InvalidInputError as error:
        raise Refused(reason, str(error), error.field) from None


def validate_push(push: Push, manifest: Manifest, global_t: int) -> np.ndarray | None:
    """Returns the push's gradient as float32 `[n]`, or None.

    Args:
      push: the push as received; nothing in it is trusted.
      manifest: manifest of the run.
      global_t: environment steps of all clients so far.

    Raises:
      Refused: something in the push is wrong.
    """
    validate_client_id(push.client_id)
    _validate_count("env_steps", push.env_steps)
    if global_t + push.env_steps > _MAX_GLOBAL_T:
        raise Refused(
            "bad count",
            f"env_steps: {push.env_steps}, but this run can count at most "
            f"{_MAX_GLOBAL_T - global_t} more",
        )
    if push.episodes:
        _validate_episodes(push.episodes)
    if push.statistics:
        with _refusing("bad statistic"):
            for name, moments in push.statistics.items():
                manifest.validate_moments(name, moments)
    if push.gradient is None:
        if push.groups:
            raise Refused(
                "unknown group",
                f"groups: {', '.join(push.groups)[:60]}, but there is no gradient; leave "
                "groups empty",
            )
        return None
    if push.fingerprint != manifest.fingerprint:
        raise Refused(
            "foreign layout",
            f"fingerprint: {push.fingerprint:#x}, expected {manifest.fingerprint:#x}; the "
            "gradient belongs to a different model, so start the agent with the settings and the "
            "algorithm's code of this run",
        )
    _validate_count("gradient_version", push.gradient_version)
    layout = manifest
    if push.groups:
        with _refusing("unknown group"):
            layout = manifest.select_groups(push.groups)
    return validate_gradient(push.gradient, layout)


def validate_counts(counts: Publication | Counts) -> None:
    """Checks the steps and episodes that the run's learner counts.

    Raises:
      InvalidInputError: the number of steps is out of range, or a return is not finite.
    """
    if not 0 <= counts.env_steps <= MAX_ENV_STEPS:
        raise InvalidInputError(
            f"env_steps: {counts.env_steps} from the learner, expected an integer in 0..2^40; "
            "update the learner"
        )
    validate_reports(counts.episodes)


def validate_gradient(gradient: np.ndarray, layout: Manifest) -> np.ndarray:
    """Returns a gradient as float32 `[n]`.

    Raises:
      Refused: the gradient has a wrong shape or dtype, is not finite, or has a norm that no
        optimizer can handle.
    """
    with _refusing("wrong length"):
        flat = view_gradient(gradient, layout)
    # One pass finds NaN, infinity, and numbers whose square overflows float32.
    with np.errstate(all="ignore"):
        if math.isfinite(np.dot(flat, flat)):
            return flat
    name = find_not_finite(flat, layout)
    if name:
        raise Refused(
            "not finite",
            f"{name}: the gradient contains {get_not_finite(flat)}, expected finite numbers; lower "
            "the learning rate, or check the rewards and observations",
        )
    norm = np.linalg.norm(flat.astype(np.float64))
    raise Refused(
        "too large",
        f"gradient: its norm is {norm:.2g}, but no optimizer can handle more than 1e19; clip it",
    )


def is_empty(push: Push) -> bool:
    """Returns whether a push changes nothing, and only requests values."""
    return push.gradient is None and not (push.env_steps or push.episodes or push.statistics)


def validate_client_id(client_id: str) -> None:
    """Checks a client's name.

    Raises:
      Refused: the name is empty, too long, or not printable.
    """
    if not 1 <= len(client_id) <= MAX_CLIENT_ID or not client_id.isprintable():
        raise Refused(
            "bad client id",
            f"client_id: {client_id[:40]!r} of length {len(client_id)}, expected 1 to "
            f"{MAX_CLIENT_ID} printable characters",
        )


def _validate_count(name: str, count: int) -> None:
    if not isinstance(count, (int, np.integer)) or not 0 <= count <= MAX_ENV_STEPS:
        raise Refused("bad count", f"{name}: {count!r}, expected an integer in 0..2^40")


def _validate_episodes(episodes: Sequence[EpisodeReport]) -> None:
    if len(episodes) > MAX_EPISODES:
        raise Refused(
            "bad episode", f"episodes: {len(episodes)} in one push, expected at most {MAX_EPISODES}"
        )
    with _refusing("bad episode"):
        validate_reports(episodes)
