"""What both ends of a connection share, such as errors, arrays, spaces and frames.

Needs numpy and protobuf only, so that an environment's process starts in well under a second.
"""

from relaax_like.wire.errors import (
    ConfigError,
    InvalidInputError,
    NotAllowedError,
    ProtocolError,
    RelaaxError,
    ServerUnavailableError,
)
from relaax_like.wire.spaces import (
    ACTION,
    OBSERVATION,
    Box,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Spaces,
)

__all__ = [
    "ACTION",
    "OBSERVATION",
    "Box",
    "ConfigError",
    "Discrete",
    "InvalidInputError",
    "MultiBinary",
    "MultiDiscrete",
    "NotAllowedError",
    "ProtocolError",
    "RelaaxError",
    "ServerUnavailableError",
    "Spaces",
]
