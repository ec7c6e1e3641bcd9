"""Converts the errors of the typed models to lines with file, line number, key and cure."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from relaax_like.config.base import find_section, get_key, get_spellings
from relaax_like.config.yaml_document import Loc, YamlDocument, is_flag
from relaax_like.wire.errors import ConfigError

_EXPECTED = {
    "int_type": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "path_type": "a path",
    "dict_type": "a section of keys",
    "model_type": "a section of keys",
    "list_type": "a list",
    "tuple_type": "a list",
    "literal_error": "{expected}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "less than {lt}",
    "less_than_equal": "{le} or less",
    "too_short": "at least {min_length} item{s}",
    "too_long": "at most {max_length} item{s}",
    "string_too_short": "at least {min_length} character{s}",
    "string_too_long": "at most {max_length} character{s}",
}


class Problems:
    """Collects everything that is wrong with a document, to report it together."""

    def __init__(self, document: YamlDocument):
        self._document = document
        # (key path, line as it is shown), in a dict to keep each one once.
        self._lines: dict[str, None] = {
            f"{place}: {what}": None for place, what in document.problems
        }

    def add(self, loc: Loc, what: str) -> None:
        """Adds one problem of the key at `loc`."""
        key = ".".join(map(str, loc))
        line = (
            f"{self._document.place(loc)}: {key}: {what}"
            if key
            else f"{self._document.file}: {what}"
        )
        self._lines[line] = None

    def add_validation(self, loc: Loc, model: type[BaseModel], error: ValidationError) -> None:
        """Adds the errors of a model; `loc` is the path of its section."""
        merged: dict[Loc, list[str]] = {}
        for detail in error.errors(include_url=False):
            inner = detail["loc"]
            if detail["type"] == "extra_forbidden":
                self._add_unknown((*loc, *inner), known_keys(model, inner[:-1]))
            elif detail["type"] == "missing":
                is_item = isinstance(inner[-1], int)
                why = "the list is too short" if is_item else "and it has no default; set it"
                self.add((*loc, *inner), f"missing, {why}")
            else:
                key, value = self._written((*loc, *inner))
                merged.setdefault(key, []).append(_describe(dict(detail), value))
        for key, texts in merged.items():
            self.add(key, _join_alternatives(texts))

    def add_unknown_keys(self, loc: Loc, data: Mapping[str, Any], known: list[str]) -> None:
        """Adds every key of `data` that is not known."""
        for key in data:
            if key not in known:
                self._add_unknown((*loc, key), known)

    def raise_if_any(self) -> None:
        """Raises if there are problems.

        Raises:
          ConfigError: a line per problem: those without a line number, then those of the file in
            its order, then those of `--set` flags.
        """
        if self._lines:
            raise ConfigError("\n".join(sorted(self._lines, key=_line_order)))

    def _add_unknown(self, loc: Loc, known: list[str]) -> None:
        near = difflib.get_close_matches(str(loc[-1]), known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        self.add(loc, f"unknown key{hint} (known: {', '.join(known)})")

    def _written(self, loc: Loc) -> tuple[Loc, Any]:
        """Returns a path without the union members that Pydantic adds, and the value there."""
        value: Any = self._document.data
        for depth, key in enumerate(loc):
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError):
                return loc[:depth], value
        return loc, value


def known_keys(model: type[BaseModel], loc: Loc) -> list[str]:
    """Returns the YAML keys of the section at `loc` inside `model`."""
    for key in loc:
        for name, field in model.model_fields.items():
            if key in get_spellings(name, field):
                model = find_section(field.annotation)[0] or model
                break
    return [get_key(name, field) for name, field in model.model_fields.items()]


def describe_value(value: Any) -> str:
    """Returns a value as the user wrote it, shortened; "a section" or "a list" for these."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a section"
    if isinstance(value, list):
        return "a list"
    return repr(value)[:80]


def describe_list(value: Any) -> str:
    """Returns a list with its items, shortened; anything else as `describe_value`."""
    return repr(value)[:80] if isinstance(value, list | tuple) else describe_value(value)


def describe_wrong(value: Any, is_right: Callable[[Any], bool]) -> str:
    """Returns the first wrong item of a list, with its index; anything else as `describe_list`."""
    for index, item in enumerate(value if isinstance(value, list | tuple) else ()):
        if not is_right(item):
            return f"{describe_value(item)} at index {index}"
    return describe_list(value)


def count(number: int, noun: str, plural: str = "") -> str:
    """Returns "1 noun" or "2 nouns"; `plural` is for a noun whose plural does not end in s."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def _describe(detail: dict[str, Any], value: Any) -> str:
    context = detail.get("ctx", {})
    if detail["type"] == "value_error":
        return str(context["error"])
    expected = _EXPECTED.get(detail["type"])
    if expected is None:
        return f"{detail['msg']}, got {describe_value(value)}"
    limits = {key: show_limit(context[key]) for key in ("gt", "ge", "lt", "le") if key in context}
    plural = "s" * (context.get("min_length", context.get("max_length")) != 1)
    is_size = detail["type"] in ("too_short", "too_long") and isinstance(value, dict | list | tuple)
    got = str(len(value)) if is_size else describe_value(value)
    return f"expected {expected.format(**context | limits, s=plural)}, got {got}"


def describe_errors(error: ValidationError) -> str:
    """Returns the errors of a model on one line, each with its key and the wrong value."""
    return "; ".join(
        ": ".join((*map(str, detail["loc"][:1]), _describe(dict(detail), detail["input"])))
        for detail in error.errors(include_url=False)
    )


def show_limit(limit: float) -> str:
    """Returns a limit of a key with all its digits, as short as possible."""
    short = f"{limit:g}"
    return short if float(short) == limit else str(limit)


def _join_alternatives(texts: list[str]) -> str:
    """Merges the messages of a union's members: "expected an integer or a list, got 'x'"."""
    unique = list(dict.fromkeys(texts))
    head = "expected "
    tail = ", got " + unique[0].rpartition(", got ")[2]
    if len(unique) > 1 and all(text.startswith(head) and text.endswith(tail) for text in unique):
        expected = (text.removeprefix(head).removesuffix(tail) for text in unique)
        return head + " or ".join(expected) + tail
    return "; ".join(unique)


def describe_names(names: Sequence[str]) -> str:
    """Returns "none of them is set", or "A and B are set" for two or more keys that are."""
    return f"{' and '.join(names)} are set" if names else "none of them is set"


def _line_order(line: str) -> tuple[int, int]:
    """Returns a sort key: problems without a line come first, then by line, then those of flags."""
    if is_flag(line):
        return 2, 0
    parts = line.split(":", 2)
    return (1, int(parts[1])) if len(parts) == 3 and parts[1].isdigit() else (0, 0)
