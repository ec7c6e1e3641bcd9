"""RUN/log.txt: lines with the date, on a disk that has room and on one that has not."""

import logging
from pathlib import Path

import pytest

from relaax_like.runs.processes.log_file import LOG_NAME, keeping_log
from relaax_like.wire.errors import ConfigError

logger = logging.getLogger("relaax_like.test_log_file")


def test_lines_are_appended_while_the_block_lasts(tmp_path: Path) -> None:
    for word in ("one", "two"):
        with keeping_log(tmp_path):
            logger.warning("line %s", word)
        logger.warning("outside")
    first, second = (tmp_path / LOG_NAME).read_text().splitlines()
    assert first.endswith(" line one")
    assert second.endswith(" line two")


def test_a_full_disk_drops_lines_and_raises_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / LOG_NAME).symlink_to("/dev/full")
    with keeping_log(tmp_path):
        logger.warning("dropped")
    assert "Traceback" not in capfd.readouterr().err


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run_dir: .*nowhere/log\.txt cannot be written"):
        with keeping_log(tmp_path / "nowhere"):
            raise AssertionError("not reached")
