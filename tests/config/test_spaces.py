"""What an environment's spaces are refused for, and the cure that is named."""

import pytest

from relaax_like.config.leaves import ActionConfig, LeafConfig, ObservationConfig
from relaax_like.config.spaces import (
    describe_mismatch,
    validate_discrete,
    validate_leaves,
    validate_vector,
)
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.spaces import Box, Discrete, MultiDiscrete, Space

WRAPPER = "gymnasium.wrappers.FlattenObservation"
INTEGERS = (Discrete(n=16), MultiDiscrete(n=(3, 4), shape=(2,)))


def check(own: LeafConfig, space: Space, leaf: str = "", *, listed: bool = False) -> None:
    leaf = leaf or own.role
    validate_leaves({leaf: space}, {leaf: own}, listed=listed)


@pytest.mark.parametrize("space", INTEGERS, ids=lambda space: type(space).__name__)
def test_integers_as_observations_are_refused_with_the_wrapper_to_use(space: Space) -> None:
    for validate in (
        lambda: validate_vector({"observation": space}, 16),
        lambda: check(ObservationConfig(size=16), space, "place", listed=True),
    ):
        with pytest.raises(InvalidInputError, match=type(space).__name__) as raised:
            validate()
        assert WRAPPER in str(raised.value)


def test_the_numbers_of_many_choices_are_shortened() -> None:
    space = MultiDiscrete(n=(2,) * 40, shape=(40,))
    with pytest.raises(InvalidInputError, match=r"\[2, 2, .*, \.\.\.\] \(40 numbers\)") as raised:
        check(ActionConfig(num=(3,) * 40), space)
    assert len(str(raised.value)) < 400


def test_the_wrapper_is_not_named_where_it_does_not_help() -> None:
    box = Box(dtype="float32", shape=(3,))
    for validate in (
        lambda: validate_vector({"a": box, "b": box}, 6),
        lambda: check(ObservationConfig(size=16), box, "place", listed=True),
    ):
        with pytest.raises(InvalidInputError) as raised:
            validate()
        assert WRAPPER not in str(raised.value)


def test_a_size_that_no_setting_can_have_is_for_a_wrapper() -> None:
    empty = Box(dtype="float32", shape=(0,))
    for validate in (
        lambda: validate_vector({"observation": empty}, 4),
        lambda: check(ActionConfig(size=4), empty),
        lambda: validate_discrete({"action": Discrete(n=1)}, 4),
        lambda: check(ObservationConfig(num=4), Discrete(n=5000)),
    ):
        with pytest.raises(InvalidInputError, match="; wrap the environment") as raised:
            validate()
        assert "set it to" not in str(raised.value)


def test_no_setting_is_a_cure_once_a_run_has_begun() -> None:
    for validate in (
        lambda: validate_vector({"observation": Box(dtype="float32", shape=(5,))}, 4),
        lambda: validate_discrete({"action": Discrete(n=3)}, 4),
    ):
        with pytest.raises(InvalidInputError, match="; set ") as raised:
            validate()
        text = describe_mismatch(raised.value)
        assert "; set " not in text
        assert " A run that has begun keeps its spaces: choose the environment" in text
