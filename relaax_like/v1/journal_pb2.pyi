from relaax_like.v1 import experience_pb2 as _experience_pb2
from relaax_like.v1 import parameter_server_pb2 as _parameter_server_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Combining(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ALONE: _ClassVar[Combining]
    HELD_BACK: _ClassVar[Combining]
    WITH_HELD_BACK: _ClassVar[Combining]
    NOT_USED: _ClassVar[Combining]
ALONE: Combining
HELD_BACK: Combining
WITH_HELD_BACK: Combining
NOT_USED: Combining

class JournalRecord(_message.Message):
    __slots__ = ("push", "learning_rates", "version", "global_t", "combining", "reason", "optimizers")
    class LearningRatesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class OptimizersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PUSH_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_T_FIELD_NUMBER: _ClassVar[int]
    COMBINING_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZERS_FIELD_NUMBER: _ClassVar[int]
    push: _parameter_server_pb2.PushHeader
    learning_rates: _containers.ScalarMap[str, float]
    version: int
    global_t: int
    combining: Combining
    reason: str
    optimizers: _containers.ScalarMap[str, str]
    def __init__(self, push: _Optional[_Union[_parameter_server_pb2.PushHeader, _Mapping]] = ..., learning_rates: _Optional[_Mapping[str, float]] = ..., version: _Optional[int] = ..., global_t: _Optional[int] = ..., combining: _Optional[_Union[Combining, str]] = ..., reason: _Optional[str] = ..., optimizers: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ReplayRecord(_message.Message):
    __slots__ = ("experience", "steps", "minibatches")
    EXPERIENCE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    MINIBATCHES_FIELD_NUMBER: _ClassVar[int]
    experience: _experience_pb2.ExperienceHeader
    steps: int
    minibatches: int
    def __init__(self, experience: _Optional[_Union[_experience_pb2.ExperienceHeader, _Mapping]] = ..., steps: _Optional[int] = ..., minibatches: _Optional[int] = ...) -> None: ...
