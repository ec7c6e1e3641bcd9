"""The keys of an experiment's file: type, default and meaning of each, from the typed sections."""

import ast
import functools
import inspect
import itertools
import json
import re
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from relaax_like.config.address import Address
from relaax_like.config.aliases import get_key
from relaax_like.config.base import Settings
from relaax_like.config.network import LayerConfig
from relaax_like.config.problems import show_limit

_NAMES: dict[Any, str] = {
    bool: "true or false",
    int: "integer",
    float: "number",
    str: "text",
    Path: "path",
    Address: "HOST:PORT",
    LayerConfig: "layer",
    type(None): "null",
}
_BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_ITEM = "NAME"


@dataclass(frozen=True, kw_only=True)
class Key:
    """One key.

    Attributes:
      name: path of the key within its section, such as "combine.method". NAME represents a name
        that the user chooses.
      type: the expected value, in words.
      default: as YAML; None: no default, or the key is a section, whose keys have defaults.
      meaning: the first sentence of the field's docstring; "" without one.
    """

    name: str
    type: str
    default: str | None
    meaning: str


def list_keys(model: type[Settings]) -> Iterator[Key]:
    """Yields the keys of a section; the key of a nested section is followed by the keys in it."""
    yield from _list_keys(model, "")


def _list_keys(model: type[BaseModel], prefix: str) -> Iterator[Key]:
    defaults = model.model_construct().model_dump(mode="json", by_alias=True, warnings=False)
    for field_name, field in model.model_fields.items():
        if field.exclude:
            continue
        name = get_key(field_name, field)
        inner, place = _find_section(field.annotation)
        default = None if field.is_required() or inner else _to_yaml(defaults.get(name))
        yield Key(
            name=prefix + name,
            type=_describe_field(field),
            default=default,
            meaning=_get_first_sentence(_find_docstring(model, field_name)),
        )
        if inner is not None:
            yield from _list_keys(inner, f"{prefix}{name}.{place}")


def _find_section(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """Returns the nested section of a key, and the text between its name and the keys in it."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, ""
    arguments = typing.get_args(annotation)
    if _is_mapping(typing.get_origin(annotation)):
        inner, place = _find_section(arguments[1])
        return inner, f"{_ITEM}.{place}"
    for argument in arguments if _is_union(annotation) else ():
        inner, place = _find_section(argument)
        if inner is not None:
            return inner, place
    return None, ""


def _describe_field(field: FieldInfo) -> str:
    bounds = [
        f"{sign} {show_limit(value)}"
        for constraint in field.metadata
        for name, sign in _BOUNDS.items()
        if (value := getattr(constraint, name, None)) is not None
    ]
    text = _describe(field.annotation)
    # The bounds are those of the number, which comes first.
    first, *rest = text.split(" or ", 1) if bounds else [text]
    return " or ".join([" ".join([first, ", ".join(bounds)]).strip(), *rest])


def _describe(annotation: Any) -> str:
    for known, name in _NAMES.items():
        if annotation == known:
            return name
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _describe(arguments[0])
    if origin is Literal:
        return ", ".join(map(str, arguments))
    if _is_union(annotation):
        return " or ".join(map(_describe, arguments))
    if origin in (list, tuple):
        return f"list of {_describe(arguments[0])}"
    return "section"


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (types.UnionType, typing.Union)


def _is_mapping(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _to_yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _find_docstring(model: type[BaseModel], field_name: str) -> str:
    """Returns the docstring below a field, in this class or a base class; "" if there is none."""
    every = (_read_docstrings(one) for one in model.__mro__ if issubclass(one, Settings))
    return next((docstrings[field_name] for docstrings in every if field_name in docstrings), "")


@functools.cache
def _read_docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Reads the docstrings below the fields of a class in its source, name -> text.

    Pydantic can do the same, but would do so in each process, for all classes, on import.
    """
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: below.value.value
        for field, below in itertools.pairwise(definition.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if isinstance(below.value.value, str)
    }


def _get_first_sentence(text: str) -> str:
    return re.split(r"(?<=\.)\s+(?=[A-Z0-9`])", " ".join(text.split()), maxsplit=1)[0]
