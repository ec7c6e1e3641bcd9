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
_REWARDS, _TERMINATED, _TRUNCATED = ((_STEP, n) for n in ("rewards", "terminated", "truncated"))


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
        self._nowhere = np.zeros(slots, np.bool_)
        self._nowhere.flags.writeable = False
        self._none = bytes(slots)

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
        if self._layout is not None and self._layout.fits(body):
            return
        try:
            layout = Layout(body, rlx_pb2.ClientMessage.DESCRIPTOR)
        except ValueError:
            return
        spans = {span.path: span for span in layout.spans}
        leaves = [(_STEP, "observations", name) for name in self._spaces]
        wanted = {*leaves, _REWARDS, _TERMINATED, _TRUNCATED}
        if len(layout.spans) != len(wanted) or spans.keys() != wanted:
            return  # an empty array, or a field that came twice
        self._leaves = [
            (name, f"observations[{name}]", spans[path], DTYPES[space.dtype], space)
            for path, (name, space) in zip(leaves, self._spaces.items(), strict=True)
        ]
        item_bytes, rest = divmod(
            spans[_REWARDS].stop - spans[_REWARDS].start, transition.rewards.size
        )
        if rest or item_bytes not in (4, 8):  # float32 or float64
            return
        self._rewards = spans[_REWARDS], np.dtype(f"<f{item_bytes}")
        self._terminated, self._truncated = spans[_TERMINATED], spans[_TRUNCATED]
        self._layout = layout

    def read(self, body: bytes | memoryview) -> Transition | None:
        """Returns what an ordinary step says; None: it has to be parsed.

        Raises:
          InvalidInputError: a value is out of range; names it.
        """
        layout = self._layout
        if layout is None:
            return None
        body = bytes(body)  # the arrays stay in it, and outlive the connection's buffer
        if (
            not layout.fits(body)
            or body[self._terminated.start : self._terminated.stop] != self._none
            or body[self._truncated.start : self._truncated.stop] != self._none
        ):
            return None
        slots = self._slots
        observations = {}
        for name, field, span, dtype, space in self._leaves:
            array = _view(body, span, dtype).reshape(slots, *space.shape)
            space.validate_range(array, field)
            observations[name] = array
        span, dtype = self._rewards
        rewards = _view(body, span, dtype).reshape(slots, -1).astype(np.float64)
        validate_rewards(rewards)
        return Transition(
            observations=observations,
            rewards=rewards,
            terminated=self._nowhere,
            truncated=self._nowhere,
        )


def _view(body: bytes, span: Span, dtype: np.dtype) -> np.ndarray:
    return np.frombuffer(body, dtype, (span.stop - span.start) // dtype.itemsize, span.start)
