"""Reads and writes YAML 1.2 scalars, and keeps the line of every key.

PyYAML alone reads `1e-2` as text, `no` as false, `010` as 8 and `1:30` as 90, and silently uses the
last of two equal keys.
"""

import logging
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from relaax_like.wire.errors import ConfigError

_log = logging.getLogger(__name__)
_MAX_FILE_BYTES = 1 << 20
_FLAG = "--set"
# Aliases can expand a small file to any size.
_MAX_NODES = 100_000
# An address with an IPv6 host. It is not valid YAML without quotes.
_ADDRESS = re.compile(r"\s*(\[[\w:.%\-]+\]:\d+)\s*")
# Up to here a float holds every integer.
_MAX_EXACT = 2**53

Loc = tuple[str | int, ...]


class _Loader(yaml.SafeLoader):
    """Resolves plain scalars to numbers, booleans and null, as YAML 1.2 does."""

    yaml_implicit_resolvers = {}  # noqa: RUF012


class _Dumper(yaml.SafeDumper):
    """Quotes the texts that `_Loader` would not read as texts."""

    yaml_implicit_resolvers = {}  # noqa: RUF012


_SIGNED = list("-+0123456789")
for _tag, _pattern, _first in (
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"^(?:[-+]?[0-9][0-9_]*|0x[0-9a-fA-F]+|0o[0-7]+)$", _SIGNED),
    (
        "float",
        r"^(?:[-+]?(?:[0-9][0-9_]*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        [*_SIGNED, "."],
    ),
):
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = node.value.replace("_", "")
    if len(text) > 100:  # Python refuses to read numbers of thousands of digits.
        raise yaml.constructor.ConstructorError(
            None, None, f"an integer of {len(text)} digits, expected at most 100", node.start_mark
        )
    return int(text, 0) if text.startswith(("0x", "0o")) else int(text)


def _construct_float(loader: _Loader, node: yaml.ScalarNode) -> float | int:
    text = node.value.replace("_", "").lower()
    value = float(text.replace(".inf", "inf").replace(".nan", "nan"))
    # People write large integers as 1e8.
    if "e" in text and abs(value) < _MAX_EXACT and value.is_integer():
        return int(value)
    return value


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _construct_float)


@dataclass
class YamlDocument:
    """A mapping read from a file, and the line of each of its keys.

    Attributes:
      file: its path as given.
      data: nested dicts, lists and scalars.
      places: path of keys -> "FILE:LINE", or the flag that set it.
      problems: (place, what is wrong) found while reading, such as duplicate keys; `Problems`
        reports them together with those that it finds.
    """

    file: Path
    data: dict[str, Any] = field(default_factory=dict)
    places: dict[Loc, str] = field(default_factory=dict)
    problems: list[tuple[str, str]] = field(default_factory=list)
    _nodes: int = field(default=0, init=False, repr=False)

    def place(self, loc: Loc) -> str:
        """Returns the place of a key, or of the nearest key above it, or else the file."""
        for length in range(len(loc), 0, -1):
            if loc[:length] in self.places:
                return self.places[loc[:length]]
        return str(self.file)

    def override(self, flag: str) -> None:
        """Sets one key as `--set section.key=value` does; the value is read as YAML.

        An address such as [::1]:7001 needs no quotes.

        Raises:
          ConfigError: the flag is not such an assignment, its value is not YAML or is refused as
            in `read_yaml`, or a part of its key is not a section.
        """
        place = f"{_FLAG} {flag}"
        key, equals, text = flag.partition("=")
        loc = tuple(key.strip().split("."))
        if not equals or not all(loc):
            raise ConfigError(
                f"{place}: expected KEY=VALUE, for example --set algorithm.learning_rate=3e-4"
            )
        parent = self.data
        for depth, name in enumerate(loc[:-1], start=1):
            if parent.get(name) is None:
                parent[name] = {}
                self.places[loc[:depth]] = place
            parent = parent[name]
            if not isinstance(parent, dict):
                cure = "; set the complete list" if isinstance(parent, list) else ""
                raise ConfigError(
                    f"{place}: {'.'.join(loc[:depth])} is {str(parent)[:80]!r}, expected a section "
                    f"(keys and values){cure}"
                )
        for known in [known for known in self.places if known[: len(loc)] == loc]:
            del self.places[known]
        self.places[loc] = place
        address = _ADDRESS.fullmatch(text)
        parent[loc[-1]] = self.read(text, loc, place) if address is None else address[1]

    def read(self, text: str, loc: Loc = (), flag: str = "") -> Any:
        """Converts YAML to data, and notes the places of its keys.

        Args:
          text: of the file, or of a flag.
          loc: path of the key whose value it is.
          flag: which is the place of all keys then; "": their lines are.

        Raises:
          ConfigError: see `read_yaml`.
        """
        try:
            loader = _Loader(text)
            node = loader.get_single_node()
            return None if node is None else self._construct(loader, node, loc, flag)
        except yaml.MarkedYAMLError as error:
            raise ConfigError(self._describe(error, text, flag)) from None
        except yaml.reader.ReaderError as error:
            place = self._find_place(text.count("\n", 0, error.position), flag)
            raise ConfigError(
                f"{place}: not valid YAML: the character U+{error.character:04X} is not allowed; "
                "remove it"
            ) from None
        except RecursionError:
            raise ConfigError(
                f"{flag or self.file}: nested too deeply, or an alias contains itself; flatten it"
            ) from None

    def _describe(self, error: yaml.MarkedYAMLError, text: str, flag: str) -> str:
        mark = error.problem_mark or error.context_mark
        line = mark.line if mark else 0
        place = self._find_place(line, flag)
        lines = text.splitlines()
        shown = lines[line] if line < len(lines) else ""
        if "\t" in shown[: len(shown) - len(shown.lstrip())]:
            return f"{place}: the line is indented with a tab; indent it with spaces"
        context = f" ({error.context})" if error.context else ""
        # Constructors refuse valid YAML whose data is not supported here.
        is_yaml = isinstance(error, yaml.constructor.ConstructorError)
        kind = "not supported" if is_yaml else "not valid YAML"
        return f"{place}: {kind}: {error.problem}{context}"

    def _find_place(self, line: int, flag: str) -> str:
        return flag or f"{self.file}:{line + 1}"

    def _construct(self, loader: _Loader, node: yaml.Node, loc: Loc, flag: str) -> Any:
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise ConfigError(
                f"{flag or self.file}: more than {_MAX_NODES} values, the limit for YAML; remove "
                "some, or aliases that repeat them"
            )
        place = self._find_place(node.start_mark.line, flag)
        if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
            return self._construct_mapping(loader, node, loc, flag)
        if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
            items = []
            for index, item in enumerate(node.value):
                self.places[(*loc, index)] = self._find_place(item.start_mark.line, flag)
                items.append(self._construct(loader, item, (*loc, index), flag))
            return items
        if not isinstance(node, yaml.ScalarNode) or node.tag.endswith((":binary", ":timestamp")):
            raise ConfigError(f"{place}: tag {node.tag!r} is not supported; remove it")
        try:
            return loader.construct_object(node)
        except (KeyError, ValueError):  # only with a tag; a scalar without one fits its type
            raise ConfigError(
                f"{place}: {node.value[:80]!r} does not fit its tag {node.tag!r}; remove the tag"
            ) from None

    def _construct_mapping(
        self, loader: _Loader, node: yaml.MappingNode, loc: Loc, flag: str
    ) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            place = self._find_place(key_node.start_mark.line, flag)
            if not isinstance(key_node, yaml.ScalarNode):
                self._report(place, loc, "a key is a list or a section; expected text")
                continue
            key = _undash(key_node.value, place)
            if key in mapping:
                first = self.places[(*loc, key)]
                self._report(
                    place, (*loc, key), f"duplicate key, first set at {first}; remove one of them"
                )
                continue
            self.places[(*loc, key)] = place
            mapping[key] = self._construct(loader, value_node, (*loc, key), flag)
        return mapping

    def _report(self, place: str, loc: Loc, what: str) -> None:
        prefix = f"{'.'.join(map(str, loc))}: " if loc else ""
        self.problems.append((place, prefix + what))


def _undash(key: str, place: str) -> str:
    """Reads `--checkpoint-dir`, the older form of keys, as `checkpoint_dir`."""
    if not key.startswith("--") or len(key) == 2:
        return key
    plain = key[2:].replace("-", "_")
    _log.warning("%s: %s is deprecated; use %s", place, key, plain)
    return plain


def quote_text(text: str) -> str:
    """Returns text as YAML in double quotes, on one line, that is read as the same text."""
    # Not by json.dumps: YAML does not join the two halves with which it escapes an emoji.
    escaped = (
        f"\\{one}" if one in '"\\' else one if one.isprintable() else f"\\U{ord(one):08x}"
        for one in text
    )
    return f'"{"".join(escaped)}"'


def is_flag(place: str) -> bool:
    """Returns whether a place is a `--set` flag, not a line of the file."""
    return place.startswith(f"{_FLAG} ")


def read_yaml(path: Path) -> YamlDocument:
    """Reads a file that contains a mapping.

    Raises:
      ConfigError: the file cannot be read, is larger than 1 MiB, is not UTF-8, is not YAML, has a
        tag or number that is not supported, is empty, contains no mapping, is nested too deeply, or
        has more than 100 000 values.
    """
    document = YamlDocument(path)
    data = document.read(_read_text(path))
    if data is None:
        raise ConfigError(
            f"{path}: the file contains no keys; expected sections such as algorithm:"
        )
    if not isinstance(data, dict):
        kind = "a list" if isinstance(data, list) else repr(data)[:60]
        raise ConfigError(f"{path}:1: expected sections such as algorithm:, got {kind}")
    document.data = data
    return document


def write_yaml(data: Any) -> str:
    """Returns YAML that `read_yaml` reads back as the same data."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=100)


def _read_text(path: Path) -> str:
    try:
        if path.is_dir():
            raise ConfigError(f"{path} is a folder; expected a YAML file")
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot read the file: {error.strerror}; make it readable, or name another "
            "file"
        ) from None
    if len(raw) > _MAX_FILE_BYTES:
        raise ConfigError(
            f"{path}: larger than {_MAX_FILE_BYTES} bytes, the limit for a YAML file; shorten it, "
            "or name another file"
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text; save the file as UTF-8") from None
