"""Gymnasium spaces there and back. covers R18"""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_server import ScriptedServer

from relaax_like.client.client import RlxClient
from relaax_like.client.gym_spaces import SpaceCodec
from relaax_like.client.values import SpaceValues
from relaax_like.wire.errors import ConfigError, InvalidInputError
from relaax_like.wire.spaces import Box, Discrete, MultiBinary, MultiDiscrete

shapes = st.lists(st.integers(1, 3), max_size=2).map(tuple)
floats = st.sampled_from([np.float32, np.float64])
simple = st.one_of(
    st.builds(lambda s, d: spaces.Box(-1.5, 2.5, s, d), shapes, floats),
    st.builds(lambda s, d: spaces.Box(-np.inf, np.inf, s, d), shapes, floats),
    st.builds(lambda s: spaces.Box(0, 255, s, np.uint8), shapes),
    st.builds(lambda s: spaces.Box(-100, 100, s, np.int64), shapes),
    st.builds(lambda n, s: spaces.Discrete(n, start=s), st.integers(1, 5), st.integers(-3, 3)),
    st.builds(
        lambda n, s: spaces.MultiDiscrete(n, start=[s] * len(n)),
        st.lists(st.integers(1, 5), min_size=1, max_size=3),
        st.integers(-2, 2),
    ),
    st.just(spaces.MultiDiscrete([[2, 3], [4, 5]])),
    st.builds(spaces.MultiBinary, st.integers(1, 4)),
)
nested = st.recursive(
    simple,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from(["a", "b/c", "b", "c"]), inner, min_size=1).map(
            spaces.Dict
        ),
        st.lists(inner, min_size=1, max_size=3).map(lambda members: spaces.Tuple(members)),
    ),
    max_leaves=5,
)


def equal(one: Any, other: Any, rtol: float = 1e-6) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return np.shape(one) == np.shape(other) and np.allclose(one, other, rtol=rtol)


@settings(deadline=None)
@given(space=nested, slots=st.integers(1, 3), seed=st.integers(0, 1000))
def test_any_nesting_comes_back_and_fits_the_wire(
    space: spaces.Space, slots: int, seed: int
) -> None:
    codec = SpaceCodec(space, "observation")
    space.seed(seed)
    rows = [space.sample() for _ in range(slots)]
    packed = codec.empty(slots)
    for slot, row in enumerate(rows):
        codec.write_row(packed, slot, row)
    SpaceValues(codec.space, "observation").to_leaves(packed, slots, "x")  # raises if it does not
    back = codec.unpack_rows(packed)
    assert all(map(equal, back, rows))
    assert all(space.contains(row) for row in back)


@settings(deadline=None)
@given(space=nested, slots=st.integers(1, 3), seed=st.integers(0, 1000))
def test_batches_come_back_and_equal_the_rows(space: spaces.Space, slots: int, seed: int) -> None:
    codec = SpaceCodec(space, "observation")
    batched = batch_space(space, slots)
    batched.seed(seed)
    batch = batched.sample()
    packed = codec.pack(batch)
    SpaceValues(codec.space, "observation").to_leaves(packed, slots, "x")
    assert equal(codec.unpack(packed), batch)
    again = codec.empty(slots)
    for slot, row in enumerate(codec.unpack_rows(packed)):
        codec.write_row(again, slot, row)
    np.testing.assert_equal(again, packed)


@pytest.mark.parametrize(
    ("value", "wrong"), [(300, "300"), (-1, "-1"), (0.5, "0.5"), (np.nan, "nan"), (255.0, None)]
)
def test_a_number_that_an_integer_cannot_represent_is_refused(
    value: float, wrong: str | None
) -> None:
    codec = SpaceCodec(spaces.Dict({"image": spaces.Box(0, 255, (2,), np.uint8)}), "observation")
    packed = codec.empty(1)
    with expect_misfit(wrong):
        codec.write_row(packed, 0, {"image": np.array([7, value])})
        assert packed["image"].tolist() == [[7, 255]]
    with expect_misfit(wrong):
        assert codec.pack({"image": np.array([[7, value]])})["image"].tolist() == [[7, 255]]


def test_a_single_number_instead_of_a_batch_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"observation: 1\.5, expected .* \(slot 0\)"):
        SpaceCodec(spaces.Discrete(4), "observation").pack(1.5)


def test_rows_that_do_not_matter_can_be_anything() -> None:
    codec = SpaceCodec(spaces.Box(0, 255, (2,), np.uint8), "observation")
    batch, chosen = np.array([[np.nan, 300.0], [7.0, 8.0]]), np.array([False, True])
    assert codec.pack(batch, chosen)[1].tolist() == [7, 8]
    with pytest.raises(InvalidInputError, match=r"nan, expected .* \(slot 0\)"):
        codec.pack(batch, ~chosen)


def test_a_choice_with_a_start_is_named_as_it_came() -> None:
    codec = SpaceCodec(spaces.MultiDiscrete([3, 3], start=[1, 1]), "observation")
    packed = codec.empty(1)
    for convert in (lambda x: codec.pack(x[None]), lambda x: codec.write_row(packed, 0, x)):
        with pytest.raises(InvalidInputError, match=r"observation: 1\.5, expected"):
            convert(np.array([2.0, 1.5]))
    assert np.asarray(codec.pack(np.array([[2.0, 1.0]]))).tolist() == [[2, 1]]


def test_lists_of_different_lengths_are_named() -> None:
    codec = SpaceCodec(spaces.Dict({"arm": spaces.Box(-1, 1, (2,))}), "observation")
    packed = codec.empty(1)
    for convert in (
        lambda x: codec.pack({"arm": x}),
        lambda x: codec.write_row(packed, 0, {"arm": x}),
    ):
        with pytest.raises(InvalidInputError, match="observation arm: lists of different lengths"):
            convert([[1.0], [1.0, 2.0]])


def expect_misfit(wrong: str | None) -> AbstractContextManager[object]:
    if wrong is None:
        return nullcontext()
    text = f"observation image: {wrong}, expected numbers that uint8 can represent, as declared by "
    return pytest.raises(InvalidInputError, match=f"^{re.escape(f'{text}the space (slot 0)')}$")


def test_leaves_are_named_by_their_path() -> None:
    space = spaces.Dict(
        {
            "arm": spaces.Tuple((spaces.Discrete(2), spaces.MultiBinary(3))),
            "my camera": spaces.Box(0, 255, (2, 2), np.uint8),
            2: spaces.MultiDiscrete([2, 3], start=[1, 1]),
            "x" * 195: spaces.Discrete(3),
        }
    )
    wire = SpaceCodec(space, "observation").space
    assert isinstance(wire, dict)
    bounds = {"low": np.zeros((2, 2), np.uint8), "high": np.full((2, 2), 255, np.uint8)}
    assert wire == {
        "arm/0": Discrete(n=2),
        "arm/1": MultiBinary(shape=(3,)),
        "my_camera": Box(dtype="uint8", shape=(2, 2), **bounds),
        "2": MultiDiscrete(n=(2, 3), shape=(2,), starts=(1, 1)),
        "x" * 190: Discrete(n=3),
    }


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("left arm", "left_arm"),
        ("a/b", "a_b"),
        (1, "1"),
        (True, "True"),
        ("größe", "grüße"),
        ("", "_"),
        ("x" * 195 + "left", "x" * 195 + "right"),
    ],
)
def test_two_keys_with_the_same_name_are_refused_in_any_order(one: Any, other: Any) -> None:
    box = spaces.Box(-1, 1, (2,))
    for first, second in ((one, other), (other, one)):
        space = spaces.Dict([(first, box), (second, box)])
        match = f"observation_space: the keys [{first!r}] and [{second!r}] would have"
        with pytest.raises(
            InvalidInputError, match=f"^{re.escape(match)}.* rename one with a wrap"
        ):
            SpaceCodec(space, "observation")


def test_names_do_not_depend_on_the_order_of_the_keys() -> None:
    box = spaces.Box(-1, 1, (2,))
    pairs = [("b", spaces.Tuple([box])), ("b.2", box), ("b/0", box), ("a", box)]
    values = {"b": (np.full((1, 2), 0.1),), "b.2": np.full((1, 2), 0.2)}
    values |= {"b/0": np.full((1, 2), 0.3), "a": np.full((1, 2), 0.4)}
    for ordered in (pairs, pairs[::-1]):
        packed = SpaceCodec(spaces.Dict(ordered), "observation").pack(values)
        assert {name: round(float(array[0, 0]), 1) for name, array in packed.items()} == {
            "b/0": 0.1,
            "b.2": 0.2,
            "b_0": 0.3,
            "a": 0.4,
        }


def test_float64_becomes_float32_and_open_bounds_are_absent() -> None:
    wire = SpaceCodec(spaces.Box(-np.inf, np.inf, (2,), np.float64), "observation").space
    assert wire == Box(dtype="float32", shape=(2,))


def test_actions_are_clipped_to_the_box() -> None:
    codec = SpaceCodec(spaces.Box(-0.1, 0.3, (2,), np.float64), "observation")
    (action,) = codec.unpack_rows(np.array([[-5, 0.3]], np.float32))
    assert action.dtype == np.float64
    assert action.tolist() == [-0.1, 0.3]  # float32's 0.3 lies outside


@pytest.mark.parametrize(
    ("space", "match"),
    [
        (spaces.Text(3), "Text is not supported"),
        (spaces.Dict({"a": spaces.Sequence(spaces.Discrete(2))}), r"space\[a\]: Sequence is not"),
        (spaces.Dict({}), r"space: Dict\(\) has no leaves, expected at least one leaf"),
    ],
)
def test_a_space_that_cannot_be_sent_is_refused(space: spaces.Space, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        SpaceCodec(space, "observation")


def test_gymnasium_spaces_are_taken_with_nested_values(
    serve: Callable[..., ScriptedServer],
) -> None:
    server = serve()
    observation = spaces.Dict(
        {
            "arm": spaces.Dict({"joints": spaces.Box(-1, 1, (2,), np.float64)}),
            "tools": spaces.Tuple((spaces.MultiDiscrete([2, 3], start=[5, 5]),)),
        }
    )
    action = spaces.Dict(
        {"move": spaces.Box(-0.1, 0.1, (2,)), "key": spaces.Tuple([spaces.Discrete(3, start=4)])}
    )
    state = {"arm": {"joints": np.array([0.5, -0.5])}, "tools": (np.array([6, 5]),)}
    with RlxClient(server.address, observation, action) as client:
        chosen = client.act(state)
        assert action.contains(chosen)
        assert isinstance(chosen["key"][0], int)
        client.reward_and_act(1.0, state)
        assert client.reward_and_reset(1.0, state, truncated=True) == 2.0
        for wrong in ({"arm": {}}, {**state, "tools": ()}, [1, 2]):
            with pytest.raises(
                InvalidInputError, match=r"state: '(arm/joints|tools/0)' is missing"
            ):
                client.act(wrong)
        with pytest.raises(InvalidInputError, match=r"state\[arm/joints\]: shape"):
            client.act({**state, "arm": {"joints": np.zeros(3)}})
        ragged = [[1, 2], [3]]
        with pytest.raises(InvalidInputError, match=r"state\[arm/joints\]: lists of different"):
            client.act({**state, "arm": {"joints": ragged}})
        with pytest.raises(InvalidInputError, match=r"state\[tools/0\]: lists of different"):
            client.act({**state, "tools": (ragged,)})
        for wrong_tools in ([6], [6, 5, 5], 6, "axe", [[6, 5], [6, 5]]):
            with pytest.raises(InvalidInputError, match=r"state\[tools/0\]: "):
                client.act({**state, "tools": (wrong_tools,)})
    (session,) = server.sessions
    assert session.observation_spaces["arm/joints"].low.tolist() == [-1, -1]
    for step in session.steps[:2]:
        assert step.observations is not None
        assert step.observations["arm/joints"].tolist() == [[0.5, -0.5]]
        assert step.observations["tools/0"].tolist() == [[1, 0]]

    with RlxClient(server.address, spaces.Box(0, 1, (4,)), spaces.Discrete(2), slots=3) as client:
        result = client.step(np.zeros((3, 4)))
        assert result.actions.shape == (3,)
    with RlxClient(server.address, spaces.Box(0, 1, (4,)), spaces.Discrete(2)) as client:
        assert type(client.act(np.zeros(4))) is int
        with pytest.raises(InvalidInputError, match="state: shape"):
            client.reward_and_act(1, np.zeros(3))
    with pytest.raises(ConfigError, match="observation_space: Text is not supported"):
        RlxClient(server.address, spaces.Text(3), Discrete(n=2))
