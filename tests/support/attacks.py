"""What a hostile client does to the port of an rlx server."""

import contextlib
import socket
import threading
from collections.abc import Callable

from relaax_like.v1 import metrics_pb2, rlx_pb2
from relaax_like.wire.framing import HEADER, pack_frame
from support.rlx import RawClient, array, make_hello, make_next, make_start, make_step

Attack = Callable[[RawClient], None]


def make_box(*shape: int) -> rlx_pb2.Space:
    """Returns a space of 32-bit numbers."""
    return rlx_pb2.Space(kind=rlx_pb2.BOX, dtype="float32", shape=shape)


def send_half_a_hello(client: RawClient, size: int) -> None:
    """Announces 2 * size bytes and sends `size`; what the server answers meanwhile is not read."""
    with contextlib.suppress(ConnectionError):
        client.socket.sendall(HEADER.pack(2 * size) + bytes(size))


def flood(
    port: int, stop: threading.Event, attack: Attack, rounds: list[None] | None = None
) -> None:
    """Attacks again and again.

    Args:
      port: of the rlx server.
      stop: ends it.
      attack: what one connection does.
      rounds: gets an entry after each attack, however it ended.
    """
    while not stop.is_set():
        # An assertion fails where the server, going down, says so.
        with contextlib.suppress(OSError, EOFError, AssertionError), RawClient(port) as client:
            client.socket.settimeout(1.0)
            attack(client)
        if rounds is not None:
            rounds.append(None)


def attack_with_axes(client: RawClient) -> None:
    """A hello of very many axes."""
    client.ask(make_hello(observation_spaces={"x": make_box(*[2] * 100_000)}))


def attack_with_points(client: RawClient) -> None:
    """Points of curves, without a pause."""
    client.greet()
    scalars = [metrics_pb2.Scalar(name="attack", y=1.0)] * 10_000
    request = metrics_pb2.StoreScalarsRequest(scalars=scalars)
    frame = pack_frame(rlx_pb2.ClientMessage(scalars=request).SerializeToString())
    for _ in range(20):
        client.socket.sendall(frame)


def attack_with_half_hellos(client: RawClient) -> None:
    """A hello that is announced, and not sent to its end."""
    send_half_a_hello(client, 1 << 20)


def attack_with_errors(client: RawClient) -> None:
    """A session that fails at its second step."""
    client.greet()
    client.ask(make_start())
    client.ask(make_next(rewards=array([float("nan")])))


def attack_with_silence(client: RawClient) -> None:
    """Holds connections that say nothing, more of them than the server keeps of one address."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            for _ in range(40):
                stack.enter_context(socket.create_connection(client.socket.getpeername(), 1.0))
        client.receive()


def attack_with_exploding_numbers(client: RawClient) -> None:
    """Rewards that can be sent, and are no use for learning."""
    client.greet()
    client.ask(make_start())
    client.ask(make_next(rewards=array([1e17])))


def attack_with_leaves(client: RawClient) -> None:
    """A step of very many leaves."""
    client.greet()
    client.ask(make_start())
    client.ask(make_step(observations={str(leaf): array([1.0]) for leaf in range(10_000)}))


def attack_with_masks(client: RawClient) -> None:
    """Masks that no server has asked for, of an action that does not exist."""
    client.greet()
    client.ask(make_start())
    client.ask(make_next(masks={"x" * 199: array([[1] * 10_000], "bool")}))


ATTACKS = [
    attack_with_axes,
    attack_with_points,
    attack_with_half_hellos,
    attack_with_errors,
    attack_with_silence,
    attack_with_exploding_numbers,
    attack_with_leaves,
    attack_with_masks,
]
