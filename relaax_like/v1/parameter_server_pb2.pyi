from relaax_like.v1 import ndarray_pb2 as _ndarray_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SegmentKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEGMENT_KIND_INVALID: _ClassVar[SegmentKind]
    TRAINABLE: _ClassVar[SegmentKind]
    TARGET: _ClassVar[SegmentKind]
    STATISTIC: _ClassVar[SegmentKind]
    COUNTER: _ClassVar[SegmentKind]
    BUFFER: _ClassVar[SegmentKind]
    CONSTANT: _ClassVar[SegmentKind]

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_INVALID: _ClassVar[Outcome]
    NOTHING: _ClassVar[Outcome]
    APPLIED: _ClassVar[Outcome]
    PENDING: _ClassVar[Outcome]
    DROPPED: _ClassVar[Outcome]

class Durability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DURABILITY_INVALID: _ClassVar[Durability]
    SNAPSHOT: _ClassVar[Durability]
    JOURNAL: _ClassVar[Durability]
    PUBLICATION: _ClassVar[Durability]
SEGMENT_KIND_INVALID: SegmentKind
TRAINABLE: SegmentKind
TARGET: SegmentKind
STATISTIC: SegmentKind
COUNTER: SegmentKind
BUFFER: SegmentKind
CONSTANT: SegmentKind
OUTCOME_INVALID: Outcome
NOTHING: Outcome
APPLIED: Outcome
PENDING: Outcome
DROPPED: Outcome
DURABILITY_INVALID: Durability
SNAPSHOT: Durability
JOURNAL: Durability
PUBLICATION: Durability

class Segment(_message.Message):
    __slots__ = ("name", "dtype", "shape", "offset", "group", "kind")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    offset: int
    group: str
    kind: SegmentKind
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., offset: _Optional[int] = ..., group: _Optional[str] = ..., kind: _Optional[_Union[SegmentKind, str]] = ...) -> None: ...

class Manifest(_message.Message):
    __slots__ = ("segments", "total_bytes", "gradient_bytes", "fingerprint")
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    total_bytes: int
    gradient_bytes: int
    fingerprint: int
    def __init__(self, segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ..., total_bytes: _Optional[int] = ..., gradient_bytes: _Optional[int] = ..., fingerprint: _Optional[int] = ...) -> None: ...

class GetManifestRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Episode(_message.Message):
    __slots__ = ("episode_return", "length", "slot", "player")
    EPISODE_RETURN_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    PLAYER_FIELD_NUMBER: _ClassVar[int]
    episode_return: float
    length: int
    slot: int
    player: str
    def __init__(self, episode_return: _Optional[float] = ..., length: _Optional[int] = ..., slot: _Optional[int] = ..., player: _Optional[str] = ...) -> None: ...

class Player(_message.Message):
    __slots__ = ("name", "slots", "env_steps", "unlearned_steps")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    ENV_STEPS_FIELD_NUMBER: _ClassVar[int]
    UNLEARNED_STEPS_FIELD_NUMBER: _ClassVar[int]
    name: str
    slots: int
    env_steps: int
    unlearned_steps: int
    def __init__(self, name: _Optional[str] = ..., slots: _Optional[int] = ..., env_steps: _Optional[int] = ..., unlearned_steps: _Optional[int] = ...) -> None: ...

class StatisticDelta(_message.Message):
    __slots__ = ("name", "count", "mean", "m2")
    NAME_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    M2_FIELD_NUMBER: _ClassVar[int]
    name: str
    count: float
    mean: _ndarray_pb2.NdArray
    m2: _ndarray_pb2.NdArray
    def __init__(self, name: _Optional[str] = ..., count: _Optional[float] = ..., mean: _Optional[_Union[_ndarray_pb2.NdArray, _Mapping]] = ..., m2: _Optional[_Union[_ndarray_pb2.NdArray, _Mapping]] = ...) -> None: ...

class PushHeader(_message.Message):
    __slots__ = ("client_id", "incarnation", "sequence", "gradient_bytes", "gradient_version", "env_steps", "episodes", "want_values", "have_version", "fingerprint", "gradient_epoch", "statistics", "groups", "first_chunk", "shared_gradient", "timeout_sec", "players")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    ENV_STEPS_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    WANT_VALUES_FIELD_NUMBER: _ClassVar[int]
    HAVE_VERSION_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    FIRST_CHUNK_FIELD_NUMBER: _ClassVar[int]
    SHARED_GRADIENT_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SEC_FIELD_NUMBER: _ClassVar[int]
    PLAYERS_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    incarnation: int
    sequence: int
    gradient_bytes: int
    gradient_version: int
    env_steps: int
    episodes: _containers.RepeatedCompositeFieldContainer[Episode]
    want_values: bool
    have_version: int
    fingerprint: int
    gradient_epoch: int
    statistics: _containers.RepeatedCompositeFieldContainer[StatisticDelta]
    groups: _containers.RepeatedScalarFieldContainer[str]
    first_chunk: bytes
    shared_gradient: bool
    timeout_sec: float
    players: _containers.RepeatedCompositeFieldContainer[Player]
    def __init__(self, client_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., sequence: _Optional[int] = ..., gradient_bytes: _Optional[int] = ..., gradient_version: _Optional[int] = ..., env_steps: _Optional[int] = ..., episodes: _Optional[_Iterable[_Union[Episode, _Mapping]]] = ..., want_values: bool = ..., have_version: _Optional[int] = ..., fingerprint: _Optional[int] = ..., gradient_epoch: _Optional[int] = ..., statistics: _Optional[_Iterable[_Union[StatisticDelta, _Mapping]]] = ..., groups: _Optional[_Iterable[str]] = ..., first_chunk: _Optional[bytes] = ..., shared_gradient: bool = ..., timeout_sec: _Optional[float] = ..., players: _Optional[_Iterable[_Union[Player, _Mapping]]] = ...) -> None: ...

class SharedMemoryOffer(_message.Message):
    __slots__ = ("pid", "descriptor", "nonce", "mailboxes")
    PID_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    MAILBOXES_FIELD_NUMBER: _ClassVar[int]
    pid: int
    descriptor: int
    nonce: bytes
    mailboxes: bool
    def __init__(self, pid: _Optional[int] = ..., descriptor: _Optional[int] = ..., nonce: _Optional[bytes] = ..., mailboxes: bool = ...) -> None: ...

class SharedMemoryAnswer(_message.Message):
    __slots__ = ("accepted", "reason")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    reason: str
    def __init__(self, accepted: bool = ..., reason: _Optional[str] = ...) -> None: ...

class PushPullRequest(_message.Message):
    __slots__ = ("header", "chunk", "offer")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    header: PushHeader
    chunk: bytes
    offer: SharedMemoryOffer
    def __init__(self, header: _Optional[_Union[PushHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ..., offer: _Optional[_Union[SharedMemoryOffer, _Mapping]] = ...) -> None: ...

class ReplyHeader(_message.Message):
    __slots__ = ("outcome", "reason", "durability", "version", "global_t", "epoch", "values_bytes", "values_version", "finished", "first_chunk", "shared_values")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_T_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VALUES_BYTES_FIELD_NUMBER: _ClassVar[int]
    VALUES_VERSION_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    FIRST_CHUNK_FIELD_NUMBER: _ClassVar[int]
    SHARED_VALUES_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    reason: str
    durability: Durability
    version: int
    global_t: int
    epoch: int
    values_bytes: int
    values_version: int
    finished: str
    first_chunk: bytes
    shared_values: bool
    def __init__(self, outcome: _Optional[_Union[Outcome, str]] = ..., reason: _Optional[str] = ..., durability: _Optional[_Union[Durability, str]] = ..., version: _Optional[int] = ..., global_t: _Optional[int] = ..., epoch: _Optional[int] = ..., values_bytes: _Optional[int] = ..., values_version: _Optional[int] = ..., finished: _Optional[str] = ..., first_chunk: _Optional[bytes] = ..., shared_values: bool = ...) -> None: ...

class ByteRange(_message.Message):
    __slots__ = ("offset", "length")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    offset: int
    length: int
    def __init__(self, offset: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class PushPullReply(_message.Message):
    __slots__ = ("header", "chunk", "answer")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    header: ReplyHeader
    chunk: bytes
    answer: SharedMemoryAnswer
    def __init__(self, header: _Optional[_Union[ReplyHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ..., answer: _Optional[_Union[SharedMemoryAnswer, _Mapping]] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("client_id", "have_version", "have_any")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    HAVE_VERSION_FIELD_NUMBER: _ClassVar[int]
    HAVE_ANY_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    have_version: int
    have_any: bool
    def __init__(self, client_id: _Optional[str] = ..., have_version: _Optional[int] = ..., have_any: bool = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Status(_message.Message):
    __slots__ = ("global_t", "version", "epoch", "uptime_sec", "env_steps_per_sec", "mean_return", "return_episodes", "episodes", "clients", "finished", "snapshot_global_t", "checkpoint_dir", "refused", "durability", "parameters", "unsynced_records", "unsynced_bytes", "journal_bytes", "snapshot_age_sec", "snapshot_failures", "client_list", "held_back", "resident_bytes", "mirrored_global_t", "mirror_error", "journal_error", "served", "served_clients", "overdue_updates", "learner_address", "learner_term", "learner_silent_sec", "joint_learners", "given_up_version", "given_up_step", "unlearned_steps", "table_steps", "prior_steps")
    class RefusedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    GLOBAL_T_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    UPTIME_SEC_FIELD_NUMBER: _ClassVar[int]
    ENV_STEPS_PER_SEC_FIELD_NUMBER: _ClassVar[int]
    MEAN_RETURN_FIELD_NUMBER: _ClassVar[int]
    RETURN_EPISODES_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_GLOBAL_T_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_DIR_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    UNSYNCED_RECORDS_FIELD_NUMBER: _ClassVar[int]
    UNSYNCED_BYTES_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_AGE_SEC_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FAILURES_FIELD_NUMBER: _ClassVar[int]
    CLIENT_LIST_FIELD_NUMBER: _ClassVar[int]
    HELD_BACK_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MIRRORED_GLOBAL_T_FIELD_NUMBER: _ClassVar[int]
    MIRROR_ERROR_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_ERROR_FIELD_NUMBER: _ClassVar[int]
    SERVED_FIELD_NUMBER: _ClassVar[int]
    SERVED_CLIENTS_FIELD_NUMBER: _ClassVar[int]
    OVERDUE_UPDATES_FIELD_NUMBER: _ClassVar[int]
    LEARNER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LEARNER_TERM_FIELD_NUMBER: _ClassVar[int]
    LEARNER_SILENT_SEC_FIELD_NUMBER: _ClassVar[int]
    JOINT_LEARNERS_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_VERSION_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_STEP_FIELD_NUMBER: _ClassVar[int]
    UNLEARNED_STEPS_FIELD_NUMBER: _ClassVar[int]
    TABLE_STEPS_FIELD_NUMBER: _ClassVar[int]
    PRIOR_STEPS_FIELD_NUMBER: _ClassVar[int]
    global_t: int
    version: int
    epoch: int
    uptime_sec: float
    env_steps_per_sec: float
    mean_return: float
    return_episodes: int
    episodes: int
    clients: int
    finished: str
    snapshot_global_t: int
    checkpoint_dir: str
    refused: _containers.ScalarMap[str, int]
    durability: Durability
    parameters: int
    unsynced_records: int
    unsynced_bytes: int
    journal_bytes: int
    snapshot_age_sec: float
    snapshot_failures: int
    client_list: _containers.RepeatedCompositeFieldContainer[ClientStatus]
    held_back: int
    resident_bytes: int
    mirrored_global_t: int
    mirror_error: str
    journal_error: str
    served: _containers.RepeatedCompositeFieldContainer[ServedClient]
    served_clients: int
    overdue_updates: float
    learner_address: str
    learner_term: int
    learner_silent_sec: float
    joint_learners: int
    given_up_version: int
    given_up_step: int
    unlearned_steps: int
    table_steps: int
    prior_steps: int
    def __init__(self, global_t: _Optional[int] = ..., version: _Optional[int] = ..., epoch: _Optional[int] = ..., uptime_sec: _Optional[float] = ..., env_steps_per_sec: _Optional[float] = ..., mean_return: _Optional[float] = ..., return_episodes: _Optional[int] = ..., episodes: _Optional[int] = ..., clients: _Optional[int] = ..., finished: _Optional[str] = ..., snapshot_global_t: _Optional[int] = ..., checkpoint_dir: _Optional[str] = ..., refused: _Optional[_Mapping[str, int]] = ..., durability: _Optional[_Union[Durability, str]] = ..., parameters: _Optional[int] = ..., unsynced_records: _Optional[int] = ..., unsynced_bytes: _Optional[int] = ..., journal_bytes: _Optional[int] = ..., snapshot_age_sec: _Optional[float] = ..., snapshot_failures: _Optional[int] = ..., client_list: _Optional[_Iterable[_Union[ClientStatus, _Mapping]]] = ..., held_back: _Optional[int] = ..., resident_bytes: _Optional[int] = ..., mirrored_global_t: _Optional[int] = ..., mirror_error: _Optional[str] = ..., journal_error: _Optional[str] = ..., served: _Optional[_Iterable[_Union[ServedClient, _Mapping]]] = ..., served_clients: _Optional[int] = ..., overdue_updates: _Optional[float] = ..., learner_address: _Optional[str] = ..., learner_term: _Optional[int] = ..., learner_silent_sec: _Optional[float] = ..., joint_learners: _Optional[int] = ..., given_up_version: _Optional[int] = ..., given_up_step: _Optional[int] = ..., unlearned_steps: _Optional[int] = ..., table_steps: _Optional[int] = ..., prior_steps: _Optional[int] = ...) -> None: ...

class ClientStatus(_message.Message):
    __slots__ = ("client_id", "gradients", "staleness", "silent_sec")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    SILENT_SEC_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    gradients: int
    staleness: int
    silent_sec: float
    def __init__(self, client_id: _Optional[str] = ..., gradients: _Optional[int] = ..., staleness: _Optional[int] = ..., silent_sec: _Optional[float] = ...) -> None: ...

class ServedClient(_message.Message):
    __slots__ = ("name", "session", "slots", "answers", "p50_ms", "p99_ms", "max_wait_ms", "late", "discarded_steps", "stall", "versions", "games")
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    P50_MS_FIELD_NUMBER: _ClassVar[int]
    P99_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    DISCARDED_STEPS_FIELD_NUMBER: _ClassVar[int]
    STALL_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    GAMES_FIELD_NUMBER: _ClassVar[int]
    name: str
    session: str
    slots: int
    answers: int
    p50_ms: float
    p99_ms: float
    max_wait_ms: int
    late: int
    discarded_steps: int
    stall: str
    versions: _containers.ScalarMap[str, str]
    games: int
    def __init__(self, name: _Optional[str] = ..., session: _Optional[str] = ..., slots: _Optional[int] = ..., answers: _Optional[int] = ..., p50_ms: _Optional[float] = ..., p99_ms: _Optional[float] = ..., max_wait_ms: _Optional[int] = ..., late: _Optional[int] = ..., discarded_steps: _Optional[int] = ..., stall: _Optional[str] = ..., versions: _Optional[_Mapping[str, str]] = ..., games: _Optional[int] = ...) -> None: ...

class ClientsReport(_message.Message):
    __slots__ = ("server_id", "clients", "num_clients")
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    NUM_CLIENTS_FIELD_NUMBER: _ClassVar[int]
    server_id: str
    clients: _containers.RepeatedCompositeFieldContainer[ServedClient]
    num_clients: int
    def __init__(self, server_id: _Optional[str] = ..., clients: _Optional[_Iterable[_Union[ServedClient, _Mapping]]] = ..., num_clients: _Optional[int] = ...) -> None: ...

class ClientsReportReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SaveRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SaveReply(_message.Message):
    __slots__ = ("path",)
    PATH_FIELD_NUMBER: _ClassVar[int]
    path: str
    def __init__(self, path: _Optional[str] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StopReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
