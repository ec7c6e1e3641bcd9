"""Initial weights: what is said of large ones before they are built."""

import numpy as np
import pytest

from relaax_like.nn import initializers


@pytest.mark.parametrize("name", ["glorot", "orthogonal"])
def test_a_large_layer_is_one_warning_before_it_is_built(
    name: initializers.InitializerName,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Never:
        def __getattr__(self, attribute: str) -> None:
            raise MemoryError

    make = initializers.INITIALIZERS[name]
    large: np.random.Generator = Never()  # type: ignore[assignment]
    for _ in range(2):
        with pytest.raises(MemoryError):
            make(10_000_000 + len(name), 64, large)
    assert len(caplog.messages) == 1
    assert "64 outputs has 640 million weights: 2.6 GB in memory and in each" in caplog.text
    caplog.clear()
    make(784, 64, np.random.default_rng(0))
    assert caplog.messages == []
