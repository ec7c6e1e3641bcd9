"""Key `combine` of section `relaax-parameter-server`."""

from typing import Literal

from pydantic import Field

from relaax_like.config.base import Settings


class CombineConfig(Settings):
    """What becomes of a gradient when it comes to the parameter server.

    A gradient's staleness is how often the weights were changed after they had been pulled for it.
    """

    # fifo: applied at once. avg: held back until several have come, and applied as their mean;
    # stale ones are dropped. dc: applied at once, with delay compensation (arXiv 1609.08326).
    method: Literal["fifo", "avg", "dc"] = "fifo"
    # avg: gradients in a mean; fewer when fewer clients push.
    num_gradients: int = Field(default=4, ge=1, le=10_000)
    # avg: seconds after which the next gradient to come has all that wait applied with it.
    max_wait_sec: float = Field(default=1.0, gt=0, le=1e9)
    # Delay compensation: its strength, and versions of the weights that are kept for it, each of
    # which takes their size in memory. A gradient of an older version is applied as it is.
    dc_lambda: float = Field(default=0.05, ge=0, le=1e6)
    dc_history: int = Field(default=20, ge=1, le=10_000)
    # A staler gradient meets when_stale; null: none does.
    max_staleness: int | None = Field(default=None, ge=0, le=1_000_000)
    # apply: as any other. compensate: with delay compensation. drop: only its environment steps,
    # episodes and statistics count.
    when_stale: Literal["apply", "compensate", "drop"] = "drop"
