"""Which names of the standard library a platform lacks, by the stubs that mypy brings."""

import ast
import functools
import importlib.util
import operator
import sys
from collections.abc import Iterator
from pathlib import Path

_OPERATORS = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
}
# Stubs have these on all platforms; a part of them exists on Windows, too.
_UNIX = {
    "os": {
        "O_DIRECTORY",
        "O_DIRECT",
        "O_NOATIME",
        "O_NOFOLLOW",
        "O_CLOEXEC",
        "O_NONBLOCK",
        "O_NOCTTY",
        "O_SYNC",
        "O_DSYNC",
        "O_PATH",
        "O_TMPFILE",
    },
}


@functools.cache
def find_missing(module: str, platform: str) -> frozenset[str]:
    """Returns the public names of a module that Linux has, and `platform` has not.

    Args:
      module: of the standard library, such as "os"; of others, nothing is missing.
      platform: as in `sys.platform`.

    Returns:
      Names; {"*"}: the module itself does not exist.
    """
    stub = _find_stub(module)
    if stub is None:
        return frozenset()
    body = ast.parse(stub.read_text()).body
    here, there = (set(_walk(body, one)) for one in ("linux", platform))
    if here and not there:
        return frozenset("*")
    return frozenset(here - there | _UNIX.get(module, set()))


def _find_stub(module: str) -> Path | None:
    mypy = importlib.util.find_spec("mypy")
    assert mypy is not None
    assert mypy.origin is not None
    path = Path(mypy.origin).parent / "typeshed" / "stdlib" / module.replace(".", "/")
    stubs = (path.with_suffix(".pyi"), path / "__init__.pyi")
    return next((stub for stub in stubs if stub.exists()), None)


def _walk(body: list[ast.stmt], platform: str) -> Iterator[str]:
    for statement in body:
        match statement:
            case ast.If():
                holds = _holds(statement.test, platform)
                yield from _walk(statement.body if holds else statement.orelse, platform)
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                yield from [name] * (not name.startswith("_"))
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield from [name] * (not name.startswith("_"))
            case ast.ImportFrom(names=names):  # what is exported has "as"
                yield from (alias.asname for alias in names if alias.asname)


def _holds(test: ast.expr, platform: str) -> bool:
    match test:
        case ast.BoolOp(op=op, values=values):
            join = all if isinstance(op, ast.And) else any
            return join(_holds(value, platform) for value in values)
        case ast.Compare(left=ast.Attribute(attr=name), ops=[op], comparators=[other]):
            value = platform if name == "platform" else tuple(sys.version_info)
            return _OPERATORS[type(op)](value, ast.literal_eval(other))
    raise ValueError(ast.unparse(test))
