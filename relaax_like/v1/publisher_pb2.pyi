from relaax_like.v1 import parameter_server_pb2 as _parameter_server_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AcquireRequest(_message.Message):
    __slots__ = ("format", "holder", "address", "fingerprint")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    format: int
    holder: str
    address: str
    fingerprint: int
    def __init__(self, format: _Optional[int] = ..., holder: _Optional[str] = ..., address: _Optional[str] = ..., fingerprint: _Optional[int] = ...) -> None: ...

class ReceivedExperience(_message.Message):
    __slots__ = ("client_id", "incarnation", "counted", "learned")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    LEARNED_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    incarnation: int
    counted: int
    learned: int
    def __init__(self, client_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., counted: _Optional[int] = ..., learned: _Optional[int] = ...) -> None: ...

class OptimizerState(_message.Message):
    __slots__ = ("group", "steps", "slot_names", "size")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SLOT_NAMES_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    group: str
    steps: int
    slot_names: _containers.RepeatedScalarFieldContainer[str]
    size: int
    def __init__(self, group: _Optional[str] = ..., steps: _Optional[int] = ..., slot_names: _Optional[_Iterable[str]] = ..., size: _Optional[int] = ...) -> None: ...

class LeaseHeader(_message.Message):
    __slots__ = ("term", "lease_sec", "state", "values_bytes", "optimizers", "received")
    TERM_FIELD_NUMBER: _ClassVar[int]
    LEASE_SEC_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    VALUES_BYTES_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZERS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    term: int
    lease_sec: float
    state: RunState
    values_bytes: int
    optimizers: _containers.RepeatedCompositeFieldContainer[OptimizerState]
    received: _containers.RepeatedCompositeFieldContainer[ReceivedExperience]
    def __init__(self, term: _Optional[int] = ..., lease_sec: _Optional[float] = ..., state: _Optional[_Union[RunState, _Mapping]] = ..., values_bytes: _Optional[int] = ..., optimizers: _Optional[_Iterable[_Union[OptimizerState, _Mapping]]] = ..., received: _Optional[_Iterable[_Union[ReceivedExperience, _Mapping]]] = ...) -> None: ...

class LeasePart(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: LeaseHeader
    chunk: bytes
    def __init__(self, header: _Optional[_Union[LeaseHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("term", "overdue_updates", "given_up_step", "table_steps", "prior_steps")
    TERM_FIELD_NUMBER: _ClassVar[int]
    OVERDUE_UPDATES_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_STEP_FIELD_NUMBER: _ClassVar[int]
    TABLE_STEPS_FIELD_NUMBER: _ClassVar[int]
    PRIOR_STEPS_FIELD_NUMBER: _ClassVar[int]
    term: int
    overdue_updates: float
    given_up_step: int
    table_steps: int
    prior_steps: int
    def __init__(self, term: _Optional[int] = ..., overdue_updates: _Optional[float] = ..., given_up_step: _Optional[int] = ..., table_steps: _Optional[int] = ..., prior_steps: _Optional[int] = ...) -> None: ...

class PublishHeader(_message.Message):
    __slots__ = ("term", "sequence", "number", "env_steps", "episodes", "received", "optimizers", "score", "players")
    TERM_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ENV_STEPS_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZERS_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    PLAYERS_FIELD_NUMBER: _ClassVar[int]
    term: int
    sequence: int
    number: int
    env_steps: int
    episodes: _containers.RepeatedCompositeFieldContainer[_parameter_server_pb2.Episode]
    received: _containers.RepeatedCompositeFieldContainer[ReceivedExperience]
    optimizers: _containers.RepeatedCompositeFieldContainer[OptimizerState]
    score: float
    players: _containers.RepeatedCompositeFieldContainer[_parameter_server_pb2.Player]
    def __init__(self, term: _Optional[int] = ..., sequence: _Optional[int] = ..., number: _Optional[int] = ..., env_steps: _Optional[int] = ..., episodes: _Optional[_Iterable[_Union[_parameter_server_pb2.Episode, _Mapping]]] = ..., received: _Optional[_Iterable[_Union[ReceivedExperience, _Mapping]]] = ..., optimizers: _Optional[_Iterable[_Union[OptimizerState, _Mapping]]] = ..., score: _Optional[float] = ..., players: _Optional[_Iterable[_Union[_parameter_server_pb2.Player, _Mapping]]] = ...) -> None: ...

class PublishPart(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: PublishHeader
    chunk: bytes
    def __init__(self, header: _Optional[_Union[PublishHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class RunState(_message.Message):
    __slots__ = ("outcome", "reason", "version", "global_t", "epoch", "finished", "number", "sequence", "durable_sequence", "best_score", "mean_return", "window", "episodes")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_T_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DURABLE_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    BEST_SCORE_FIELD_NUMBER: _ClassVar[int]
    MEAN_RETURN_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    outcome: _parameter_server_pb2.Outcome
    reason: str
    version: int
    global_t: int
    epoch: int
    finished: str
    number: int
    sequence: int
    durable_sequence: int
    best_score: float
    mean_return: float
    window: int
    episodes: int
    def __init__(self, outcome: _Optional[_Union[_parameter_server_pb2.Outcome, str]] = ..., reason: _Optional[str] = ..., version: _Optional[int] = ..., global_t: _Optional[int] = ..., epoch: _Optional[int] = ..., finished: _Optional[str] = ..., number: _Optional[int] = ..., sequence: _Optional[int] = ..., durable_sequence: _Optional[int] = ..., best_score: _Optional[float] = ..., mean_return: _Optional[float] = ..., window: _Optional[int] = ..., episodes: _Optional[int] = ...) -> None: ...

class FindLearnerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LearnerAddress(_message.Message):
    __slots__ = ("address", "term")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    address: str
    term: int
    def __init__(self, address: _Optional[str] = ..., term: _Optional[int] = ...) -> None: ...
