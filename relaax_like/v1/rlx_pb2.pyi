from relaax_like.v1 import ndarray_pb2 as _ndarray_pb2
from relaax_like.v1 import metrics_pb2 as _metrics_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SpaceKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SPACE_KIND_INVALID: _ClassVar[SpaceKind]
    BOX: _ClassVar[SpaceKind]
    DISCRETE: _ClassVar[SpaceKind]
    MULTI_DISCRETE: _ClassVar[SpaceKind]
    MULTI_BINARY: _ClassVar[SpaceKind]

class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODE_INVALID: _ClassVar[Mode]
    TRAIN: _ClassVar[Mode]
    EXPLOIT: _ClassVar[Mode]

class ErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_CODE_INVALID: _ClassVar[ErrorCode]
    MALFORMED: _ClassVar[ErrorCode]
    VERSION_MISMATCH: _ClassVar[ErrorCode]
    SPACE_MISMATCH: _ClassVar[ErrorCode]
    INVALID_FIELD: _ClassVar[ErrorCode]
    OUT_OF_ORDER: _ClassVar[ErrorCode]
    OVERLOADED: _ClassVar[ErrorCode]
    UNAUTHENTICATED: _ClassVar[ErrorCode]
    AGENT_FAILED: _ClassVar[ErrorCode]
    UNAVAILABLE: _ClassVar[ErrorCode]
SPACE_KIND_INVALID: SpaceKind
BOX: SpaceKind
DISCRETE: SpaceKind
MULTI_DISCRETE: SpaceKind
MULTI_BINARY: SpaceKind
MODE_INVALID: Mode
TRAIN: Mode
EXPLOIT: Mode
ERROR_CODE_INVALID: ErrorCode
MALFORMED: ErrorCode
VERSION_MISMATCH: ErrorCode
SPACE_MISMATCH: ErrorCode
INVALID_FIELD: ErrorCode
OUT_OF_ORDER: ErrorCode
OVERLOADED: ErrorCode
UNAUTHENTICATED: ErrorCode
AGENT_FAILED: ErrorCode
UNAVAILABLE: ErrorCode

class Space(_message.Message):
    __slots__ = ("kind", "dtype", "shape", "low", "high", "n", "start", "mirror", "starts")
    KIND_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    MIRROR_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    kind: SpaceKind
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    low: _ndarray_pb2.NdArray
    high: _ndarray_pb2.NdArray
    n: _containers.RepeatedScalarFieldContainer[int]
    start: int
    mirror: _containers.RepeatedScalarFieldContainer[float]
    starts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, kind: _Optional[_Union[SpaceKind, str]] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., low: _Optional[_Union[_ndarray_pb2.NdArray, _Mapping]] = ..., high: _Optional[_Union[_ndarray_pb2.NdArray, _Mapping]] = ..., n: _Optional[_Iterable[int]] = ..., start: _Optional[int] = ..., mirror: _Optional[_Iterable[float]] = ..., starts: _Optional[_Iterable[int]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol_version", "client_name", "slots", "observation_spaces", "action_spaces", "mode", "token", "features", "max_wait_ms", "versions", "agents", "games", "kinds")
    class ObservationSpacesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Space
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Space, _Mapping]] = ...) -> None: ...
    class ActionSpacesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Space
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Space, _Mapping]] = ...) -> None: ...
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_NAME_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_SPACES_FIELD_NUMBER: _ClassVar[int]
    ACTION_SPACES_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    GAMES_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    client_name: str
    slots: int
    observation_spaces: _containers.MessageMap[str, Space]
    action_spaces: _containers.MessageMap[str, Space]
    mode: Mode
    token: str
    features: _containers.RepeatedScalarFieldContainer[str]
    max_wait_ms: int
    versions: _containers.ScalarMap[str, str]
    agents: _containers.RepeatedScalarFieldContainer[str]
    games: _containers.RepeatedScalarFieldContainer[int]
    kinds: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, protocol_version: _Optional[int] = ..., client_name: _Optional[str] = ..., slots: _Optional[int] = ..., observation_spaces: _Optional[_Mapping[str, Space]] = ..., action_spaces: _Optional[_Mapping[str, Space]] = ..., mode: _Optional[_Union[Mode, str]] = ..., token: _Optional[str] = ..., features: _Optional[_Iterable[str]] = ..., max_wait_ms: _Optional[int] = ..., versions: _Optional[_Mapping[str, str]] = ..., agents: _Optional[_Iterable[str]] = ..., games: _Optional[_Iterable[int]] = ..., kinds: _Optional[_Iterable[str]] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("protocol_version", "session", "max_message_bytes", "features", "policies")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    session: str
    max_message_bytes: int
    features: _containers.RepeatedScalarFieldContainer[str]
    policies: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, protocol_version: _Optional[int] = ..., session: _Optional[str] = ..., max_message_bytes: _Optional[int] = ..., features: _Optional[_Iterable[str]] = ..., policies: _Optional[_Iterable[str]] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("observations", "rewards", "terminated", "truncated", "success", "final_observations", "step_id", "present", "executed", "overridden", "masks", "final_masks")
    class ObservationsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _ndarray_pb2.NdArray
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_ndarray_pb2.NdArray, _Mapping]] = ...) -> None: ...
    class FinalObservationsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _ndarray_pb2.NdArray
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_ndarray_pb2.NdArray, _Mapping]] = ...) -> None: ...
    class ExecutedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _ndarray_pb2.NdArray
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_ndarray_pb2.NdArray, _Mapping]] = ...) -> None: ...
    class MasksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _ndarray_pb2.NdArray
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_ndarray_pb2.NdArray, _Mapping]] = ...) -> None: ...
    class FinalMasksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _ndarray_pb2.NdArray
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_ndarray_pb2.NdArray, _Mapping]] = ...) -> None: ...
    OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    REWARDS_FIELD_NUMBER: _ClassVar[int]
    TERMINATED_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    FINAL_OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    EXECUTED_FIELD_NUMBER: _ClassVar[int]
    OVERRIDDEN_FIELD_NUMBER: _ClassVar[int]
    MASKS_FIELD_NUMBER: _ClassVar[int]
    FINAL_MASKS_FIELD_NUMBER: _ClassVar[int]
    observations: _containers.MessageMap[str, _ndarray_pb2.NdArray]
    rewards: _ndarray_pb2.NdArray
    terminated: _ndarray_pb2.NdArray
    truncated: _ndarray_pb2.NdArray
    success: _ndarray_pb2.NdArray
    final_observations: _containers.MessageMap[str, _ndarray_pb2.NdArray]
    step_id: int
    present: _ndarray_pb2.NdArray
    executed: _containers.MessageMap[str, _ndarray_pb2.NdArray]
    overridden: _ndarray_pb2.NdArray
    masks: _containers.MessageMap[str, _ndarray_pb2.NdArray]
    final_masks: _containers.MessageMap[str, _ndarray_pb2.NdArray]
    def __init__(self, observations: _Optional[_Mapping[str, _ndarray_pb2.NdArray]] = ..., rewards: _Optional[_Union[_ndarray_pb2.NdArray, _Mapping]] = ..., terminated: _Optional[_Union[_ndarray_pb2.NdArray, _Mapping]] = ..., truncated: _Optional[_Union[_ndarray_pb2.NdArray, _Mapping]] = ..., success: _Optional[_Union[_ndarray_pb2.NdArray, _Mapping]] = ..., final_observations: _Optional[_Mapping[str, _ndarray_pb2.NdArray]] = ..., step_id: _Optional[int] = ..., present: _Optional[_Union[_ndarray_pb2.NdArray, _Mapping]] = ..., executed: _Optional[_Mapping[str, _ndarray_pb2.NdArray]] = ..., overridden: _Optional[_Union[_ndarray_pb2.NdArray, _Mapping]] = ..., masks: _Optional[_Mapping[str, _ndarray_pb2.NdArray]] = ..., final_masks: _Optional[_Mapping[str, _ndarray_pb2.NdArray]] = ...) -> None: ...

class EpisodeEnd(_message.Message):
    __slots__ = ("slot", "score", "length")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    slot: int
    score: float
    length: int
    def __init__(self, slot: _Optional[int] = ..., score: _Optional[float] = ..., length: _Optional[int] = ...) -> None: ...

class Actions(_message.Message):
    __slots__ = ("actions", "episodes", "finished", "version", "step_id", "timings", "versions")
    class ActionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _ndarray_pb2.NdArray
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_ndarray_pb2.NdArray, _Mapping]] = ...) -> None: ...
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    actions: _containers.MessageMap[str, _ndarray_pb2.NdArray]
    episodes: _containers.RepeatedCompositeFieldContainer[EpisodeEnd]
    finished: str
    version: int
    step_id: int
    timings: Timings
    versions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, actions: _Optional[_Mapping[str, _ndarray_pb2.NdArray]] = ..., episodes: _Optional[_Iterable[_Union[EpisodeEnd, _Mapping]]] = ..., finished: _Optional[str] = ..., version: _Optional[int] = ..., step_id: _Optional[int] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., versions: _Optional[_Iterable[int]] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("queue_us", "prediction_us", "total_us")
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_US_FIELD_NUMBER: _ClassVar[int]
    TOTAL_US_FIELD_NUMBER: _ClassVar[int]
    queue_us: int
    prediction_us: int
    total_us: int
    def __init__(self, queue_us: _Optional[int] = ..., prediction_us: _Optional[int] = ..., total_us: _Optional[int] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "message", "field")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    code: ErrorCode
    message: str
    field: str
    def __init__(self, code: _Optional[_Union[ErrorCode, str]] = ..., message: _Optional[str] = ..., field: _Optional[str] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ClientMessage(_message.Message):
    __slots__ = ("hello", "step", "scalars", "ping")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SCALARS_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    step: Step
    scalars: _metrics_pb2.StoreScalarsRequest
    ping: Ping
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., step: _Optional[_Union[Step, _Mapping]] = ..., scalars: _Optional[_Union[_metrics_pb2.StoreScalarsRequest, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ...) -> None: ...

class ServerMessage(_message.Message):
    __slots__ = ("ready", "actions", "error", "ping")
    READY_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    ready: Ready
    actions: Actions
    error: Error
    ping: Ping
    def __init__(self, ready: _Optional[_Union[Ready, _Mapping]] = ..., actions: _Optional[_Union[Actions, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ...) -> None: ...
