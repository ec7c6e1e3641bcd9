"""RUN/versions.json: what it has, and when there is a warning."""

import json
import os
from pathlib import Path

import pytest

from relaax_like.runs.folders.versions import VERSIONS_NAME, keep_versions, read_versions


def test_a_second_version_of_a_package_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for client, versions in (
        ("a", {"gymnasium": "1.4.0", "mujoco": "3.3.7"}),
        ("b", {"gymnasium": "1.4.0", "mujoco": "4.0.0"}),
        ("c", {}),
        ("d", {"mujoco": "4.0.0"}),
        ("e", {"mujoco": "4.0.1"}),
    ):
        for _ in range(2):
            keep_versions(tmp_path, client, versions)
    kept = {"gymnasium": ["1.4.0"], "mujoco": ["3.3.7", "4.0.0", "4.0.1"]}
    assert read_versions(tmp_path) == kept
    assert json.loads((tmp_path / VERSIONS_NAME).read_text()) == kept
    (line,) = caplog.messages
    assert line.startswith("b has mujoco 4.0.0, but another client of this run 3.3.7: ")


def test_the_file_stays_small(tmp_path: Path) -> None:
    for number in range(500):
        keep_versions(tmp_path, "a", {f"package{number}": "1", "same": str(number)})
    assert 300 < sum(map(len, read_versions(tmp_path).values())) < 310


@pytest.mark.parametrize("text", ["", "[1]", "3", "null", '{"a": 3}', "\xff"])
def test_a_damaged_file_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / VERSIONS_NAME).write_bytes(text.encode("latin-1"))
    assert read_versions(tmp_path) == {}
    keep_versions(tmp_path, "a", {"mujoco": "1"})
    assert read_versions(tmp_path) == {"mujoco": ["1"]}


def test_a_folder_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    keep_versions(tmp_path / "nowhere", "a", {"mujoco": "1"})
    assert read_versions(tmp_path / "nowhere") == {}


def test_a_file_that_cannot_be_written_is_no_warning_for_each_report(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep_versions(tmp_path, "a", {"mujoco": "3.3.7"})
    obstacle = tmp_path / f".tmp-{os.getpid()}-{VERSIONS_NAME}"
    obstacle.mkdir()
    for _ in range(3):
        keep_versions(tmp_path, "b", {"mujoco": "4.0.0"})
    assert caplog.messages == []
    obstacle.rmdir()
    for _ in range(3):
        keep_versions(tmp_path, "b", {"mujoco": "4.0.0"})
    assert len(caplog.messages) == 1
