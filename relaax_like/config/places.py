"""Finds where an algorithm's folder defines something, to name the place in errors."""

import ast
import inspect
import textwrap
import traceback
from collections.abc import Callable
from pathlib import Path

from relaax_like.wire.errors import RelaaxError


def describe_place(owner: type, attribute: str) -> str:
    """Returns `FILE:LINE` of an attribute's definition, or the class's name if it has no file.

    The line is that of the class if the attribute is not defined in its body.
    """
    classes = [
        cls
        for cls in owner.__mro__
        if attribute in vars(cls) or attribute in vars(cls).get("__annotations__", {})
    ]
    cls = classes[0] if classes else owner
    try:
        lines, start = inspect.getsourcelines(cls)
        file = inspect.getsourcefile(cls)
    except (OSError, TypeError):
        return f"{cls.__module__}.{cls.__qualname__}"
    for node in ast.parse(textwrap.dedent("".join(lines))).body[0].body:  # type: ignore[attr-defined]
        names = [getattr(node, "name", "")]
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names += [target.id for target in targets if isinstance(target, ast.Name)]
        if attribute in names:
            return f"{file}:{start + node.lineno - 1}"
    return f"{file}:{start}"


def describe_attribute(instance: object, attribute: str) -> str:
    """Returns `FILE:LINE` of where an object's attribute is set; see `describe_place`.

    The line is that of `__init__` if the attribute is the object's own, or that of its class if
    there is no `__init__` below the class with the attribute's default.
    """
    owner = type(instance)
    if attribute not in vars(instance):
        return describe_place(owner, attribute)
    for cls in owner.__mro__:
        if cls is not owner and attribute in vars(cls):
            break
        if "__init__" in vars(cls):
            return describe_place(cls, "__init__")
    return describe_place(owner, "(its class)")


def describe_assignment(instance: object, attribute: str, value: object) -> str:
    """Returns how to set an attribute: "set xla = False in class X", or at the end of `__init__`.

    The latter if the object itself has the attribute, as one that a base class sets in `__init__`.
    """
    if attribute in vars(instance):
        place = f"at the end of __init__ of class {type(instance).__name__}"
        return f"set self.{attribute} = {value} {place}"
    return f"set {attribute} = {value} in class {type(instance).__name__}"


def find_folder(owner: type) -> Path | None:
    """Returns the folder of the file that defines a class; None if no file does."""
    try:
        return Path(inspect.getfile(owner)).parent
    except (OSError, TypeError):  # defined in an interactive session
        return None


def describe_function(function: Callable[..., object]) -> str:
    """Returns `FILE:LINE` of the definition of a function or class, or of its first decorator.

    For another kind of callable, its `repr`, shortened.
    """
    function = inspect.unwrap(function)
    if isinstance(function, type):
        return describe_place(function, "(its class)")
    code = getattr(function, "__code__", None)
    return repr(function)[:200] if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def describe_error(error: Exception, folder: Path | None, otherwise: str) -> str:
    """Returns `FILE:LINE: TYPE: TEXT` of an error caused by code of a folder.

    A RelaaxError is shown without its type.

    Args:
      error: the exception as caught.
      folder: contains the code; its innermost line in the stack trace is named.
      otherwise: replaces `FILE:LINE` if no line of the folder is in the stack trace.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: {_describe(error)}"
    # TensorFlow's AutoGraph runs translated code, and keeps the line numbers of the original.
    metadata = getattr(error, "ag_error_metadata", None)
    if metadata is not None:
        frames, text = metadata.translated_stack, metadata.cause_message
    else:
        frames, text = traceback.extract_tb(error.__traceback__)[::-1], _describe(error)
    for frame in frames:  # the innermost one first
        if folder is not None and Path(frame.filename).is_relative_to(folder):
            return f"{frame.filename}:{frame.lineno}: {text}"
    return f"{otherwise}: {text}"


def _describe(error: Exception) -> str:
    if isinstance(error, RelaaxError):  # its text is complete
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
