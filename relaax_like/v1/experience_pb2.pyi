from relaax_like.v1 import parameter_server_pb2 as _parameter_server_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ExperienceHeader(_message.Message):
    __slots__ = ("client_id", "incarnation", "sequence", "agent", "columns", "episodes", "rollout_bytes", "first_chunk", "have_version", "have_epoch", "leaves", "ranges", "env_steps", "sampling_sec", "algorithm", "urgent", "format", "players")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    FIRST_CHUNK_FIELD_NUMBER: _ClassVar[int]
    HAVE_VERSION_FIELD_NUMBER: _ClassVar[int]
    HAVE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    ENV_STEPS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_SEC_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    URGENT_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    PLAYERS_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    incarnation: int
    sequence: int
    agent: str
    columns: int
    episodes: _containers.RepeatedCompositeFieldContainer[_parameter_server_pb2.Episode]
    rollout_bytes: int
    first_chunk: bytes
    have_version: int
    have_epoch: int
    leaves: bool
    ranges: _containers.RepeatedCompositeFieldContainer[_parameter_server_pb2.ByteRange]
    env_steps: int
    sampling_sec: float
    algorithm: str
    urgent: bool
    format: int
    players: _containers.RepeatedCompositeFieldContainer[_parameter_server_pb2.Player]
    def __init__(self, client_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., sequence: _Optional[int] = ..., agent: _Optional[str] = ..., columns: _Optional[int] = ..., episodes: _Optional[_Iterable[_Union[_parameter_server_pb2.Episode, _Mapping]]] = ..., rollout_bytes: _Optional[int] = ..., first_chunk: _Optional[bytes] = ..., have_version: _Optional[int] = ..., have_epoch: _Optional[int] = ..., leaves: bool = ..., ranges: _Optional[_Iterable[_Union[_parameter_server_pb2.ByteRange, _Mapping]]] = ..., env_steps: _Optional[int] = ..., sampling_sec: _Optional[float] = ..., algorithm: _Optional[str] = ..., urgent: bool = ..., format: _Optional[int] = ..., players: _Optional[_Iterable[_Union[_parameter_server_pb2.Player, _Mapping]]] = ...) -> None: ...

class ExperienceRequest(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: ExperienceHeader
    chunk: bytes
    def __init__(self, header: _Optional[_Union[ExperienceHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class ExperienceProgress(_message.Message):
    __slots__ = ("received_through", "released_through", "header")
    RECEIVED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    RELEASED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    received_through: int
    released_through: int
    header: _parameter_server_pb2.ReplyHeader
    def __init__(self, received_through: _Optional[int] = ..., released_through: _Optional[int] = ..., header: _Optional[_Union[_parameter_server_pb2.ReplyHeader, _Mapping]] = ...) -> None: ...

class ExperienceReply(_message.Message):
    __slots__ = ("progress", "chunk")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    progress: ExperienceProgress
    chunk: bytes
    def __init__(self, progress: _Optional[_Union[ExperienceProgress, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...
