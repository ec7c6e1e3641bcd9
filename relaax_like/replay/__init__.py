"""Replay: a table of past steps, from which minibatches are drawn."""

from relaax_like.replay.hindsight import Hindsight, make_sparse_rewards
from relaax_like.replay.items import (
    SequenceBatch,
    Sequences,
    TransitionBatch,
    Transitions,
)
from relaax_like.replay.rate_limiter import RateLimiter
from relaax_like.replay.row_spec import RowSpec
from relaax_like.replay.selectors import Prioritized, Uniform
from relaax_like.replay.storage import Storage
from relaax_like.replay.table import Table, TableCounts

__all__ = [
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
