"""Key `combine` of section `relaax-parameter-server`."""

from typing import Literal

from pydantic import Field

from relaax_like.config.base import Settings


class CombineConfig(Settings):
    """How the parameter server applies the gradients that it receives.

    A gradient's staleness is the number of times that the weights were changed after they had been
    pulled for it.
    """

    method: Literal["fifo", "avg", "dc", "sync"] = "fifo"
    """How gradients are applied: fifo, each one immediately; avg, held back until several have
    arrived and then applied as their mean, those with a staleness above 0 being dropped; dc,
    immediately, with delay compensation (arXiv 1609.08326); sync, all learners make each update
    together, which is one step for the batch of all of them."""
    num_gradients: int = Field(default=4, ge=1, le=10_000)
    """avg: number of gradients in a mean; fewer if fewer clients push, or after max_wait_sec."""
    max_wait_sec: float | None = Field(default=None, gt=0, le=1e9)
    """avg: seconds after which pending gradients are applied together with the next one that
    arrives; null: 1. sync: seconds after which the others continue without a learner that they wait
    for; null: 10."""
    dc_lambda: float = Field(default=0.05, ge=0, le=1e6)
    """Strength of the delay compensation."""
    dc_history: int = Field(default=20, ge=1, le=10_000)
    """Weight versions kept for delay compensation; each one uses as much memory as the weights. A
    gradient computed with an older version is applied unchanged, unless it is too stale."""
    max_staleness: int | None = Field(default=None, ge=0, le=1_000_000)
    """fifo and dc: staleness above which when_stale applies to a gradient; null: no limit."""
    when_stale: Literal["apply", "compensate", "drop"] = "drop"
    """What happens to a gradient that is too stale: apply it like any other; compensate for the
    delay; or drop it, and count only its environment steps, episodes and statistics."""
