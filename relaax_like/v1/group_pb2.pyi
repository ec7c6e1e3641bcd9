from relaax_like.v1 import parameter_server_pb2 as _parameter_server_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GroupKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GROUP_KIND_UNSPECIFIED: _ClassVar[GroupKind]
    GROUP_KIND_ENTER: _ClassVar[GroupKind]
    GROUP_KIND_SUM: _ClassVar[GroupKind]
    GROUP_KIND_STEP: _ClassVar[GroupKind]
    GROUP_KIND_LEAVE: _ClassVar[GroupKind]
    GROUP_KIND_COMPILING: _ClassVar[GroupKind]

class GroupOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GROUP_OUTCOME_UNSPECIFIED: _ClassVar[GroupOutcome]
    GROUP_OUTCOME_DONE: _ClassVar[GroupOutcome]
    GROUP_OUTCOME_AGAIN: _ClassVar[GroupOutcome]
    GROUP_OUTCOME_OUT: _ClassVar[GroupOutcome]
GROUP_KIND_UNSPECIFIED: GroupKind
GROUP_KIND_ENTER: GroupKind
GROUP_KIND_SUM: GroupKind
GROUP_KIND_STEP: GroupKind
GROUP_KIND_LEAVE: GroupKind
GROUP_KIND_COMPILING: GroupKind
GROUP_OUTCOME_UNSPECIFIED: GroupOutcome
GROUP_OUTCOME_DONE: GroupOutcome
GROUP_OUTCOME_AGAIN: GroupOutcome
GROUP_OUTCOME_OUT: GroupOutcome

class GroupRequest(_message.Message):
    __slots__ = ("format", "learner", "fingerprint", "kind", "iteration", "generation", "tag", "units", "sums", "groups", "clip", "gradient_bytes", "gradient")
    class ClipEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    LEARNER_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    CLIP_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_FIELD_NUMBER: _ClassVar[int]
    format: int
    learner: str
    fingerprint: int
    kind: GroupKind
    iteration: int
    generation: int
    tag: str
    units: int
    sums: _containers.RepeatedScalarFieldContainer[float]
    groups: _containers.RepeatedScalarFieldContainer[str]
    clip: _containers.ScalarMap[str, float]
    gradient_bytes: int
    gradient: bytes
    def __init__(self, format: _Optional[int] = ..., learner: _Optional[str] = ..., fingerprint: _Optional[int] = ..., kind: _Optional[_Union[GroupKind, str]] = ..., iteration: _Optional[int] = ..., generation: _Optional[int] = ..., tag: _Optional[str] = ..., units: _Optional[int] = ..., sums: _Optional[_Iterable[float]] = ..., groups: _Optional[_Iterable[str]] = ..., clip: _Optional[_Mapping[str, float]] = ..., gradient_bytes: _Optional[int] = ..., gradient: _Optional[bytes] = ...) -> None: ...

class GroupPart(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: GroupRequest
    chunk: bytes
    def __init__(self, header: _Optional[_Union[GroupRequest, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class GroupAnswer(_message.Message):
    __slots__ = ("outcome", "iteration", "generation", "rank", "learners", "units", "units_before", "updates", "sums", "norms", "applied", "reason", "version", "global_t", "epoch", "finished", "values_bytes", "values")
    class NormsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    LEARNERS_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    UNITS_BEFORE_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    NORMS_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_T_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    VALUES_BYTES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    outcome: GroupOutcome
    iteration: int
    generation: int
    rank: int
    learners: int
    units: int
    units_before: int
    updates: int
    sums: _containers.RepeatedScalarFieldContainer[float]
    norms: _containers.ScalarMap[str, float]
    applied: _parameter_server_pb2.Outcome
    reason: str
    version: int
    global_t: int
    epoch: int
    finished: str
    values_bytes: int
    values: bytes
    def __init__(self, outcome: _Optional[_Union[GroupOutcome, str]] = ..., iteration: _Optional[int] = ..., generation: _Optional[int] = ..., rank: _Optional[int] = ..., learners: _Optional[int] = ..., units: _Optional[int] = ..., units_before: _Optional[int] = ..., updates: _Optional[int] = ..., sums: _Optional[_Iterable[float]] = ..., norms: _Optional[_Mapping[str, float]] = ..., applied: _Optional[_Union[_parameter_server_pb2.Outcome, str]] = ..., reason: _Optional[str] = ..., version: _Optional[int] = ..., global_t: _Optional[int] = ..., epoch: _Optional[int] = ..., finished: _Optional[str] = ..., values_bytes: _Optional[int] = ..., values: _Optional[bytes] = ...) -> None: ...

class GroupAnswerPart(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: GroupAnswer
    chunk: bytes
    def __init__(self, header: _Optional[_Union[GroupAnswer, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...
