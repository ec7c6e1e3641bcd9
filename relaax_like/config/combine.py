"""Key `combine` of section `relaax-parameter-server`."""

from typing import Literal

from pydantic import Field

from relaax_like.config.base import Settings


class CombineConfig(Settings):
    """What becomes of a gradient when it comes to the parameter server.

    A gradient's staleness is how often the weights were changed after they had been pulled for it.
    """

    method: Literal["fifo", "avg", "dc"] = "fifo"
    """fifo: a gradient is applied at once; avg: held back until several have come, and applied as
    their mean, stale ones dropped; dc: applied at once, with delay compensation (arXiv
    1609.08326)."""
    num_gradients: int = Field(default=4, ge=1, le=10_000)
    """Gradients in a mean of avg; fewer when fewer clients push."""
    max_wait_sec: float = Field(default=1.0, gt=0, le=1e9)
    """Seconds after which the next gradient to come has all that wait for avg applied with it."""
    dc_lambda: float = Field(default=0.05, ge=0, le=1e6)
    """Strength of the delay compensation."""
    dc_history: int = Field(default=20, ge=1, le=10_000)
    """Versions of the weights that are kept for delay compensation, each of which takes their size
    in memory. A gradient of an older version is applied as it is."""
    max_staleness: int | None = Field(default=None, ge=0, le=1_000_000)
    """Staleness above which a gradient meets when_stale; null: none does."""
    when_stale: Literal["apply", "compensate", "drop"] = "drop"
    """What happens to a staler gradient: apply, as any other; compensate, with delay compensation;
    drop: only its environment steps, episodes and statistics count."""
