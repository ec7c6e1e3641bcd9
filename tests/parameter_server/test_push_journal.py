"""A crash loses nothing that was acknowledged: snapshots, the journal, and both together."""

# covers R2, R22

import itertools
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.durable import ADAM, MANIFEST, crash, get_state, make_push, open_server
from support.threads import wait_until

from relaax_like.cli.fsck import check_folder
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.core.journal import journal as journal_module
from relaax_like.core.journal.head import path_of_marker
from relaax_like.core.journal.journal import Journal
from relaax_like.core.metrics import NullMetrics
from relaax_like.core.records import Push
from relaax_like.parameter_server import push_journal
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.push_journal import PushJournal, holds_records
from relaax_like.parameter_server.push_log import PushLog
from relaax_like.parameter_server.records import Record, pack_record, unpack_record
from relaax_like.parameter_server.snapshots import Snapshots, list_names, read_best
from relaax_like.parameter_server.store import Store
from relaax_like.parameter_server.targets import make_group_steps
from relaax_like.wire.errors import JournalError, ServerUnavailableError


@pytest.mark.parametrize("save_after", [(), (3,), (2, 5), (8,)], ids=str)
def test_after_a_crash_everything_acknowledged_is_there_bit_by_bit(tmp_path, save_after):
    server = open_server(tmp_path / "run")
    for sequence in range(1, 9):
        assert server.push(make_push(sequence)).durability == server.pull().durability == "journal"
        if sequence in save_after:
            server.save_checkpoint()
    want = get_state(server)
    left = crash(server, tmp_path / "run", tmp_path)
    with open_server(left) as again:
        assert get_state(again) == want
        assert again.push(make_push(8)).outcome == "applied"  # answered, not applied
        assert get_state(again) == want
        assert again.push(make_push(9)).global_t == want[1] + 9


def test_steps_that_come_after_the_end_are_counted_and_survive_a_crash(tmp_path):
    server = open_server(tmp_path / "run", max_global_step=1)
    assert server.push(make_push(1)).finished
    before = get_state(server)
    late = server.push(make_push(2))
    assert (late.outcome, late.reason) == ("dropped", "training has finished")
    assert server.push(make_push(4)).outcome == "nothing"  # without a gradient
    want = get_state(server)
    assert (want[0], want[1]) == (before[0], before[1] + 2 + 4)
    left = crash(server, tmp_path / "run", tmp_path)
    with open_server(left, max_global_step=1) as again:
        assert get_state(again) == want
        assert again.push(make_push(4)).global_t == want[1]  # answered, not counted again


def test_replayed_steps_do_not_count_as_speed(tmp_path):
    server = open_server(tmp_path / "run")
    server.push(make_push(1))
    assert server.status().env_steps_per_sec > 0
    with open_server(crash(server, tmp_path / "run", tmp_path)) as again:
        assert again.global_t == 1
        assert again.status().env_steps_per_sec == 0
        again.push(make_push(2))
        assert again.status().env_steps_per_sec > 0


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


@pytest.mark.parametrize("keep", [1, 2, 3])
@pytest.mark.parametrize("meanwhile", [0, 1, 2])
def test_a_state_that_is_judged_while_others_are_saved_costs_nothing(tmp_path, meanwhile, keep):
    """It is kept with its score; a crash loses nothing, also when the newest one is damaged."""
    server = open_server(tmp_path / "run", keep=keep, keep_best=1)
    server.push(make_push(1))
    newest = server.save_checkpoint()
    server.push(make_push(2))
    judged = []

    def judge(state):
        nonlocal newest
        judged.append(state)
        for sequence in range(3, 3 + meanwhile):
            server.push(make_push(sequence))
            newest = server.save_checkpoint()
        return 7.0

    server.save_judged(judge)
    best = read_best(tmp_path / "run")
    assert (best.score, best.global_t, best.version) == (7.0, 3, judged[0].version)
    np.testing.assert_array_equal(best.values, judged[0].values)
    names = list_names(tmp_path / "run")
    assert names[-1] == (newest.name if meanwhile else server._snapshots.path_of(judged[0]).name)
    server.save_judged(lambda state: None)
    assert list_names(tmp_path / "run") == names
    assert server.status().snapshot_global_t == (3, 6, 10)[meanwhile]
    server.push(make_push(6))
    want = get_state(server)
    left = crash(server, tmp_path / "run", tmp_path)
    damaged = tmp_path / "damaged"
    shutil.copytree(left, damaged)
    (damaged / names[-1] / "values.npy").write_bytes(b"noise")
    for folder in (left, damaged)[: min(keep, 2)]:  # a single one that is damaged does not count
        with open_server(folder, keep=keep, keep_best=1) as again:
            assert get_state(again) == want


def test_a_replay_uses_the_learning_rates_of_then(tmp_path):
    server = open_server(tmp_path / "run")
    for sequence in range(1, 6):
        server.push(make_push(sequence))
    want = get_state(server)
    left = crash(server, tmp_path / "run", tmp_path)
    with open_server(left, OptimizerConfig(learning_rate=7.0)) as again:
        assert get_state(again) == want


CHANGED = OptimizerConfig(learning_rate=0.01, beta1=0.5, beta2=0.9, epsilon=1e-3)


def test_a_replay_uses_the_optimizer_settings_of_then(tmp_path, caplog):
    """Settings change at each start, with and without a snapshot between; any snapshot will do."""
    caplog.set_level("INFO")
    server = open_server(tmp_path / "run")
    for sequence in range(1, 4):
        server.push(make_push(sequence))
    left = crash(server, tmp_path / "run", tmp_path)
    server = open_server(left, CHANGED)
    changes = "default.learning_rate 0.1 -> 0.01, default.schedule linear -> constant, "
    assert changes in caplog.text
    assert "default.beta1 0.9 -> 0.5, default.beta2 0.999 -> 0.9, " in caplog.text
    assert caplog.text.count("the new ones apply from version 4 on") == 1
    server.save_checkpoint()  # of a state that the new settings have not touched
    server.push(make_push(4))  # steps alone
    for sequence in range(5, 8):
        server.push(make_push(sequence))
    server.save_checkpoint()
    server.push(make_push(8))
    want = get_state(server)
    left = crash(server, left, tmp_path)
    for damaged in range(2):
        folder = tmp_path / f"damaged-{damaged}"
        shutil.copytree(left, folder)
        for path in sorted(folder.glob("cp-*"))[3 - damaged :]:
            (path / "values.npy").write_bytes(b"noise")
        caplog.clear()
        with open_server(folder, OptimizerConfig(beta1=0.1)) as again:
            assert get_state(again) == want
            assert "default.beta1 0.5 -> 0.1" in caplog.text
            assert "the new ones apply from version 8 on" in caplog.text
        caplog.clear()
        with open_server(folder, CHANGED) as again:
            assert get_state(again) == want
        assert "optimizer settings have changed" not in caplog.text


def test_the_next_version_meets_the_new_settings(tmp_path):
    server = open_server(tmp_path / "run")
    server.push(make_push(1))
    left = crash(server, tmp_path / "run", tmp_path)
    with open_server(left, CHANGED) as again:
        again.push(make_push(2))
        got = get_state(again)
    with open_server(tmp_path / "other") as other:
        other.push(make_push(1))
        steps = make_group_steps(other.manifest, {"default": CHANGED}, {})
        other._store._optimizers = steps
        other._store._groups = tuple(
            replace(group, config=steps[group.name]) for group in other._store._groups
        )
        other.push(make_push(2))
        assert get_state(other) == got


def test_a_journal_is_never_replayed_onto_another_start(tmp_path):
    server = open_server(tmp_path / "run")
    server.push(make_push(1))
    left = crash(server, tmp_path / "run", tmp_path)
    for snapshot in left.glob("cp-*"):
        shutil.rmtree(snapshot)
    with pytest.raises(JournalError, match="no snapshot before it"):
        open_server(left)


def test_the_error_of_a_failed_replay_is_raised_and_nothing_is_saved(tmp_path):
    """Also by a server whose context manager closes it."""
    server = open_server(tmp_path / "run")
    for sequence in range(1, 4):
        server.push(make_push(sequence))
    server._applier._push_log, journal = PushLog(), server._applier._push_log
    server.push(make_push(4))
    server._applier._push_log = journal
    server.push(make_push(5))
    left = crash(server, tmp_path / "run", tmp_path)
    names = list_names(left)
    store = Store(MANIFEST, np.zeros(MANIFEST.total_bytes, np.uint8), {"default": ADAM})
    again = ParameterServer(
        store,
        snapshots=Snapshots(left),
        journal=PushJournal(left / "journal", MANIFEST.fingerprint),
        metrics=NullMetrics(),
    )
    with pytest.raises(JournalError, match="continues version 3, step 10"), again:
        again.restore_latest_checkpoint()
    assert again.version == 3  # three records were replayed
    assert list_names(left) == names


def test_an_applied_gradient_without_elements_is_read_back_as_one():
    push = Push(client_id="a", gradient=np.zeros(0, np.float32), groups=("empty",))

    def copy(record):
        return unpack_record(memoryview(b"".join(bytes(one) for one in pack_record(record))))

    for outcome, rates in (("applied", {"empty": 0.1}), ("pending", {})):
        record = Record(push, rates, 3, 4, outcome)
        again = copy(record)
        assert (again.outcome, again.version_before) == (outcome, record.version_before)
        assert again.push.gradient.shape == (0,)
    again = copy(Record(replace(push, gradient=None), {}, 3, 4))
    assert (again.outcome, again.push.gradient, again.version_before) == ("nothing", None, 3)


def test_a_segment_that_cannot_be_examined_is_reported(tmp_path, monkeypatch):
    server = open_server(tmp_path / "run")
    server.push(make_push(1))
    left = crash(server, tmp_path / "run", tmp_path)
    assert holds_records(left / "journal")
    (left / "journal-head").unlink()

    def fail(path, **options):
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", fail)
        with pytest.raises(JournalError, match=r"cannot be examined: .*Permission denied"):
            holds_records(left / "journal")


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
    server._applier._push_log, journal = PushLog(), server._applier._push_log
    server.push(make_push(4))
    server._applier._push_log = journal
    server.push(make_push(5))
    left = crash(server, tmp_path / "run", tmp_path)
    with pytest.raises(
        JournalError,
        match="continues version 3, step 10; the data before it ends at version 3, step 6",
    ):
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
    assert server.status().journal_error == ""
    assert caplog.text.count("the journal is no longer written") == 1
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
        with pytest.raises(ServerUnavailableError, match="no more pushes can be acknowledged"):
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
        with pytest.raises(ServerUnavailableError, match="no more pushes can be acknowledged"):
            server.push(make_push(sequence))
    assert server.push(Push(client_id="asks")).outcome == "nothing"  # and receives values
    status = server.status()
    assert (status.durability, status.unsynced_records) == ("journal", 2)
    assert "cannot be synced: [Errno 5]" in status.journal_error
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
    replies = server._applier.apply_all([push, *(make_push(number) for number in range(2, 9))])
    assert replies[0].durability == "journal"
    assert replies[-1].durability == "snapshot"
    assert server._journal.unsynced_records == 0
    server.close()


@pytest.mark.parametrize(
    ("failing", "durability", "want"),
    [
        ((Journal, "_sync_files"), "snapshot", "cannot be synced: [Errno 5]"),
        ((journal_module, "sync_path"), "journal", "not-given-up: cannot be removed: [Errno 5]"),
    ],
)
def test_a_sync_that_fails_as_the_journal_is_given_up_is_shown(
    tmp_path, monkeypatch, failing, durability, want
):
    server = open_server(tmp_path / "run", strict=True, max_bytes_per_sec=100.0)

    def fail(*arguments):
        raise OSError(5, "Input/output error")

    try:
        with monkeypatch.context() as patch:
            patch.setattr(*failing, fail)
            replies = server._applier.apply_all([make_push(number) for number in range(1, 9)])
        assert all(isinstance(reply, ServerUnavailableError) for reply in replies)
        status = server.status()
        assert status.durability == durability
        assert want in status.journal_error
    finally:
        server.close(save=False)


def fail_writev(*arguments):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("saved", [False, True])
def test_what_was_given_up_is_told_until_a_snapshot_has_it(
    tmp_path, monkeypatch, caplog, capsys, strict, saved
):
    server = open_server(tmp_path / "run", strict=strict)
    server.push(make_push(1))
    marker = path_of_marker(tmp_path / "run" / "journal")
    assert marker.exists()
    synced = []
    with monkeypatch.context() as patch:
        patch.setattr(journal_module.os, "writev", fail_writev)
        patch.setattr(journal_module, "sync_path", lambda path: synced.append(marker.exists()))
        assert server.push(make_push(2)).durability == "snapshot"
    assert (synced, marker.exists()) == ([False], False)  # before the answer
    assert server.push(make_push(3)).durability == "snapshot"
    assert server.status().given_up_version == 1
    if saved:
        server.save_checkpoint()
        assert server.status().given_up_version is None
        assert server.push(make_push(4)).durability == "journal"
    version = server.version
    left = crash(server, tmp_path / "run", tmp_path)
    words = "the journal was given up at version 1, step 1"
    check_folder(left, to_last_good=False)
    assert (words in capsys.readouterr().out) == (not saved)
    with open_server(left) as again:
        assert again.version == (version if saved else 1)
        assert (words in caplog.text) == (not saved)
        caplog.clear()
    with open_server(left):
        assert words not in caplog.text  # once


def test_a_journal_that_is_written_again_continues_the_snapshot_beside_pushes(
    tmp_path, monkeypatch
):
    """Pushes arrive all the while; each time, the process is killed some pushes later."""
    folder, numbers = tmp_path / "run", itertools.count(1)
    for _ in range(5):
        server, stopping = open_server(folder), threading.Event()

        def push_on(server=server, stopping=stopping):
            while not stopping.is_set():
                server.push(make_push(next(numbers)))

        def wait_pushes(server=server):
            before = server.version
            wait_until(lambda: server.version > before + 5, "more pushes")

        pusher = threading.Thread(target=push_on)
        pusher.start()
        try:
            wait_pushes()
            with monkeypatch.context() as patch:
                patch.setattr(journal_module.os, "writev", fail_writev)
                wait_pushes()
                assert server.status().given_up_version is not None
            server.save_checkpoint()
            assert server.status().given_up_version is None
            wait_pushes()
        finally:
            stopping.set()
            pusher.join()
        want = get_state(server)
        folder = crash(server, folder, tmp_path)
    with open_server(folder) as again:
        assert get_state(again) == want


@pytest.mark.parametrize("strict", [False, True])
def test_without_a_note_on_the_disk_nothing_more_is_acknowledged(tmp_path, monkeypatch, strict):
    server = open_server(tmp_path / "run", strict=strict)
    server.push(make_push(1))

    def fail(path):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(journal_module.os, "writev", fail_writev)
        patch.setattr(journal_module, "sync_path", fail)
        with pytest.raises(ServerUnavailableError, match="not-given-up: cannot be removed"):
            server.push(make_push(2))
    for sequence in (2, 3):  # also when the disk works again
        with pytest.raises(ServerUnavailableError, match="no more pushes can be acknowledged"):
            server.push(make_push(sequence))
    assert "not-given-up: cannot be removed" in server.status().journal_error
    assert server.version == 1
    server.close(save=False)


def test_a_journal_that_cannot_be_covered_again_stays_given_up(tmp_path, monkeypatch):
    server = open_server(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(journal_module.os, "writev", fail_writev)
        server.push(make_push(1))
    touch = Path.touch

    def refuse(self, *arguments, **options):
        if self.name == "not-given-up":
            raise OSError(28, "No space left on device")
        touch(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "touch", refuse)
        server.save_checkpoint()
        assert server.status().given_up_version == 0
        assert server.push(make_push(2)).durability == "snapshot"
    server.save_checkpoint()
    assert server.push(make_push(3)).durability == "journal"
    server.close()


def test_too_many_bytes_end_the_journal_until_the_next_start(tmp_path, caplog):
    server = open_server(tmp_path / "run", max_bytes_per_sec=100.0)
    durabilities = [server.push(make_push(sequence)).durability for sequence in range(1, 9)]
    assert durabilities[0] == "journal"
    assert durabilities[-1] == "snapshot"
    server.save_checkpoint()
    assert server.push(make_push(9)).durability == "snapshot"  # it would be too much again
    assert "journal_max_mb_per_sec" in caplog.text
    server.close()


def test_old_segments_are_removed_when_two_snapshots_have_them(tmp_path):
    folder = tmp_path / "run"
    with open_server(folder) as server:
        for sequence in range(1, 20):
            server.push(make_push(sequence))
            server.save_checkpoint()
        assert len(list((folder / "journal").glob("journal-*"))) <= 3
