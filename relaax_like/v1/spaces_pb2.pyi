from relaax_like.v1 import rlx_pb2 as _rlx_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Spaces(_message.Message):
    __slots__ = ("observation_spaces", "action_spaces")
    class ObservationSpacesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _rlx_pb2.Space
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_rlx_pb2.Space, _Mapping]] = ...) -> None: ...
    class ActionSpacesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _rlx_pb2.Space
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_rlx_pb2.Space, _Mapping]] = ...) -> None: ...
    OBSERVATION_SPACES_FIELD_NUMBER: _ClassVar[int]
    ACTION_SPACES_FIELD_NUMBER: _ClassVar[int]
    observation_spaces: _containers.MessageMap[str, _rlx_pb2.Space]
    action_spaces: _containers.MessageMap[str, _rlx_pb2.Space]
    def __init__(self, observation_spaces: _Optional[_Mapping[str, _rlx_pb2.Space]] = ..., action_spaces: _Optional[_Mapping[str, _rlx_pb2.Space]] = ...) -> None: ...
