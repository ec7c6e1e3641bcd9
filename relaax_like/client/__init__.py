"""The client library: how an environment's process asks an rlx server for actions.

Needs numpy and protobuf only.

    with RlxClient("localhost:7001", observation_space, action_space) as client:
        action = client.act(state)
        action = client.reward_and_act(reward, state)   # None: training has finished
        score = client.reward_and_reset(reward)
"""

from relaax_like.client.arguments import (
    add_security_arguments,
    make_security,
    parse_count,
    parse_positive,
)
from relaax_like.client.client import (
    EpisodeResult,
    LateAnswerError,
    OutOfOrderError,
    Retry,
    RlxClient,
    StepResult,
    Timings,
)
from relaax_like.client.connection import Connection
from relaax_like.client.exit_status import find_exit_status
from relaax_like.client.interactor import (
    EnvironmentSlots,
    Interactor,
    RunSummary,
    SlotEpisode,
    Transition,
    get_agents,
    reset_first,
)
from relaax_like.wire.security import ClientSecurity
from relaax_like.wire.versions import find_versions

__all__ = [
    "ClientSecurity",
    "Connection",
    "EnvironmentSlots",
    "EpisodeResult",
    "Interactor",
    "LateAnswerError",
    "OutOfOrderError",
    "Retry",
    "RlxClient",
    "RunSummary",
    "SlotEpisode",
    "StepResult",
    "Timings",
    "Transition",
    "add_security_arguments",
    "find_exit_status",
    "find_versions",
    "get_agents",
    "make_security",
    "parse_count",
    "parse_positive",
    "reset_first",
]
