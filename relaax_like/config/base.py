"""The base of all typed settings, and the names of their keys."""

import types
import typing
from collections.abc import Mapping
from typing import Any, Final

from pydantic import AliasChoices, BaseModel, ConfigDict
from pydantic.fields import FieldInfo

# Marks a field whose texts must be names in the settings of a job; see `config.job_keys`.
IN_JOBS: Final = "IN_JOBS"


class Settings(BaseModel):
    """A frozen group of settings; unknown keys, wrong types, NaN and infinity are errors.

    A field's key is its `alias`, if it has one. A `validation_alias` adds spellings that are only
    accepted on input; messages, `relaax keys` and the saved config use the key:

        gamma: float = Field(default=0.99, validation_alias=AliasChoices("gamma", "discount"))
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        populate_by_name=True,
        allow_inf_nan=False,
    )


def get_key(name: str, field: FieldInfo) -> str:
    """Returns the key of the field `name`: its `alias`, or its own name."""
    return field.alias or name


def get_spellings(name: str, field: FieldInfo) -> list[str]:
    """Returns the key of the field `name`, followed by other spellings that are accepted."""
    choices = field.validation_alias
    others = choices.choices if isinstance(choices, AliasChoices) else []
    spelled = [get_key(name, field), name, *(one for one in others if isinstance(one, str))]
    return list(dict.fromkeys(spelled))


def find_section(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """Returns the section in a field, and the text between its name and the keys in it.

    That is "NAME." for a mapping from names that the user chooses to sections, else "".
    """
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, ""
    arguments = typing.get_args(annotation)
    if is_mapping(annotation):
        section, place = find_section(arguments[1])
        return section, f"NAME.{place}"
    for argument in arguments if is_union(annotation) else ():
        section, place = find_section(argument)
        if section is not None:
            return section, place
    return None, ""


def is_union(annotation: Any) -> bool:
    """Returns whether a type is a union."""
    return typing.get_origin(annotation) in (types.UnionType, typing.Union)


def is_mapping(annotation: Any) -> bool:
    """Returns whether a type is a mapping of some types."""
    origin = typing.get_origin(annotation)
    return isinstance(origin, type) and issubclass(origin, Mapping)
