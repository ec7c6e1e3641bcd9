"""A small client in JSON: lines over TCP, or text messages over a WebSocket.

    python tests/support/json_client.py --rlx-server HOST:PORT --name NAME [web_socket] [FAULT ...]

Two counters are played; "up" counts up, and an episode ends at 5, or is truncated after 9 steps.
"""

import json
import operator
import random
import signal
import socket
import sys
import time

from websockets.exceptions import ConnectionClosed, InvalidMessage
from websockets.sync.client import connect

FAULTS = {
    "both_flags": "sets terminated and truncated at each end",
    "illegal": "sends masks without a legal choice",
    "masks_unasked": "sends masks, although Ready does not list them",
    "short_masks": "sends masks with a choice less than the action has",
    "first_key": "takes the first key of an answer for the kind of the answer",
    "one_recv_is_one_line": "takes what one recv returns for one line",
    "no_step_before_ready": "sends the first step together with the hello",
}
DO = set(sys.argv[1:])
SLOTS = 2


class Lost(Exception):
    pass


class Lines:
    def __init__(self, host, port):
        self.socket = socket.create_connection((host, port), timeout=8)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""

    def send(self, text):
        self.socket.sendall(text.encode() + b"\n")

    def recv(self):
        while b"\n" not in self.buffer:
            data = self.socket.recv(1 << 16)
            if not data:
                raise Lost("closed")
            self.buffer += data
            if "one_recv_is_one_line" in DO:
                break
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line

    def close(self):
        self.socket.close()


def flag(word):
    return sys.argv[sys.argv.index(word) + 1]


def open_connection():
    host, _, port = flag("--rlx-server").rpartition(":")
    if "web_socket" in DO:
        return connect(f"ws://{host}:{port}/", open_timeout=8)
    return Lines(host, int(port))


def play():
    connection = open_connection()
    try:
        play_session(connection)
    finally:
        connection.close()


def play_session(connection):
    def ask(kind, content):
        connection.send(json.dumps({kind: content}))
        while True:
            answer = json.loads(connection.recv())
            if "first_key" in DO and next(iter(answer)) not in ("ready", "action", "episodes"):
                sys.exit(f"cannot read {answer}")
            if "error" in answer:
                if answer["error"]["code"] in ("OVERLOADED", "UNAVAILABLE"):
                    raise Lost(answer["error"]["message"])
                print(answer["error"], file=sys.stderr)
                sys.exit(2 if answer["error"]["code"] == "UNAUTHENTICATED" else 1)
            if "finished" in answer:
                sys.exit(0)
            if "ping" not in answer:
                return answer

    counts, steps = [random.random() for _ in range(SLOTS)], [0] * SLOTS
    hello = {
        "name": flag("--name"),
        "slots": SLOTS,
        "observation": {"box": [2]},
        "action": {"up": {"discrete": 2}, "speed": {"box": [], "low": 0, "high": 1}},
        "features": ["hello_ping", "masks", "ping"],
    }

    def draw_masks():
        """Returns what masks a step has; "up" has two choices."""
        if not has_masks:
            return {}
        masks = [random.choice([[True, True], [True, False], [False, True]]) for _ in counts]
        if "short_masks" in DO:
            masks = [mask[:1] for mask in masks]
        if "illegal" in DO:
            masks[-1] = [False, False]
        return {"mask": {"up": masks}}

    if "no_step_before_ready" in DO:
        connection.send(json.dumps({"hello": hello}))
        ask("act", {"observation": [[n, 0] for n in counts]})
    ready = ask("hello", hello)["ready"]
    has_masks = "masks" in ready["features"] or "masks_unasked" in DO
    masks = draw_masks()
    answer = ask("act", {"observation": [[count, 0] for count in counts], **masks})
    while True:
        action = answer["action"]
        if masks and not all(map(operator.getitem, masks["mask"]["up"], action["up"])):
            sys.exit(f"{action['up']} are not legal in {masks}")
        masks = draw_masks()
        rewards, ends, cuts = [], [], []
        for slot in range(SLOTS):
            counts[slot] += action["speed"][slot] * (1 if action["up"][slot] else -0.2)
            steps[slot] += 1
            rewards.append(action["speed"][slot])
            ends.append(counts[slot] > 3)
            cuts.append(not ends[-1] and steps[slot] == 9)
        final = [[counts[slot], steps[slot]] for slot in range(SLOTS)]
        for slot in range(SLOTS):
            if ends[slot] or cuts[slot]:
                counts[slot], steps[slot] = random.random(), 0
        if "both_flags" in DO:
            ends = cuts = [end or cut for end, cut in zip(ends, cuts, strict=True)]
        step = {"reward": rewards, "observation": [[counts[s], steps[s]] for s in range(SLOTS)]}
        step |= {"terminated": ends, "truncated": cuts, "final_observation": final, **masks}
        answer = ask("reward_and_act", step)


if __name__ == "__main__":
    signal.alarm(120)  # if the process that started it is killed
    while True:
        try:
            play()
        except (OSError, Lost, ConnectionClosed, InvalidMessage) as error:
            print(error, file=sys.stderr)
        time.sleep(random.uniform(0.3, 0.6))
