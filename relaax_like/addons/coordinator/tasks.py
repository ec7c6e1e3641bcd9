"""The tasks that a coordinator sends to slaves, by DI-engine's names."""

from collections.abc import Mapping
from typing import Any

from relaax_like.wire.errors import InvalidInputError, RelaaxError

RESOURCE = "resource"
START = "learner_start_task"
GET_DATA = "learner_get_data_task"
LEARN = "learner_learn_task"
CLOSE = "learner_close_task"
COLLECTOR_START = "collector_start_task"
COLLECTOR_CLOSE = "collector_close_task"
# Seconds within which a slave must answer a task, after which it is passed over; only the task that
# learns can take longer.
TASK_TIMEOUT_SEC: Mapping[str, float] = {
    RESOURCE: 30.0,
    START: 30.0,
    GET_DATA: 30.0,
    LEARN: 600.0,
    CLOSE: 30.0,
    COLLECTOR_START: 30.0,
    COLLECTOR_CLOSE: 30.0,
}


class TaskFail(RelaaxError):
    """A task was not done: its slave cannot do it, gave no valid answer in time, or is lost.

    Args:
      result: what the slave answers, or the coordinator in its place: a mapping of JSON types, in
        which `message` is the reason.
      message: text of the error; usually that reason.

    Attributes:
      result: a copy of the argument.
    """

    def __init__(self, result: Mapping[str, Any], message: str):
        super().__init__(message)
        self.result = dict(result)

    @classmethod
    def because(cls, message: str, **more: Any) -> "TaskFail":
        """Returns one whose result has the message, and more."""
        return cls({"message": message, **more}, message)


class NameInUseError(InvalidInputError):
    """Another process uses the slave's name."""


class RefusedAttemptError(RelaaxError):
    """The coordinator refused a request because of the state of the job. A retry would fail, too.

    The attempt is not the job's newest one, belongs to another slave or has no version, or the job
    has ended.
    """
