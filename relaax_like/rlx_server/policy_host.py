"""Agents of a run with several policies: each agent acts and learns by the policy of its name."""

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent import futures

import numpy as np

from relaax_like.config.policies import map_agents
from relaax_like.core.prediction import Prediction, Request
from relaax_like.rlx_server.batch_slots import BatchSlots
from relaax_like.rlx_server.hosting import AgentHost, predict_by_name
from relaax_like.rlx_server.policy_slots import Leaves, PolicyPart, PolicySlots
from relaax_like.rlx_server.slots import Slots, SlotSpec
from relaax_like.wire.agents import strip_kind
from relaax_like.wire.errors import InvalidInputError, ProtocolError
from relaax_like.wire.spaces import ACTION, MASK, OBSERVATION, RunSpaces, Spaces


class PolicyHost(AgentHost):
    """Splits the slots of each client by policy, over one host for each policy.

        host = PolicyHost({"cat": cats, "mouse": mice}, {"cat": ["cat_*"], "mouse": ["mouse"]})
        slots = host.make_slot_agents(spec)  # with the names of the agents

    Args:
      hosts: policy -> what makes its agents, which are batch-native.
      patterns: policy -> names and patterns of its agents; see `map_agents`.
      frozen: the policies that only play, drawing their actions.
    """

    def __init__(
        self,
        hosts: Mapping[str, AgentHost],
        patterns: Mapping[str, Iterable[str]],
        frozen: Collection[str] = (),
    ):
        super().__init__()
        self._hosts = hosts
        self._patterns = patterns
        self._frozen = frozen
        for host in hosts.values():
            host.on_ready = lambda: self.on_ready()

    def make_slot_agents(self, spec: SlotSpec) -> Slots:
        """Builds the agents of k slots, of all policies at the same time.

        Raises:
          InvalidInputError: agents have no names, or a name has no policy, or several.
          ProtocolError: SPACE_MISMATCH: the agents of one policy have different leaves.
          Exception: see `AgentHost.make_slot_agents`, of each policy.
        """
        rows = find_rows(spec, self._patterns)
        with futures.ThreadPoolExecutor(len(rows)) as executor:  # each can have to wait
            made = executor.map(lambda name: self._make_part(spec, name, rows[name]), rows)
            return PolicySlots(list(made), spec.slots, spec.action_spaces)

    def predict(self, requests: Sequence[Request]) -> list[Prediction]:
        """Answers the requests of `PolicySlots`, in one call for each policy."""
        parts = [request.algorithm.partition("/") for request in requests]
        inner = [r._replace(algorithm=name) for r, (*_, name) in zip(requests, parts, strict=True)]
        names = [policy for policy, *_ in parts]
        return predict_by_name(names, inner, lambda name, own: self._hosts[name].predict(own))

    def close(self) -> None:
        """Closes the hosts of all policies, even if closing one fails."""
        super().close()
        with contextlib.ExitStack() as ends:
            for host in self._hosts.values():
                ends.callback(host.close)

    def _make_part(self, spec: SlotSpec, policy: str, rows: list[int]) -> PolicyPart:
        leaves = find_leaves(spec, policy, rows)
        is_frozen = policy in self._frozen
        own = SlotSpec(
            *select_spaces(spec, leaves),
            len(rows),
            spec.client_id,
            spec.exploit or is_frozen,
            spec.max_wait_sec,
            spec.is_pinged,
            draws=is_frozen and not spec.exploit,
            agents=[spec.agents[row] for row in rows],
        )
        slots = self._hosts[policy].make_slot_agents(own)
        assert isinstance(slots, BatchSlots), "plain agents are refused when the run is loaded"
        return PolicyPart(policy, np.array(rows), leaves, slots, not own.exploit)


def find_rows(spec: SlotSpec, patterns: Mapping[str, Iterable[str]]) -> dict[str, list[int]]:
    """Returns the slots of each policy that has some.

    Raises:
      InvalidInputError: agents have no names, or a name has no policy, or several.
    """
    if not spec.agents:
        raise InvalidInputError(
            f"agents: missing, but this run has the policies {', '.join(patterns)}; list the "
            "feature agents, and say in `agents` which agent plays in each slot"
        )
    rows: dict[str, list[int]] = {}
    for row, policy in enumerate(map_agents(spec.agents, patterns)):
        rows.setdefault(policy, []).append(row)
    return rows


def find_leaves(spec: SlotSpec, policy: str, rows: list[int]) -> Leaves:
    """Returns which leaves the slots of a policy have.

    Raises:
      ProtocolError: SPACE_MISMATCH: they are of several kinds.
    """
    kinds = list(dict.fromkeys(spec.kinds[row] for row in rows)) if spec.kinds else []
    if len(kinds) > 1:
        raise ProtocolError(
            f"kinds: the agents of policy {policy} have the kinds {', '.join(kinds):.200}, "
            "expected one, because its agents have the same leaves; give each kind a policy of "
            "its own",
            "SPACE_MISMATCH",
            "kinds",
        )
    return Leaves(
        _strip_all(spec.observation_spaces, OBSERVATION, kinds),
        _strip_all(spec.action_spaces, ACTION, kinds),
    )


def _strip_all(spaces: Spaces, plain: str, kinds: list[str]) -> dict[str, str]:
    """Returns name without the kind -> leaf, of those that belong to the kind, if there is one."""
    if not kinds:
        return {leaf: leaf for leaf in spaces}
    found = {}
    for leaf in spaces:
        mask = MASK if leaf.startswith(MASK) else ""
        name = strip_kind(leaf.removeprefix(MASK), kinds[0], ACTION if mask else plain)
        if name is not None:
            found[mask + name] = leaf
    return found


def select_spaces(spec: SlotSpec, leaves: Leaves) -> RunSpaces:
    """Returns the spaces of a policy, under its own names."""
    return RunSpaces(
        {name: spec.observation_spaces[leaf] for name, leaf in leaves.observations.items()},
        {name: spec.action_spaces[leaf] for name, leaf in leaves.actions.items()},
    )
