"""A crash loses nothing that was acknowledged: snapshots, the journal, and both together."""

# covers R2, R9, R22

import shutil
from dataclasses import replace

import numpy as np
import pytest
from support.bridge import VARIABLES
from support.threads import wait_until

from relaax_like.bridge.manifest import STATISTIC, Variable, make_manifest
from relaax_like.bridge.moments import Moments
from relaax_like.bridge.service import Episode, NullMetrics, Push
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.parameter_server import journal as journal_module
from relaax_like.parameter_server import push_journal
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.push_journal import PushJournal
from relaax_like.parameter_server.snapshots import Snapshots
from relaax_like.parameter_server.store import Store
from relaax_like.wire.errors import JournalError, ServerUnavailableError

STATISTICS = tuple(
    Variable(f"seen.{part}", np.zeros(shape, np.float64), kind=STATISTIC)
    for part, shape in (("count", ()), ("mean", (2,)), ("m2", (2,)))
)
MANIFEST = make_manifest([*VARIABLES, *STATISTICS])
ADAM = OptimizerConfig(
    learning_rate=0.1, schedule="linear", learning_rate_end=0.0, schedule_env_steps=1000
)


def open_server(folder, optimizer=ADAM, every_sec=None, **options):
    """Opens a parameter server as a start of the process does."""
    flat = MANIFEST.pack([variable.value for variable in [*VARIABLES, *STATISTICS]])
    journal = PushJournal(folder / "journal", MANIFEST.fingerprint, **options)
    server = ParameterServer(
        Store(MANIFEST, flat, {"default": optimizer}),
        snapshots=Snapshots(folder, 3),
        journal=journal,
        metrics=NullMetrics(),
        snapshot_every_sec=every_sec,
    )
    server.restore_latest_checkpoint()
    return server


def make_push(sequence, seed=None):
    random = np.random.default_rng(sequence if seed is None else seed)
    gradient = random.standard_normal(9).astype(np.float32)
    rows = random.standard_normal((4, 2))
    return Push(
        client_id="a",
        incarnation=1,
        sequence=sequence,
        gradient=None if sequence % 5 == 4 else gradient.view(np.uint8),
        env_steps=sequence,
        episodes=(Episode(float(sequence), 3),) if sequence % 3 == 0 else (),
        fingerprint=MANIFEST.fingerprint,
        statistics={"seen": Moments.of(rows)} if sequence % 2 else {},
    )


def crash(server, folder, tmp_path):
    """What `kill -9` leaves: all that was written, and nothing that an orderly end would add."""
    server._journal.close()  # its bytes had been handed over; nothing of the state is written
    left = tmp_path / f"left-{len(list(tmp_path.iterdir()))}"
    shutil.copytree(folder, left)
    server.close(save=False)
    return left


def get_state(server):
    state = server._store.export_state()
    return (
        state.version,
        state.global_t,
        state.values.tobytes(),
        *(slots.tobytes() for slots in state.slots.values()),
        dict(state.steps),
        {k: v for k, v in server._statistics.to_dict().items() if k != "refused"},
        server._replies.to_dict(),
    )


@pytest.mark.parametrize("save_after", [(), (3,), (2, 5), (8,)], ids=str)
def test_after_a_crash_everything_acknowledged_is_there_bit_by_bit(tmp_path, save_after):
    server = open_server(tmp_path / "run")
    for sequence in range(1, 9):
        assert server.push(make_push(sequence)).durability == "journal"
        if sequence in save_after:
            server.save_checkpoint()
    want = get_state(server)
    left = crash(server, tmp_path / "run", tmp_path)
    with open_server(left) as again:
        assert get_state(again) == want
        assert again.push(make_push(8)).outcome == "applied"  # answered, not applied
        assert get_state(again) == want
        assert again.push(make_push(9)).global_t == want[1] + 9


def test_a_second_crash_loses_nothing_either(tmp_path):
    server, folder = open_server(tmp_path / "run"), tmp_path / "run"
    for sequence in range(1, 13):
        server.push(make_push(sequence))
        if sequence % 4 == 0:
            if sequence == 8:
                server.save_checkpoint()
            want = get_state(server)
            folder = crash(server, folder, tmp_path)
            server = open_server(folder)
            assert get_state(server) == want
    server.close()


@pytest.mark.parametrize(("pushes", "saves"), [(999, False), (1_000, True)])
def test_a_long_replay_is_not_done_twice(tmp_path, pushes, saves):
    server = open_server(tmp_path / "run")
    for sequence in range(1, pushes + 1):
        server.push(replace(make_push(sequence), env_steps=1))
    left = crash(server, tmp_path / "run", tmp_path)
    again = open_server(left, every_sec=1e6)
    if saves:
        wait_until(lambda: again.status().snapshot_global_t == pushes, "the snapshot")
    want = get_state(again)
    again.close(save=False)
    assert again.status().snapshot_global_t == (pushes if saves else 0)
    with open_server(left) as last:
        assert get_state(last) == want


def test_a_damaged_newest_snapshot_costs_nothing(tmp_path):
    server = open_server(tmp_path / "run")
    for sequence in range(1, 9):
        server.push(make_push(sequence))
        if sequence in (2, 4, 6):
            newest = server.save_checkpoint()
    want = get_state(server)
    left = crash(server, tmp_path / "run", tmp_path)
    (left / newest.name / "values.npy").write_bytes(b"noise")
    with open_server(left) as again:
        assert get_state(again) == want


def test_a_replay_uses_the_learning_rates_of_then(tmp_path):
    server = open_server(tmp_path / "run")
    for sequence in range(1, 6):
        server.push(make_push(sequence))
    want = get_state(server)
    left = crash(server, tmp_path / "run", tmp_path)
    with open_server(left, OptimizerConfig(learning_rate=7.0)) as again:
        assert get_state(again) == want


def test_a_journal_is_never_replayed_onto_another_start(tmp_path):
    server = open_server(tmp_path / "run")
    server.push(make_push(1))
    left = crash(server, tmp_path / "run", tmp_path)
    for snapshot in left.glob("cp-*"):
        shutil.rmtree(snapshot)
    with pytest.raises(JournalError, match="no snapshot before it"):
        open_server(left)


def test_who_only_asks_for_values_is_not_written_down(tmp_path):
    with open_server(tmp_path / "run") as server:
        for sequence in range(1, 4):
            server.push(Push(client_id="b", incarnation=1, sequence=sequence))
        assert server._journal._journal.next_index == 0


def test_records_that_do_not_follow_each_other_are_refused(tmp_path):
    server = open_server(tmp_path / "run")
    for sequence in range(1, 4):
        server.push(make_push(sequence))
    # As if the snapshot were of a state that the journal knows nothing of.
    server._journal, journal = None, server._journal
    server.push(make_push(4))
    server._journal = journal
    server.push(make_push(5))
    left = crash(server, tmp_path / "run", tmp_path)
    with pytest.raises(JournalError, match="records between them are missing"):
        open_server(left)


def test_without_a_journal_a_crash_costs_what_came_since_the_snapshot(tmp_path):
    server = open_server(tmp_path / "run", enabled=False)
    assert server.push(make_push(1)).durability == "snapshot"
    server.save_checkpoint()
    want = get_state(server)
    server.push(make_push(2))
    left = crash(server, tmp_path / "run", tmp_path)
    with open_server(left) as again:
        assert get_state(again) == want


def test_a_run_may_change_between_journal_and_snapshot(tmp_path):
    folder = tmp_path / "run"
    for sequence, enabled in enumerate([True, False, True, False], 1):
        server = open_server(folder, enabled=enabled)
        server.push(make_push(sequence))
        if not enabled:
            server.save_checkpoint()
        want = get_state(server)
        folder = crash(server, folder, tmp_path)
        with open_server(folder) as again:
            assert get_state(again) == want


def test_a_full_disk_ends_the_journal_and_not_the_training(tmp_path, monkeypatch, caplog):
    server = open_server(tmp_path / "run")
    server.push(make_push(1))

    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal_module.os, "writev", fail)
    assert server.push(make_push(2)).durability == "snapshot"
    assert server.push(make_push(3)).outcome == "applied"
    assert server.status().durability == "snapshot"
    assert caplog.text.count("the journal is not written any more") == 1
    monkeypatch.undo()
    server.save_checkpoint()
    want = get_state(server)
    left = crash(server, tmp_path / "run", tmp_path)
    with open_server(left) as again:
        assert get_state(again) == want
        assert again.push(make_push(4)).durability == "journal"


def test_a_failed_sync_ends_the_acknowledging(tmp_path, monkeypatch):
    server = open_server(tmp_path / "run", strict=True)
    server.push(make_push(1))

    def fail(*arguments):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(journal_module.os, "fdatasync", fail, raising=False)
    monkeypatch.setattr(journal_module.os, "fsync", fail)
    for _ in range(2):  # also when it is repeated
        with pytest.raises(ServerUnavailableError, match="nothing can be acknowledged any more"):
            server.push(make_push(2))
    monkeypatch.undo()
    server.close(save=False)
    with open_server(tmp_path / "run") as again:  # here it outlived the failure, in the journal
        version = again.version
        assert version == 2
        assert (again.push(make_push(2)).outcome, again.version) == ("applied", version)


def test_what_the_disk_did_not_take_is_not_acknowledged_when_it_is_repeated(tmp_path, monkeypatch):
    server = open_server(tmp_path / "run")
    journal = server._journal._journal

    def fail(*arguments):
        raise OSError(5, "Input/output error")

    with journal._sync_lock:  # the thread that syncs comes to it later
        server.push(make_push(1))
        server.push(make_push(2))
        monkeypatch.setattr(journal_module.os, "fdatasync", fail, raising=False)
        monkeypatch.setattr(journal_module.os, "fsync", fail)
    wait_until(lambda: journal.failed, "the failure")
    for sequence in (2, 3):
        with pytest.raises(ServerUnavailableError, match="nothing can be acknowledged any more"):
            server.push(make_push(sequence))
    assert server.push(Push(client_id="asks")).outcome == "nothing"  # and is told values
    monkeypatch.undo()
    server.close(save=False)


def test_a_close_that_cannot_sync_says_so_and_has_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(push_journal, "SYNC_INTERVAL_SEC", 600.0)
    server = open_server(tmp_path / "run")
    server.push(make_push(1))

    def fail(*arguments):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(journal_module.os, "fdatasync", fail, raising=False)
        patch.setattr(journal_module.os, "fsync", fail)
        with pytest.raises(JournalError, match="cannot be synced"):
            server.close(save=False)
    with open_server(tmp_path / "run") as again:  # the folder is free
        assert again.version == 1


def test_what_was_promised_before_the_journal_was_given_up_is_synced(tmp_path):
    server = open_server(tmp_path / "run", strict=True, max_bytes_per_sec=100.0)
    push = make_push(1)
    replies = server._apply_all([push, *(make_push(number) for number in range(2, 9))])
    assert replies[0].durability == "journal"
    assert replies[-1].durability == "snapshot"
    assert server._journal.unsynced_records == 0
    server.close()


def test_too_many_bytes_end_the_journal(tmp_path, caplog):
    server = open_server(tmp_path / "run", max_bytes_per_sec=100.0)
    durabilities = [server.push(make_push(sequence)).durability for sequence in range(1, 9)]
    assert durabilities[0] == "journal"
    assert durabilities[-1] == "snapshot"
    assert "journal_max_mb_per_sec" in caplog.text
    server.close()


def test_old_segments_are_removed_when_two_snapshots_have_them(tmp_path):
    folder = tmp_path / "run"
    with open_server(folder) as server:
        for sequence in range(1, 20):
            server.push(make_push(sequence))
            server.save_checkpoint()
        assert len(list((folder / "journal").glob("journal-*"))) <= 3
