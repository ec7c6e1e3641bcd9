"""What `relaax status` says that a crash costs."""

import pytest
from rich.console import Console

from relaax_like.bridge.messages import message_to_status, status_to_message
from relaax_like.cli.status import make_table
from relaax_like.core.records import Status


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        ({"durability": "journal"}, "nothing acknowledged; a power failure: 7 pushes"),
        ({"durability": "snapshot"}, "the updates since the newest snapshot"),
        (
            {"durability": "journal", "journal_error": "the disk failed"},
            "up to 7 acknowledged pushes; no push is acknowledged until a restart: the disk failed",
        ),
    ],
)
def test_what_a_crash_costs(fields: dict[str, str], want: str) -> None:
    sent = status_to_message(Status(unsynced_records=7, **fields))  # type: ignore[arg-type]
    console = Console(width=200)
    with console.capture() as capture:
        console.print(make_table("localhost:7000", message_to_status(sent)))
    (line,) = [line for line in capture.get().splitlines() if "a crash loses" in line]
    assert want in line
