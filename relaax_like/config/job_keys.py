"""Which keys of an experiment a job can have: none that is a path, an address or a secret.

A job is run by another machine, so its settings must not name that machine's files and ports. A
key is refused unless its type makes it harmless: numbers, flags, choices of fixed words, and
sections of such keys. Text is refused unless the field is marked `IN_JOBS`, so that a new key that
is a path or a secret is refused by default:

    env: Annotated[str | None, IN_JOBS] = None

A marked text is a name: letters, digits, "-", "_", "+", "." and single "/", so that it can be
neither an absolute path nor one that leads upwards. Only `environment.env` can begin with a module
(`MODULE:NAME`), which slaves must allow: see `name_environment`. The names of algorithm and
environment are shorter, and contain neither "/" nor "+": see `job_names.is_name`.
"""

import copy
import difflib
import re
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, JsonValue
from pydantic.fields import FieldInfo

from relaax_like.config.algorithm import AlgorithmConfig
from relaax_like.config.algorithm_folder import find_algorithm, find_environment, load_config_class
from relaax_like.config.base import IN_JOBS, Settings, get_key, get_spellings, is_mapping
from relaax_like.config.job_names import EXPECTED_NAME, is_name
from relaax_like.config.loader import (
    add_program,
    export_experiment,
    load_document,
    load_experiment,
    read_document,
)
from relaax_like.config.models import (
    ALGORITHM,
    ENVIRONMENT,
    LEARNER,
    METRICS_SERVER,
    PARAMETER_SERVER,
    RLX_SERVER,
    SECTION_MODELS,
    SECURITY,
    TopConfig,
)
from relaax_like.config.network import LayerConfig
from relaax_like.config.problems import describe_value
from relaax_like.config.schedule import Schedule
from relaax_like.config.yaml_document import YamlDocument
from relaax_like.wire.errors import ConfigError

_SECTIONS = (PARAMETER_SERVER, LEARNER, ALGORITHM, ENVIRONMENT)
# Where the user's own machine keeps runs (the run's folder of a job is the coordinator's), and the
# servers that a job does not start.
_LEFT_OUT = {PARAMETER_SERVER: ("checkpoint_dir", "metrics_dir", "bind")}
_LEFT_OUT_SECTIONS = (
    *("run_dir", "logdir", "run_name", "compile_cache"),
    *(RLX_SERVER, METRICS_SERVER),
)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*(/[A-Za-z0-9_][A-Za-z0-9._+-]*)*")
_MODULE = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:", re.ASCII)
_HARMLESS = (bool, int, float, type(None), LayerConfig, Schedule)
_MAX_NAME = 200


def find_refused_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Returns the keys of a section that are neither marked `IN_JOBS` nor of a harmless type.

    A job cannot have these keys, except mappings to any JSON (`environment.args`, `learner.hook`),
    in which only text is refused.

    Args:
      model: of the section.
      prefix: put before each name.
    """
    return [
        f"{prefix}{get_key(name, field)}"
        for name, field in model.model_fields.items()
        if not _is_marked(field) and not _is_harmless(field.annotation)
    ]


def make_job_config(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Resolves an experiment's file to the settings of a job.

    Folders of this machine to which a run would be written are left out: the run's folder is the
    coordinator's. So are the address of the parameter server, and the sections of the rlx server
    and the metrics server, which a job does not start.

    Args:
      path: the YAML file, or the name of a shipped experiment.
      overrides: of its keys, "section.key=value" each.

    Returns:
      Section -> key -> value, and `seed`, as JSON types.

    Raises:
      ConfigError: the file is wrong, does not name algorithm and environment, or sets keys that a
        job cannot have, all of which are named.
    """
    document = read_document(path, overrides)
    given = {
        name: _without(section, _LEFT_OUT.get(name, ())) if isinstance(section, dict) else section
        for name, section in document.data.items()
        if name not in _LEFT_OUT_SECTIONS and section is not None
    }
    # What the file sets is checked before any path in it is looked up.
    add_program(given.get(ENVIRONMENT))
    _require_names(given)
    model = load_config_class(find_algorithm(given[ALGORITHM]["name"]))
    problems = list(_find_problems(given, model))
    if problems:
        raise ConfigError("\n".join(f"{document.file}: {problem}" for problem in problems))
    experiment = load_experiment(path, overrides, new_run=True)
    data = export_experiment(experiment)
    config: dict[str, Any] = {"seed": data["seed"]}
    for name, section_model in _get_models(model).items():
        # The user's file sets none of the refused keys, except those that are left out.
        refused = [
            key
            for key, value in data.get(name, {}).items()
            if list(_find_section_problems({key: value}, section_model, ""))
        ]
        if name in data:
            config[name] = _without(data[name], refused)
    validate_job_config(config)
    return config


def validate_job_config(config: Any) -> None:
    """Checks the received settings of a job.

    Args:
      config: section -> key -> value, and `seed`, as JSON types.

    Raises:
      ConfigError: `config` is not a dict, a key is refused or unknown, algorithm or environment is
        not a name that is known here, the algorithm's config.py cannot be loaded, or the settings
        are wrong. There is a line for each refused or unknown key; if there are none of these, a
        line for each wrong setting.
    """
    if not isinstance(config, dict):
        raise ConfigError(f"config: expected an object of sections, got {describe_value(config)}")
    _require_names(config)
    find_environment(config[ENVIRONMENT]["program"])
    model = load_config_class(find_algorithm(config[ALGORITHM]["name"]))
    refused = list(_find_problems(config, model))
    if refused:
        raise ConfigError("\n".join(refused))
    load_document(YamlDocument(Path("config"), copy.deepcopy(config)))


# Before the module of an environment of PettingZoo; a name in it can follow.
_GAMES = "pettingzoo:"


def name_environment(config: Mapping[str, Any]) -> str:
    """Returns the name that a slave must have among its environments to run a job; "": none."""
    section = config.get(ENVIRONMENT)
    if not isinstance(section, Mapping):
        return ""
    env = str(section.get("env") or "")
    module, colon, _ = env.rpartition(":")
    if env.startswith(_GAMES):
        module = env.removeprefix(_GAMES).partition(":")[0]
    if colon:
        return name_module(module, bool(section.get("args")))
    return str(section.get("program") or "")


def name_module(module: str, has_args: bool) -> str:
    """Returns the name under which slaves offer a module of environments, with arguments or not."""
    return f"module-{module}{'-args' * has_args}"


def _require_names(config: Mapping[str, Any]) -> None:
    """Raises ConfigError if algorithm and environment are not names."""
    for section, key in ((ALGORITHM, "name"), (ENVIRONMENT, "program")):
        value = config.get(section)
        name = value.get(key) if isinstance(value, dict) else None
        if not isinstance(name, str) or not is_name(name):
            raise ConfigError(
                f"{section}.{key}: {describe_value(name)}, expected the name of a folder in "
                f"{section}s/ that slaves have, {EXPECTED_NAME}; a job cannot use a path"
            )


def _get_models(algorithm: type[AlgorithmConfig]) -> dict[str, type[Settings]]:
    return {name: SECTION_MODELS[name] for name in _SECTIONS} | {ALGORITHM: algorithm}


def _find_problems(config: Mapping[str, Any], algorithm: type[AlgorithmConfig]) -> Iterator[str]:
    models = _get_models(algorithm)
    for name, section in config.items():
        if name in models and isinstance(section, dict):
            yield from _find_section_problems(section, models[name], f"{name}.")
        elif name in models:
            yield f"{name}: expected a section of keys, got {describe_value(section)}"
        elif name not in TopConfig.model_fields and name != SECURITY:
            yield f"{name}: a job cannot have this section or key; remove it"
        elif name != "seed":
            yield _refuse(name)


def _find_section_problems(
    section: Mapping[str, Any], model: type[BaseModel], prefix: str
) -> Iterator[str]:
    fields = {
        spelling: field
        for name, field in model.model_fields.items()
        for spelling in get_spellings(name, field)
    }
    for key, value in section.items():
        field = fields.get(key)
        name = f"{prefix}{key}"
        if field is None:
            near = difflib.get_close_matches(str(key)[:_MAX_NAME], fields, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            yield f"{name}: unknown key{hint or '; remove it, or correct its name'}"
        elif value is None:
            continue
        elif _is_marked(field) or _is_harmless(field.annotation):
            # Also of nested keys that are marked; fixed words are names, too.
            for part, text in _flatten(value, name):
                if isinstance(text, str) and model is SECTION_MODELS[ENVIRONMENT] and key == "env":
                    text = _MODULE.sub("", text)
                if isinstance(text, str) and not _is_text_name(text):
                    yield (
                        f"{part}: {describe_value(text)}, expected a name of at most {_MAX_NAME} "
                        'letters, digits, "-", "_", "+", "." and "/", with a letter, digit or "_" '
                        'first and after each "/"; a job cannot have a path'
                    )
        elif typing.get_args(field.annotation) == (str, JsonValue) and isinstance(value, dict):
            for part, one in _flatten(value, name):
                if isinstance(one, str):
                    yield _refuse(part)
        else:
            yield _refuse(name)


def _refuse(key: str) -> str:
    return (
        f"{key}: a job cannot have this key, because its value can be a path, an address or a "
        "secret of the machine that runs the job; remove the key"
    )


def _without(section: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if key not in keys}


# Types.


def _is_marked(field: FieldInfo) -> bool:
    return IN_JOBS in field.metadata


def _is_harmless(annotation: Any) -> bool:
    """Returns whether a job can have values of a type.

    All text in them is one of fixed words, or marked `IN_JOBS` and checked as a name by the caller;
    keys of mappings do not count.
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal or annotation in _HARMLESS:
        return True
    if origin is typing.Annotated:
        return IN_JOBS in arguments or _is_harmless(arguments[0])
    if is_mapping(annotation):
        # Keys are names of leaves and groups; they are compared, never opened.
        return _is_harmless(arguments[1])
    if arguments:  # of a union or a list
        return all(one is ... or _is_harmless(one) for one in arguments)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return not find_refused_keys(annotation)
    return isinstance(annotation, type) and issubclass(annotation, Enum)


# Values.


def _is_text_name(text: str) -> bool:
    return len(text) <= _MAX_NAME and bool(_NAME.fullmatch(text))


def _flatten(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _flatten(part, f"{key}.{name}")
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _flatten(part, key)
    else:
        yield key, value
