"""`relaax new`: the folder of an environment of the user's own, which runs at once."""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from relaax_like.rlx_server.json_spaces import read_spaces
from relaax_like.shipped import ENVIRONMENTS, get_shipped_folder
from relaax_like.wire.errors import ConfigError, InvalidInputError
from relaax_like.wire.spaces import ACTION, OBSERVATION, Box, MultiDiscrete, Space, Spaces

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,60}")
_PLACEHOLDER = re.compile(r"__(NAME|LANGUAGE|PROGRAM|(?:OBSERVATION|ACTION)(?:_JSON)?)__")


class Language(NamedTuple):
    """What is written for a language.

    Attributes:
      title: its name.
      program: the file that users change.
      write: writes a space as the language's templates need it; the text is as the user gave it.
      library: files of `environments` that are copied.
    """

    title: str
    program: str
    write: Callable[[Spaces, bool, str], str]
    library: tuple[str, ...] = ()


def _write_literal(spaces: Spaces, is_plain: bool, text: str) -> str:
    return repr(json.loads(text))


def _write_python(spaces: Spaces, is_plain: bool, text: str) -> str:
    leaves = {name: _write_leaf(space) for name, space in spaces.items()}
    if is_plain:
        return next(iter(leaves.values()))
    return "{" + ", ".join(f"{name!r}: {leaf}" for name, leaf in leaves.items()) + "}"


def _write_leaf(space: Space) -> str:
    """Writes the call that makes a leaf."""
    fields = {"dtype": repr(space.dtype), "shape": repr(space.shape)}
    for name, value in vars(space).items():
        if isinstance(space, Box) and name in ("low", "high") and value is not None:
            fields[name] = re.sub(r"\binf\b", 'float("inf")', repr(value.tolist()))
        elif name in ("n", "start", "starts") and value:
            fields[name] = repr(value)
    if not isinstance(space, Box | MultiDiscrete):
        fields.pop("shape" if "n" in fields else "", None)
    return f"{type(space).__name__}({', '.join(f'{k}={v}' for k, v in fields.items())})"


LANGUAGES: Mapping[str, Language] = {
    "python": Language("Python", "main", _write_python),
    "json": Language("lines of JSON, in Python without a library", "main", _write_literal),
}


def write_environment(folder: Path, language: str, observation: str, action: str) -> int:
    """Writes a client with its spaces, an experiment's file and a README; prints what to do next.

    Args:
      folder: to make; its name is that of the environment.
      language: a key of `LANGUAGES`.
      observation: the space, as docs/json.md spells it.
      action: the same for actions.

    Raises:
      ConfigError: the folder exists or cannot be written, its name or the language is not allowed,
        or a text is not a space.
    """
    if language not in LANGUAGES:
        raise ConfigError(f"--language: {language!r:.40}, expected one of {', '.join(LANGUAGES)}")
    if not _NAME.fullmatch(folder.name):
        raise ConfigError(
            f"NAME: {folder.name!r:.80}, expected a letter, then letters, digits, _ and -"
        )
    chosen = LANGUAGES[language]
    words = {"NAME": folder.name, "LANGUAGE": chosen.title, "PROGRAM": chosen.program}
    for name, text in ((OBSERVATION, observation), (ACTION, action)):
        spaces, is_plain, text = _read_space(name, text)
        words |= {name.upper(): chosen.write(spaces, is_plain, text), f"{name.upper()}_JSON": text}
    try:
        folder.mkdir(parents=True)
        _write_files(folder, language, words)
    except FileExistsError:
        raise ConfigError(
            f"{folder} already exists, and nothing is overwritten; choose another name"
        ) from None
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror or error}; choose another folder") from None
    print(f"wrote {folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")
    print(f"try it:\n    cd {folder}\n    relaax run {folder.name}.yaml")
    print(f"then put your environment into {chosen.program}; README.md says more")
    return 0


def _write_files(folder: Path, language: str, words: Mapping[str, str]) -> None:
    shipped = get_shipped_folder(ENVIRONMENTS)
    templates = shipped / "templates"
    sources = [templates / "README.md", templates / "experiment.yaml"]
    for source in [*sources, *sorted((templates / language).iterdir())]:
        if source.is_dir():
            continue
        target = folder / source.name.replace("experiment", folder.name)
        text = source.read_text(encoding="utf-8")
        target.write_text(_PLACEHOLDER.sub(lambda found: words[found[1]], text), "utf-8")
        if source.name == "main":
            target.chmod(0o755)
    for path in LANGUAGES[language].library:
        shutil.copy(shipped / path, folder)


def _read_space(name: str, text: str) -> tuple[Spaces, bool, str]:
    """Returns leaves, whether it is one without a name, and the text in one spelling."""
    try:
        written: Any = json.loads(text)
        if not isinstance(written, dict):
            raise ValueError("not an object")
        return *read_spaces(written, name), json.dumps(written)
    except (InvalidInputError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"--{name}: {text!r:.80}: {error}; write a space as docs/json.md does, such as "
            "'{\"box\": [4]}' or '{\"discrete\": 2}'"
        ) from None
