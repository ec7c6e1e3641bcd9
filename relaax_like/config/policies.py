"""Several policies in one file: `policies` gives each its agents, and the settings of its own run.

A policy is a run of its own, in RUN/policies/NAME: with an algorithm, values, a learner, curves
and snapshots. The policies of a run share the rlx server, to which environments say which agent
plays in which slot.
"""

import copy
import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, JsonValue, ValidationInfo, field_validator

from relaax_like.config.base import Settings
from relaax_like.config.models import (
    ALGORITHM,
    LEARNER,
    PARAMETER_SERVER,
    RLX_SERVER,
)
from relaax_like.config.seeds import derive_seed
from relaax_like.config.yaml_document import Loc, YamlDocument, is_flag
from relaax_like.wire.errors import InvalidInputError

# Top-level keys: the policies of a run, those that learn (default: all), and the one that a process
# of the run belongs to.
POLICIES, TO_TRAIN, POLICY = "policies", "policies_to_train", "policy"
AGENTS = "agents"
# The sections of which a policy can have keys of its own.
POLICY_SECTIONS = (ALGORITHM, LEARNER, PARAMETER_SERVER, RLX_SERVER)
# Keys of sections that policies do not inherit: a run of one policy has such a place by itself.
_PLACES = ("checkpoint_dir", "metrics_dir", "mirror_url", "prometheus_bind", "parameter_server")
_ANY_PORT = {PARAMETER_SERVER: {"bind": "localhost:0"}}
_Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_\-]{0,59}$")]
_Pattern = Annotated[str, Field(min_length=1, max_length=100)]


class PolicyConfig(Settings):
    """One of the sections in `policies`."""

    agents: tuple[_Pattern, ...] = Field(min_length=1, max_length=1000)
    """Names of agents, or patterns such as good_*."""
    algorithm: dict[str, JsonValue] = Field(default_factory=dict)
    """Keys that replace those of the file, as in the next three."""
    learner: dict[str, JsonValue] = Field(default_factory=dict)
    parameter_server: dict[str, JsonValue] = Field(
        default_factory=dict, alias="relaax-parameter-server"
    )
    rlx_server: dict[str, JsonValue] = Field(default_factory=dict, alias="relaax-rlx-server")


class PoliciesConfig(Settings):
    """The top-level keys of a file with several policies."""

    policies: dict[_Name, PolicyConfig] = Field(min_length=1, max_length=64)
    """Name -> policy."""
    policies_to_train: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Policies that learn; null: all."""
    policy: str | None = None
    """Policy that a process of the run belongs to; null: all."""

    @field_validator(TO_TRAIN, POLICY)
    @classmethod
    def _require_known(cls, value: Any, info: ValidationInfo) -> Any:
        known = info.data.get(POLICIES, {})
        for name in [value] if isinstance(value, str) else value or ():
            if name not in known:
                raise ValueError(f"{name!r:.60} is not one of the policies: {', '.join(known)}")
        return value


def select_policy(document: YamlDocument, name: str, run_dir: Path) -> YamlDocument:
    """Returns the document of one policy's own run: its keys replace those of the sections.

    An `algorithm` that names or places a folder replaces the section as a whole. A flag that sets a
    key of a section counts more than the file's key of a policy.

    Args:
      document: whose keys are those of `PoliciesConfig`, and others.
      name: of the policy.
      run_dir: of the run with all policies.
    """
    chosen = make_shared(document)
    data, places = chosen.data, chosen.places
    entry: dict[str, Any] = copy.deepcopy(document.data[POLICIES][name])
    chosen_flags: set[Loc] = set()
    for section in POLICY_SECTIONS:
        own = entry.get(section, {})
        if not isinstance(data.get(section), dict):
            data[section] = {}
        flags = {
            key: value
            for key, value in data[section].items()
            if key not in (*_PLACES, "bind")
            and is_flag(document.place((section, key)))
            and not is_flag(document.place((POLICIES, name, section, key)))
        }
        if section == ALGORITHM and ("name" in own or "path" in own):
            data[section] = {}
        for key in _PLACES:  # of one run
            data[section].pop(key, None)
        data[section].update(_ANY_PORT.get(section, {}) | own | flags)
        chosen_flags |= {(section, key) for key in flags}
    for loc, place in document.places.items():
        if loc[:2] == (POLICIES, name) and len(loc) > 2 and loc[2:4] not in chosen_flags:
            places[loc[2:]] = place
    seed = data.get("seed", 0)
    if isinstance(seed, int):  # otherwise it is refused later
        data["seed"] = derive_seed(seed, POLICY, name)
    data["run_dir"] = str(run_dir / POLICIES / name)
    data.pop("logdir", None)
    data.pop("run_name", None)
    return chosen


def make_shared(document: YamlDocument) -> YamlDocument:
    """Returns a copy of a document without the keys of policies."""
    data = {k: v for k, v in document.data.items() if k not in (POLICIES, TO_TRAIN, POLICY)}
    return YamlDocument(
        document.file, copy.deepcopy(data), dict(document.places), list(document.problems)
    )


def map_agents(agents: Sequence[str], patterns: Mapping[str, Iterable[str]]) -> list[str]:
    """Returns the policy of each agent.

    A name that stands in a list itself counts more than patterns.

    Args:
      agents: names; several can be equal.
      patterns: policy -> names and patterns.

    Raises:
      InvalidInputError: an agent has no policy, or several; the error names the first one.
    """
    found = {one: _find_policy(one, patterns, agents.index(one)) for one in dict.fromkeys(agents)}
    return [found[one] for one in agents]


def _find_policy(agent: str, patterns: Mapping[str, Iterable[str]], slot: int) -> str:
    exact = [policy for policy, names in patterns.items() if agent in names]
    fitting = exact or [
        policy
        for policy, names in patterns.items()
        if any(fnmatch.fnmatchcase(agent, name) for name in names)
    ]
    if len(fitting) == 1:
        return fitting[0]
    what = f"the policies {', '.join(fitting)}" if fitting else "no policy"
    raise InvalidInputError(
        f"agents[{slot}]: {agent!r} is an agent of {what}, expected exactly one of "
        f"{', '.join(patterns)}; correct the lists `agents` of the run's `policies`, or the name",
        AGENTS,
    )
