"""What takes the requests of agents whose learner is beside them."""

from typing import Any

from relaax_like.config.plan import Episodes, OnPolicy
from relaax_like.experience.collector import DataHandler
from relaax_like.learn.collected import Collected, make_collector
from relaax_like.learn.request_queue import RequestQueue
from relaax_like.learn.tally import Tally


def make_requests(
    plan: OnPolicy | Episodes, data_handler: DataHandler | None = None, **options: Any
) -> RequestQueue:
    """Makes the queue of a plan whose agents wait for an iteration that is not complete."""
    source = Collected(make_collector(plan, 1 << 62, data_handler), Tally())
    return RequestQueue(source, isinstance(plan, OnPolicy), **options)
