from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Scalar(_message.Message):
    __slots__ = ("name", "y", "x")
    NAME_FIELD_NUMBER: _ClassVar[int]
    Y_FIELD_NUMBER: _ClassVar[int]
    X_FIELD_NUMBER: _ClassVar[int]
    name: str
    y: float
    x: float
    def __init__(self, name: _Optional[str] = ..., y: _Optional[float] = ..., x: _Optional[float] = ...) -> None: ...

class StoreScalarsRequest(_message.Message):
    __slots__ = ("scalars", "global_t", "started_at")
    SCALARS_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_T_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    scalars: _containers.RepeatedCompositeFieldContainer[Scalar]
    global_t: int
    started_at: int
    def __init__(self, scalars: _Optional[_Iterable[_Union[Scalar, _Mapping]]] = ..., global_t: _Optional[int] = ..., started_at: _Optional[int] = ...) -> None: ...

class StoreScalarsReply(_message.Message):
    __slots__ = ("dropped",)
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    dropped: int
    def __init__(self, dropped: _Optional[int] = ...) -> None: ...
