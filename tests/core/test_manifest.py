"""The layout of the flat vector."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaax_like.core.manifest import (
    BUFFER,
    CONSTANT,
    COUNTER,
    PUSHED,
    STATISTIC,
    TARGET,
    TRAINABLE,
    Manifest,
    Variable,
    make_manifest,
    manifest_to_message,
    message_to_manifest,
)
from relaax_like.v1 import parameter_server_pb2 as pb
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.ndarray import DTYPES

_KINDS = (TRAINABLE, TARGET, STATISTIC, COUNTER, BUFFER, CONSTANT)


def _float32(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@pytest.fixture
def mixed() -> Manifest:
    """Two groups in turns, a target between them, and odd sizes behind."""
    return make_manifest(
        [
            Variable("actor/W1", _float32(2, 3), group="actor"),
            Variable("target/W1", _float32(3), kind=TARGET),
            Variable("critic/W1", _float32(4), group="critic"),
            Variable("flag", np.array([True, False, True]), kind=STATISTIC),
            Variable("actor/W2", _float32(1), group="actor"),
            Variable("count", np.array(7, np.int64), kind=COUNTER),
        ]
    )


def test_groups_lie_side_by_side_before_all_else(mixed: Manifest) -> None:
    names = [segment.name for segment in mixed.segments]
    assert names == ["actor/W1", "actor/W2", "critic/W1", "target/W1", "flag", "count"]
    assert [segment.offset for segment in mixed.segments] == [0, 24, 28, 48, 64, 72]
    assert mixed.gradient_bytes == 44
    assert mixed.total_bytes == 80
    assert mixed.groups() == {"actor": slice(0, 7), "critic": slice(7, 11)}
    assert [segment.name for segment in mixed.pushed] == names[:3]
    assert [segment.group for segment in mixed.segments[3:]] == ["", "", ""]


def test_buffers_follow_the_trainable_variables_of_their_group() -> None:
    manifest = make_manifest(
        [
            Variable("actor/mean", _float32(2), "actor", BUFFER),
            Variable("scale", np.array(3, np.int64), kind=CONSTANT),
            Variable("critic/W", _float32(3), "critic"),
            Variable("actor/W", _float32(4), "actor"),
        ]
    )
    segments = [(segment.name, segment.offset, segment.group) for segment in manifest.segments]
    assert segments == [
        ("critic/W", 0, "critic"),
        ("actor/W", 12, "actor"),
        ("actor/mean", 28, "actor"),
        ("scale", 40, ""),
    ]
    assert manifest.groups() == {"critic": slice(0, 3), "actor": slice(3, 7)}
    assert manifest.gradient_bytes == 36
    assert manifest.select_groups(["actor"]).gradient_bytes == 24


@st.composite
def variable_lists(draw: st.DrawFn) -> list[Variable]:
    """One trainable variable at least, and any others."""
    variables = []
    for index in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(_KINDS)) if index else TRAINABLE
        dtype = "float32" if kind in PUSHED else draw(st.sampled_from(sorted(DTYPES)))
        shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
        value = (np.arange(np.prod(shape)) % 2).reshape(shape).astype(DTYPES[dtype])
        group = draw(st.sampled_from(["actor", "critic", "default"]))
        group = variables[0].group if kind == BUFFER else group
        variables.append(Variable(f"v{index}", value, group=group, kind=kind))
    return variables


@settings(deadline=None)
@given(variable_lists())
def test_arrays_survive_packing(variables: list[Variable]) -> None:
    manifest = make_manifest(variables)
    value_of = {variable.name: variable.value for variable in variables}
    arrays = [value_of[segment.name] for segment in manifest.segments]
    flat = manifest.pack(arrays)
    assert flat.nbytes == manifest.total_bytes
    for array, back in zip(arrays, manifest.unpack(flat), strict=True):
        np.testing.assert_array_equal(back, array, strict=True)


@settings(deadline=None)
@given(variable_lists())
def test_segments_are_aligned_and_do_not_overlap(variables: list[Variable]) -> None:
    manifest = make_manifest(variables)
    end = 0
    for segment in manifest.segments:
        assert segment.offset >= end
        assert segment.offset % DTYPES[segment.dtype].itemsize == 0
        end = segment.offset + segment.num_bytes
    assert manifest.gradient_bytes == 4 * sum(segment.size for segment in manifest.pushed)
    # The buffers of a group, here of one, follow its trainable variables.
    starts = [(s.offset // 4, s.size) for s in manifest.pushed if s.kind == BUFFER]
    parts = [*manifest.groups().values(), *(slice(at, at + size) for at, size in starts)]
    ranges = sorted(parts, key=lambda part: (part.start, part.stop))
    assert ranges[0].start == 0
    assert ranges[-1].stop * 4 == manifest.gradient_bytes
    assert all(a.stop == b.start for a, b in itertools.pairwise(ranges))


@settings(deadline=None)
@given(variable_lists())
def test_manifest_survives_the_wire(variables: list[Variable]) -> None:
    manifest = make_manifest(variables)
    raw = manifest_to_message(manifest).SerializeToString()
    assert message_to_manifest(pb.Manifest.FromString(raw)) == manifest


def test_gradient_is_laid_out_as_the_beginning_of_the_values(mixed: Manifest) -> None:
    gradients = [_float32(2, 3), np.full(1, 9, np.float32), _float32(4)]
    flat = mixed.pack(gradients, gradient=True)
    assert flat.view(np.float32).tolist() == [0, 1, 2, 3, 4, 5, 9, 0, 1, 2, 3]
    for array, back in zip(gradients, mixed.unpack(flat, gradient=True), strict=True):
        np.testing.assert_array_equal(back, array, strict=True)


@pytest.mark.parametrize("wanted", list(itertools.product([False, True], repeat=5)))
def test_ranges_hold_the_bytes_of_the_named_variables_alone(
    mixed: Manifest, wanted: tuple[bool, ...]
) -> None:
    segments = mixed.segments[:5]
    names = [segment.name for segment, is_wanted in zip(segments, wanted, strict=True) if is_wanted]
    taken = np.zeros(mixed.total_bytes, bool)
    last = -1
    for part in mixed.find_ranges(names):
        assert last < part.start < part.stop  # neighbours are one range
        taken[part], last = True, part.stop
    for segment in mixed.segments:
        own = taken[segment.offset : segment.offset + segment.num_bytes]
        assert own.all() if segment.name in names else not own.any()


@settings(deadline=None)
@given(variable_lists(), st.data())
def test_ranges_of_any_variables_hold_their_bytes_alone(
    variables: list[Variable], data: st.DataObject
) -> None:
    """Also where variables have no elements."""
    manifest = make_manifest(variables)
    names = data.draw(st.sets(st.sampled_from([segment.name for segment in manifest.segments])))
    taken = np.zeros(manifest.total_bytes, bool)
    for part in manifest.find_ranges(names):
        assert not taken[part].any()
        taken[part] = True
    for segment in manifest.segments:
        own = taken[segment.offset : segment.offset + segment.num_bytes]
        assert own.all() if segment.name in names else not own.any()


def test_ranges_of_unknown_variables_are_refused(mixed: Manifest) -> None:
    with pytest.raises(InvalidInputError, match="values: unknown variable 'actor/W9'"):
        mixed.find_ranges(["actor/W1", "actor/W9"])


def test_unpacked_arrays_are_views(mixed: Manifest) -> None:
    flat = np.zeros(mixed.total_bytes, np.uint8)
    mixed.unpack(flat)[-1][...] = 258
    assert flat[72:].tolist() == [2, 1, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("arrays", "want"),
    [
        (
            [_float32(2, 3), _float32(1)],
            "gradients: received 2, expected 3, one for each trainable variable: actor/W1",
        ),
        (
            [_float32(3, 2), _float32(1), _float32(4)],
            r"actor/W1: expected float32 \[2, 3\], got float32 \[3, 2\]",
        ),
        (
            [_float32(2, 3), _float32(1), np.zeros(4)],
            r"critic/W1: expected float32 \[4\], got float64 \[4\]",
        ),
        (
            [_float32(2, 3), np.float32(1), _float32(4)],
            r"actor/W2: expected float32 \[1\], got float32 \[\]",
        ),
    ],
    ids=["count", "shape", "dtype", "rank"],
)
def test_gradient_that_does_not_fit_is_refused(
    mixed: Manifest, arrays: list[Any], want: str
) -> None:
    with pytest.raises(InvalidInputError, match=want):
        mixed.pack(arrays, gradient=True)


@pytest.mark.parametrize(
    ("variables", "want"),
    [
        ([], "no variables"),
        ([Variable("a", _float32(1)), Variable("a", _float32(1))], "a: duplicate variable name"),
        ([Variable("", _float32(1))], "variable name ''"),
        ([Variable("a b", _float32(1))], "variable name 'a b'"),
        ([Variable("x" * 201, _float32(1))], "variable name"),
        ([Variable("a", _float32(1), kind="other")], "kind 'other', expected one of trainable"),
        (
            [Variable("w", _float32(1)), Variable("a", _float32(1), "other", BUFFER)],
            "a: a buffer of the variable group 'other', which has no trainable variable",
        ),
        (
            [Variable("w", _float32(1)), Variable("a", np.zeros(1), kind=BUFFER)],
            "a: buffer, but of dtype float64; use float32",
        ),
        ([Variable("a", np.zeros(1))], "trainable, but of dtype float64; use float32"),
        (
            [Variable("a", np.zeros(1, np.complex64), kind=TARGET)],
            "complex64, expected one of bool",
        ),
        ([Variable("a", np.array([None]), kind=TARGET)], "object, expected one of bool"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_variables_are_refused(variables: list[Variable], want: str) -> None:
    with pytest.raises(InvalidInputError, match=want):
        make_manifest(variables)


def _statistic(name: str, **changes: np.ndarray | None) -> list[Variable]:
    """A trainable variable, and a running statistic of shape [2] with other parts or without."""
    parts = {"count": np.zeros(()), "mean": np.zeros(2), "m2": np.zeros(2), **changes}
    return [
        Variable("w", _float32(1)),
        *(Variable(f"{name}.{k}", v, kind=STATISTIC) for k, v in parts.items() if v is not None),
    ]


def test_running_statistics_are_found_by_name() -> None:
    # A statistic of another name, and a trainable variable of such a name, do not count.
    lone = [Variable("seen", np.zeros(1), kind=STATISTIC), Variable("lone.mean", _float32(2))]
    manifest = make_manifest([*lone, *_statistic("net/a.b")])
    assert list(manifest.statistics) == ["net/a.b"]
    names = [segment.name for segment in manifest.statistics["net/a.b"]]
    assert names == ["net/a.b.count", "net/a.b.mean", "net/a.b.m2"]
    flat = np.zeros(manifest.total_bytes, np.uint8)
    for part, value in zip(
        manifest.view_statistic(flat, "net/a.b"), (3, [1, 2], [5, 6]), strict=True
    ):
        part[...] = value
    assert [a.tolist() for a in manifest.unpack(flat)[-3:]] == [3, [1, 2], [5, 6]]


@pytest.mark.parametrize(
    ("variables", "want"),
    [
        (
            _statistic("s", count=None),
            r"statistic s: s\.count is missing; .*s\.count, s\.mean, s\.m2",
        ),
        (_statistic("s", mean=None, m2=None), r"s\.mean, s\.m2 are missing"),
        (
            _statistic("s", mean=np.zeros(2, np.float32)),
            r"s\.mean: float32 \[2\], expected float64",
        ),
        (_statistic("s", m2=np.zeros(3)), r"s\.m2: float64 \[3\], expected float64 \[2\]"),
        (_statistic("s", count=np.zeros(2)), r"s\.count: float64 \[2\], expected float64 \[\]"),
        (_statistic("s", count=np.zeros((), np.int64)), r"s\.count: int64"),
        (
            [Variable("w", _float32(1))] + [v for i in range(65) for v in _statistic(f"s{i}")[1:]],
            "65 running statistics, but at most 64",
        ),
        (
            _statistic("s", mean=np.zeros(2**22), m2=np.zeros(2**22)),
            "67108872 bytes together, but at most 67108864",
        ),
    ],
    ids=["count", "mean and m2", "dtype", "shape", "many counts", "integer", "many", "large"],
)
def test_running_statistics_that_are_not_whole_or_too_large_are_refused(
    variables: list[Variable], want: str
) -> None:
    with pytest.raises(InvalidInputError, match=want):
        make_manifest(variables)


_LAYOUT = (("w", 2), ("b", 3))


@pytest.mark.parametrize(
    "other",
    [
        (("b", 3), ("w", 2)),
        (("w", 2), ("c", 3)),
        (("w", 3), ("b", 2)),
        (("w", 2),),
    ],
    ids=["order", "name", "shape", "fewer"],
)
def test_fingerprint_tells_layouts_apart(other: tuple[tuple[str, int], ...]) -> None:
    one, two = (
        make_manifest([Variable(name, _float32(size)) for name, size in layout])
        for layout in (_LAYOUT, other)
    )
    assert one.fingerprint != two.fingerprint


def test_fingerprint_is_the_same_in_every_process() -> None:
    manifest = make_manifest([Variable(name, _float32(size)) for name, size in _LAYOUT])
    assert (
        manifest.fingerprint
        == make_manifest(
            [Variable(name, np.ones(size, np.float32)) for name, size in _LAYOUT]
        ).fingerprint
    )
    # Written down once: a snapshot or client of an older build must still match.
    assert manifest.fingerprint == 1203586043


@pytest.mark.parametrize("field", ["total_bytes", "gradient_bytes", "fingerprint"])
def test_received_manifest_that_contradicts_itself_is_refused(mixed: Manifest, field: str) -> None:
    message = manifest_to_message(mixed)
    setattr(message, field, getattr(message, field) + 4)
    wrong, right = getattr(message, field), getattr(mixed, field)
    want = f"{field} is {wrong}, but the segments give {right}"
    with pytest.raises(InvalidInputError, match=want):
        message_to_manifest(message)


def test_received_segment_that_was_changed_is_refused(mixed: Manifest) -> None:
    message = manifest_to_message(mixed)
    message.segments[0].name = "actor/W9"
    with pytest.raises(InvalidInputError, match=r"fingerprint is .*, but the segments give"):
        message_to_manifest(message)
