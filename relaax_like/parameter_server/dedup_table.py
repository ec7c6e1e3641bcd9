"""DedupTable: the last answer to each client; a repeated push is answered but not applied."""

import collections
from collections.abc import Mapping
from typing import Any

from relaax_like.core.records import OUTCOMES, Push, Reply
from relaax_like.wire.errors import SnapshotError

_Newest = tuple[tuple[int, int], Reply]
# Maximum number of clients; the one whose last push is the oldest is forgotten first.
MAX_CLIENTS = 10_000


class DedupTable:
    """The newest answered push of each client.

        if table.find_lateness(push) is None and table.find(push) is None:
            table.note(push, apply(push))

    A client numbers its pushes and sends one after another, so only the newest can be repeated.
    Pushes with sequence 0, such as the tutorial's, have no number and are not remembered. Not
    thread-safe.

    Args:
      max_clients: maximum number of clients; the client whose last push is the oldest is forgotten
        first.
    """

    def __init__(self, max_clients: int = MAX_CLIENTS):
        self._max_clients = max_clients
        # Client -> incarnation and sequence number of its newest push, and the answer.
        self._newest: collections.OrderedDict[str, _Newest] = collections.OrderedDict()

    def __len__(self) -> int:
        return len(self._newest)

    def find(self, push: Push) -> Reply | None:
        """Returns the earlier answer to the same push; None: it is not the client's newest push."""
        newest = self._newest.get(push.client_id)
        return None if newest is None or _key(push) != newest[0] else newest[1]

    def find_lateness(self, push: Push) -> str | None:
        """Returns why a push is late; None: it is not.

        A late push arrives after a later one of its client: the network has repeated it, or it is
        from a process that has been replaced.
        """
        newest = self._newest.get(push.client_id)
        if newest is None or push.sequence == 0 or _key(push) >= newest[0]:
            return None
        incarnation, sequence = newest[0]
        return (
            f"push {push.sequence} of incarnation {push.incarnation} arrived late: "
            f"push {sequence} of incarnation {incarnation} has already been answered"
        )

    def note(self, push: Push, answered: Reply) -> None:
        """Notes the answer to a new push: its outcome and reason, version and `global_t`."""
        if push.sequence == 0:
            return
        self._newest[push.client_id] = _key(push), answered
        self._newest.move_to_end(push.client_id)
        if len(self._newest) > self._max_clients:
            self._newest.popitem(last=False)

    def to_dict(self) -> dict[str, Any]:
        """Returns everything in JSON types, for a snapshot."""
        return {
            client: [*key, one.outcome, one.version, one.global_t, one.reason]
            for client, (key, one) in self._newest.items()
        }

    def restore(self, data: Mapping[str, Any], place: str = "the snapshot") -> None:
        """Restores what `to_dict` returned.

        Args:
          data: as returned.
          place: the snapshot or publication that contains it, for errors.

        Raises:
          SnapshotError: the data is invalid; nothing has changed.
        """
        newest: collections.OrderedDict[str, _Newest] = collections.OrderedDict()
        try:
            for client, (incarnation, sequence, outcome, version, global_t, why) in data.items():
                if outcome not in OUTCOMES:
                    raise ValueError(f"outcome {outcome!r}, expected one of {', '.join(OUTCOMES)}")
                answered = Reply(
                    outcome=outcome, version=int(version), global_t=int(global_t), reason=str(why)
                )
                newest[client] = (int(incarnation), int(sequence)), answered
        except (TypeError, ValueError, AttributeError) as error:
            raise SnapshotError(
                f"{place}: the list of answered pushes cannot be read: {error}; it was written by "
                "another version of relaax_like. Resume with that version, or use another "
                "checkpoint_dir (and mirror_url, if it is set)"
            ) from None
        self._newest = newest


def _key(push: Push) -> tuple[int, int]:
    return push.incarnation, push.sequence
