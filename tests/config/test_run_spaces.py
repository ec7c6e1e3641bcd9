"""RUN/spaces.json."""

from pathlib import Path

import pytest

from relaax_like.config.run_spaces import (
    SPACES_NAME,
    forget_run_spaces,
    keep_run_spaces,
    read_run_spaces,
)
from relaax_like.wire.errors import ConfigError
from relaax_like.wire.spaces import Box, Discrete, RunSpaces


def test_the_first_spaces_stay_and_those_that_are_too_large_are_not_kept(tmp_path: Path) -> None:
    large = {"observation": Box(dtype="uint8", shape=(1 << 12, 1 << 12, 2))}
    keep_run_spaces(tmp_path, RunSpaces(large, {"action": Discrete(n=2)}))
    assert read_run_spaces(tmp_path) is None
    small = {"observation": Box(dtype="uint8", shape=(2,))}
    for start in (-1, 4):
        keep_run_spaces(tmp_path, RunSpaces(small, {"action": Discrete(n=2, start=start)}))
        assert read_run_spaces(tmp_path) == (small, {"action": Discrete(n=2, start=-1)})


def test_spaces_are_forgotten(tmp_path: Path) -> None:
    forget_run_spaces(tmp_path / "new")  # without a file there is nothing to do
    (tmp_path / SPACES_NAME).touch()
    forget_run_spaces(tmp_path)
    assert not (tmp_path / SPACES_NAME).exists()


def test_spaces_that_cannot_be_removed_are_an_error_of_run_dir(tmp_path: Path) -> None:
    (tmp_path / SPACES_NAME).mkdir()
    with pytest.raises(ConfigError, match=r"run_dir: .*spaces\.json: cannot be removed: "):
        forget_run_spaces(tmp_path)
