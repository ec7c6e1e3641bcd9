"""Damaged bytes at every parser: what comes out is a value or an error that it declares."""

import json
import shutil
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import assume
from hypothesis import strategies as st
from support import fuzz
from support.journal import FINGERPRINT, read, write
from support.rlx import array, make_hello, make_next, make_start
from support.rollouts import make_rollout
from support.snapshots import change_manifest, make_state

from relaax_like.bridge import bridge_pb2, frames, messages
from relaax_like.bridge.metrics_servicer import unpack_scalars
from relaax_like.bridge.pair import Pair
from relaax_like.bridge.tutorial_servicer import _read_gradient
from relaax_like.core.journal.reader import JournalReader
from relaax_like.core.manifest import (
    STATISTIC,
    Manifest,
    Variable,
    make_manifest,
    manifest_to_message,
    message_to_manifest,
)
from relaax_like.core.moments import Moments
from relaax_like.core.records import Episode, Push
from relaax_like.learn.rollout_messages import bytes_to_rollout, rollout_to_bytes
from relaax_like.parameter_server.push_validation import Refused, validate_push
from relaax_like.parameter_server.records import Record, pack_record, unpack_record
from relaax_like.parameter_server.snapshot_format import State, unpack_manifest
from relaax_like.parameter_server.snapshots import Snapshots, read_latest
from relaax_like.rlx_server.step_reader import StepReader
from relaax_like.rlx_server.transition import ReceivedStep, read_step
from relaax_like.v1 import (
    experience_pb2,
    journal_pb2,
    learner_pb2,
    metrics_pb2,
    ndarray_pb2,
    rlx_pb2,
)
from relaax_like.v1 import parameter_server_pb2 as pb
from relaax_like.wire.errors import (
    DamagedError,
    InvalidInputError,
    JournalError,
    ProtocolError,
    SnapshotError,
)
from relaax_like.wire.framing import HEADER, pack_frame, unpack_length
from relaax_like.wire.message_template import Layout
from relaax_like.wire.ndarray import message_to_ndarray, ndarray_to_message
from relaax_like.wire.spaces import messages_to_spaces

pytestmark = pytest.mark.timeout(fuzz.TIMEOUT_SEC)

# Of the whole time, for each target of this file; the other half is test_bridge.py's.
SHARE = 0.5 / 14


def make_layout() -> Manifest:
    zeros = np.zeros(2)
    return make_manifest(
        [
            Variable("w", np.zeros((2, 3), np.float32), "actor"),
            Variable("b", np.zeros(1, np.float32), "critic"),
            *(
                Variable(f"obs.{part}", value, kind=STATISTIC)
                for part, value in (("count", np.zeros(())), ("mean", zeros), ("m2", zeros))
            ),
        ]
    )


MANIFEST = make_layout()


def make_push(**fields: Any) -> Push:
    good: dict[str, Any] = {
        "client_id": "client",
        "incarnation": 3,
        "sequence": 4,
        "gradient": np.ones(7, np.float32),
        "gradient_version": 1,
        "env_steps": 5,
        "episodes": (Episode(1.5, 3),),
        "fingerprint": MANIFEST.fingerprint,
        "statistics": {"obs": Moments(2.0, np.ones(2), np.ones(2))},
    }
    push = Push(**{**good, **fields})
    if push.gradient is None:
        return push
    return Push(**{**vars(push), "gradient": push.gradient.view(np.uint8)})


PUSHES = [
    make_push(),
    make_push(gradient=np.ones(1, np.float32), groups=("critic",)),
    make_push(gradient=None, fingerprint=0),
]
REQUESTS = [
    *(
        frames.to_bytes(part)
        for push in PUSHES
        for part in messages.push_to_messages(push, want_values=True, have_version=2)
    ),
    frames.to_bytes(
        pb.PushPullRequest(header=messages.push_to_header(PUSHES[0]))  # the chunks come after it
    ),
    frames.to_bytes(memoryview(bytes(28))),
    frames.to_bytes(memoryview(bytes(14))),
]


def test_frames() -> None:
    def check(data: bytes) -> None:
        request = frames.to_push_pull_request(data)
        assert isinstance(request, memoryview | pb.PushPullRequest)
        try:
            frames.to_push_pull_reply(data)
        except DecodeError:
            pass

    fuzz.fuzz(check, SHARE, data=fuzz.mutations(REQUESTS) | st.binary(max_size=100))


def test_pushes() -> None:
    """What is taken is finite and of the right length."""

    def check(parts: list[bytes]) -> None:
        first, *more = map(frames.to_push_pull_request, parts)
        try:
            messages.count_awaited_bytes(first, MANIFEST)
            push, _ = messages.messages_to_push(first, iter(more), MANIFEST)
            gradient = validate_push(push, MANIFEST, 0)
        except (InvalidInputError, Refused):
            return
        if gradient is not None:
            assert gradient.dtype == np.float32
            assert gradient.nbytes == MANIFEST.select_groups(push.groups).gradient_bytes
            assert np.isfinite(gradient).all()
        assert 0 <= push.env_steps <= 1 << 40
        for moments in push.statistics.values():
            assert np.isfinite(moments.mean).all()
            assert (moments.m2 >= 0).all()

    parts = st.lists(fuzz.mutations(REQUESTS), min_size=1, max_size=4)
    fuzz.fuzz(check, SHARE, parts=parts)


def test_manifests() -> None:
    """What comes from something that is not a parameter server."""

    def check(data: bytes) -> None:
        message = parse(pb.Manifest, data)
        try:
            manifest = message_to_manifest(message)
        except InvalidInputError:
            return
        assert manifest.gradient_bytes <= manifest.total_bytes

    samples = [manifest_to_message(MANIFEST).SerializeToString()]
    fuzz.fuzz(check, SHARE, data=fuzz.mutations(samples))


def test_arrays() -> None:
    def check(data: bytes) -> None:
        message = parse(ndarray_pb2.NdArray, data)
        try:
            array = message_to_ndarray(message)
        except InvalidInputError:
            return
        again = ndarray_to_message(array, ndarray_pb2.NdArray)
        assert (again.dtype, again.shape, again.data) == (
            message.dtype,
            message.shape,
            message.data,
        )

    arrays = [np.ones((2, 3), np.float32), np.zeros((0, 5), np.bool_), np.array(7), np.ones(4)]
    samples = [pack_array(array) for array in arrays]
    fuzz.fuzz(check, SHARE, data=fuzz.mutations(samples))


def test_the_tutorial_s_gradients() -> None:
    def check(parts: list[bytes]) -> None:
        arrays = [parse(bridge_pb2.NdArray, part) for part in parts]
        try:
            flat = _read_gradient(iter(arrays), MANIFEST)
        except InvalidInputError:
            return
        assert flat.nbytes == MANIFEST.gradient_bytes

    samples = [pack_array(np.ones((2, 3), np.float32)), pack_array(np.ones(1, np.float32))]
    good = st.just(samples)
    parts = st.lists(fuzz.mutations(samples), max_size=4) | good
    fuzz.fuzz(check, SHARE, parts=parts)


def test_points_of_curves() -> None:
    def check(data: bytes) -> None:
        try:
            points = unpack_scalars(parse(metrics_pb2.StoreScalarsRequest, data))
        except InvalidInputError:
            return
        assert all(np.isfinite(y) and 1 <= len(name) <= 200 for name, y, _ in points)

    scalars = [metrics_pb2.Scalar(name="a", y=1.5), metrics_pb2.Scalar(name="b/c", y=-1.0, x=3.0)]
    samples = [
        metrics_pb2.StoreScalarsRequest(global_t=9, scalars=scalars).SerializeToString(),
        metrics_pb2.StoreScalarsRequest(scalars=scalars[:1]).SerializeToString(),
    ]
    fuzz.fuzz(check, SHARE, data=fuzz.mutations(samples))


def test_records_of_the_journal() -> None:
    def check(data: bytes) -> None:
        try:
            record = unpack_record(memoryview(data))
        except JournalError:
            return
        assert isinstance(record.version, int)

    samples = [
        b"".join(bytes(piece) for piece in pack_record(Record(push, {"actor": 0.1}, 3, 4, outcome)))
        for push, outcome in zip(PUSHES, ("applied", "pending", "dropped"), strict=True)
    ]
    fuzz.fuzz(check, SHARE, data=fuzz.mutations(samples))


def test_segments_of_the_journal(tmp_path: Path) -> None:
    """Whatever is read back of a damaged segment is what was written, in order."""
    payloads = [b"first", b"", bytes(40), b"fourth"]
    write(tmp_path / "good", payloads)
    (good,) = (tmp_path / "good").iterdir()

    def check(data: bytes, confirmed: bool) -> None:
        folder = tmp_path / "damaged"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / (good.name + ("" if confirmed else ".new"))).write_bytes(data)
        try:
            got, _ = read(folder)
        except JournalError:
            return
        assert got == payloads[: len(got)]

    fuzz.fuzz(check, SHARE, data=fuzz.mutations([good.read_bytes()]), confirmed=st.booleans())
    assert list(JournalReader(tmp_path / "good", FINGERPRINT, 0))


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """A folder with one snapshot; returns its manifest."""
    with Snapshots(tmp_path / "snapshots") as snapshots:
        return snapshots.save(make_state(), score=1.0) / "manifest.json"


def test_manifests_of_snapshots(snapshot: Path) -> None:
    good = snapshot.read_bytes()

    def check(data: bytes) -> None:
        try:
            body = unpack_manifest(data, "")
        except DamagedError:
            return
        assert body == json.loads(good)["body"]  # the damage was in what JSON does not see

    fuzz.fuzz(check, SHARE, data=fuzz.mutations([good]))


def test_manifests_of_snapshots_whose_checksum_is_right(snapshot: Path) -> None:
    """As another version might have written them."""
    good = snapshot.read_bytes()
    paths = list(_find_paths(json.loads(good)["body"]))

    def check(path: list[Any], value: Any) -> None:
        def change(body: dict[str, Any]) -> None:
            *way, last = path
            part: Any = body
            for step in way:
                part = part[step]
            part[last] = value

        snapshot.write_bytes(change_manifest(good, change))
        try:
            state = read_latest(snapshot.parents[1])
        except SnapshotError:
            return
        assert isinstance(state, State)

    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=9) | st.sampled_from([1.5]),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        ),
        max_leaves=5,
    )
    fuzz.fuzz(check, SHARE, path=st.sampled_from(paths), value=values)


def _find_paths(part: Any, path: tuple[Any, ...] = ()) -> Any:
    """Yields the way to each part of a JSON document."""
    if path:
        yield list(path)
    if isinstance(part, dict | list):
        for key, value in part.items() if isinstance(part, dict) else enumerate(part):
            yield from _find_paths(value, (*path, key))


STEPS = [
    make_start(2),
    make_next(2),
    make_next(
        2,
        step_id=9,
        present=array([1, 0], "bool"),
        executed={"action": array([2, 1], "int64")},
        overridden=array([0, 1], "bool"),
    ),
]
HELLO = make_hello(slots=2, features=["executed", "max_wait", "present"], max_wait_ms=20)
SPACES = messages_to_spaces(HELLO.hello.observation_spaces, "observation_spaces")
MOVES = messages_to_spaces(HELLO.hello.action_spaces, "action_spaces")


def test_frames_of_the_rlx_protocol() -> None:
    def check(data: bytes) -> None:
        try:
            length = unpack_length(data[: HEADER.size].ljust(HEADER.size, b"\0"))
            assert length <= 1 << 26
            message = parse(rlx_pb2.ClientMessage, data[HEADER.size :])
            for spaces in (message.hello.observation_spaces, message.hello.action_spaces):
                messages_to_spaces(spaces, "spaces")
            step = read_step(message.step, SPACES, MOVES, 2, running=True)
        except (ProtocolError, InvalidInputError):
            return
        assert isinstance(step, ReceivedStep)

    samples = [pack_frame(message.SerializeToString()) for message in (HELLO, *STEPS)]
    fuzz.fuzz(check, SHARE, data=fuzz.mutations(samples))


def test_layouts_and_steps_that_look_like_the_one_before() -> None:
    """A step that the quick reader takes is what the thorough one makes of it."""
    samples = [message.SerializeToString() for message in STEPS]

    def check(data: bytes, again: bytes) -> None:
        step = parse(rlx_pb2.ClientMessage, data).step
        try:
            layout = Layout(data, rlx_pb2.ClientMessage.DESCRIPTOR)
        except ValueError as error:
            assert type(error) is ValueError  # noqa: PT017
            return
        assert layout.fits(data)
        assert layout.fill([data[span.start : span.stop] for span in layout.spans]) == data
        reader = StepReader(SPACES, MOVES, 2, {})
        try:
            reader.remember(data, read_step(step, SPACES, MOVES, 2, running=True))
            got = reader.read(again)
        except (ProtocolError, InvalidInputError):
            return
        if got is None:
            return
        again_step = rlx_pb2.ClientMessage.FromString(again).step
        want = read_step(again_step, SPACES, MOVES, 2, running=True)
        assert got.step_id == want.step_id
        for name in ("rewards", "absent", "overridden"):
            np.testing.assert_array_equal(getattr(got, name), getattr(want, name))
        assert (got.executed is None) == (want.executed is None)
        for name, array_ in (want.executed or {}).items():
            assert got.executed is not None
            np.testing.assert_array_equal(got.executed[name], array_)
        assert want.observations is not None
        assert got.observations is not None
        for name, array_ in want.observations.items():
            np.testing.assert_array_equal(got.observations[name], array_)

    fuzz.fuzz(check, SHARE, data=fuzz.mutations(samples), again=fuzz.mutations(samples))


ROLLOUT = rollout_to_bytes(make_rollout(2, 0)).tobytes()


def test_rollouts() -> None:
    def check(data: bytes) -> None:
        try:
            bytes_to_rollout(np.frombuffer(data, np.uint8))
        except InvalidInputError:
            return

    fuzz.fuzz(check, SHARE, data=fuzz.mutations([ROLLOUT]))


def test_the_learner_s_pair() -> None:
    """Frames that come in any pieces; a frame that never ends is the end of the stream."""

    def check(data: bytes) -> None:
        ours, theirs = socket.socketpair()
        pair = Pair(ours)
        try:
            with theirs:
                theirs.sendall(data)
            while (message := pair.receive()) is not None:
                frames.to_experience_request(message)
                frames.to_experience_reply(message)
        except DecodeError:
            return
        finally:
            pair.close()

    def limit(data: bytes) -> bytes:
        """Leaves one frame of a length that is no gigabyte: both ends are ours."""
        (length,) = struct.unpack(">I", data[:4].rjust(4, b"\0"))
        length &= 0xFFFF
        return struct.pack(">I", length) + data[4 : 4 + length]

    header = experience_pb2.ExperienceHeader(sequence=1, first_chunk=ROLLOUT)
    body = experience_pb2.ExperienceRequest(header=header).SerializeToString()
    fuzz.fuzz(check, SHARE, data=fuzz.mutations([pack_frame(body)]).map(limit))


def read_foreign_dtype() -> None:
    message_to_manifest(pb.Manifest(segments=[pb.Segment(name="w", dtype="float31", shape=[1])]))


def read_seven_bytes() -> None:
    message = journal_pb2.JournalRecord(push=pb.PushHeader(gradient_bytes=7), combining=1)
    head = message.SerializeToString()
    unpack_record(memoryview(struct.pack("<I", len(head)) + head + bytes(7)))


def read_brackets() -> None:
    unpack_manifest(b"[" * 100_000, "")


def read_scalar_inputs() -> None:
    message = learner_pb2.Rollout()
    message.inputs["x"].CopyFrom(ndarray_to_message(np.ones(()), ndarray_pb2.NdArray))
    bytes_to_rollout(np.frombuffer(message.SerializeToString(), np.uint8))


@pytest.mark.parametrize(
    ("call", "declared"),
    [
        (read_foreign_dtype, InvalidInputError),
        (read_seven_bytes, JournalError),
        (read_brackets, DamagedError),
        (read_scalar_inputs, InvalidInputError),
    ],
    ids=["a foreign dtype", "seven bytes of gradient", "brackets", "inputs without axes"],
)
def test_what_was_found(call: Callable[[], None], declared: type[Exception]) -> None:
    with pytest.raises(declared):
        call()


def pack_array(array: np.ndarray) -> bytes:
    """Returns an array's message as bytes."""
    return ndarray_to_message(array, ndarray_pb2.NdArray).SerializeToString()


def parse(kind: type[Message], data: bytes) -> Any:
    """Parses a message; what is not a message is not tested here."""
    try:
        return kind.FromString(data)
    except DecodeError:
        assume(False)
