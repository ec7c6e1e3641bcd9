"""`relaax new`: the folder of an environment of the user's own, which runs at once."""

import json
import math
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from relaax_like.rlx_server.json_spaces import read_spaces
from relaax_like.shipped import ENVIRONMENTS, get_shipped_folder
from relaax_like.wire.errors import ConfigError, InvalidInputError
from relaax_like.wire.spaces import (
    ACTION,
    OBSERVATION,
    Space,
    Spaces,
    messages_to_spaces,
    space_to_message,
)

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,60}")
_PLACEHOLDER = re.compile(r"__(NAME|LANGUAGE|PROGRAM|(?:OBSERVATION|ACTION)(?:_JSON|_VALUE)?)__")
# Beside a language's templates: its name, the file that users change, what else is copied, names of
# leaves that it cannot have, and how it spells spaces; without `forms`, as JSON.
_LANGUAGE = "language.json"


def write_environment(folder: Path, language: str, observation: str, action: str) -> int:
    """Writes a client with its spaces, an experiment's file and a README; prints what to do next.

    Args:
      folder: to make; its name is that of the environment.
      language: a folder of `environments/templates`.
      observation: the space, as docs/json.md spells it.
      action: the same for actions.

    Raises:
      ConfigError: the folder exists or cannot be written, its name or the language is not allowed,
        or a text is not a space.
    """
    templates = get_shipped_folder(ENVIRONMENTS) / "templates"
    known = {file.parent.name: file for file in sorted(templates.glob(f"*/{_LANGUAGE}"))}
    if language not in known:
        raise ConfigError(f"--language: {language!r:.40}, expected one of {', '.join(known)}")
    if not _NAME.fullmatch(folder.name):
        raise ConfigError(
            f"NAME: {folder.name!r:.80}, expected a letter, then letters, digits, _ and -"
        )
    spelling = json.loads(known[language].read_text("utf-8"))
    program = spelling["program"]
    words = {"NAME": folder.name, "LANGUAGE": spelling["title"], "PROGRAM": program}
    for name, text in ((OBSERVATION, observation), (ACTION, action)):
        words |= _spell(name, spelling, *_read_space(name, text))
    sources = [templates / name for name in ("README.md", "experiment.yaml")]
    sources += [file for file in known[language].parent.iterdir() if file.is_file()]
    try:
        folder.mkdir(parents=True)
        for source in sources:
            target = folder / source.name.replace("experiment", folder.name)
            text = source.read_text("utf-8")
            target.write_text(_PLACEHOLDER.sub(lambda found: words[found[1]], text), "utf-8")
        for path in spelling["library"]:
            shutil.copy(templates.parent / path, folder)
        (folder / _LANGUAGE).unlink()
        (folder / "main").chmod(0o755)
    except FileExistsError:
        raise ConfigError(
            f"{folder} already exists, and nothing is overwritten; choose another name"
        ) from None
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror or error}; choose another folder") from None
    print(f"wrote {folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")
    print(f"try it:\n    cd {folder}\n    relaax run {folder.name}.yaml")
    print(f"then put your environment into {program}; README.md says more")
    return 0


def _read_space(name: str, text: str) -> tuple[Spaces, bool, str]:
    """Returns leaves, whether it is one without a name, and the text in one spelling."""
    try:
        written: Any = json.loads(text)
        if not isinstance(written, dict):
            raise ValueError("not an object")
        spaces, is_plain = read_spaces(written, name)
        messages = {leaf: space_to_message(space) for leaf, space in spaces.items()}
        messages_to_spaces(messages, name)  # as the server will check them
        return spaces, is_plain, json.dumps(written, allow_nan=False)
    except (InvalidInputError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"--{name}: {text!r:.80}: {error}; write a space as docs/json.md does, such as "
            "'{\"box\": [4]}' or '{\"discrete\": 2}'"
        ) from None


def _spell(
    name: str, spelling: Mapping[str, Any], spaces: Spaces, is_plain: bool, text: str
) -> Iterator[tuple[str, str]]:
    """Yields the placeholders of a space, with what replaces each of them.

    Raises:
      ConfigError: the language does not have such a space.
    """
    yield f"{name.upper()}_JSON", text
    yield name.upper(), text
    for leaf, space in spaces.items():
        for what in _find_unsupported(leaf, space, spelling):
            raise ConfigError(
                f"--{name}: {leaf:.60}: {what} cannot be written in {spelling['title']}; change it"
            )
    for suffix, form in spelling.get("forms", {}).items():
        one = {leaf: _spell_leaf(leaf, space, spelling, form) for leaf, space in spaces.items()}
        entry, around = Template(form["leaf"]), Template(form["plain" if is_plain else "named"])
        leaves = [entry.substitute(name=leaf, leaf=text) for leaf, text in one.items()]
        whole = around.substitute(leaves="".join(leaves), leaf=next(iter(one.values())))
        yield f"{name.upper()}{suffix}", whole


def _find_unsupported(leaf: str, space: Space, spelling: Mapping[str, Any]) -> Iterator[str]:
    if leaf in spelling.get("refused", ()):
        yield "this name"
    if space.dtype not in spelling.get("types", {space.dtype: ""}):
        yield f"dtype {space.dtype}"
    if "forms" in spelling and type(space).__name__ not in spelling["forms"][""]:
        yield f"a space {space.describe()}"
        return
    for field in fields(space) if "forms" in spelling else ():
        form = spelling["forms"][""][type(space).__name__]
        words = ("$dtype", "$type") if field.name == "dtype" else (f"${field.name}",)
        if not any(map(form.count, words)) and getattr(space, field.name) != field.default:
            yield field.name


def _spell_leaf(leaf: str, space: Space, spelling: Mapping[str, Any], form: Any) -> str:
    words: dict[str, Any] = {
        "name": leaf,
        "type": spelling.get("types", {}).get(space.dtype),
        "axes": len(space.shape),
        "count": math.prod(space.shape),
    }
    for name, value in vars(space).items():
        if value is None or isinstance(value, int | str):
            words[name] = spelling["none"] if value is None else value
            continue
        numbers = (np.ravel(value) + 0).tolist()  # + 0: numbers instead of booleans
        texts = [repr(number).replace("inf", spelling["infinity"]) for number in numbers]
        kind = "list"
        if isinstance(value, np.ndarray):
            kind = "same" if len(set(texts)) == 1 else "bound"
        words |= {"numbers": ", ".join(texts), "number": texts[0] if texts else ""}
        words[name] = Template(spelling[kind]).substitute(words)
    return Template(form[type(space).__name__]).substitute(words)
