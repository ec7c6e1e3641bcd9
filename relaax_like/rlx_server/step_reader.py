"""StepReader: reads steps that look like the one before without parsing them."""

import numpy as np

from relaax_like.rlx_server.transition import Transition, validate_rewards
from relaax_like.v1 import rlx_pb2
from relaax_like.wire.layout import Layout, Span
from relaax_like.wire.ndarray import DTYPES
from relaax_like.wire.spaces import Spaces

# Names, shapes and the like of an ordinary array take less.
_MAX_FRAME_BYTES = 1024
_STEP = "step"
_REWARDS = (_STEP, "rewards")
_FLAGS = ((_STEP, "terminated"), (_STEP, "truncated"))


class StepReader:
    """Knows the layout of a session's ordinary steps: nothing ended, and every slot goes on.

        transition = reader.read(body)
        if transition is None:
            transition = read_step(parse(body).step, ...)
            reader.remember(body, transition)

    Args:
      spaces: observation leaves of the hello.
      slots: k.
    """

    def __init__(self, spaces: Spaces, slots: int):
        self._spaces = spaces
        self._slots = slots
        self._layout: Layout | None = None
        self._ends_layout: Layout | None = None  # of these steps, and those where an episode ends
        self._nowhere = np.zeros(slots, np.bool_)
        self._nowhere.flags.writeable = False

    def remember(self, body: bytes | memoryview, transition: Transition) -> None:
        """Takes a step that was read and found good as the pattern for those to come."""
        if transition.observations is None or transition.rewards is None:
            return
        if transition.final_observations is not None or transition.success is not None:
            return
        arrays = [*transition.observations.values(), transition.rewards]
        data = sum(array.nbytes for array in arrays) + 2 * self._slots
        if len(body) > data + _MAX_FRAME_BYTES * (1 + len(arrays)):
            return  # most of it is nothing that we know, and would be looked at bit by bit
        body = bytes(body)
        if self._ends_layout is not None and self._ends_layout.fits(body):
            return
        try:
            layout = Layout(body, rlx_pb2.ClientMessage.DESCRIPTOR)
        except ValueError:
            return
        spans = {span.path: span for span in layout.spans}
        leaves = [(_STEP, "observations", name) for name in self._spaces]
        wanted = {*leaves, _REWARDS, *_FLAGS}
        if len(layout.spans) != len(wanted) or spans.keys() != wanted:
            return  # an empty array, or a field that came twice
        slots = self._slots
        views = [
            _View(spans[path], DTYPES[space.dtype], (slots, *space.shape))
            for path, space in zip(leaves, self._spaces.values(), strict=True)
        ]
        self._leaves = [
            (name, f"observations[{name}]", view, space)
            for (name, space), view in zip(self._spaces.items(), views, strict=True)
        ]
        item_bytes, rest = divmod(
            spans[_REWARDS].stop - spans[_REWARDS].start, transition.rewards.size
        )
        if rest or item_bytes not in (4, 8):  # float32 or float64
            return
        self._rewards = _View(spans[_REWARDS], np.dtype(f"<f{item_bytes}"), (slots, -1))
        parts = (
            bytes(slots) if span.path in _FLAGS else body[span.start : span.stop]
            for span in layout.spans
        )
        self._ends_layout = layout
        descriptor = rlx_pb2.ClientMessage.DESCRIPTOR
        self._layout = Layout(layout.fill(list(parts)), descriptor, fixed=_FLAGS)

    def read(self, body: bytes | memoryview) -> Transition | None:
        """Returns what an ordinary step says; None: it has to be parsed.

        Raises:
          InvalidInputError: a value is out of range; names it.
        """
        layout = self._layout
        if layout is None:
            return None
        body = bytes(body)  # the arrays stay in it, and outlive the connection's buffer
        if not layout.fits(body):
            return None
        observations = {}
        for name, field, view, space in self._leaves:
            observations[name] = array = view.get(body)
            space.validate_range(array, field)
        rewards = self._rewards.get(body).astype(np.float64)
        validate_rewards(rewards)
        return Transition(
            observations=observations,
            rewards=rewards,
            terminated=self._nowhere,
            truncated=self._nowhere,
        )


class _View:
    """Where an array lies in each message of a layout."""

    def __init__(self, span: Span, dtype: np.dtype, shape: tuple[int, ...]):
        self._dtype = dtype
        self._count = (span.stop - span.start) // dtype.itemsize
        self._start = span.start
        self._shape = shape

    def get(self, body: bytes) -> np.ndarray:
        array = np.frombuffer(body, self._dtype, self._count, self._start)
        return array.reshape(self._shape)
