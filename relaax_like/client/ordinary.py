"""Ordinary steps and answers: those in the middle of episodes, which differ in their data alone.

They are written and read by their layout, which costs a fraction of building and parsing messages.
"""

import functools
from collections.abc import Mapping

import numpy as np

from relaax_like.v1 import rlx_pb2
from relaax_like.wire.layout import Layout, Span
from relaax_like.wire.ndarray import DTYPES, write_ndarray
from relaax_like.wire.spaces import Spaces, pack_arrays

# Name, dtype and shape of arrays.
Signature = tuple[tuple[str, np.dtype, tuple[int, ...]], ...]


def pack_step(
    observations: Mapping[str, np.ndarray],
    rewards: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
) -> bytes:
    """Returns the message of a step without final observations and success; all was checked.

    Args:
      observations: leaf -> `[k, ...]`.
      rewards: `[k]` or `[k, r]`, float32 or float64.
      terminated: `[k]` bool.
      truncated: `[k]` bool.
    """
    arrays = {"rewards": rewards, "terminated": terminated, "truncated": truncated}
    layout = _make_step_layout(_sign(observations), _sign(arrays))
    data = []
    for span in layout.spans:
        source = observations if len(span.path) > 2 else arrays
        data.append(source[span.path[-1]].tobytes())
    return layout.fill(data)


def _sign(arrays: Mapping[str, np.ndarray]) -> Signature:
    return tuple((name, array.dtype, array.shape) for name, array in arrays.items())


@functools.lru_cache(maxsize=64)
def _make_step_layout(observations: Signature, outcome: Signature) -> Layout:
    message = rlx_pb2.ClientMessage()
    leaves = {name: np.zeros(shape, dtype) for name, dtype, shape in observations}
    pack_arrays(leaves, message.step.observations)
    for name, dtype, shape in outcome:
        write_ndarray(np.zeros(shape, dtype), getattr(message.step, name))
    return Layout(message.SerializeToString(), rlx_pb2.ClientMessage.DESCRIPTOR)


class ActionsReader:
    """Reads answers that are like the last one, of the same version, without parsing them.

    Args:
      spaces: action leaves.
      slots: k.

    Attributes:
      version: of the weights that chose the actions which were read last.
    """

    def __init__(self, spaces: Spaces, slots: int):
        self.version = 0
        self._spaces = spaces
        self._slots = slots
        self._layout: Layout | None = None
        self._spans: dict[str, Span] = {}

    def remember(self, body: bytes, version: int) -> None:
        """Takes an answer with nothing but actions, which was parsed and found good."""
        try:
            layout = Layout(body, rlx_pb2.ServerMessage.DESCRIPTOR)
        except ValueError:
            return
        spans = {span.path[-1]: span for span in layout.spans if "actions" in span.path}
        if len(layout.spans) == len(spans) and spans.keys() == self._spaces.keys():
            self._layout, self._spans, self.version = layout, spans, version

    def read(self, body: bytes) -> dict[str, np.ndarray] | None:
        """Returns the actions, leaf -> `[k, ...]`; None: the answer has to be parsed.

        Raises:
          InvalidInputError: a value is out of range; names the leaf.
        """
        if self._layout is None or not self._layout.fits(body):
            return None
        leaves = {}
        for name, space in self._spaces.items():
            span, dtype = self._spans[name], DTYPES[space.dtype]
            array = np.frombuffer(
                body, dtype, (span.stop - span.start) // dtype.itemsize, span.start
            ).reshape(self._slots, *space.shape)
            space.validate_range(array, f"actions[{name}]")
            leaves[name] = array
        return leaves
