"""Who plays in each slot: the names of agents, the games that they play, and their kinds."""

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.spaces import ACTION, MASK, OBSERVATION

_KIND = re.compile(r"[A-Za-z0-9_\-.]{1,60}")

# Field of the hello -> whether a value of it is valid, and what is expected.
_VALUES: dict[str, tuple[Callable[[Any], object], str]] = {
    "agents": (
        lambda name: isinstance(name, str) and 1 <= len(name) <= 100 and name.isprintable(),
        "1 to 100 printable characters",
    ),
    "games": (
        lambda game: (
            isinstance(game, int | np.integer) and game is not True and 0 <= game < 1 << 32
        ),
        "0 to 2**32 - 1",
    ),
    "kinds": (
        lambda kind: isinstance(kind, str) and _KIND.fullmatch(kind),
        "1 to 60 characters A-Z a-z 0-9 _ - .",
    ),
}


def validate_agents(
    slots: int,
    leaves: tuple[Collection[str], Collection[str]],
    agents: Any,
    games: Any = None,
    kinds: Any = None,
) -> dict[str, Any]:
    """Checks what a client says of its agents.

    Args:
      slots: k.
      leaves: names of the observations' leaves, and of the actions'.
      agents: name of the agent in each slot; None: not given, as games and kinds.
      games: number of each slot's game.
      kinds: of each slot; see `Hello.kinds`.

    Returns:
      The fields of the hello that are given, as lists.

    Raises:
      InvalidInputError: there are games or kinds without agents, another number of them than slots,
        a name or number that the protocol does not allow, or leaves that do not belong to one kind
        each, or that have the same name in it; the error names the field.
    """
    given = {"agents": agents, "games": games, "kinds": kinds}
    fields = {field: values for field, values in given.items() if values is not None}
    if fields and agents is None:
        raise InvalidInputError("agents: missing, but there are games or kinds")
    for field, values in fields.items():
        if isinstance(values, str) or not hasattr(values, "__len__") or len(values) != slots:
            count = len(values) if hasattr(values, "__len__") else f"{values!r:.80}"
            raise InvalidInputError(f"{field}: {count}, expected {slots}, one per slot")
        fields[field] = list(values)
        is_valid, expected = _VALUES[field]
        if wrong := [value for value in fields[field] if not is_valid(value)]:
            raise InvalidInputError(f"{field}: {wrong[0]!r:.60}, expected {expected}")
    if kinds is not None:
        for plain, own in zip((OBSERVATION, ACTION), leaves, strict=True):
            _validate_leaves(fields["kinds"], plain, own)
    return fields


def _validate_leaves(kinds: Sequence[str], plain: str, leaves: Collection[str]) -> None:
    field = f"{plain}_spaces"
    found: dict[str, set[str]] = {kind: set() for kind in kinds}
    for leaf in leaves:
        if leaf.startswith(MASK):  # of a leaf of the actions
            continue
        kind, slash, name = leaf.partition("/")
        name = name if slash else plain
        if kind not in found or not name:
            raise InvalidInputError(
                f"{field}: leaf {leaf[:60]!r} belongs to none of the kinds "
                f"{', '.join(found):.200}; name it KIND, or KIND/NAME"
            )
        if name in found[kind]:
            raise InvalidInputError(
                f"{field}: {kind} and {kind}/{plain} are the same leaf for slots of the kind "
                f"{kind}; rename one of them"
            )
        found[kind].add(name)
    if missing := [kind for kind, names in found.items() if not names]:
        raise InvalidInputError(
            f"{field}: no leaf belongs to the kind {missing[0]}; name one {missing[0]}, or "
            f"{missing[0]}/NAME"
        )


def strip_kind(leaf: str, kind: str, plain: str) -> str | None:
    """Returns the name of a leaf without its kind; None: it belongs to another kind.

    Args:
      leaf: of observations or actions, as in the hello.
      kind: of slots; see `Hello.kinds`.
      plain: the name of a plain space, whose leaf has the name of the kind.
    """
    if leaf == kind:
        return plain
    return leaf[len(kind) + 1 :] if leaf.startswith(f"{kind}/") else None


class Games:
    """Counts the ends of games: a game has ended when all of its slots have, since it began.

    Attributes:
      ended: number of games that have ended.
      rounds: `[k]` int64, how many games of each slot have ended.
      leaders: `[k]` bool, the first slot of each game.

    Args:
      numbers: of each slot's game, k; slots with equal numbers play one game.
    """

    def __init__(self, numbers: Sequence[int] | np.ndarray):
        _, first, self._games = np.unique(numbers, return_index=True, return_inverse=True)
        self.ended = 0
        self.rounds = np.zeros(len(self._games), np.int64)
        self.leaders = np.zeros(len(self._games), np.bool_)
        self.leaders[first] = True
        self._over = np.zeros(len(self._games), np.bool_)

    def add(self, ended: np.ndarray) -> np.ndarray:
        """Notes the slots that have ended, `[k]` bool; returns those of complete games."""
        self._over |= ended
        complete = ~np.isin(self._games, self._games[~self._over])
        self.ended += int((complete & self.leaders).sum())
        self.rounds += complete
        self._over &= ~complete
        return complete

    def join(self, slots: np.ndarray) -> np.ndarray:
        """Returns all slots of the games of these slots, `[k]` bool, that have not ended yet."""
        return np.isin(self._games, self._games[slots]) & ~self._over

    def begin(self) -> None:
        """Notes that all games begin again."""
        self._over[:] = False
