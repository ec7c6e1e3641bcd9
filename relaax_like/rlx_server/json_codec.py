"""The messages of the rlx protocol as JSON, spelled for people; see `Codec` and docs/json.md."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from relaax_like.rlx_server.codec import Body, ReadMessage
from relaax_like.rlx_server.greeting import EXECUTED, MASKS, PRESENT, STEP_ID, Greeting
from relaax_like.rlx_server.json_spaces import (
    MAX_INTEGER,
    UNSET,
    has_large_integers,
    make_leaves,
    nest,
    read_leaves,
    read_spaces,
    write_leaf,
)
from relaax_like.rlx_server.points import MAX_POINTS
from relaax_like.rlx_server.transition import Arrays, ReceivedStep, check_step
from relaax_like.v1 import metrics_pb2, rlx_pb2
from relaax_like.wire.errors import InvalidInputError, ProtocolError
from relaax_like.wire.framing import PROTOCOL_VERSION
from relaax_like.wire.ndarray import message_to_ndarray
from relaax_like.wire.spaces import (
    ACTION,
    MASK,
    MAX_LEAVES,
    OBSERVATION,
    Spaces,
    space_to_message,
)

Uint32 = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
_MAX_HELLO_BYTES = 1 << 20
_MAX_KEYS = 16 * MAX_LEAVES  # of a hello: more than the most leaves need
# 400 digits take long to read, and no number needs them. Looked for in parts and without an
# expression, which would take 20 ms and more for the longest hello.
_TO_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_DIGITS = b"0" * 400
_PART_BYTES = 1 << 16
_NUMBER_BYTES = 32  # most that a number needs, with the comma
_LEAF_BYTES = 512
_MORE_BYTES = 1 << 14
_PING = re.compile(rb'\s*\{\s*"ping"\s*:\s*\{\s*\}\s*\}\s*')
_AT = re.compile(r" - at `(?:key in )?\$\.?(.*)`$")
_KEY = re.compile(r"Object (contains unknown|missing required) field `(.*)`")
_KINDS = {"float": "a number", "int": "an integer", "bool": "true or false", "str": "a string"}
_KINDS |= {"array": "a list", "object": "an object"}
_VERBS = ("act", "reward_and_act", "reward_and_reset")
# The key of a step that needs a feature -> that feature.
_OPTIONAL = {"present": PRESENT, "executed": EXECUTED, "overridden": EXECUTED, "step_id": STEP_ID}
_OPTIONAL |= {"mask": MASKS, "final_mask": MASKS}
# Fields of the protocol that are spelled differently here.
_SPELLED = re.compile(
    r"\b(observation_spaces|action_spaces|observations|final_observations|executed|actions|rewards"
    r"|client_name|masks|final_masks)\b(?:\[([^\]]*)\])?"
)
_NAMES = {
    "observation_spaces": "observation",
    "action_spaces": "action",
    "observations": "observation",
    "final_observations": "final_observation",
    "actions": "action",
    "rewards": "reward",
    "client_name": "name",
    "masks": "mask",
    "final_masks": "final_mask",
}


_encode = msgspec.json.Encoder().encode


class _Hello(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    observation: dict[str, Any]
    action: dict[str, Any]
    slots: Uint32 | msgspec.UnsetType = UNSET
    mode: Literal["train", "exploit"] = "train"
    token: str = ""
    features: list[str] = []
    max_wait_ms: Uint32 = 0
    versions: dict[str, str] = {}
    agents: list[str] = []
    games: list[Uint32] = []
    kinds: list[str] = []
    protocol_version: Uint32 = PROTOCOL_VERSION


class _Point(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    y: float
    x: float | None = None


class _Empty(msgspec.Struct, forbid_unknown_fields=True):
    pass


class JsonCodec:
    """See `Codec`."""

    max_hello_bytes = _MAX_HELLO_BYTES
    ping = b'{"ping":{}}'

    def __init__(self) -> None:
        raw = [(verb, msgspec.Raw | msgspec.UnsetType, UNSET) for verb in _VERBS]
        self._decoder = _make_decoder([("hello", _Hello | msgspec.UnsetType, UNSET), *raw])
        self._greeting: Greeting | None = None
        self._slots: int | None = None  # None: arrays have no slot axis
        self._plain = {OBSERVATION: True, ACTION: True}  # whether it is one leaf without a name
        self._large: frozenset[str] = frozenset()  # actions with large integers
        self._nowhere = np.zeros(0, np.bool_)
        self._masks: Spaces = {}

    def greet(self, greeting: Greeting) -> int:
        """See `Codec`."""
        self._greeting = greeting
        actions = greeting.action_spaces.items()
        self._large = frozenset(name for name, space in actions if has_large_integers(space))
        self._nowhere = np.zeros(greeting.slots, np.bool_)
        self._decoder = _make_decoder(
            [("hello", msgspec.Raw | msgspec.UnsetType, UNSET), *self._make_verbs(greeting)]
        )
        spaces = (*greeting.inputs.values(), *greeting.action_spaces.values())
        numbers = sum(int(np.prod(space.shape, dtype=object)) + 8 for space in spaces)
        return (
            2 * greeting.slots * numbers * _NUMBER_BYTES + 2 * len(spaces) * _LEAF_BYTES
        ) + _MORE_BYTES

    def read(self, body: Body, running: bool, check: Callable[[str], None]) -> ReadMessage:
        """See `Codec`."""
        if self._greeting is None:
            _validate_hello(body)
        text = bytes(body)
        try:
            message = self._decoder.decode(text)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise _translate(error) from None
        sent = [name for name in message.__struct_fields__ if getattr(message, name) is not UNSET]
        if len(sent) != 1:
            raise ProtocolError(
                f"received an object with the keys {sent}, expected exactly one of hello, "
                f"{', '.join(_VERBS)}, scalars and ping; send one object per message"
            )
        (kind,) = sent
        content = getattr(message, kind)
        if kind in _VERBS:
            if self._greeting is None:
                return ReadMessage("step")
            return ReadMessage("step", self._read_step(kind, content, text, running))
        _refuse_repeated_keys(text)
        if kind == "hello" and self._greeting is None:
            check(content.token)
            return ReadMessage(kind, self._read_hello(content))
        if kind == "scalars":
            points = [metrics_pb2.Scalar(name=p.name, y=p.y, x=p.x) for p in content]
            return ReadMessage(kind, metrics_pb2.StoreScalarsRequest(scalars=points))
        return ReadMessage(kind)

    def is_ping(self, body: Body) -> bool:
        """See `Codec`."""
        return _PING.fullmatch(body) is not None

    def write_ready(self, ready: rlx_pb2.Ready) -> bytes:
        """See `Codec`."""
        written = {field.name: value for field, value in ready.ListFields()}
        policies = {"policies": list(ready.policies)} if ready.policies else {}
        return _encode({"ready": {**written, "features": list(ready.features), **policies}})

    def write_actions(
        self, actions: Arrays, version: int, step_id: int, timings: Mapping[str, int]
    ) -> bytes:
        """See `Codec`."""
        answer: dict[str, Any] = {"action": self._write_leaves(actions), "version": version}
        if step_id:
            answer["step_id"] = step_id
        if timings:
            answer["timings"] = timings
        return _encode(answer)

    def write_answer(self, answer: rlx_pb2.Actions) -> bytes:
        """See `Codec`."""
        written: dict[str, Any] = {}
        if answer.actions:
            arrays = {name: message_to_ndarray(a, name) for name, a in answer.actions.items()}
            written["action"] = self._write_leaves(arrays)
            written["version"] = answer.version
        if answer.versions:
            written["versions"] = list(answer.versions)
        if answer.episodes:
            written["episodes"] = [
                {"slot": one.slot, "score": one.score, "length": one.length}
                for one in answer.episodes
            ]
        if answer.finished:
            written["finished"] = answer.finished
        if answer.step_id:
            written["step_id"] = answer.step_id
        if answer.HasField("timings"):
            written["timings"] = {field.name: n for field, n in answer.timings.ListFields()}
        return _encode(written)

    def write_error(self, error: rlx_pb2.Error) -> bytes:
        """See `Codec`."""
        text, _, cure = _respell(error.message).rpartition("; ")
        written = {"code": rlx_pb2.ErrorCode.Name(error.code), "message": text or cure}
        if error.field:
            written["field"] = _respell(error.field)
        if text:
            written["cure"] = cure
        return _encode({"error": written})

    def _read_hello(self, hello: _Hello) -> rlx_pb2.Hello:
        self._slots = None if hello.slots is UNSET else hello.slots
        spaces = {}
        for name, written in ((OBSERVATION, hello.observation), (ACTION, hello.action)):
            spaces[name], self._plain[name] = read_spaces(written, name)
        messages = {
            name: {leaf: space_to_message(space) for leaf, space in leaves.items()}
            for name, leaves in spaces.items()
        }
        same = ("protocol_version", "token", "max_wait_ms", "versions", "agents", "games", "kinds")
        try:
            return rlx_pb2.Hello(
                client_name=hello.name,
                slots=1 if self._slots is None else self._slots,
                observation_spaces=messages[OBSERVATION],
                action_spaces=messages[ACTION],
                mode=hello.mode.upper(),
                features=sorted(hello.features),
                **{name: getattr(hello, name) for name in same},
            )
        except ValueError as error:  # a text that protobuf does not take
            raise InvalidInputError(f"hello: {error}; use plain text") from None

    # Steps.

    def _make_verbs(self, greeting: Greeting) -> list[tuple[str, Any, Any]]:
        """Returns the fields of a message for the three verbs, each with the keys that it has."""
        slots, optional = self._slots, msgspec.UnsetType
        observation = self._make_leaves(greeting.observation_spaces, OBSERVATION)
        action = self._make_leaves(greeting.action_spaces, ACTION)
        axis = () if slots is None else (slots,)
        flags = nest(bool, axis)
        start = [
            ("present", flags),
            ("step_id", Annotated[int, msgspec.Meta(ge=1, le=MAX_INTEGER)]),
        ]
        self._masks = {name.removeprefix(MASK): space for name, space in greeting.masks.items()}
        mask = self._make_leaves(self._masks, ACTION) if self._masks else msgspec.Raw
        start += [("mask", mask), ("final_mask", mask)]
        outcome = [(name, flags) for name in ("terminated", "truncated", "overridden")]
        outcome += [("success", nest(bool | None, axis)), ("executed", action)]
        outcome += [("final_observation", observation), *start]
        first = [("observation", observation)]
        reward = [("reward", nest(float | list[float], axis))]
        fields = {
            "act": (first, start),
            "reward_and_act": (reward + first, outcome),
            "reward_and_reset": (reward, outcome),
        }
        verbs: list[tuple[str, Any, Any]] = []
        for verb, (needed, more) in fields.items():
            kept = [(name, type_ | optional, UNSET) for name, type_ in more]
            struct = msgspec.defstruct(verb, [*needed, *kept], forbid_unknown_fields=True)
            verbs.append((verb, struct | optional, UNSET))
        return verbs

    def _make_leaves(self, spaces: Spaces, name: str) -> Any:
        return make_leaves(spaces, self._slots, name, self._plain[name])

    def _read_step(self, verb: str, step: Any, text: bytes, running: bool) -> ReceivedStep:
        greeting = self._greeting
        assert greeting is not None
        keys = 1
        arrays: dict[str, Any] = {}
        for name in step.__struct_fields__:
            value = getattr(step, name)
            if value is UNSET:
                continue
            keys += 1
            if name in _OPTIONAL:
                greeting.require(_OPTIONAL[name], name)
            if name in _OF_LEAVES:
                spaces, plain = greeting.observation_spaces, OBSERVATION
                if not name.endswith("observation"):
                    plain = ACTION
                    spaces = greeting.action_spaces if name == "executed" else self._masks
                is_plain = self._plain[plain]
                arrays[name], more = read_leaves(value, spaces, self._slots, name, is_plain)
                keys += more
            elif name == "step_id":
                arrays[name] = value
            else:
                arrays[name] = self._read_array(name, value)
        if text.count(b":") != keys:  # no string of a step has a colon, so a key came twice
            _refuse_repeated_keys(text)
        if verb != "act":
            truncated = arrays.setdefault("truncated", self._nowhere)
            continues = verb == "reward_and_act"
            arrays.setdefault("terminated", self._nowhere if continues else ~truncated)
        if running is (verb == "act"):
            cure = "act is for the first step of an episode, reward_and_act for those after it"
            raise ProtocolError(
                f"{verb}: {'an' if running else 'no'} action was given before; {cure}",
                "OUT_OF_ORDER",
                verb,
            )
        renamed = {_PLURALS.get(name, name): array for name, array in arrays.items()}
        return check_step(
            renamed,
            greeting.observation_spaces,
            greeting.action_spaces,
            greeting.slots,
            running,
            greeting.masks,
        )

    def _read_array(self, name: str, value: Any) -> np.ndarray:
        if self._slots is None:
            value = [value]
        if name == "success":
            return np.array([-1 if one is None else int(one) for one in value], np.int8)
        if name != "reward":
            return np.array(value, np.bool_)
        try:
            return np.array(value, np.float64)
        except ValueError:
            raise InvalidInputError(
                "reward: lists of different lengths, expected one number per slot, or equally many"
            ) from None

    def _write_leaves(self, arrays: Arrays) -> Any:
        written = {
            name: write_leaf(array[0] if self._slots is None else array, name in self._large)
            for name, array in arrays.items()
        }
        return written[ACTION] if self._plain[ACTION] else written


_PLURALS = {
    "observation": "observations",
    "final_observation": "final_observations",
    "reward": "rewards",
    "mask": "masks",
    "final_mask": "final_masks",
}
_OF_LEAVES = ("observation", "final_observation", "executed", "mask", "final_mask")


def _make_decoder(kinds: list[tuple[str, Any, Any]]) -> msgspec.json.Decoder[Any]:
    points = Annotated[list[_Point], msgspec.Meta(max_length=2 * MAX_POINTS)]
    more = [
        ("scalars", points | msgspec.UnsetType, UNSET),
        ("ping", _Empty | msgspec.UnsetType, UNSET),
    ]
    return msgspec.json.Decoder(
        msgspec.defstruct("Message", [*kinds, *more], forbid_unknown_fields=True)
    )


def _validate_hello(body: Body) -> None:
    """Bounds a text before it is parsed."""
    if len(body) > _MAX_HELLO_BYTES:
        raise ProtocolError(
            f"received a hello of {len(body)} bytes, expected at most {_MAX_HELLO_BYTES}; "
            "shorten it, for example the bounds of large boxes"
        )
    keys = 0
    for start in range(0, len(body), _PART_BYTES):
        part = bytes(body[start : start + _PART_BYTES + len(_DIGITS)]).translate(_TO_ZEROS)
        keys += part.count(b":", 0, _PART_BYTES)
        if keys > _MAX_KEYS or _DIGITS in part:
            raise ProtocolError(
                f"received more than {_MAX_KEYS} keys, or a number of 400 digits or more; send "
                "fewer and shorter ones"
            )


def _refuse_repeated_keys(text: bytes) -> None:
    def check(pairs: list[tuple[str, Any]]) -> None:
        names = [name for name, _ in pairs]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidInputError(
                f"{twice[:60]}: this key came twice in one object, expected once"
            )

    json.loads(text, object_pairs_hook=check)


def _translate(error: Exception) -> ProtocolError:
    """Makes an error in the words of the protocol from one of the decoder."""
    if isinstance(error, RecursionError):
        return ProtocolError("received lists within lists, too deep to be read; see docs/json.md")
    if not isinstance(error, msgspec.ValidationError):
        return ProtocolError(
            f"received text that is not JSON: {error}; send one JSON object per message"
        )
    text = str(error)
    at = _AT.search(text)
    path = [at[1].partition(".")[2]] if at else []
    what = _AT.sub("", text)
    if key := _KEY.fullmatch(what):
        path.append(key[2])
        what = "not a key of this message" if key[1] == "contains unknown" else "missing"
    what = re.sub(r"of length [<>]= (\d+)", r"of \1", what)
    for name, words in _KINDS.items():
        what = re.sub(rf"`([^`]*)\b{name}\b([^`]*)`", rf"`\1{words}\2`", what)
    what = what.replace("`", "").replace(" | ", " or ")
    field = ".".join(filter(None, path))
    where = f"{field}: " if field else ""
    return ProtocolError(
        f"{where}{what[0].lower()}{what[1:]}; see docs/json.md", "INVALID_FIELD", field
    )


def _respell(text: str) -> str:
    """Writes fields of the protocol as they are spelled here."""

    def spell(match: re.Match[str]) -> str:
        name, leaf = _NAMES.get(match[1], match[1]), match[2]
        return name if leaf in (None, OBSERVATION, ACTION) else f"{name}.{leaf}"

    return _SPELLED.sub(spell, text)
