"""The keys of an experiment's file: type, default and meaning of each, and as flags.

`--kl 0.02` is `--set algorithm.kl=0.02`.
"""

import ast
import difflib
import functools
import inspect
import itertools
import json
import re
import textwrap
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from relaax_like.config.address import Address
from relaax_like.config.algorithm_folder import find_algorithm, load_config_class
from relaax_like.config.base import Settings, find_section, get_key, get_spellings, is_union
from relaax_like.config.models import EnvironmentConfig, LearnerConfig, TopConfig, WandbConfig
from relaax_like.config.network import LayerConfig
from relaax_like.config.problems import show_limit
from relaax_like.config.yaml_document import read_yaml
from relaax_like.shipped import find_experiment_file
from relaax_like.wire.errors import ConfigError

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
# Commands have a flag for each key of these sections and of the file's algorithm; "" stands for the
# keys outside of sections. If two sections have the same key, the flag sets that of the algorithm.
FLAG_SECTIONS: dict[str, type[Settings]] = {
    "": TopConfig,
    "environment": EnvironmentConfig,
    "learner": LearnerConfig,
    "wandb": WandbConfig,
}

# What other programs call the network, and how it is written here.
_LAYERS = {"layers": "'[64, 64]'", "arch": "'[64, {lstm: 64}]'"}


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
        inner, place = find_section(field.annotation)
        default = None if field.is_required() or inner else _to_yaml(defaults.get(name))
        yield Key(
            name=prefix + name,
            type=_describe_field(field),
            default=default,
            meaning=_get_first_sentence(_find_docstring(model, field_name)),
        )
        if inner is not None:
            yield from _list_keys(inner, f"{prefix}{name}.{place}")


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
    if is_union(annotation):
        return " or ".join(map(_describe, arguments))
    if origin in (list, tuple):
        return f"list of {_describe(arguments[0])}"
    return "section"


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


def flags_to_overrides(file: Path, arguments: Sequence[str]) -> list[str]:
    """Converts flags that a command does not define itself to overrides of the file.

    `--KEY VALUE` or `--KEY=VALUE`, with dashes for underscores; `--KEY` without a value is
    `--KEY true`. The key is looked up in the sections algorithm, learner and environment, then
    among the top-level keys. Those of the section wandb are `--wandb-KEY`.

    Args:
      file: the experiment's YAML file, or the name of a shipped experiment.
      arguments: of the command line.

    Returns:
      "section.key=value" for each flag.

    Raises:
      ConfigError: an argument is not a flag, there is no such key (the error names a similar key,
        if there is one), a key is set under two spellings, or the file or its algorithm cannot be
        loaded.
    """
    if not arguments:
        return []
    known = _find_keys(file)
    overrides = []
    used: dict[str, str] = {}
    for flag, value in _pair(arguments):
        name = flag.removeprefix("--").replace("-", "_")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean --{near[0].replace('_', '-')}?" if near else ""
            if name in _LAYERS:
                hint = f"; for the network, use --set algorithm.network.layers={_LAYERS[name]}"
            raise ConfigError(
                f"{flag}: neither an option of this command, nor a top-level key, nor a key of the "
                "sections algorithm, learner or environment, nor --wandb-KEY (`relaax keys CONFIG` "
                "lists all keys; for keys of other sections, use --set SECTION.KEY=VALUE)"
                f"{hint}"
            )
        if used.setdefault(known[name], name) != name:
            first = used[known[name]].replace("_", "-")
            raise ConfigError(
                f"{flag}: another spelling of --{first}, which is also set; keep one of them"
            )
        overrides.append(f"{known[name]}={value}")
    return overrides


def _pair(arguments: Sequence[str]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    rest = list(arguments)
    while rest:
        flag = rest.pop(0)
        if not flag.startswith("--") or flag == "--":
            raise ConfigError(f"{flag!r}: unexpected argument; expected --KEY VALUE")
        flag, equals, value = flag.partition("=")
        if not equals:
            value = "true" if not rest or rest[0].startswith("--") else rest.pop(0)
        pairs.append((flag, value))
    return pairs


def get_flag(section: str, key: str) -> str:
    """Returns how a key of `FLAG_SECTIONS` is written as a flag."""
    prefix = "wandb-" if section == "wandb" else ""
    return f"--{prefix}{key.replace('_', '-')}"


def _find_keys(file: Path) -> dict[str, str]:
    """Maps all possible names of flags to the key with its section."""
    keys = {}
    for section, model in {**FLAG_SECTIONS, "algorithm": find_config_class(file)}.items():
        for name, field in model.model_fields.items():
            key = get_key(name, field)
            for spelling in get_spellings(name, field):
                flag = get_flag(section, spelling).removeprefix("--").replace("-", "_")
                keys[flag] = f"{section}.{key}".removeprefix(".")
    return keys


def find_config_class(file: Path) -> type[Settings]:
    """Returns the `Config` class of the algorithm that an experiment's file names.

    Args:
      file: the YAML file, or the name of a shipped experiment.

    Raises:
      ConfigError: the file cannot be read, or it names no algorithm that can be loaded.
    """
    file = find_experiment_file(file)
    section: Any = read_yaml(file).data.get("algorithm")
    section = section if isinstance(section, dict) else {}
    name, path = section.get("name"), section.get("path")
    if not name and not path:
        raise ConfigError(
            f"{file}: algorithm: neither name nor path is set in the file, which `relaax keys` and "
            "all flags that are keys of the file need; set either name (a folder in algorithms/) "
            "or path (your own) there, or write --set KEY=VALUE instead of such flags"
        )
    return load_config_class(find_algorithm(name or Path(str(path)), file.parent))
