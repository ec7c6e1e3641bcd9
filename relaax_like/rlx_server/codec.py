"""What a message means, apart from how it is written: what codecs read and write."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from relaax_like.rlx_server.greeting import Greeting
from relaax_like.rlx_server.transition import Arrays
from relaax_like.v1 import rlx_pb2

Body = bytes | memoryview
TIMING_FIELDS = ("queue_us", "prediction_us", "total_us")  # of rlx_pb2.Timings


class ReadMessage(NamedTuple):
    """A message of the client.

    Attributes:
      kind: "hello", "step", "scalars" or "ping".
      content: a `rlx_pb2.Hello`, a checked `Transition`, or a `StoreScalarsRequest`; None: a ping,
        or a step that came before the hello.
    """

    kind: str
    content: Any = None


class Codec(Protocol):
    """Reads and writes the messages of one session.

    Attributes:
      ping: a written ping.
      max_hello_bytes: longest hello that is read.
    """

    ping: bytes
    max_hello_bytes: int

    def greet(self, greeting: Greeting) -> int:
        """Notes the accepted hello; returns the longest message that its steps can need."""
        ...

    def read(self, body: Body, running: bool, check: Callable[[str], None]) -> ReadMessage:
        """Reads one message.

        Args:
          body: as received; nothing in it is trusted.
          running: whether actions were sent whose rewards are due.
          check: called with the token of a hello; can raise ProtocolError.

        Raises:
          ProtocolError: MALFORMED: it is not a message of the protocol; OUT_OF_ORDER: a part of a
            step was sent at the wrong time.
          InvalidInputError: a field is wrong; the error names it.
        """
        ...

    def is_ping(self, body: Body) -> bool:
        """Returns whether a message is a ping, spelled as usual."""
        ...

    def write_ready(self, ready: rlx_pb2.Ready) -> bytes:
        """Returns the answer to the hello."""
        ...

    def write_actions(
        self, actions: Arrays, version: int, step_id: int, timings: Mapping[str, int]
    ) -> bytes:
        """Returns an answer with only actions, as most are.

        Args:
          actions: leaf -> `[k, ...]`.
          version: of the weights.
          step_id: number of the step; 0: it has none.
          timings: fields of `Timings`; empty: the feature is off.
        """
        ...

    def write_answer(self, answer: rlx_pb2.Actions) -> bytes:
        """Returns any other answer to a step."""
        ...

    def write_error(self, error: rlx_pb2.Error) -> bytes:
        """Returns the last message of a session that failed."""
        ...
