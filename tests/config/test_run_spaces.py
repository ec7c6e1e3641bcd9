"""RUN/spaces.json."""

from pathlib import Path

import pytest

from relaax_like.config.run_spaces import SPACES_NAME, forget_run_spaces
from relaax_like.wire.errors import ConfigError


def test_spaces_are_forgotten(tmp_path: Path) -> None:
    forget_run_spaces(tmp_path / "new")  # without a file there is nothing to do
    (tmp_path / SPACES_NAME).touch()
    forget_run_spaces(tmp_path)
    assert not (tmp_path / SPACES_NAME).exists()


def test_spaces_that_cannot_be_removed_are_an_error_of_run_dir(tmp_path: Path) -> None:
    (tmp_path / SPACES_NAME).mkdir()
    with pytest.raises(ConfigError, match=r"run_dir: .*spaces\.json: cannot be removed: "):
        forget_run_spaces(tmp_path)
