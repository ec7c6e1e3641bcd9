"""Nested arrays and JSON types as bytes: the same again, and what is damaged is found."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.compare import compare

from relaax_like.wire.array_tree import bytes_to_tree, tree_to_bytes
from relaax_like.wire.errors import DamagedError

TREE = {
    "image": np.arange(12, dtype=np.uint8).reshape(3, 4),
    "half": np.array([1.5, -2.0], ml_dtypes.bfloat16),
    "nested": {"empty": {}, "list": [np.zeros((0, 2)), "text", None, True]},
    "number": 3,
    "small": 0.1,
}


def test_a_tree_is_the_same_after_its_bytes() -> None:
    assert compare(TREE, bytes_to_tree(tree_to_bytes(TREE, "notes 1"), "notes 1")) == ""


@pytest.mark.parametrize("value", [np.array(["a", None], object), [np.array([{}])]])
def test_python_objects_are_not_converted(value: Any) -> None:
    with pytest.raises(ValueError, match=r"[Oo]bject"):
        tree_to_bytes({"value": value}, "notes 1")


def test_damaged_bytes_and_those_of_another_kind_are_found() -> None:
    data = tree_to_bytes(TREE, "notes 1")
    for damaged in (data[:-40], data[: len(data) // 2], b"", data.replace(b"image", b"imagf")):
        with pytest.raises((DamagedError, KeyError)):
            bytes_to_tree(damaged, "notes 1")
    with pytest.raises(DamagedError, match="notes 1"):
        bytes_to_tree(data, "notes 2")
