import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "client"))
# As the programs do: a folder's modules are a package of the folder's name.
sys.path.append(str(Path(__file__).parents[2] / "environments"))

from scripted_server import serve
from support.chromium import Chromium

__all__ = ["serve"]


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """A browser."""
    with Chromium(tmp_path_factory.mktemp("chromium")) as chromium:
        yield chromium
