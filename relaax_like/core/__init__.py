"""Roles and records that packages share; `core/roles.py` shows the system on one page.

Needs only numpy and protobuf; nothing here depends on the network.
"""

from relaax_like.core.manifest import Manifest, Variable, make_manifest
from relaax_like.core.metrics import Metrics, NullMetrics
from relaax_like.core.moments import Moments
from relaax_like.core.records import (
    Counts,
    Episode,
    Experience,
    LearnerUpdate,
    LearnRequest,
    Lease,
    Origin,
    Publication,
    Push,
    Received,
    Reply,
    Status,
    StreamProgress,
    TrainReturn,
    Values,
)
from relaax_like.core.roles import (
    ExperienceSink,
    Learner,
    ParameterServerBackend,
    ParameterServerClient,
    Publisher,
)

__all__ = [
    "Counts",
    "Episode",
    "Experience",
    "ExperienceSink",
    "LearnRequest",
    "Learner",
    "LearnerUpdate",
    "Lease",
    "Manifest",
    "Metrics",
    "Moments",
    "NullMetrics",
    "Origin",
    "ParameterServerBackend",
    "ParameterServerClient",
    "Publication",
    "Publisher",
    "Push",
    "Received",
    "Reply",
    "Status",
    "StreamProgress",
    "TrainReturn",
    "Values",
    "Variable",
    "make_manifest",
]
