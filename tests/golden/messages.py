"""Messages that our code writes, from fixed records, and how it reads them: see test_bytes.py."""

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from relaax_like.addons.coordinator.job import Attempt
from relaax_like.addons.coordinator.versions import pack_version, unpack_version
from relaax_like.bridge import frames, joining, messages, publishing
from relaax_like.bridge.collecting import CollectStream, ReleaseNotice
from relaax_like.bridge.experience_servicer import progress_to_messages, read_experience
from relaax_like.client.fast_path import pack_step
from relaax_like.core.buffers import BufferPool
from relaax_like.core.episode_reports import pack_reports, unpack_reports
from relaax_like.core.journal import files
from relaax_like.core.manifest import (
    Variable,
    make_manifest,
    manifest_to_message,
    message_to_manifest,
)
from relaax_like.core.moments import Moments
from relaax_like.core.records import (
    ClientsReport,
    ClientStatus,
    Counts,
    Episode,
    Experience,
    GroupReply,
    Lease,
    Origin,
    Playing,
    Publication,
    PublishTicket,
    Push,
    Received,
    Reply,
    RunState,
    ServedClient,
    Status,
    StreamProgress,
    TrainReturn,
    Values,
)
from relaax_like.experience.rollout import Rollout
from relaax_like.learn import replay_log
from relaax_like.learn.replay_log import ReplayRecord
from relaax_like.learn.rollout_messages import bytes_to_rollout, rollout_to_bytes
from relaax_like.parameter_server.records import Record, pack_record, unpack_record
from relaax_like.parameter_server.snapshot_format import State, read_files, write_files
from relaax_like.parameter_server.targets import GroupStep, TargetRule
from relaax_like.rlx_server.greeting import Greeting
from relaax_like.rlx_server.json_codec import JsonCodec
from relaax_like.rlx_server.protobuf_codec import ProtobufCodec
from relaax_like.v1 import (
    coordinator_pb2,
    experience_pb2,
    group_pb2,
    ndarray_pb2,
    publisher_pb2,
    rlx_pb2,
    spaces_pb2,
)
from relaax_like.v1 import parameter_server_pb2 as pb
from relaax_like.wire.array_file import read_arrays, write_arrays
from relaax_like.wire.framing import pack_frame
from relaax_like.wire.ndarray import DTYPES, message_to_ndarray, ndarray_to_message
from relaax_like.wire.spaces import (
    Box,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    RunSpaces,
    message_to_run_spaces,
    message_to_space,
    run_spaces_to_message,
    space_to_message,
)


@dataclass(frozen=True)
class Case:
    """One record, as it is written and read.

    Attributes:
      value: the record.
      write: returns its messages.
      read: returns the record that the messages mean; None: this side never reads it.
    """

    value: Any
    write: Callable[[Any], Iterable[bytes]]
    read: Callable[[Sequence[bytes]], Any] | None = None


def _serialize(convert: Callable[[Any], Any]) -> Callable[[Any], Iterable[bytes]]:
    return lambda value: [convert(value).SerializeToString()]


def _parse(kind: Any, convert: Callable[..., Any], *more: Any) -> Callable[[Sequence[bytes]], Any]:
    return lambda parts: convert(kind.FromString(b"".join(parts)), *more)


def _frames(parts: Iterable[Any]) -> Iterable[bytes]:
    return [frames.to_bytes(part) for part in parts]


MANIFEST = make_manifest(
    [
        Variable("w", np.arange(6, dtype=np.float32).reshape(2, 3), "actor"),
        Variable("b", np.zeros(2, np.float32), "critic"),
        Variable("obs.count", np.zeros(()), kind="statistic"),
        Variable("obs.mean", np.zeros(2), kind="statistic"),
        Variable("obs.m2", np.zeros(2), kind="statistic"),
        Variable("steps", np.zeros((), np.int64), kind="counter"),
        Variable("target/w", np.zeros((2, 3), np.float32), kind="target"),
    ]
)
# Maps have one entry each: protobuf writes several in any order.
LARGE = make_manifest([Variable("w", np.zeros(150_000, np.float32))])  # more than one chunk
GRADIENT = np.linspace(-1, 1, 8, dtype=np.float32)
VALUES = np.arange(MANIFEST.total_bytes, dtype=np.uint8)
EPISODES = (
    Episode(1.5, 7, 2, "rlx-1/agent-3"),
    Episode(-0.25, 300),
    Playing("rlx-1/agent-3", 4, 80, 5),
)
# Read in the order players who play, episodes, players who leave.
IN_ORDER = (EPISODES[2], *EPISODES[:2], Playing("rlx-1/agent-9", 0, 3))
MOMENTS = {"obs": Moments(3.0, np.array([0.5, -1.0]), np.array([2.0, 0.125]))}
RECEIVED = {"rlx-1": Received(11, 7, 5), "rlx-2": Received(12, 0, 0)}
PUSH = Push(
    client_id="rlx-1",
    incarnation=1_700_000_000_000_000_000,
    sequence=9,
    gradient=GRADIENT.view(np.uint8),
    gradient_version=41,
    gradient_epoch=2,
    env_steps=64,
    episodes=IN_ORDER,
    fingerprint=MANIFEST.fingerprint,
    statistics=MOMENTS,
)
SERVED = ServedClient(
    name="client",
    session="rlx-1/3",
    slots=4,
    answers=100,
    p50_ms=0.5,
    p99_ms=2.25,
    max_wait_ms=20,
    late=3,
    discarded_steps=8,
    stall="learner",
    versions={"gymnasium": "1.2.3"},
)


def _vary(values: np.ndarray, *shape: int) -> np.ndarray:
    return np.resize(values, shape)


def _write_push(push: Push) -> Iterable[bytes]:
    return _frames(messages.push_to_messages(push, True, 40, timeout_sec=2.5))


def _read_push(manifest: Any) -> Callable[[Sequence[bytes]], Push]:
    def read(parts: Sequence[bytes]) -> Push:
        first, *more = [frames.to_push_pull_request(part) for part in parts]
        push, header = messages.messages_to_push(first, iter(more), manifest)
        assert (header.want_values, header.have_version, header.timeout_sec) == (True, 40, 2.5)
        return push

    return read


def _read_reply(manifest: Any, ranges: messages.Ranges = ()) -> Callable[[Sequence[bytes]], Reply]:
    def read(parts: Sequence[bytes]) -> Reply:
        pool = BufferPool(manifest.total_bytes)
        came = map(frames.to_push_pull_reply, parts)
        return messages.messages_to_reply(came, manifest, pool, ranges=ranges)

    return read


class _Call(Iterator[Any]):
    """A call of `CollectStream` that keeps what is sent, and receives what it is given."""

    def __init__(self, replies: Iterable[Any] = ()):
        self.sent: list[bytes] = []
        self._replies = iter(replies)

    def __next__(self) -> Any:
        return next(self._replies)

    def put(self, part: Any) -> None:
        self.sent.append(frames.to_bytes(part))

    def is_active(self) -> bool:
        return True

    def cancel(self) -> None:
        pass


def _write_experience(experience: Experience) -> Iterable[bytes]:
    call = _Call()
    CollectStream(call, MANIFEST, "rlx-1").send(experience)
    return call.sent


def _read_experience(parts: Sequence[bytes]) -> Experience:
    first, *more = [frames.to_experience_request(part) for part in parts]
    return read_experience(first.header, iter(more))


def _write_opening(opening: dict[str, Any]) -> Iterable[bytes]:
    call = _Call()
    CollectStream(call, MANIFEST, "rlx-1", "control").open(**opening)
    return call.sent


def _read_opening(parts: Sequence[bytes]) -> dict[str, Any]:
    header = experience_pb2.ExperienceRequest.FromString(parts[0]).header
    assert messages.messages_to_ranges(header.ranges, MANIFEST) == MANIFEST.find_ranges(["b"])
    kept = ("incarnation", "have_version", "have_epoch")
    return {**{name: getattr(header, name) for name in kept}, "names": ["b"]}


def _read_notice(parts: Sequence[bytes]) -> tuple[StreamProgress, Reply]:
    stream = CollectStream(_Call(map(frames.to_experience_reply, parts)), MANIFEST, "rlx-1")
    notice = next(iter(stream))
    assert isinstance(notice, ReleaseNotice)
    return notice.progress, notice.reply


def _make_rollout(**more: Any) -> Rollout:
    """Of two steps of three slots; inputs and next inputs are views of one array."""
    whole = np.arange(18, dtype=np.float32).reshape(3, 3, 2)
    return Rollout(
        inputs={"observation": whole[:-1]},
        next_inputs={"observation": whole[1:]},
        next_alive=np.array([[1, 0, -1], [1, 1, 0]], np.float32),
        rewards=np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3, 1),
        actions={"action": np.array([[0, 1, 2], [2, 1, 0]])},
        log_prob=np.full((2, 3), -0.5, np.float32),
        states=more.pop("states", {}),
        versions=np.array([4, 5]),
        **more,
    )


ROLLOUT = _make_rollout(
    states={"lstm": np.ones((3, 4), np.float32)},
    valid=np.array([[True, False, True], [True, True, True]]),
    starts=np.arange(9).reshape(3, 3),
    extras={"bonus": np.zeros((2, 3), np.float32)},
    history={"observation": np.full((2, 3, 2), 7, np.float32)},
)
APART = replace(_make_rollout(), next_inputs={"observation": np.ones((2, 3, 2), np.float32)})


def _write_group_reply(reply: GroupReply) -> Iterable[bytes]:
    return _frames([group_pb2.GroupAnswerPart(header=joining._reply_to_message(reply))])


def _read_group_reply(parts: Sequence[bytes]) -> GroupReply:
    first, *more = [frames.to_part(part, group_pb2.GroupAnswerPart) for part in parts]
    assert not isinstance(first, memoryview)
    return joining._message_to_reply(first.header, iter(more), MANIFEST)


PUBLICATION = Publication(
    number=6,
    values=VALUES,
    slots={"actor": _vary(GRADIENT, 2, 6), "critic": _vary(GRADIENT, 2, 2)},
    steps={"actor": 12, "critic": 13},
    env_steps=64,
    episodes=EPISODES,
    received=RECEIVED,
    ticket=PublishTicket(3, 8),
    score=0.75,
)
STATE = State(
    manifest=MANIFEST,
    version=41,
    global_t=6400,
    values=VALUES,
    slots=PUBLICATION.slots,
    slot_names={"actor": ("m", "v"), "critic": ("m", "v")},
    steps=PUBLICATION.steps,
    optimizers={
        "actor": GroupStep(
            name="adam", learning_rate=1e-3, targets=(TargetRule(name="target/w", source="w"),)
        )
    },
    statistics={"episodes": 3, "players": {"rlx-1": 4}},
    pending={("actor",): (np.ones(6, np.float32), 2)},
    score=0.5,
)


def _write_snapshot(state: State) -> Iterable[bytes]:
    """Returns the files, each after its name."""
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder), state, state.score)
        return [
            part
            for path in sorted(Path(folder).iterdir())
            for part in (path.name.encode(), path.read_bytes())
        ]


def _read_snapshot(parts: Sequence[bytes]) -> State:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in zip(parts[::2], parts[1::2], strict=True):
            (Path(folder) / name.decode()).write_bytes(content)
        return read_files(Path(folder))


def _read_replay_record(parts: Sequence[bytes]) -> ReplayRecord:
    return replay_log._unpack(memoryview(b"".join(parts)), 0, Path())


def _write_version(contents: dict[str, bytes]) -> Iterable[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in contents.items():
            path = Path(folder) / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        return _frames(pack_version(Path(folder), coordinator_pb2.VersionHeader(slave="s-1")))


def _read_version(parts: Sequence[bytes]) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        came = iter([coordinator_pb2.VersionPart.FromString(part) for part in parts])
        unpack_version(came, Path(folder), 1 << 20)
        files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def _write_array_file(arrays: dict[str, np.ndarray]) -> Iterable[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        write_arrays(Path(folder) / "x.npz", arrays, "kind 1")
        return [(Path(folder) / "x.npz").read_bytes()]


def _read_array_file(parts: Sequence[bytes]) -> dict[str, np.ndarray]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "x.npz").write_bytes(parts[0])
        return dict(read_arrays(Path(folder) / "x.npz", "kind 1"))


SPACES = {
    "box": Box(dtype="float32", shape=(2,)),
    "box with bounds": Box(
        dtype="float64", shape=(2,), low=np.array([-1.0, -np.inf]), high=np.array([1.0, np.inf])
    ),
    "mirrored box": Box(dtype="float32", shape=(2,), mirror=(-0.1, 1.0)),
    "discrete": Discrete(n=3, start=-2, dtype="int32"),
    "multi discrete": MultiDiscrete(n=(3, 2), starts=(1, 0), shape=(2,)),
    "multi binary": MultiBinary(shape=(4,)),
}
HELLO = rlx_pb2.Hello(
    protocol_version=1,
    client_name="golden",
    slots=2,
    observation_spaces={"observation": space_to_message(SPACES["box"])},
    action_spaces={"action": space_to_message(Discrete(n=3))},
    mode=rlx_pb2.TRAIN,
    features=["executed", "present", "step_id", "timings"],
)
READY = rlx_pb2.Ready(session="rlx-1/3", max_message_bytes=1 << 20, features=["present"])
ACTIONS = {"action": np.array([2, 0])}
TIMINGS = {"queue_us": 1, "prediction_us": 20, "total_us": 300}
ANSWER = rlx_pb2.Actions(
    actions={"action": ndarray_to_message(ACTIONS["action"], ndarray_pb2.NdArray)},
    version=7,
    episodes=[rlx_pb2.EpisodeEnd(slot=1, score=2.5, length=30)],
    finished="target",
    step_id=5,
    timings=rlx_pb2.Timings(**TIMINGS),
)
ERROR = rlx_pb2.Error(
    code=rlx_pb2.INVALID_FIELD, message="rewards: wrong; send others", field="rewards"
)
STEP = {
    "observations": {"observation": np.arange(4, dtype=np.float32).reshape(2, 2)},
    "rewards": np.array([0.5, -1.0]),
    "terminated": np.array([False, True]),
    "truncated": np.array([False, False]),
}
FLAGGED = {
    **STEP,
    "step_id": 3,
    "flags": {"present": np.array([True, True]), "overridden": np.array([True, False])},
    "executed": {"action": np.array([1, 2])},
}


def _make_codec(kind: Any) -> Any:
    codec, hello = kind(), HELLO
    if kind is JsonCodec:  # it keeps how the hello was written
        text = (
            b'{"hello": {"name": "golden", "slots": 2, "observation": {"box": [2]}, "action": '
            b'{"discrete": 3}, "features": ["executed", "present", "step_id", "timings"]}}'
        )
        hello = codec.read(text, False, lambda token: None).content
    codec.greet(Greeting(hello, 4))
    return codec


def _write_answers(kind: Any) -> Callable[[Any], Iterable[bytes]]:
    """Writes all that a server says, the layout of an answer twice."""

    def write(_: Any) -> Iterable[bytes]:
        codec = _make_codec(kind)
        return [
            codec.write_ready(READY),
            codec.write_actions(ACTIONS, 7, 0, {}),
            codec.write_actions({"action": ACTIONS["action"][::-1].copy()}, 7, 0, {}),
            codec.write_actions(ACTIONS, 8, 4, TIMINGS),
            codec.write_answer(ANSWER),
            codec.write_error(ERROR),
            codec.ping,
        ]

    return write


def _read_features(step: Any) -> dict[str, Any]:
    present = np.ones(2, bool) if step.absent is None else ~step.absent
    flags = {"present": present, "overridden": step.overridden}
    return {"step_id": step.step_id, "flags": flags, "executed": step.executed}


def _write_steps(steps: Sequence[Mapping[str, Any]]) -> list[bytes]:
    parts = "observations", "executed"
    return [
        pack_step(
            {k: v for k, v in step.items() if isinstance(v, np.ndarray)} | step.get("flags", {}),
            {part: step[part] for part in parts if part in step},
            step.get("step_id", 0),
        )
        for step in steps
    ]


def _read_steps(kind: Any, before: bytes) -> Callable[[Sequence[bytes]], Any]:
    """Reads a step as the server does, in a session that has begun."""

    def read(parts: Sequence[bytes]) -> Any:
        codec = _make_codec(kind)
        codec.read(before, False, None)
        found = [codec.read(part, True, None).content for part in parts]
        return [
            {
                "observations": one.observations,
                "rewards": one.rewards[:, 0],
                "terminated": one.terminated,
                "truncated": one.truncated,
                **(_read_features(one) if one.step_id else {}),
            }
            for one in found
        ]

    return read


FIRST = rlx_pb2.ClientMessage(
    step=rlx_pb2.Step(
        observations={
            "observation": ndarray_to_message(np.ones((2, 2), np.float32), ndarray_pb2.NdArray)
        }
    )
).SerializeToString()

CASES: dict[str, Case] = {
    "push": Case(PUSH, _write_push, _read_push(MANIFEST)),
    "push of groups": Case(
        replace(PUSH, groups=("critic",), gradient=GRADIENT[:2].view(np.uint8), episodes=()),
        _write_push,
        _read_push(MANIFEST),
    ),
    "push of counts": Case(Push(client_id="rlx-1", env_steps=3), _write_push, _read_push(MANIFEST)),
    "push in chunks": Case(
        Push(
            client_id="rlx-1",
            gradient=_vary(GRADIENT, 150_000).view(np.uint8),
            fingerprint=LARGE.fingerprint,
        ),
        _write_push,
        _read_push(LARGE),
    ),
    "reply": Case(
        Reply(
            outcome="applied",
            reason="why",
            durability="journal",
            version=42,
            global_t=6400,
            epoch=2,
            finished="target",
            values=Values(version=42, flat=VALUES),
        ),
        lambda reply: _frames(messages.reply_to_messages(reply)),
        _read_reply(MANIFEST),
    ),
    "reply without values": Case(
        Reply(outcome="pending", version=1),
        lambda reply: _frames(messages.reply_to_messages(reply)),
        _read_reply(MANIFEST),
    ),
    "reply in chunks": Case(
        Reply(values=Values(version=3, flat=_vary(VALUES, LARGE.total_bytes))),
        lambda reply: _frames(messages.reply_to_messages(reply)),
        _read_reply(LARGE),
    ),
    "reply with ranges": Case(
        Reply(
            values=Values(
                version=3,
                flat=np.where(np.arange(len(VALUES)) // 8 == 1, VALUES, 0xFF).astype(np.uint8),
            )
        ),
        lambda reply: _frames(messages.reply_to_messages(reply, ranges=(slice(8, 16),))),
        _read_reply(MANIFEST, (slice(8, 16),)),
    ),
    "manifest": Case(
        MANIFEST, _serialize(manifest_to_message), _parse(pb.Manifest, message_to_manifest)
    ),
    "status": Case(
        Status(
            global_t=6400,
            version=41,
            epoch=2,
            uptime_sec=12.5,
            env_steps_per_sec=800.0,
            mean_return=1.25,
            return_episodes=10,
            episodes=11,
            clients=1,
            finished="budget",
            snapshot_global_t=6000,
            checkpoint_dir="run/checkpoints",
            refused={"busy": 2},
            parameters=8,
            durability="publication",
            unsynced_records=1,
            unsynced_bytes=20,
            journal_bytes=300,
            snapshot_age_sec=4.5,
            snapshot_failures=1,
            client_list=(ClientStatus(client_id="rlx-1", gradients=3, staleness=1),),
            held_back=1,
            resident_bytes=1 << 20,
            mirrored_global_t=5000,
            mirror_error="full",
            journal_error="slow",
            served=(SERVED,),
            served_clients=1,
            overdue_updates=2.5,
            learner_address="localhost:7002",
            learner_term=3,
            learner_silent_sec=0.5,
            joint_learners=2,
            unlearned_steps=7,
            given_up_version=40,
            given_up_step=6300,
        ),
        _serialize(messages.status_to_message),
        _parse(pb.Status, messages.message_to_status),
    ),
    "empty status": Case(
        Status(),
        _serialize(messages.status_to_message),
        _parse(pb.Status, messages.message_to_status),
    ),
    "status with a prior": Case(
        Status(overdue_updates=0.0, table_steps=1200, prior_steps=0),
        _serialize(messages.status_to_message),
        _parse(pb.Status, messages.message_to_status),
    ),
    "report about clients": Case(
        ClientsReport(
            server_id="rlx-1",
            clients=(SERVED, ServedClient(name="b", session="s", slots=1)),
            num_clients=2,
        ),
        _serialize(messages.report_to_message),
        _parse(pb.ClientsReport, messages.message_to_report),
    ),
    "opening of experience": Case(
        {"incarnation": 11, "have_version": 4, "have_epoch": 2, "names": ["b"]},
        _write_opening,
        _read_opening,
    ),
    "experience": Case(
        Experience(
            client_id="rlx-1",
            incarnation=11,
            sequence=7,
            agent="agent-3",
            columns=3,
            rollout=rollout_to_bytes(ROLLOUT),
            episodes=IN_ORDER,
            env_steps=6,
            sampling_sec=0.25,
            is_urgent=True,
        ),
        _write_experience,
        _read_experience,
    ),
    "experience that leaves": Case(
        Experience(client_id="rlx-1", incarnation=11, sequence=8, is_leaving=True),
        _write_experience,
        _read_experience,
    ),
    "experience in chunks": Case(
        Experience(client_id="rlx-1", incarnation=1, sequence=9, rollout=_vary(VALUES, 600_000)),
        _write_experience,
        _read_experience,
    ),
    "progress": Case(
        (StreamProgress(7, 5), Reply(version=42, values=Values(version=42, flat=VALUES))),
        lambda value: _frames(progress_to_messages(*value, ())),
        _read_notice,
    ),
    "rollout": Case(
        ROLLOUT,
        lambda rollout: [rollout_to_bytes(rollout).tobytes()],
        lambda parts: bytes_to_rollout(np.frombuffer(parts[0], np.uint8)),
    ),
    "rollout with next inputs of its own": Case(
        APART,
        lambda rollout: [rollout_to_bytes(rollout).tobytes()],
        lambda parts: bytes_to_rollout(np.frombuffer(parts[0], np.uint8)),
    ),
    "answer to a group's learner": Case(
        GroupReply(
            outcome="done",
            iteration=4,
            generation=9,
            rank=1,
            learners=2,
            units=128,
            units_before=64,
            updates=12,
            sums=np.array([0.5, 2.0]),
            norms={"actor": 0.25},
            reply=Reply(
                outcome="applied", version=42, epoch=1, values=Values(version=42, flat=VALUES)
            ),
        ),
        _write_group_reply,
        _read_group_reply,
    ),
    "state of a run": Case(
        RunState(
            outcome="applied",
            reason="why",
            version=41,
            global_t=6400,
            epoch=2,
            finished="target",
            number=6,
            sequence=8,
            durable_sequence=7,
            best_score=0.5,
            train_return=TrainReturn(1.25, 10, 11),
        ),
        _serialize(publishing.state_to_message),
        _parse(publisher_pb2.RunState, publishing.message_to_state),
    ),
    "lease": Case(
        Lease(
            number=6,
            manifest=MANIFEST,
            values=VALUES,
            slots=PUBLICATION.slots,
            slot_names=STATE.slot_names,
            steps=STATE.steps,
            version=41,
            global_t=6400,
            finished="",
            received=RECEIVED,
        ),
        lambda lease: _frames([publishing._lease_to_header(3, 6.0, lease, RunState(version=41))]),
    ),
    "publication": Case(PUBLICATION, lambda item: _frames(publishing._item_to_parts(item))),
    "counts": Case(
        Counts(env_steps=64, episodes=EPISODES, received=RECEIVED, ticket=PublishTicket(3, 9)),
        lambda item: _frames(publishing._item_to_parts(item)),
    ),
    "record of the journal": Case(
        Record(
            replace(PUSH, gradient=GRADIENT),
            {"actor": 1e-3},
            version=42,
            global_t=6400,
            outcome="applied",
            takes_pending=True,
            optimizers=STATE.optimizers,
        ),
        lambda record: [b"".join(pack_record(record))],
        lambda parts: unpack_record(memoryview(parts[0])),
    ),
    "record of a dropped push": Case(
        Record(
            replace(PUSH, gradient=GRADIENT, statistics={}),
            {},
            version=41,
            global_t=6400,
            outcome="dropped",
            reason="too stale",
        ),
        lambda record: [b"".join(pack_record(record))],
        lambda parts: unpack_record(memoryview(parts[0])),
    ),
    "frames of the journal": Case(
        None,
        lambda _: [
            files.pack_header(MANIFEST.fingerprint, 17, 5),
            files.pack_record_header(17, [memoryview(b"payload")], 5)[0],
        ],
    ),
    "record of the replay log": Case(
        ReplayRecord(ROLLOUT, IN_ORDER, 6, Origin("rlx-1", 11, 7), 600, 20),
        lambda record: [b"".join(replay_log._pack(record))],
        _read_replay_record,
    ),
    "record of counts in the replay log": Case(
        ReplayRecord(None, (), 6, None, 600, 20),
        lambda record: [b"".join(replay_log._pack(record))],
        _read_replay_record,
    ),
    "snapshot": Case(STATE, _write_snapshot, _read_snapshot),
    "file of arrays": Case(
        {"keys": np.arange(6).reshape(2, 3), "priorities": np.array([0.5, 1.0])},
        _write_array_file,
        _read_array_file,
    ),
    "saved reports": Case(
        list(EPISODES),
        lambda reports: [json.dumps(pack_reports(reports)).encode()],
        lambda parts: unpack_reports(json.loads(parts[0])),
    ),
    "attempt": Case(
        Attempt(7, 2), _serialize(Attempt.to_message), _parse(coordinator_pb2.Attempt, Attempt.of)
    ),
    "version of a run": Case(
        {"a.txt": b"hello", "folder/b.bin": bytes(3)}, _write_version, _read_version
    ),
    **{
        f"space: {name}": Case(
            space, _serialize(space_to_message), _parse(rlx_pb2.Space, message_to_space, "space")
        )
        for name, space in SPACES.items()
    },
    "spaces of a run": Case(
        RunSpaces({"a": SPACES["box"], "b": SPACES["multi binary"]}, {"x": SPACES["discrete"]}),
        lambda spaces: [run_spaces_to_message(spaces).SerializeToString(deterministic=True)],
        _parse(spaces_pb2.Spaces, message_to_run_spaces),
    ),
    **{
        f"array: {name}": Case(
            np.array([[0, 1, 1]]).astype(dtype),
            _serialize(lambda array: ndarray_to_message(array, ndarray_pb2.NdArray)),
            _parse(ndarray_pb2.NdArray, message_to_ndarray, "array"),
        )
        for name, dtype in DTYPES.items()
    },
    "frame": Case(None, lambda _: [pack_frame(b"body")]),
    "step": Case(
        [STEP, STEP],
        _write_steps,
        _read_steps(ProtobufCodec, FIRST),
    ),
    "step with features": Case(
        [FLAGGED, FLAGGED],
        _write_steps,
        _read_steps(ProtobufCodec, FIRST),
    ),
    "steps in JSON": Case(
        [STEP],
        lambda _: [
            b'{"reward_and_act": {"observation": [[0, 1], [2, 3]], "reward": [0.5, -1], '
            b'"terminated": [false, true]}}'
        ],
        _read_steps(JsonCodec, b'{"act": {"observation": [[1, 1], [1, 1]]}}'),
    ),
    "answers in protobuf": Case(None, _write_answers(ProtobufCodec)),
    "answers in JSON": Case(None, _write_answers(JsonCodec)),
}
