"""Where the code of an algorithm's folder defines something: for errors about it."""

import ast
import inspect
import textwrap
from collections.abc import Callable


def describe_place(owner: type, attribute: str) -> str:
    """Returns `FILE:LINE` of an attribute's definition, for errors about it."""
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


def is_overridden(owner: type, attribute: str, base: type) -> bool:
    """Returns whether a class has an attribute of its own, not that of a base class."""
    return getattr(owner, attribute, None) is not getattr(base, attribute, None)


def describe_function(function: Callable[..., object]) -> str:
    """Returns `FILE:LINE` of a function's definition."""
    code = inspect.unwrap(function).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"
