"""A client's hello, checked, and the optional parts of the protocol that it agrees on."""

import re
from collections.abc import Mapping

from relaax_like.v1 import rlx_pb2
from relaax_like.wire.agents import validate_agents
from relaax_like.wire.errors import InvalidInputError, ProtocolError
from relaax_like.wire.framing import PROTOCOL_VERSION
from relaax_like.wire.spaces import (
    MASK,
    Spaces,
    make_masks,
    messages_to_spaces,
    split_masks,
)
from relaax_like.wire.versions import validate_versions

# Optional parts of the protocol; see Hello.features.
PING, MAX_WAIT, STEP_ID, TIMINGS = "ping", "max_wait", "step_id", "timings"
VERSIONS, PRESENT, EXECUTED = "versions", "present", "executed"
HELLO_PING = "hello_ping"  # ends with Ready, which does not list it
MASKS = "masks"
AGENTS, SLOT_VERSIONS = "agents", "slot_versions"
FEATURES = frozenset({PING, MAX_WAIT, STEP_ID, TIMINGS, VERSIONS, PRESENT, EXECUTED, MASKS})
FEATURES |= {AGENTS, SLOT_VERSIONS}
MAX_FEATURES = 32
_MAX_WAIT_MS = 60_000
_FEATURE_NAME = re.compile(r"[a-z0-9_]{1,50}")


class Greeting:
    """A checked hello.

    Attributes:
      client_name: chosen by the client.
      slots: k.
      observation_spaces: leaf -> space.
      action_spaces: leaf -> space.
      masks: of the leaves of actions, as `make_masks` returns them; {} without that feature.
      exploit: choose the best actions; learn nothing.
      features: features of the protocol that both client and server support.
      wants_pings: whether the client expects pings before `Ready`.
      max_wait_sec: longest time from a step to its answer; None: no limit.
      versions: package -> version of the client's simulator, as it says; not to be relied on.
      agents: name of the agent in each slot; () without that feature, as the next two.
      games: number of each slot's game; (): each its own.
      kinds: of each slot, which say what leaves it has; (): all have the same leaves.
      unsupported: feature -> why the server does not support it for this client.

    Args:
      hello: as received; nothing in it is trusted.
      max_slots: maximum number of slots of one client.

    Raises:
      ProtocolError: VERSION_MISMATCH: the protocol version is not supported.
      InvalidInputError: another field is wrong; the error names it.
    """

    def __init__(self, hello: rlx_pb2.Hello, max_slots: int):
        if hello.protocol_version != PROTOCOL_VERSION:
            raise ProtocolError(
                f"protocol version {hello.protocol_version} is not supported, only "
                f"{PROTOCOL_VERSION}; update the client or the server",
                "VERSION_MISMATCH",
                "protocol_version",
            )
        if not (1 <= len(hello.client_name) <= 100 and hello.client_name.isprintable()):
            raise InvalidInputError(
                f"client_name: {hello.client_name[:60]!r}, expected 1 to 100 printable characters"
            )
        if not 1 <= hello.slots <= max_slots:
            raise InvalidInputError(
                f"slots: {hello.slots}, expected 1 to {max_slots} "
                "(relaax-rlx-server.max_slots_per_client)"
            )
        if hello.mode not in (rlx_pb2.TRAIN, rlx_pb2.EXPLOIT):
            raise InvalidInputError(f"mode: {hello.mode}, expected TRAIN or EXPLOIT")
        self.client_name = hello.client_name
        self.slots = hello.slots
        self.observation_spaces: Spaces = messages_to_spaces(
            hello.observation_spaces, "observation_spaces", hello.slots
        )
        self.action_spaces: Spaces = messages_to_spaces(
            hello.action_spaces, "action_spaces", hello.slots
        )
        if reserved := split_masks(self.observation_spaces)[1]:
            raise InvalidInputError(
                f"observation_spaces: leaf {next(iter(reserved))[:60]!r}: names that begin with "
                f"{MASK!r} are reserved; rename it",
            )
        self.exploit = hello.mode == rlx_pb2.EXPLOIT
        features = _read_features(hello)
        self.features = FEATURES.intersection(features)
        self.masks: Spaces = make_masks(self.action_spaces) if MASKS in self.features else {}
        self.wants_pings = HELLO_PING in features
        self.max_wait_sec = _read_max_wait(hello, MAX_WAIT in self.features)
        self.versions = validate_versions(hello.versions if VERSIONS in self.features else {})
        self.unsupported: Mapping[str, str] = {}
        leaves = tuple(self.observation_spaces), tuple(self.action_spaces)
        given = hello.agents, hello.games or None, hello.kinds or None
        named = validate_agents(hello.slots, leaves, *given) if AGENTS in self.features else {}
        self.agents, self.games, self.kinds = (
            tuple(named.get(field, ())) for field in ("agents", "games", "kinds")
        )
        if MASKS in self.features and not self.masks:
            self.withdraw({MASKS: "no leaf of the actions is discrete, with at most 65536 choices"})

    @property
    def inputs(self) -> Spaces:
        """The spaces of observations and masks."""
        return {**self.observation_spaces, **self.masks}

    def withdraw(self, unsupported: Mapping[str, str]) -> None:
        """Takes back features that the agents of this client do not support; says why."""
        self.unsupported = {**self.unsupported, **unsupported}
        self.features = self.features.difference(unsupported)
        if MASKS not in self.features:
            self.masks = {}

    def require(self, feature: str, field: str) -> None:
        """Refuses a field whose feature is off.

        Raises:
          ProtocolError: OUT_OF_ORDER.
        """
        if feature in self.features:
            return
        reason = f"the hello did not request it; list {feature} in the hello's features"
        if feature in self.unsupported:
            reason = f"{self.unsupported[feature]}; send steps without {field}"
        raise ProtocolError(
            f"received {field}, but Ready.features does not list {feature}: {reason}",
            "OUT_OF_ORDER",
            field,
        )

    def count_step_bytes(self) -> int:
        """Returns an upper bound of the length of a valid step with one reward per slot."""
        slots = self.slots
        observations, actions = (
            sum(
                (space.count_bytes(slots) or 0) + len(name) + 10 * len(space.shape) + 64
                for name, space in spaces.items()
            )
            for spaces in (self.inputs, self.action_spaces)
        )
        # Observations and final observations, and what was carried out; rewards of float64 and
        # five flags per slot.
        executed = actions if EXECUTED in self.features else 0
        return 2 * observations + executed + 16 * slots + 256


def _read_features(hello: rlx_pb2.Hello) -> list[str]:
    names = list(hello.features[: MAX_FEATURES + 1])
    if (
        len(names) > MAX_FEATURES
        or names != sorted(set(names))
        or not all(_FEATURE_NAME.fullmatch(name) for name in names)
    ):
        raise InvalidInputError(
            f"features: {len(hello.features)} names, first {[name[:50] for name in names[:4]]}, "
            f"expected at most {MAX_FEATURES}, sorted, unique, of 1 to 50 characters a-z 0-9 _"
        )
    return names


def _read_max_wait(hello: rlx_pb2.Hello, is_on: bool) -> float | None:
    if not is_on and hello.max_wait_ms:
        raise InvalidInputError(
            f"max_wait_ms: {hello.max_wait_ms}, but features does not list {MAX_WAIT}; add it"
        )
    if is_on and not 1 <= hello.max_wait_ms <= _MAX_WAIT_MS:
        raise InvalidInputError(
            f"max_wait_ms: {hello.max_wait_ms}, expected 1 to {_MAX_WAIT_MS} with the feature "
            f"{MAX_WAIT}"
        )
    return hello.max_wait_ms / 1e3 if is_on else None
