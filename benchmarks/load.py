"""Load: programs that play a benchmark's clients, all with one slot each. Base install only.

    python -m benchmarks.load one ADDRESS PERIOD_SEC
    python -m benchmarks.load many ADDRESS PERIOD_SEC CONNECTIONS ENVIRONMENT

`one` is an ordinary client process. `many` drives all its connections in turn, at a fraction of the
cost, with the environment `null` (answers at once) or `cartpole` (needs gymnasium). A program
prints `ready` when it is connected and reads from standard input when to count, `START SECONDS` on
the monotonic clock, which all processes of a machine share. It plays at once, counts in that time
only, and prints what it counted as JSON.

An environment's step takes a period, or longer when its answer comes later: its next step is due a
period after the last one was, or at once when that is over. Period 0: as fast as it is answered.
"""

import argparse
import heapq
import json
import random
import resource
import selectors
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from relaax_like.client import Retry, RlxClient
from relaax_like.v1 import ndarray_pb2, rlx_pb2
from relaax_like.wire.framing import HEADER, PROTOCOL_VERSION, pack_frame
from relaax_like.wire.ndarray import ndarray_to_message
from relaax_like.wire.spaces import Box, Discrete, space_to_message

SPACES = Box(dtype="float32", shape=(4,)), Discrete(n=2)
# Paced clients take their first steps within this time, so that their rollouts do not all end at
# once, as if they were started together by a clock.
_STAGGER_SEC = 1.0


class LoadEnvironment(Protocol):
    """One environment of CartPole's spaces whose rewards are all 1."""

    def reset(self) -> np.ndarray:
        """Returns an episode's first observation, [4] float32."""

    def step(self, action: int) -> tuple[np.ndarray, bool, bool]:
        """Returns the observation, [4] float32, terminated, and truncated."""


class NullEnvironment:
    """Answers at once with zeros; an episode has 200 steps."""

    def __init__(self) -> None:
        self._observation = np.zeros(4, np.float32)
        self._steps = 0

    def reset(self) -> np.ndarray:
        """See `LoadEnvironment`."""
        self._steps = 0
        return self._observation

    def step(self, action: int) -> tuple[np.ndarray, bool, bool]:
        """See `LoadEnvironment`."""
        self._steps += 1
        return self._observation, self._steps >= 200, False


class CartPole:
    """Gymnasium's CartPole-v1."""

    def __init__(self) -> None:
        import gymnasium

        self._env = gymnasium.make("CartPole-v1")

    def reset(self) -> np.ndarray:
        """See `LoadEnvironment`."""
        observation: np.ndarray = self._env.reset()[0]
        return observation

    def step(self, action: int) -> tuple[np.ndarray, bool, bool]:
        """See `LoadEnvironment`."""
        observation, _, terminated, truncated, _ = self._env.step(action)
        return observation, terminated, truncated and not terminated


ENVIRONMENTS: dict[str, Callable[[], LoadEnvironment]] = {
    "null": NullEnvironment,
    "cartpole": CartPole,
}


class Window:
    """The time in which a program counts, as its parent says.

    Attributes:
      end: monotonic seconds.
    """

    def __init__(self) -> None:
        print("ready", flush=True)
        self._start, seconds = map(float, sys.stdin.readline().split())
        self.end = self._start + seconds
        self._latencies: list[float] = []
        self._cpu_sec = 0.0

    def add(self, asked: float, answered: float) -> None:
        """Counts a step whose action was asked for and came at these moments."""
        if self._start <= answered < self.end:
            if not self._latencies:
                self._cpu_sec = time.process_time()
            self._latencies.append(answered - asked)

    def print(self) -> None:
        """Prints the latencies in seconds, the processor time, and the most memory ever held."""
        result = {
            "latencies": self._latencies,
            "cpu_sec": time.process_time() - self._cpu_sec,
            "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
        print(json.dumps(result))


def play_one(address: str, period_sec: float) -> None:
    """Plays the null environment through `RlxClient`."""
    environment = NullEnvironment()
    with connect_client(address) as client:
        window = Window()
        action = client.act(environment.reset())
        due = time.monotonic() + random.uniform(0, _STAGGER_SEC if period_sec else 0)
        while (now := time.monotonic()) < window.end:
            if now < due:
                time.sleep(due - now)
            observation, terminated, _ = environment.step(action)
            asked = time.monotonic()
            if terminated:
                client.reward_and_reset(1.0)
                action = client.act(environment.reset())
            else:
                action = client.reward_and_act(1.0, observation)
            answered = time.monotonic()
            window.add(asked, answered)
            due = max(due + period_sec, answered)
    window.print()


def connect_client(address: str) -> RlxClient:
    """Returns a client once the server takes it: just started, it can ask to retry."""
    retry = Retry(min_sleep_sec=0.2, max_sleep_sec=0.5)
    return RlxClient(address, *SPACES, retry=retry, report=lambda line: None)


def make_hello(mode: rlx_pb2.Mode = rlx_pb2.TRAIN) -> rlx_pb2.ClientMessage:
    """Returns the hello of a client with one slot."""
    return rlx_pb2.ClientMessage(
        hello=rlx_pb2.Hello(
            protocol_version=PROTOCOL_VERSION,
            client_name="load",
            slots=1,
            observation_spaces={"observation": space_to_message(SPACES[0])},
            action_spaces={"action": space_to_message(SPACES[1])},
            mode=mode,
        )
    )


def make_step(observation: np.ndarray, first: bool = False) -> rlx_pb2.ClientMessage:
    """Returns a step in the middle of an episode, or the first of a session."""
    step = rlx_pb2.Step(observations={"observation": _to_message(observation[None])})
    if not first:
        step.rewards.CopyFrom(_to_message(np.ones(1, np.float32)))
        step.terminated.CopyFrom(_to_message(np.zeros(1, np.bool_)))
        step.truncated.CopyFrom(_to_message(np.zeros(1, np.bool_)))
    return rlx_pb2.ClientMessage(step=step)


def _to_message(array: np.ndarray) -> ndarray_pb2.NdArray:
    return ndarray_to_message(array, ndarray_pb2.NdArray)


def pack(message: rlx_pb2.ClientMessage) -> bytes:
    """Returns the frame of a message."""
    return pack_frame(message.SerializeToString())


def connect(address: str) -> socket.socket:
    """Returns a connection on which nothing has been said."""
    host, _, port = address.rpartition(":")
    connected = socket.create_connection((host, int(port)), 20.0)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


class Player:
    """One connection and its environment.

    Attributes:
      socket: of the connection.
      asked: when the action at hand was asked for, monotonic seconds.
      due: when the next one is to be asked for.
    """

    def __init__(self, address: str, environment: LoadEnvironment):
        self.socket = connect(address)
        self.asked = self.due = 0.0
        self._environment = environment
        self._input = b""
        # One message for all steps: only the bytes of its arrays change.
        self._message = make_step(np.zeros(4, np.float32))
        self.socket.sendall(pack(make_hello()))
        while self._receive() is None:
            pass

    def begin(self) -> None:
        """Asks for the first action."""
        self.asked = time.monotonic()
        self.socket.sendall(pack(make_step(self._environment.reset(), first=True)))

    def take(self) -> bool:
        """Reads what has come; steps the environment when that is an action."""
        answer = self._receive()
        if answer is None:
            return False
        action = int.from_bytes(answer.actions.actions["action"].data, "little")
        self._step(action)
        return True

    def ask(self) -> None:
        """Asks for the next action."""
        frame = pack(self._message)
        self.asked = time.monotonic()
        self.socket.sendall(frame)

    def _step(self, action: int) -> None:
        observation, terminated, truncated = self._environment.step(action)
        step = self._message.step
        step.ClearField("final_observations")
        if truncated:
            step.final_observations["observation"].CopyFrom(_to_message(observation[None]))
        if terminated or truncated:
            observation = self._environment.reset()
        step.observations["observation"].data = observation.tobytes()
        step.terminated.data = bytes([terminated])
        step.truncated.data = bytes([truncated])

    def _receive(self) -> rlx_pb2.ServerMessage | None:
        data = self.socket.recv(65536)
        if not data:
            raise ConnectionError("the rlx server closed a connection of the load")
        self._input += data
        length = HEADER.unpack(self._input[:4])[0] if len(self._input) >= HEADER.size else 1
        if len(self._input) < HEADER.size + length:
            return None
        answer = rlx_pb2.ServerMessage.FromString(self._input[HEADER.size :])
        self._input = b""
        if answer.HasField("error"):
            raise ConnectionError(answer.error.message)
        return answer


def play_many(address: str, period_sec: float, connections: int, environment: str) -> None:
    """Plays environments of one kind over so many connections, in turn."""
    connect_client(address).close()
    players = [Player(address, ENVIRONMENTS[environment]()) for _ in range(connections)]
    window = Window()
    _Turns(players, period_sec).run(window)
    window.print()


class _Turns:
    def __init__(self, players: Sequence[Player], period_sec: float):
        self._period_sec = period_sec
        self._selector = selectors.DefaultSelector()
        # (due, number that settles ties, player) of those that do not wait for an answer.
        self._resting: list[tuple[float, int, Player]] = []
        for number, player in enumerate(players):
            self._selector.register(player.socket, selectors.EVENT_READ, (number, player))

    def run(self, window: Window) -> None:
        for key in self._selector.get_map().values():
            player: Player = key.data[1]
            player.due = time.monotonic() + random.uniform(0, _STAGGER_SEC)
            player.begin()
        while (now := time.monotonic()) < window.end:
            while self._resting and self._resting[0][0] <= now:
                heapq.heappop(self._resting)[2].ask()
            until = self._resting[0][0] if self._resting else window.end
            for key, _ in self._selector.select(max(until - time.monotonic(), 0)):
                number, player = key.data
                self._take(number, player, window)

    def _take(self, number: int, player: Player, window: Window) -> None:
        answered = time.monotonic()
        asked = player.asked
        if not player.take():
            return
        window.add(asked, answered)
        player.due = max(player.due, answered)
        if self._period_sec:
            heapq.heappush(self._resting, (player.due, number, player))
            player.due += self._period_sec
        else:
            player.ask()


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("form", choices=("one", "many"))
    parser.add_argument("address")
    parser.add_argument("period_sec", type=float)
    parser.add_argument("connections", nargs="?", type=int, default=1)
    parser.add_argument("environment", nargs="?", choices=ENVIRONMENTS, default="null")
    args: Any = parser.parse_args(argv)
    if args.form == "one":
        play_one(args.address, args.period_sec)
    else:
        play_many(args.address, args.period_sec, args.connections, args.environment)


if __name__ == "__main__":
    main()
