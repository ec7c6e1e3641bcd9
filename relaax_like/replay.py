"""Replay: a table of past steps, from which minibatches are drawn; what scripts and learners use.

Its parts are in `relaax_like.experience.replay`.
"""

from relaax_like.experience.replay.hindsight import Hindsight, make_sparse_rewards
from relaax_like.experience.replay.items import (
    SequenceBatch,
    Sequences,
    TransitionBatch,
    Transitions,
)
from relaax_like.experience.replay.rate_limiter import RateLimiter
from relaax_like.experience.replay.row_spec import RowSpec
from relaax_like.experience.replay.selectors import Balanced, Prioritized, Uniform
from relaax_like.experience.replay.storage import Storage
from relaax_like.experience.replay.table import Table, TableCounts

__all__ = [
    "Balanced",
    "Hindsight",
    "Prioritized",
    "RateLimiter",
    "RowSpec",
    "SequenceBatch",
    "Sequences",
    "Storage",
    "Table",
    "TableCounts",
    "TransitionBatch",
    "Transitions",
    "Uniform",
    "make_sparse_rewards",
]
