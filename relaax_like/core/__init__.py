"""Roles and records that packages share; `core/roles.py` shows the system on one page.

Needs only numpy and protobuf; nothing here depends on the network. These names are what your own
agent uses.
"""

from relaax_like.core.manifest import Manifest, Variable, make_manifest
from relaax_like.core.metrics import Metrics
from relaax_like.core.moments import Moments
from relaax_like.core.records import Episode
from relaax_like.core.roles import Learner, ParameterServerClient

__all__ = [
    "Episode",
    "Learner",
    "Manifest",
    "Metrics",
    "Moments",
    "ParameterServerClient",
    "Variable",
    "make_manifest",
]
