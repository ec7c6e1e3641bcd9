"""Converts records to protobuf messages and back, by the names of their fields."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from google.protobuf.message import Message

_Message = TypeVar("_Message", bound=Message)
_Record = TypeVar("_Record")


def to_message(message: type[_Message], record: Any, **others: Any) -> _Message:
    """Makes a message from a record, a dataclass or named tuple.

    Args:
      message: class of the message.
      record: its fields that the message has, too, are taken, unless they are None.
      others: field of the message -> its value, for those that the record has in another form or
        not at all; None: it is not set.
    """
    for name, _ in _find_common(type(record), message):  # type: ignore[arg-type]  # hashable
        if name not in others:
            others[name] = getattr(record, name)
    return message(**{name: value for name, value in others.items() if value is not None})


def to_record(record: type[_Record], message: Message, **others: Any) -> _Record:
    """Makes a record from a message: an optional field that is not set becomes None.

    Args:
      record: class of the record, a dataclass or named tuple.
      message: its fields that the record has, too, are taken; the other ones of the record have
        their defaults.
      others: field of the record -> its value, for those that the message has in another form.
    """
    for name, read in _find_common(record, type(message)):  # type: ignore[arg-type]  # hashable
        if name not in others:
            others[name] = read(message)
    return record(**others)


@functools.cache
def _find_common(
    record: type, message: type[Message]
) -> Sequence[tuple[str, Callable[[Message], Any]]]:
    """Returns the fields that both have, and what reads each of a message."""
    fields = message.DESCRIPTOR.fields_by_name
    names = [name for name in inspect.signature(record).parameters if name in fields]
    return [(name, _make_reader(fields[name])) for name in names]


def _make_reader(field: Any) -> Callable[[Message], Any]:
    name = field.name
    if field.is_repeated:
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        convert = dict if is_map else tuple
        return lambda message: convert(getattr(message, name))
    if field.has_presence:
        return lambda message: getattr(message, name) if message.HasField(name) else None
    return lambda message: getattr(message, name)
