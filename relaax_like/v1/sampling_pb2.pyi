from relaax_like.v1 import ndarray_pb2 as _ndarray_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Sync(_message.Message):
    __slots__ = ("version", "values")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    version: int
    values: _containers.RepeatedCompositeFieldContainer[_ndarray_pb2.NdArray]
    def __init__(self, version: _Optional[int] = ..., values: _Optional[_Iterable[_Union[_ndarray_pb2.NdArray, _Mapping]]] = ...) -> None: ...

class Sample(_message.Message):
    __slots__ = ("max_traj_len",)
    MAX_TRAJ_LEN_FIELD_NUMBER: _ClassVar[int]
    max_traj_len: int
    def __init__(self, max_traj_len: _Optional[int] = ...) -> None: ...

class Pause(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Finish(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SamplerRequest(_message.Message):
    __slots__ = ("sync", "sample", "pause", "finish")
    SYNC_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    sync: Sync
    sample: Sample
    pause: Pause
    finish: Finish
    def __init__(self, sync: _Optional[_Union[Sync, _Mapping]] = ..., sample: _Optional[_Union[Sample, _Mapping]] = ..., pause: _Optional[_Union[Pause, _Mapping]] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ...) -> None: ...

class Trajectories(_message.Message):
    __slots__ = ("states", "actions", "rewards", "values", "returns", "extras", "traj_idx", "terminal_values")
    class StatesEntry(_message.Message):
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
    class ExtrasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _ndarray_pb2.NdArray
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_ndarray_pb2.NdArray, _Mapping]] = ...) -> None: ...
    STATES_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    REWARDS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    RETURNS_FIELD_NUMBER: _ClassVar[int]
    EXTRAS_FIELD_NUMBER: _ClassVar[int]
    TRAJ_IDX_FIELD_NUMBER: _ClassVar[int]
    TERMINAL_VALUES_FIELD_NUMBER: _ClassVar[int]
    states: _containers.MessageMap[str, _ndarray_pb2.NdArray]
    actions: _containers.MessageMap[str, _ndarray_pb2.NdArray]
    rewards: _ndarray_pb2.NdArray
    values: _ndarray_pb2.NdArray
    returns: _ndarray_pb2.NdArray
    extras: _containers.MessageMap[str, _ndarray_pb2.NdArray]
    traj_idx: _ndarray_pb2.NdArray
    terminal_values: _ndarray_pb2.NdArray
    def __init__(self, states: _Optional[_Mapping[str, _ndarray_pb2.NdArray]] = ..., actions: _Optional[_Mapping[str, _ndarray_pb2.NdArray]] = ..., rewards: _Optional[_Union[_ndarray_pb2.NdArray, _Mapping]] = ..., values: _Optional[_Union[_ndarray_pb2.NdArray, _Mapping]] = ..., returns: _Optional[_Union[_ndarray_pb2.NdArray, _Mapping]] = ..., extras: _Optional[_Mapping[str, _ndarray_pb2.NdArray]] = ..., traj_idx: _Optional[_Union[_ndarray_pb2.NdArray, _Mapping]] = ..., terminal_values: _Optional[_Union[_ndarray_pb2.NdArray, _Mapping]] = ...) -> None: ...

class Sampled(_message.Message):
    __slots__ = ("version", "trajectories", "sample_sec", "discarded_trajectories", "discarded_steps", "finished")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TRAJECTORIES_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_SEC_FIELD_NUMBER: _ClassVar[int]
    DISCARDED_TRAJECTORIES_FIELD_NUMBER: _ClassVar[int]
    DISCARDED_STEPS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    version: int
    trajectories: Trajectories
    sample_sec: float
    discarded_trajectories: int
    discarded_steps: int
    finished: bool
    def __init__(self, version: _Optional[int] = ..., trajectories: _Optional[_Union[Trajectories, _Mapping]] = ..., sample_sec: _Optional[float] = ..., discarded_trajectories: _Optional[int] = ..., discarded_steps: _Optional[int] = ..., finished: bool = ...) -> None: ...
