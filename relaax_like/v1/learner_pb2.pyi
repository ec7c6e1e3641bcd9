from relaax_like.v1 import ndarray_pb2 as _ndarray_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Rollout(_message.Message):
    __slots__ = ("inputs", "next_inputs", "next_alive", "rewards", "actions", "log_prob", "states", "versions", "valid", "extras", "starts", "history")
    class InputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _ndarray_pb2.NdArray
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_ndarray_pb2.NdArray, _Mapping]] = ...) -> None: ...
    class NextInputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _ndarray_pb2.NdArray
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_ndarray_pb2.NdArray, _Mapping]] = ...) -> None: ...
    class ActionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _ndarray_pb2.NdArray
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_ndarray_pb2.NdArray, _Mapping]] = ...) -> None: ...
    class StatesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _ndarray_pb2.NdArray
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_ndarray_pb2.NdArray, _Mapping]] = ...) -> None: ...
    class ExtrasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _ndarray_pb2.NdArray
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_ndarray_pb2.NdArray, _Mapping]] = ...) -> None: ...
    class HistoryEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _ndarray_pb2.NdArray
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_ndarray_pb2.NdArray, _Mapping]] = ...) -> None: ...
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_INPUTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_ALIVE_FIELD_NUMBER: _ClassVar[int]
    REWARDS_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    LOG_PROB_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    VALID_FIELD_NUMBER: _ClassVar[int]
    EXTRAS_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    inputs: _containers.MessageMap[str, _ndarray_pb2.NdArray]
    next_inputs: _containers.MessageMap[str, _ndarray_pb2.NdArray]
    next_alive: _ndarray_pb2.NdArray
    rewards: _ndarray_pb2.NdArray
    actions: _containers.MessageMap[str, _ndarray_pb2.NdArray]
    log_prob: _ndarray_pb2.NdArray
    states: _containers.MessageMap[str, _ndarray_pb2.NdArray]
    versions: _ndarray_pb2.NdArray
    valid: _ndarray_pb2.NdArray
    extras: _containers.MessageMap[str, _ndarray_pb2.NdArray]
    starts: _ndarray_pb2.NdArray
    history: _containers.MessageMap[str, _ndarray_pb2.NdArray]
    def __init__(self, inputs: _Optional[_Mapping[str, _ndarray_pb2.NdArray]] = ..., next_inputs: _Optional[_Mapping[str, _ndarray_pb2.NdArray]] = ..., next_alive: _Optional[_Union[_ndarray_pb2.NdArray, _Mapping]] = ..., rewards: _Optional[_Union[_ndarray_pb2.NdArray, _Mapping]] = ..., actions: _Optional[_Mapping[str, _ndarray_pb2.NdArray]] = ..., log_prob: _Optional[_Union[_ndarray_pb2.NdArray, _Mapping]] = ..., states: _Optional[_Mapping[str, _ndarray_pb2.NdArray]] = ..., versions: _Optional[_Union[_ndarray_pb2.NdArray, _Mapping]] = ..., valid: _Optional[_Union[_ndarray_pb2.NdArray, _Mapping]] = ..., extras: _Optional[_Mapping[str, _ndarray_pb2.NdArray]] = ..., starts: _Optional[_Union[_ndarray_pb2.NdArray, _Mapping]] = ..., history: _Optional[_Mapping[str, _ndarray_pb2.NdArray]] = ...) -> None: ...
