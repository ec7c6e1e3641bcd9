"""Writes steps and reads ordinary answers, which differ from earlier ones only in their data.

Their layout is known, so this takes a fraction of the time of building and parsing messages.
"""

import functools
from collections.abc import Mapping

import numpy as np

from relaax_like.v1 import rlx_pb2
from relaax_like.wire.message_template import Layout, Span
from relaax_like.wire.ndarray import DTYPES, write_ndarray
from relaax_like.wire.spaces import Spaces, pack_arrays

_STEP_ID = ("step", "step_id")
# Numbers of an answer that differ from one to the next.
_NUMBERS = frozenset(
    {
        ("actions", "step_id"),
        *(("actions", "timings", field.name) for field in rlx_pb2.Timings.DESCRIPTOR.fields),
    }
)
# Name, dtype and shape of arrays.
Signature = tuple[tuple[str, np.dtype, tuple[int, ...]], ...]


def pack_step(
    arrays: Mapping[str, np.ndarray],
    leaves: Mapping[str, Mapping[str, np.ndarray]],
    step_id: int = 0,
) -> bytes:
    """Returns the serialised message of a step.

    The caller must have checked the arguments.

    Args:
      arrays: by the names of `rlx_pb2.Step`: rewards `[k]` or `[k, r]`, float32 or float64; success
        `[k] int8`; the others `[k] bool`.
      leaves: the same for `observations`, `final_observations`, `executed`, `masks` and
        `final_masks`: leaf -> `[k, ...]`.
      step_id: number of the step; 0: it has no number.
    """
    parts = tuple((name, _sign(own)) for name, own in leaves.items())
    layout = _make_step_layout(_sign(arrays), parts, step_id > 0)
    data = []
    for span in layout.spans:
        if span.path == _STEP_ID:
            data.append(step_id.to_bytes(8, "little"))
            continue
        source = leaves[span.path[1]] if len(span.path) > 2 else arrays
        data.append(source[span.path[-1]].tobytes())
    return layout.fill(data)


def _sign(arrays: Mapping[str, np.ndarray]) -> Signature:
    return tuple((name, array.dtype, array.shape) for name, array in arrays.items())


@functools.lru_cache(maxsize=64)
def _make_step_layout(
    arrays: Signature, leaves: tuple[tuple[str, Signature], ...], has_id: bool
) -> Layout:
    message = rlx_pb2.ClientMessage()
    step = message.step
    step.SetInParent()
    if has_id:
        step.step_id = 1
    for part, own in leaves:
        zeros = {name: np.zeros(shape, dtype) for name, dtype, shape in own}
        pack_arrays(zeros, getattr(step, part))
    for name, dtype, shape in arrays:
        write_ndarray(np.zeros(shape, dtype), getattr(step, name))
    descriptor = rlx_pb2.ClientMessage.DESCRIPTOR
    return Layout(message.SerializeToString(), descriptor, numbers=(_STEP_ID,))


class ActionsReader:
    """Reads answers that have the same layout and version as a remembered one, without parsing.

    Args:
      spaces: action leaves.
      slots: k.

    Attributes:
      version: of the weights, in the remembered answer and in each that `read` returns.
      numbers: other numbers of the last answer that `read` returned, by name: `step_id`, and the
        fields of `Timings`.
    """

    def __init__(self, spaces: Spaces, slots: int):
        self.version = 0
        self.numbers: dict[str, int] = {}
        self._spaces = spaces
        self._slots = slots
        self._layout: Layout | None = None
        self._spans: dict[str, Span] = {}
        self._number_spans: list[Span] = []

    def remember(self, body: bytes, version: int) -> None:
        """Stores the layout of an answer that was parsed, is valid and has only actions."""
        try:
            layout = Layout(body, rlx_pb2.ServerMessage.DESCRIPTOR, numbers=_NUMBERS)
        except ValueError:
            return
        numbers = [span for span in layout.spans if span.path in _NUMBERS]
        spans = {span.path[-1]: span for span in layout.spans if span.path not in _NUMBERS}
        if len(layout.spans) == len(spans) + len(numbers) and spans.keys() == self._spaces.keys():
            self._layout, self._spans, self.version = layout, spans, version
            self._number_spans = numbers

    def read(self, body: bytes) -> dict[str, np.ndarray] | None:
        """Returns the actions, leaf -> `[k, ...]`; None: the answer has to be parsed.

        Raises:
          InvalidInputError: a value is out of range, NaN or infinity; the error names the leaf.
        """
        if self._layout is None or not self._layout.fits(body):
            return None
        for span in self._number_spans:
            number = int.from_bytes(body[span.start : span.stop], "little")
            self.numbers[span.path[-1]] = number
        leaves = {}
        for name, space in self._spaces.items():
            span, dtype = self._spans[name], DTYPES[space.dtype]
            array = np.frombuffer(
                body, dtype, (span.stop - span.start) // dtype.itemsize, span.start
            ).reshape(self._slots, *space.shape)
            space.validate_range(array, f"actions[{name}]")
            leaves[name] = array
        return leaves
