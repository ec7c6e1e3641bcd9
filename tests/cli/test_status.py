"""What `relaax status` says that a crash costs, and about environments."""

import socket
import threading

import pytest
from rich.console import Console

from relaax_like.bridge.messages import message_to_status, status_to_message
from relaax_like.cli.status import make_table, show_status
from relaax_like.core.records import ServedClient, Status
from relaax_like.wire.errors import ProtocolError, ServerUnavailableError


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        ({"durability": "journal"}, "nothing acknowledged; a power failure: 7 pushes"),
        ({"durability": "snapshot"}, "the pushes since the newest snapshot"),
        (
            {"durability": "journal", "journal_error": "the disk failed"},
            "up to 7 acknowledged pushes; no push is acknowledged until a restart: the disk failed",
        ),
    ],
)
def test_what_a_crash_costs(fields: dict[str, str], want: str) -> None:
    printed = show(Status(unsynced_records=7, **fields))  # type: ignore[arg-type]
    (line,) = [line for line in printed.splitlines() if "a crash loses" in line]
    assert want in line


def test_what_was_given_up_is_shown_with_its_version_and_step() -> None:
    assert "given up" not in show(Status())
    printed = show(Status(given_up_version=0, given_up_step=1234))
    assert (
        "the journal, at version 0; the replay table's journal, at step 1,234: a crash loses what "
        "was acknowledged later" in printed
    )


def test_environments_are_there_with_their_times() -> None:
    robot = ServedClient(
        name="robot", session="s", slots=1, answers=1234, p50_ms=0.512, p99_ms=12.3,
        max_wait_ms=20, late=3, discarded_steps=64,
    )  # fmt: skip
    silent = ServedClient(name="game", session="s", slots=1, stall="the client has been silent")
    printed = show(Status(served=(robot, silent), served_clients=40))
    assert (
        "robot: 1,234 answers; p50 0.51 ms, p99 12 ms; 3 later than 20 ms; 64 steps discarded"
        in printed
    )
    assert "game: 0 answers; the client has been silent" in printed
    assert "and 38 more" in printed


def show(status: Status) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        table = make_table("localhost:7000", message_to_status(status_to_message(status)))
        console.print(table)
    return capture.get()


def test_a_server_of_another_kind_is_named_so() -> None:
    def refuse() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=refuse, daemon=True).start()
        port = listener.getsockname()[1]
        with pytest.raises(ProtocolError, match=r"a process listens there, but .* rlx server"):
            show_status(f"127.0.0.1:{port}", watch=False)
        listener.shutdown(socket.SHUT_RDWR)
    with pytest.raises(ServerUnavailableError, match="nothing listens there"):
        show_status(f"127.0.0.1:{port}", watch=False)


def test_overdue_updates_are_there_with_a_replay_table_alone() -> None:
    assert "overdue" not in show(Status())
    (line,) = [one for one in show(Status(overdue_updates=1234.5)).splitlines() if "overdue" in one]
    assert "1,234 updates from the replay table" in line


def test_with_a_prior_the_steps_of_both_origins_are_there() -> None:
    assert "drawn from" not in show(Status(overdue_updates=1.0))
    printed = show(Status(table_steps=1234, prior_steps=56789))
    (line,) = [one for one in printed.splitlines() if "drawn from" in one]
    assert "1,234 steps of the run, 56,789 of the prior" in line


def test_a_learner_of_its_own_is_there_with_its_term() -> None:
    assert "learner" not in show(Status())
    status = Status(learner_address="localhost:7005", learner_term=3, learner_silent_sec=0.7)
    assert "localhost:7005, term 3, silent for 1 s" in show(status)


def test_learners_that_make_each_update_together_are_counted() -> None:
    assert "learners" not in show(Status())
    assert "2 make each update together" in show(Status(joint_learners=2))
