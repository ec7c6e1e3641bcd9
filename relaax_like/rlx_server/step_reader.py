"""StepReader: reads steps with the same layout as the previous one, without parsing them."""

from collections.abc import Mapping

import numpy as np

from relaax_like.rlx_server.transition import ReceivedStep, find_absent, validate_rewards
from relaax_like.v1 import rlx_pb2
from relaax_like.wire.message_template import Layout, Path, Span
from relaax_like.wire.ndarray import DTYPES
from relaax_like.wire.spaces import MASK, Space, Spaces

# Names, shapes and the like of an ordinary array are shorter.
_MAX_FRAME_BYTES = 1024
_BYTE = np.dtype(np.uint8)
# Data type, number of numbers, first byte and shape of an array in a message.
View = tuple[np.dtype, int, int, tuple[int, ...]]
_STEP = "step"
_REWARDS = (_STEP, "rewards")
_FLAGS = ((_STEP, "terminated"), (_STEP, "truncated"))
_STEP_ID = (_STEP, "step_id")
_PRESENT, _OVERRIDDEN = (_STEP, "present"), (_STEP, "overridden")


class StepReader:
    """Reads a session's ordinary steps, in which no episode ends, by their layout.

        transition = reader.read(body)
        if transition is None:
            transition = read_step(parse(body).step, ...)
            reader.remember(body, transition)

    Args:
      spaces: observation leaves of the hello.
      action_spaces: action leaves of the hello.
      slots: k.
      masks: of the hello.
    """

    def __init__(self, spaces: Spaces, action_spaces: Spaces, slots: int, masks: Spaces):
        self._spaces = spaces
        self._masks = {name.removeprefix(MASK): space for name, space in masks.items()}
        self._action_spaces = action_spaces
        self._slots = slots
        leaves = {"observations": self._spaces, "masks": self._masks}
        # Fields of every ordinary step.
        self._always: list[Path] = [_REWARDS, *_FLAGS]
        self._always += [(_STEP, field, name) for field, own in leaves.items() for name in own]
        self._layout: Layout | None = None
        self._step_id: Span | None = None
        self._ends_layout: Layout | None = None  # of these steps, and those where an episode ends
        self._nowhere = np.zeros(slots, np.bool_)
        self._nowhere.flags.writeable = False

    def remember(self, body: bytes | memoryview, transition: ReceivedStep) -> None:
        """Stores the layout of a parsed, valid step to read the next ones, if it is ordinary."""
        has_ends = transition.final_observations is not None or transition.success is not None
        if transition.observations is None or transition.rewards is None or has_ends:
            return
        executed = transition.executed or {}
        arrays = [*transition.observations.values(), transition.rewards, *executed.values()]
        data = sum(array.nbytes for array in arrays) + 2 * self._slots
        if len(body) > data + _MAX_FRAME_BYTES * (1 + len(arrays)):
            return  # most of it is unknown, and would be read piece by piece
        body = bytes(body)
        if self._ends_layout is not None and self._ends_layout.fits(body):
            return
        try:
            layout = Layout(body, rlx_pb2.ClientMessage.DESCRIPTOR, numbers=(_STEP_ID,))
        except ValueError:
            return
        spans = {span.path: span for span in layout.spans}
        wanted = set(self._always)
        if transition.step_id:
            wanted.add(_STEP_ID)
        taken = [(_STEP, "executed", name) for name in executed]
        # If all are present, the values do not show whether the fields were sent.
        wanted.update(taken, spans.keys() & {_PRESENT, _OVERRIDDEN})
        if len(layout.spans) != len(wanted) or spans.keys() != wanted:
            return  # an empty array, or a field that occurs twice
        num_bytes = spans[_REWARDS].stop - spans[_REWARDS].start
        item_bytes, rest = divmod(num_bytes, transition.rewards.size)
        if rest or item_bytes not in (4, 8):  # float32 or float64
            return
        slots = self._slots
        self._rewards = _find_view(spans[_REWARDS], np.dtype(f"<f{item_bytes}"), (slots, -1))
        self._leaves = self._make_leaves(spans, "observations", self._spaces)
        self._masked = self._make_leaves(spans, "masks", self._masks)
        carried = self._action_spaces if executed else {}
        self._executed = self._make_leaves(spans, "executed", carried)
        self._present, self._overridden = (
            _find_view(spans[path], _BYTE, (slots,)) if path in spans else None
            for path in (_PRESENT, _OVERRIDDEN)
        )
        parts = (
            bytes(slots) if span.path in _FLAGS else body[span.start : span.stop]
            for span in layout.spans
        )
        self._ends_layout = layout
        descriptor = rlx_pb2.ClientMessage.DESCRIPTOR
        self._layout = Layout(layout.fill(list(parts)), descriptor, _FLAGS, (_STEP_ID,))
        self._step_id = next((s for s in self._layout.spans if s.path == _STEP_ID), None)
        self._has_more = len(wanted) > len(self._spaces) + 3  # rewards and two flags

    def _make_leaves(
        self, spans: Mapping[Path, Span], field: str, spaces: Spaces
    ) -> list[tuple[str, str, View, Space]]:
        leaves = []
        for name, space in spaces.items():
            shape = (self._slots, *space.shape)
            view = _find_view(spans[_STEP, field, name], DTYPES[space.dtype], shape)
            leaves.append((name, f"{field}[{name}]", view, space))
        return leaves

    def read(self, body: bytes | memoryview) -> ReceivedStep | None:
        """Returns the transition of an ordinary step; None: the step has to be parsed.

        Raises:
          InvalidInputError: a value is out of range, NaN or infinity; the error names its array.
        """
        layout = self._layout
        if layout is None:
            return None
        body = bytes(body)  # the arrays are views of it, and outlive the connection's buffer
        if not layout.fits(body):
            return None
        rewards = _read(body, self._rewards).astype(np.float64)
        validate_rewards(rewards)
        observations = {}
        for name, field, (dtype, count, start, shape), space in self._leaves:
            array = np.frombuffer(body, dtype, count, start).reshape(shape)
            observations[name] = array
            space.validate_range(array, field)
        transition = ReceivedStep(observations, rewards, self._nowhere, self._nowhere)
        return self._read_rest(transition, body) if self._has_more else transition

    def _read_rest(self, transition: ReceivedStep, body: bytes) -> ReceivedStep:
        """Adds the optional parts of a step."""
        present, overridden, number = self._present, self._overridden, self._step_id
        executed = {}
        for name, field, view, space in self._executed:
            executed[name] = array = _read(body, view)
            space.validate_range(array, field)
        plays = None if present is None else _read(body, present).astype(np.bool_)
        observations = dict(transition.observations or {})
        for name, field, view, space in self._masked:
            mask = _read(body, view)
            observations[MASK + name] = space.validate(mask, self._slots, field, plays)
        return transition._replace(
            observations=observations,
            step_id=0 if number is None else _read_number(body, number),
            absent=None if plays is None else find_absent(plays),
            executed=executed or None,
            overridden=None if overridden is None else _read(body, overridden).astype(np.bool_),
        )


def _read_number(body: bytes, span: Span) -> int:
    return int.from_bytes(body[span.start : span.stop], "little")


def _find_view(span: Span, dtype: np.dtype, shape: tuple[int, ...]) -> View:
    """Returns where an array lies in each message of a layout."""
    return dtype, (span.stop - span.start) // dtype.itemsize, span.start, shape


def _read(body: bytes, view: View) -> np.ndarray:
    dtype, count, start, shape = view
    return np.frombuffer(body, dtype, count, start).reshape(shape)
