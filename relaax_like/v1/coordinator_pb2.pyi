from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Attempt(_message.Message):
    __slots__ = ("job", "attempt", "collector")
    JOB_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    COLLECTOR_FIELD_NUMBER: _ClassVar[int]
    job: int
    attempt: int
    collector: int
    def __init__(self, job: _Optional[int] = ..., attempt: _Optional[int] = ..., collector: _Optional[int] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("id", "name", "payload")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    id: int
    name: str
    payload: str
    def __init__(self, id: _Optional[int] = ..., name: _Optional[str] = ..., payload: _Optional[str] = ...) -> None: ...

class TaskResult(_message.Message):
    __slots__ = ("task", "coordinator", "ok", "payload")
    TASK_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    task: int
    coordinator: int
    ok: bool
    payload: str
    def __init__(self, task: _Optional[int] = ..., coordinator: _Optional[int] = ..., ok: bool = ..., payload: _Optional[str] = ...) -> None: ...

class PollRequest(_message.Message):
    __slots__ = ("format", "slave", "incarnation", "sequence", "algorithms", "environments", "running", "progress", "coordinator", "last_task", "wait_ms", "runs_jobs", "address", "host", "machine", "has_security", "parameter_server")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    SLAVE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ALGORITHMS_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENTS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    LAST_TASK_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    RUNS_JOBS_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    HAS_SECURITY_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_SERVER_FIELD_NUMBER: _ClassVar[int]
    format: int
    slave: str
    incarnation: int
    sequence: int
    algorithms: _containers.RepeatedScalarFieldContainer[str]
    environments: _containers.RepeatedScalarFieldContainer[str]
    running: Attempt
    progress: str
    coordinator: int
    last_task: int
    wait_ms: int
    runs_jobs: bool
    address: str
    host: str
    machine: str
    has_security: bool
    parameter_server: str
    def __init__(self, format: _Optional[int] = ..., slave: _Optional[str] = ..., incarnation: _Optional[int] = ..., sequence: _Optional[int] = ..., algorithms: _Optional[_Iterable[str]] = ..., environments: _Optional[_Iterable[str]] = ..., running: _Optional[_Union[Attempt, _Mapping]] = ..., progress: _Optional[str] = ..., coordinator: _Optional[int] = ..., last_task: _Optional[int] = ..., wait_ms: _Optional[int] = ..., runs_jobs: bool = ..., address: _Optional[str] = ..., host: _Optional[str] = ..., machine: _Optional[str] = ..., has_security: bool = ..., parameter_server: _Optional[str] = ...) -> None: ...

class PollReply(_message.Message):
    __slots__ = ("coordinator", "tasks")
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    coordinator: int
    tasks: _containers.RepeatedCompositeFieldContainer[Task]
    def __init__(self, coordinator: _Optional[int] = ..., tasks: _Optional[_Iterable[_Union[Task, _Mapping]]] = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ("attempt", "outcome", "reason", "tail")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[Ended.Outcome]
        DONE: _ClassVar[Ended.Outcome]
        FAILED: _ClassVar[Ended.Outcome]
        STOPPED: _ClassVar[Ended.Outcome]
    UNKNOWN: Ended.Outcome
    DONE: Ended.Outcome
    FAILED: Ended.Outcome
    STOPPED: Ended.Outcome
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    attempt: Attempt
    outcome: Ended.Outcome
    reason: str
    tail: str
    def __init__(self, attempt: _Optional[_Union[Attempt, _Mapping]] = ..., outcome: _Optional[_Union[Ended.Outcome, str]] = ..., reason: _Optional[str] = ..., tail: _Optional[str] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("format", "slave", "incarnation", "results", "ended")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    SLAVE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    format: int
    slave: str
    incarnation: int
    results: _containers.RepeatedCompositeFieldContainer[TaskResult]
    ended: Ended
    def __init__(self, format: _Optional[int] = ..., slave: _Optional[str] = ..., incarnation: _Optional[int] = ..., results: _Optional[_Iterable[_Union[TaskResult, _Mapping]]] = ..., ended: _Optional[_Union[Ended, _Mapping]] = ...) -> None: ...

class ReportReply(_message.Message):
    __slots__ = ("accepted",)
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    def __init__(self, accepted: bool = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("format", "slave", "incarnation")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    SLAVE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    format: int
    slave: str
    incarnation: int
    def __init__(self, format: _Optional[int] = ..., slave: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class LeaveReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class VersionHeader(_message.Message):
    __slots__ = ("format", "slave", "incarnation", "attempt", "files", "bytes", "step")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    SLAVE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    format: int
    slave: str
    incarnation: int
    attempt: Attempt
    files: int
    bytes: int
    step: int
    def __init__(self, format: _Optional[int] = ..., slave: _Optional[str] = ..., incarnation: _Optional[int] = ..., attempt: _Optional[_Union[Attempt, _Mapping]] = ..., files: _Optional[int] = ..., bytes: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class VersionFile(_message.Message):
    __slots__ = ("path", "bytes", "crc")
    PATH_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    path: str
    bytes: int
    crc: int
    def __init__(self, path: _Optional[str] = ..., bytes: _Optional[int] = ..., crc: _Optional[int] = ...) -> None: ...

class VersionPart(_message.Message):
    __slots__ = ("header", "file", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: VersionHeader
    file: VersionFile
    chunk: bytes
    def __init__(self, header: _Optional[_Union[VersionHeader, _Mapping]] = ..., file: _Optional[_Union[VersionFile, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class SendVersionReply(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class GetVersionRequest(_message.Message):
    __slots__ = ("format", "slave", "incarnation", "attempt")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    SLAVE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    format: int
    slave: str
    incarnation: int
    attempt: Attempt
    def __init__(self, format: _Optional[int] = ..., slave: _Optional[str] = ..., incarnation: _Optional[int] = ..., attempt: _Optional[_Union[Attempt, _Mapping]] = ...) -> None: ...

class SubmitRequest(_message.Message):
    __slots__ = ("format", "key", "name", "config", "collectors")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    COLLECTORS_FIELD_NUMBER: _ClassVar[int]
    format: int
    key: str
    name: str
    config: str
    collectors: int
    def __init__(self, format: _Optional[int] = ..., key: _Optional[str] = ..., name: _Optional[str] = ..., config: _Optional[str] = ..., collectors: _Optional[int] = ...) -> None: ...

class SubmitReply(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: int
    def __init__(self, job: _Optional[int] = ...) -> None: ...

class JobInfo(_message.Message):
    __slots__ = ("job", "name", "state", "attempts", "slave", "version", "step", "folder", "reason", "tail", "config", "progress", "collectors", "collecting")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[JobInfo.State]
        QUEUED: _ClassVar[JobInfo.State]
        RUNNING: _ClassVar[JobInfo.State]
        DONE: _ClassVar[JobInfo.State]
        FAILED: _ClassVar[JobInfo.State]
        CANCELLED: _ClassVar[JobInfo.State]
    UNKNOWN: JobInfo.State
    QUEUED: JobInfo.State
    RUNNING: JobInfo.State
    DONE: JobInfo.State
    FAILED: JobInfo.State
    CANCELLED: JobInfo.State
    JOB_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    SLAVE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    COLLECTORS_FIELD_NUMBER: _ClassVar[int]
    COLLECTING_FIELD_NUMBER: _ClassVar[int]
    job: int
    name: str
    state: JobInfo.State
    attempts: int
    slave: str
    version: int
    step: int
    folder: str
    reason: str
    tail: str
    config: str
    progress: str
    collectors: int
    collecting: int
    def __init__(self, job: _Optional[int] = ..., name: _Optional[str] = ..., state: _Optional[_Union[JobInfo.State, str]] = ..., attempts: _Optional[int] = ..., slave: _Optional[str] = ..., version: _Optional[int] = ..., step: _Optional[int] = ..., folder: _Optional[str] = ..., reason: _Optional[str] = ..., tail: _Optional[str] = ..., config: _Optional[str] = ..., progress: _Optional[str] = ..., collectors: _Optional[int] = ..., collecting: _Optional[int] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("format", "job", "after")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    format: int
    job: int
    after: int
    def __init__(self, format: _Optional[int] = ..., job: _Optional[int] = ..., after: _Optional[int] = ...) -> None: ...

class SlaveInfo(_message.Message):
    __slots__ = ("name", "running", "silent_sec")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    SILENT_SEC_FIELD_NUMBER: _ClassVar[int]
    name: str
    running: Attempt
    silent_sec: float
    def __init__(self, name: _Optional[str] = ..., running: _Optional[_Union[Attempt, _Mapping]] = ..., silent_sec: _Optional[float] = ...) -> None: ...

class ListReply(_message.Message):
    __slots__ = ("jobs", "slaves", "more")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    SLAVES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobInfo]
    slaves: _containers.RepeatedCompositeFieldContainer[SlaveInfo]
    more: bool
    def __init__(self, jobs: _Optional[_Iterable[_Union[JobInfo, _Mapping]]] = ..., slaves: _Optional[_Iterable[_Union[SlaveInfo, _Mapping]]] = ..., more: bool = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("format", "job")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    format: int
    job: int
    def __init__(self, format: _Optional[int] = ..., job: _Optional[int] = ...) -> None: ...

class CancelReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetCollectorsRequest(_message.Message):
    __slots__ = ("format", "job", "collectors")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    COLLECTORS_FIELD_NUMBER: _ClassVar[int]
    format: int
    job: int
    collectors: int
    def __init__(self, format: _Optional[int] = ..., job: _Optional[int] = ..., collectors: _Optional[int] = ...) -> None: ...

class SetCollectorsReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
