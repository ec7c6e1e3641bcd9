from pathlib import Path

import pytest

_CONFIG = """
from pydantic import Field

from relaax_like.config.algorithm import AlgorithmConfig

from .defaults import LAYER_SIZE


class Config(AlgorithmConfig):
    layer_size: int = Field(default=LAYER_SIZE, ge=1, alias="hidden_layer_size")
    GAMMA: float = Field(default=0.99, alias="rewards_gamma")
    action_size: int = 1
    state_size: int = 4
    hidden_sizes: tuple[int, ...] = (64, 64)
    size_or_sizes: int | tuple[int, ...] = 1
"""


@pytest.fixture
def algorithm_folder(tmp_path: Path) -> Path:
    """A user's own algorithm, in which one module imports another."""
    folder = tmp_path / "my_algorithm"
    folder.mkdir()
    (folder / "config.py").write_text(_CONFIG)
    (folder / "defaults.py").write_text("LAYER_SIZE = 200\n")
    return folder
