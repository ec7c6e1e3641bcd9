"""Two counters, played with all that the client of a language can send, for `relaax check-client`.

    python counters.py SETUP [--token TOKEN] [--all] [--tls CERT KEY CA] --rlx-server HOST:PORT ...

SETUP is `Setup.write()`. "up" counts up, by "speed"; an episode ends at 3, or is truncated after 9
steps. With `--all` everything is sent for which the server has the feature; with `--tls` the client
uses TLS, up to a relay of this process.
"""

import argparse
import random
import signal
import socket
import ssl
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))
from relaax_like.rlx_server.json_spaces import read_spaces
from relaax_like.wire.spaces import ACTION
from support.drivers import Driver, Setup, find_code, start, to_arrays

# With more slots fewer steps show what follows from an action.
SLOTS = 4
OBSERVATION = {
    "count": {"box": [2]},
    "image": {"box": [2, 3], "dtype": "uint8"},
    "gear": {"discrete": 3, "start": -1},
    "dials": {"multi_discrete": [3, 2]},
    "lamps": {"multi_binary": [2]},
}
ACTIONS = {
    "up": {"discrete": 2},
    "speed": {"box": [1], "low": 0, "high": 1},
    "knobs": {"multi_discrete": [2, 3]},
    "keys": {"multi_binary": [2]},
}


class Counters:
    """The environments. Apart from the count, they show what was done last."""

    def __init__(self) -> None:
        self.counts = [random.random() for _ in range(SLOTS)]
        self.totals = [0.0] * SLOTS  # of the speed in the episode
        self.steps = [0] * SLOTS
        self.knobs, self.keys = np.zeros((2, SLOTS, 2), int)

    def observe(self) -> dict[str, Any]:
        rows = range(SLOTS)
        return {
            "count": [[self.counts[i], self.totals[i]] for i in rows],
            "image": [[[i, 0, 255], [10 * self.steps[i], 1, 2]] for i in rows],
            "gear": [self.steps[i] % 3 - 1 for i in rows],
            "dials": self.knobs[:, ::-1].tolist(),
            "lamps": self.keys.tolist(),
        }

    def step(self, action: dict[str, np.ndarray], present: list[bool]) -> dict[str, Any]:
        """Returns what is sent of it."""
        for i in filter(present.__getitem__, range(SLOTS)):
            speed = float(np.clip(action["speed"][i, 0], 0, 1))
            self.counts[i] += speed * (1 if action["up"][i] else -0.2)
            self.totals[i] += speed
            self.steps[i] += 1
            self.knobs[i], self.keys[i] = action["knobs"][i], action["keys"][i]
        terminated = [count > 3 for count in self.counts]
        truncated = [not terminated[i] and self.steps[i] == 9 for i in range(SLOTS)]
        ended = [i for i in range(SLOTS) if terminated[i] or truncated[i]]
        step = {
            "reward": [float(action["speed"][i, 0]) * present[i] for i in range(SLOTS)],
            "terminated": terminated,
            "truncated": truncated,
        }
        if ended:
            step["final_observation"] = self.observe()
            step["success"] = [terminated[i] if i in ended else None for i in range(SLOTS)]
        for i in ended:
            self.counts[i], self.totals[i], self.steps[i] = random.random(), 0.0, 0
        return {**step, "observation": self.observe()}


def make_hello(setup: Setup, arguments: argparse.Namespace) -> dict[str, Any]:
    features = set(setup.wanted) if arguments.all else set(setup.wanted) & {"hello_ping", "ping"}
    hello: dict[str, Any] = {"name": arguments.name, "slots": SLOTS}
    hello |= {"observation": OBSERVATION, "action": ACTIONS, "features": sorted(features)}
    if arguments.token:
        hello["token"] = arguments.token
    if "max_wait" in features:
        hello["max_wait_ms"] = 5000
    if "versions" in features:
        hello["versions"] = {"counters": "1.0"}
    return hello


def play(driver: Driver, setup: Setup, arguments: argparse.Namespace) -> int:
    """Plays until the training has finished, or the client fails; returns the exit status."""
    spaces, _ = read_spaces(ACTIONS, ACTION)
    answer = driver.ask({"hello": make_hello(setup, arguments)})
    counters, number, present = Counters(), 0, [True] * SLOTS
    step: dict[str, Any] = {"observation": counters.observe()}
    while "error" not in answer and "finished" not in answer:
        if "ready" in answer:
            features = answer["ready"]["features"]
        else:
            given = to_arrays(answer["action"], spaces, SLOTS)
            step = counters.step(given, present)
            if "executed" in features and arguments.all:
                executed = {name: array.tolist() for name, array in given.items()}
                step |= {"executed": executed, "overridden": [False, True] * 2}
            ended = "final_observation" in step
            if ended and "scalars" in setup.sends:
                driver.send({"scalars": [{"name": "count", "y": counters.counts[0]}]})
            if ended and "ping" in setup.sends and "ping" in features:
                driver.send({"ping": {}})
        if "present" in features and arguments.all:
            step["present"] = present = [True, random.random() < 0.8] * 2
        if "step_id" in features and setup.numbers_steps:
            number += 1
            step["step_id"] = number
        answer = driver.ask({"reward_and_act" if "reward" in step else "act": step})
    if "finished" in answer:
        return 0
    print(answer["error"])
    return 2 if find_code(answer["error"]) == "UNAUTHENTICATED" else 1


def relay_tls(cert: str, key: str, address: str) -> str:
    """Starts to relay one connection with TLS to a server without; returns the address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        host, port = address.split(":")
        with context.wrap_socket(listener.accept()[0], server_side=True) as client:
            with socket.create_connection((host, int(port))) as server:
                threading.Thread(target=copy, args=(client, server), daemon=True).start()
                copy(server, client)

    threading.Thread(target=serve, daemon=True).start()
    return f"localhost:{listener.getsockname()[1]}"


def copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:  # one end has gone
        pass


def main() -> int:
    parser = argparse.ArgumentParser()
    for flag in ("--rlx-server", "--name", "--token"):
        parser.add_argument(flag, default="")
    parser.add_argument("setup")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--tls", nargs=3, default=("", "", ""))
    arguments = parser.parse_args()
    setup = Setup.read(arguments.setup)
    address, (cert, key, ca) = arguments.rlx_server, arguments.tls
    if ca:
        address = relay_tls(cert, key, address)
    with start(setup, address, ca) as driver:
        return play(driver, setup, arguments)


if __name__ == "__main__":
    signal.alarm(120)  # if the process that started it is killed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
