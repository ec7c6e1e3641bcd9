"""`relaax fsck` on folders that a crash or a bad disk left."""

import shutil

import numpy as np
import pytest

from relaax_like.cli.fsck import check_folder
from relaax_like.parameter_server.folder import lock_folder
from relaax_like.parameter_server.journal import Journal
from relaax_like.parameter_server.journal_reader import JournalReader
from relaax_like.wire.errors import ConfigError, JournalError, SnapshotError

FINGERPRINT = 7


@pytest.fixture
def run_dir(tmp_path):
    checkpoints = tmp_path / "run" / "checkpoints"
    checkpoints.mkdir(parents=True)
    lock_folder(checkpoints).close()
    with Journal(checkpoints / "journal", 0, fingerprint=FINGERPRINT) as journal:
        for number in range(10):
            journal.append([bytes([number]) * 100])
    return tmp_path / "run"


def get_segment(run_dir):
    (path,) = (run_dir / "checkpoints" / "journal").glob("journal-*")
    return path


def read(run_dir):
    reader = JournalReader(run_dir / "checkpoints" / "journal", FINGERPRINT, 0)
    return [payload[0] for _, payload in reader]


@pytest.mark.parametrize("part", ["", "checkpoints"])
def test_a_whole_journal_is_found_whole(run_dir, part, capsys):
    assert check_folder(run_dir / part, False) == 0
    printed = capsys.readouterr().out
    assert "newest snapshot: none" in printed
    assert "whole" in printed


def test_a_torn_end_is_no_damage(run_dir, capsys):
    path = get_segment(run_dir)
    path.write_bytes(path.read_bytes()[:-3])
    assert check_folder(run_dir, False) == 0
    assert "torn at offset" in capsys.readouterr().out
    assert read(run_dir) == list(range(9))


def test_damage_is_named_and_set_aside_when_asked(run_dir, capsys):
    path = get_segment(run_dir)
    data = bytearray(path.read_bytes())
    data[data.index(bytes([4]) * 100) + 50] ^= 1
    path.write_bytes(data)
    assert check_folder(run_dir, False) == 1
    printed = capsys.readouterr().out
    assert "damaged at offset" in printed
    assert "where record 4 should be" in printed
    with pytest.raises(JournalError):
        read(run_dir)
    assert check_folder(run_dir, True) == 0
    assert "records from 4 on are set aside" in capsys.readouterr().out
    assert read(run_dir) == [0, 1, 2, 3]
    assert check_folder(run_dir, False) == 0


def test_a_running_server_s_folder_is_left_alone(run_dir):
    lock = lock_folder(run_dir / "checkpoints")
    with pytest.raises(SnapshotError, match="held by another parameter server"):
        check_folder(run_dir, True)
    lock.close()


def test_all_snapshots_damaged_is_an_error(run_dir):
    snapshot = run_dir / "checkpoints" / f"cp-{5:020d}-{1:020d}"
    shutil.copytree(run_dir / "checkpoints" / "journal", snapshot)
    np.save(snapshot / "values.npy", np.zeros(3))
    with pytest.raises(SnapshotError, match="are damaged"):
        check_folder(run_dir, False)


def test_another_folder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no run's folder"):
        check_folder(tmp_path, False)
