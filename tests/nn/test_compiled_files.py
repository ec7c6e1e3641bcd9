"""Files of the compile cache: which ones leave."""

import os

from relaax_like.nn import compiled_files
from relaax_like.nn.compiled_files import clean, seal_files


def test_the_oldest_files_leave(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled_files, "_MAX_BYTES", 250)
    ours = [tmp_path / f"{compiled_files.OURS}{number}" for number in range(2)]
    for folder in (*ours, tmp_path / "another"):
        folder.mkdir()
    for age, folder in enumerate([ours[0], ours[1], ours[0], ours[1], tmp_path / "another"]):
        file = folder / f"file{age}"
        file.write_bytes(b"1" * 85)
        seal_files(folder)
        os.utime(file, (1e9 - age, 1e9 - age))
    unfinished = ours[0] / "file9.tmp"
    unfinished.write_bytes(b"1" * 50)
    clean(ours[0])
    names = sorted(path.name for path in tmp_path.glob("*/*"))
    assert names == ["file0", "file1", "file4", "file9.tmp"]
    os.utime(unfinished, (1e9, 1e9))  # its process is gone
    clean(ours[0])
    assert not unfinished.exists()
