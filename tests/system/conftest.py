"""Clusters compile all that they need, as those of users do."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def _without_compile_cache() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TF_XLA_FLAGS", raising=False)
        yield
