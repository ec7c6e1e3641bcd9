"""What a replay table accepted is there after a crash, once, and a bounded number of files."""

# covers R2, R22

import dataclasses
import logging
import os
import shutil

import numpy as np
import pytest
from support.journal import SlowDisk
from support.replayed import make_config, make_source, make_step

from relaax_like.cli.fsck import check_folder
from relaax_like.core.journal.files import HEADER_BYTES, list_segments
from relaax_like.core.journal.head import path_of_marker
from relaax_like.core.journal.journal import Journal
from relaax_like.core.records import Episode, Origin, Received
from relaax_like.learn.replay_log import ReplayLog
from relaax_like.wire.errors import (
    CollectorFullError,
    ConfigError,
    JournalError,
    ServerUnavailableError,
)


def origin(sequence, client="one", incarnation=5):
    return Origin(client, incarnation, sequence)


def open_source(folder, published=None, **settings):
    """Opens a source as a start of the server does; `settings` are dqn's."""
    source, tally = make_source(make_config(**settings), folder=folder)
    tally.load(published or {})
    source.load()
    return source, tally


def crash(folder, root):
    """Returns a copy of the written bytes, as another process finds them after `kill -9`."""
    copy = root / f"after-{len(list(root.glob('after-*')))}" / "replay"
    shutil.copytree(folder, copy)
    head = folder.with_name("replay-head")
    shutil.copy(head, copy.with_name("replay-head"))
    return copy


def list_steps(source):
    """Returns agent, episode and step of each step in a table, in order."""
    table = source._table
    with table._lock:
        oldest, following = table.rows
        storage = table._storage
        rows = np.arange(oldest, following) % storage.capacity
        steps = storage.read_states(rows) != 3
        return storage.keys[rows[steps]].tolist()


def test_after_a_crash_every_step_is_there_once_and_what_was_not_published_is_counted(tmp_path):
    source, tally = open_source(tmp_path / "replay")
    for number in range(5):
        source.add(make_step(number), [Episode(2.5, 4)], origin=origin(number + 1))
    source.add_counts(3, [Episode(-1.0, 3)], origin(6))
    published = tally.take().received
    assert published["one"].counted == 6
    source.add(make_step(5), [], origin=origin(7))
    source.add_counts(2, [Episode(7.0, 2)], origin(8))

    again, counts = open_source(crash(source._log.directory, tmp_path), published)
    assert list_steps(again) == list_steps(source) == [[7, 0, n] for n in range(6)]
    assert again.tally.received["one"].counted == 8  # so that nothing is taken a second time
    iteration = again.get(0, 0.0)  # at once: nobody has to send anything
    assert (iteration.minibatches, iteration.env_steps) == (None, 3)
    assert again.get(0, 0.0) is None
    taken = counts.take()
    assert (taken.env_steps, list(taken.episodes)) == (3, [Episode(7.0, 2)])
    for one, other in zip(
        again._table._storage.get_state()["columns"].values(),
        source._table._storage.get_state()["columns"].values(),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


def test_masks_of_legal_actions_are_there_after_a_crash(tmp_path):
    """covers PE20"""
    settings = {"masks": {"action": (3,)}}
    source, _ = open_source(tmp_path / "replay", **settings)
    for number in range(12):
        step, masks = make_step(number), np.eye(3, dtype=np.bool_)
        inputs, following = (masks[[[(number + later) % 3]]] for later in (0, 1))
        step = dataclasses.replace(
            step,
            inputs={**step.inputs, "mask:action": inputs},
            next_inputs={**step.next_inputs, "mask:action": following},
        )
        source.add(step, [], origin=origin(number + 1))
    again, _ = open_source(crash(source._log.directory, tmp_path), **settings)
    drawn = again._table.sample(2)
    for inputs in (drawn.observations, drawn.next_observations):
        chosen = inputs["observation"][..., 0].astype(int) % 3
        np.testing.assert_array_equal(inputs["mask:action"], masks[chosen])


def test_an_earlier_incarnation_was_published_with_a_later_one(tmp_path):
    source, _ = open_source(tmp_path / "replay")
    source.add(make_step(0), [], origin=origin(9, incarnation=5))
    source.add(make_step(1), [], origin=origin(1, incarnation=6))
    source.add(make_step(2), [], origin=origin(1, "another"))
    published = {"one": Received(6, 1, 1)}
    _, counts = open_source(crash(source._log.directory, tmp_path), published)
    assert counts.take().env_steps == 1


def test_a_run_continues_where_updates_and_steps_were(tmp_path):
    settings = {"updates_per_step": 0.5, "priority_exponent": 0.6}
    source, _ = open_source(tmp_path / "replay", **settings)
    for number in range(20):
        source.add(make_step(number), [], origin=origin(number + 1))
        while source.has_iteration:
            source.get(0, 0.0)
    counts = source._table.counts
    assert (counts.steps, counts.minibatches) == (20, 6)
    again, _ = open_source(crash(source._log.directory, tmp_path), **settings)
    again.add(make_step(20), [], origin=origin(21))
    after = again._table.counts
    assert (after.steps, after.minibatches) == (21, 6)
    assert after.deficit == 0.5 * (21 - 6) - 6
    # The exponent of the weights continues, too.
    assert again._table._minibatches == 6


def test_steps_count_for_warm_up_after_a_crash(tmp_path):
    source, _ = open_source(tmp_path / "replay")
    for number in range(5):
        source.add(make_step(number), [], origin=origin(number + 1))
    again, _ = open_source(crash(source._log.directory, tmp_path))
    for number in range(5, 9):
        again.add(make_step(number), [], origin=origin(number + 1))
    assert again.has_rollouts(again.get(0, 0.0))


def test_files_whose_rows_are_gone_are_removed_and_the_rest_makes_the_same_table(tmp_path):
    config = make_config(capacity=64, updates_per_step=0.001)
    source, _ = make_source(config, tmp_path / "replay", segment_bytes=2_000)
    source.load()
    most = 0
    for number in range(400):
        source.add(
            make_step(number, 0.0 if number % 7 == 6 else 1.0), [], origin=origin(number + 1)
        )
        most = max(most, len(list_segments(tmp_path / "replay")))
    found = list_segments(tmp_path / "replay")
    assert found[0].first_index > 250
    assert 2 < len(found) <= most < 20
    again, _ = make_source(config, crash(tmp_path / "replay", tmp_path), segment_bytes=2_000)
    again.load()
    assert list_steps(again)[-40:] == list_steps(source)[-40:]
    assert list_steps(again) == list_steps(source)[-len(list_steps(again)) :]
    for number in range(400, 800):  # and they are removed as before
        again.add(make_step(number), [], origin=origin(number + 1))
    assert list_segments(again._log.directory)[0].first_index > 650


def test_priorities_survive_an_orderly_end_bit_by_bit_and_no_crash(tmp_path):
    settings = {"priority_exponent": 0.6, "updates_per_step": 0.01}
    source, _ = open_source(tmp_path / "replay", **settings)
    for number in range(20):
        source.add(make_step(number), [], origin=origin(number + 1))
    ids, _ = source._table._selector.get_priorities()
    source._table.update_priorities(ids, np.random.default_rng(0).normal(size=len(ids)))
    want = source._table.get_priorities()
    killed = crash(source._log.directory, tmp_path)
    source.close()

    again, _ = open_source(tmp_path / "replay", **settings)
    found = again._table.get_priorities()
    np.testing.assert_array_equal(found["keys"], want["keys"])
    np.testing.assert_array_equal(found["priorities"], want["priorities"])
    assert not (tmp_path / "replay" / "priorities.npz").exists()
    again.close()
    # With other steps after them they are of no use.
    (tmp_path / "replay" / "priorities.npz").rename(tmp_path / "kept")
    third, _ = open_source(tmp_path / "replay", **settings)
    third.add(make_step(20), [], origin=origin(21))
    shutil.copy(tmp_path / "kept", tmp_path / "replay" / "priorities.npz")
    for folder in (killed, crash(tmp_path / "replay", tmp_path)):
        fourth, _ = open_source(folder, **settings)
        assert set(fourth._table.get_priorities()["priorities"]) == {1.0}


def test_another_n_step_is_computed_from_the_same_steps_and_other_spaces_are_refused(tmp_path):
    source, _ = open_source(tmp_path / "replay")
    for number in range(12):
        source.add(make_step(number), [], origin=origin(number + 1))
    killed = crash(source._log.directory, tmp_path)
    again, _ = open_source(killed, n_step=3)
    batch = again._table.sample()
    first = batch.observations["observation"][..., 0]
    np.testing.assert_allclose(
        batch.returns[..., 0], first + 0.5 * (first + 1) + 0.25 * (first + 2)
    )
    with pytest.raises(
        ConfigError, match=r"does not fit this run: .*\[1, 1, 2\].*another checkpoint_dir"
    ):
        open_source(crash(source._log.directory, tmp_path), state_size=3)


def test_a_full_disk_ends_the_log_and_not_the_run(tmp_path, monkeypatch, caplog, capsys):
    source, tally = open_source(tmp_path / "replay")
    source.add(make_step(0), [], origin=origin(1))

    def append(self, pieces):
        raise JournalError("No space left on device")

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(Journal, "append", append)
        source.add(make_step(1), [], origin=origin(2))
        assert not path_of_marker(source._log.directory).exists()  # before the answer
    assert "no longer written: No space left on device" in caplog.text
    source.add(make_step(2), [], origin=origin(3))
    assert source.table_status.given_up_step == 1
    assert tally.take().env_steps == 3
    published = {"one": Received(5, 3, 3)}
    left = crash(source._log.directory, tmp_path)
    assert check_folder(left.parent, to_last_good=False) == 0
    assert (
        "the replay table's journal was given up at record 1 or before" in capsys.readouterr().out
    )
    again, counts = open_source(left, published)
    assert (list_steps(again), counts.take().env_steps) == ([[7, 0, 0]], 0)
    assert "the replay table's journal was given up at step 0 or before" in caplog.text


def test_a_log_is_complete_again_when_all_that_is_missing_has_left_the_table(
    tmp_path, monkeypatch, caplog
):
    source, _ = open_source(tmp_path / "replay", capacity=8)
    marker = path_of_marker(source._log.directory)
    monkeypatch.setattr("relaax_like.learn.replay_log._RETRY_SEC", 0.0)

    def append(self, pieces):
        raise JournalError("No space left on device")

    covered = []
    for number in range(40):
        with monkeypatch.context() as patch:
            if number in (3, 4, 9):
                patch.setattr(Journal, "append", append)
            source.add(make_step(number), [], origin=origin(number + 1), is_urgent=True)
        covered.append(marker.exists())
        assert (source.table_status.given_up_step is None) == covered[-1]
        lacks = any([7, 0, step] in list_steps(source) for step in (3, 4, 9))
        assert not (covered[-1] and lacks)
    assert not all(covered)
    assert covered[-1]
    want = list_steps(source)
    again, _ = open_source(crash(source._log.directory, tmp_path), capacity=8)
    assert list_steps(again) == want
    assert "given up" not in caplog.text


def test_without_a_note_on_the_disk_no_more_experience_is_acknowledged(tmp_path, monkeypatch):
    source, tally = open_source(tmp_path / "replay")
    disk = SlowDisk(monkeypatch)

    def append(self, pieces):
        disk.error = OSError(5, "I/O error")
        raise JournalError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", append)
        with pytest.raises(ServerUnavailableError, match="not-given-up: cannot be removed"):
            source.add(make_step(0), [], origin=origin(1))
    with pytest.raises(ServerUnavailableError, match="no more experience can be acknowledged"):
        source.add(make_step(0), [], origin=origin(1))
    assert tally.take().env_steps == 0


def test_after_a_failed_sync_nothing_is_acknowledged(tmp_path, monkeypatch):
    config = make_config()
    source, tally = make_source(config, tmp_path / "replay", strict=True)
    source.load()
    source.add(make_step(0), [], origin=origin(1))
    assert source._log._journal.unsynced_records == 0  # strict: on the disk before the answer
    disk = SlowDisk(monkeypatch)
    disk.error = OSError(5, "I/O error")
    for number in (1, 2):
        with pytest.raises(ServerUnavailableError, match="no more experience can be acknowledged"):
            source.add(make_step(number), [], origin=origin(number + 1))
    assert tally.take().env_steps == 1


def test_agents_wait_for_a_disk_that_is_slower_than_they_are(tmp_path, monkeypatch):
    source, tally = open_source(tmp_path / "replay")
    monkeypatch.setattr("relaax_like.learn.replay_log._MAX_UNSYNCED_BYTES", 1_000)
    disk = SlowDisk(monkeypatch)
    disk.free.clear()
    with pytest.raises(CollectorFullError, match="the disk is behind"):  # noqa: PT012
        for number in range(50):
            source.add(make_step(number), [], origin=origin(number + 1))
    accepted = tally.take().env_steps
    assert accepted == number > 1
    disk.free.set()
    source._log._journal.sync()
    source.add(make_step(number), [], origin=origin(number + 1))


def test_what_the_table_refuses_is_not_in_the_log(tmp_path):
    source, _ = open_source(tmp_path / "replay", capacity=200)
    number = 0
    with pytest.raises(CollectorFullError, match="the learner is behind"):  # noqa: PT012
        while number < 100:
            source.add(make_step(number), [], origin=origin(number + 1))
            number += 1
    source.close()
    with pytest.raises(CollectorFullError, match="closed"):
        source.add(make_step(number), [], origin=origin(number + 1))
    again, _ = open_source(tmp_path / "replay", capacity=200)
    assert len(list_steps(again)) == number


def test_a_torn_end_is_cut_and_damage_is_refused_until_fsck_discards_it(tmp_path, capsys, caplog):
    checkpoints = tmp_path / "checkpoints"
    source, _ = open_source(checkpoints / "replay")
    for number in range(6):
        source.add(make_step(number), [], origin=origin(number + 1))
    source._log._journal.sync()
    killed = crash(checkpoints / "replay", tmp_path)
    path = list_segments(killed)[0].path
    size = path.stat().st_size
    with open(path, "ab") as file:
        file.write(b"\x8dRec" + bytes(10))
    again, _ = open_source(killed)
    assert len(list_steps(again)) == 6
    assert "truncating" in caplog.text
    again.close()
    assert path.stat().st_size == size

    damaged = crash(checkpoints / "replay", tmp_path)
    path = list_segments(damaged)[0].path
    middle = HEADER_BYTES + (path.stat().st_size - HEADER_BYTES) // 2
    with open(path, "r+b") as file:
        file.seek(middle)
        file.write(os.urandom(4))
    with pytest.raises(JournalError, match=r"fsck .* --to-last-good"):
        open_source(damaged)
    # As on the machine of a learner in a process of its own: nothing is there but the table's log.
    assert check_folder(damaged.parent, to_last_good=False) == 1
    said = capsys.readouterr().out
    assert "the learner cannot start; with --to-last-good it starts without" in said
    assert "parameter server" not in said
    assert check_folder(damaged.parent, to_last_good=True) == 0
    assert check_folder(damaged.parent, to_last_good=False) == 0
    again, _ = open_source(damaged)
    assert 0 < len(list_steps(again)) < 6


def test_a_missing_folder_is_noticed(tmp_path):
    source, _ = open_source(tmp_path / "replay")
    source.add(make_step(0), [], origin=origin(1))
    source._log._journal.sync()
    killed = crash(source._log.directory, tmp_path)
    shutil.rmtree(killed)
    with pytest.raises(JournalError, match="the journal ends before record 0"):
        open_source(killed)
    (killed.parent / "lock").touch()
    assert check_folder(killed.parent, to_last_good=False) == 1
    assert check_folder(killed.parent, to_last_good=True) == 0
    again, _ = open_source(killed)
    assert list_steps(again) == []


def test_a_log_without_a_table_s_rows_starts_empty(tmp_path):
    log = ReplayLog(tmp_path / "replay", lambda: (0, 0))
    assert list(log.replay()) == []
    assert log.take_priorities() == {}
    log.close({})
    log.close({})
