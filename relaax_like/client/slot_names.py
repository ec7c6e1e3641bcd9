"""Who plays in each slot: the names of agents, the games that they play, and their kinds."""

import re
from collections.abc import Collection, Sequence
from typing import Any

from relaax_like.client.argument_types import INTEGER, TEXT, validate_type
from relaax_like.wire.errors import ConfigError
from relaax_like.wire.spaces import ACTION, MASK, OBSERVATION

AGENTS = "agents"
"""The feature of the protocol, and its field."""
_KIND = re.compile(r"[A-Za-z0-9_\-.]{1,60}")


def validate_agents(
    slots: int,
    leaves: tuple[Collection[str], Collection[str]],
    agents: Sequence[str] | None,
    games: Sequence[int] | None,
    kinds: Sequence[str] | None,
) -> dict[str, Any]:
    """Checks the arguments of a client with several agents.

    Args:
      slots: environments that are stepped together, k.
      leaves: names of the observations' leaves, and of the actions'.
      agents: name of the agent in each slot.
      games: number of each slot's game; None: not given.
      kinds: of each slot, see `RlxClient`; None: not given.

    Returns:
      The fields of the hello.

    Raises:
      ConfigError: there are games or kinds without agents, another number of them than slots, a
        name or number that the protocol does not allow, or leaves that do not belong to one kind
        each, or that have the same name in it; the error names the argument.
    """
    if agents is None:
        name = "games" if kinds is None else "kinds"
        raise ConfigError(f"{name}: given without agents; pass the names of the agents, too")
    fields = {AGENTS: _read("agents", agents, slots, TEXT)}
    for name in fields[AGENTS]:
        if not (1 <= len(name) <= 100 and name.isprintable()):
            raise ConfigError(f"agents: {name[:120]!r}, expected 1 to 100 printable characters")
    if games is not None:
        fields["games"] = [int(game) for game in _read("games", games, slots, INTEGER)]
        for game in fields["games"]:
            if not 0 <= game < 2**32:
                raise ConfigError(f"games: {game}, expected numbers from 0 to {2**32 - 1}")
    if kinds is not None:
        fields["kinds"] = _read("kinds", kinds, slots, TEXT)
        _validate_kinds(set(fields["kinds"]), *leaves)
    return fields


def _read(name: str, values: Any, slots: int, expected: str) -> list[Any]:
    """Returns an argument as a list of one value per slot."""
    if isinstance(values, str) or not hasattr(values, "__len__") or len(values) != slots:
        count = f"{len(values)} values" if isinstance(values, Sequence) else f"{values!r:.80}"
        raise ConfigError(f"{name}: {count}, expected a list with one value for each of {slots}")
    for value in values:
        validate_type(name, value, expected)
    return list(values)


def _validate_kinds(
    kinds: set[str], observations: Collection[str], actions: Collection[str]
) -> None:
    for kind in kinds:
        if not _KIND.fullmatch(kind):
            raise ConfigError(
                f"kinds: {kind[:80]!r}, expected 1 to 60 characters A-Z a-z 0-9 _ - ."
            )
    for where, leaves in ((OBSERVATION, observations), (ACTION, actions)):
        own: dict[str, set[str]] = {kind: set() for kind in kinds}
        for leaf in leaves:
            kind, slash, name = leaf.removeprefix(MASK).partition("/")
            if kind not in kinds or (slash and not name):
                raise ConfigError(
                    f"kinds: leaf {leaf[:80]!r} of {where}_space belongs to none of "
                    f"{', '.join(sorted(kinds))!s:.200}; begin its name with a kind"
                )
            if leaf.startswith(MASK):  # of a leaf of the actions
                continue
            name = name or where
            if name in own[kind]:
                raise ConfigError(
                    f"kinds: {kind!r} and {f'{kind}/{where}'!r} of {where}_space are the same leaf "
                    f"for slots of the kind {kind}; rename one of them"
                )
            own[kind].add(name)
        if missing := sorted(kind for kind, names in own.items() if not names):
            raise ConfigError(
                f"kinds: {where}_space has no leaf of {missing[0]!r}; name one {missing[0]!r}, or "
                f"{missing[0] + '/NAME'!r}"
            )
