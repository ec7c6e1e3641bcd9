"""Replies: what each client was answered last; a repeated push is answered and not applied."""

import collections
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from relaax_like.bridge.service import Push
from relaax_like.wire.errors import SnapshotError

# Clients that are remembered; the one that pushed the longest ago is forgotten first.
MAX_CLIENTS = 10_000
LATE = "late"


@dataclass(frozen=True)
class _Answered:
    incarnation: int
    sequence: int
    outcome: str


class Replies:
    """The newest answered push of each client.

        if replies.find(push) is None:
            apply(push)
            replies.note(push, "applied")

    A client pushes one record after another and numbers them, so the newest is all that can be
    repeated. Pushes with sequence 0 carry no number, as the tutorial's, and are not remembered.
    Not thread-safe.
    """

    def __init__(self, max_clients: int = MAX_CLIENTS):
        self._max_clients = max_clients
        self._answered: collections.OrderedDict[str, _Answered] = collections.OrderedDict()

    def __len__(self) -> int:
        return len(self._answered)

    def find(self, push: Push) -> tuple[str, str] | None:
        """Returns the outcome that the push had before, and ""; None: it is new.

        For a push that comes after a later one of the same client, or after the client has begun a
        new life: LATE, and the reason.
        """
        answered = self._answered.get(push.client_id)
        if answered is None or push.sequence == 0:
            return None
        newest = (answered.incarnation, answered.sequence)
        this = (push.incarnation, push.sequence)
        if this > newest:
            return None
        if this == newest:
            return answered.outcome, ""
        return (
            LATE,
            f"push {push.sequence} of life {push.incarnation} came late: {answered.sequence} of "
            f"life {answered.incarnation} was answered before",
        )

    def note(self, push: Push, outcome: str) -> None:
        """Takes what a new push was answered with."""
        if push.sequence == 0:
            return
        self._answered[push.client_id] = _Answered(push.incarnation, push.sequence, outcome)
        self._answered.move_to_end(push.client_id)
        if len(self._answered) > self._max_clients:
            self._answered.popitem(last=False)

    def to_dict(self) -> dict[str, Any]:
        """Returns everything in JSON types, for a snapshot."""
        return {
            client: [one.incarnation, one.sequence, one.outcome]
            for client, one in self._answered.items()
        }

    def restore(self, data: Mapping[str, Any]) -> None:
        """Takes what `to_dict` returned.

        Raises:
          SnapshotError: something else; nothing has changed.
        """
        answered: collections.OrderedDict[str, _Answered] = collections.OrderedDict()
        try:
            for client, (incarnation, sequence, outcome) in data.items():
                answered[client] = _Answered(int(incarnation), int(sequence), str(outcome))
        except (TypeError, ValueError, AttributeError) as error:
            raise SnapshotError(f"its list of answered pushes cannot be read: {error}") from None
        self._answered = answered
