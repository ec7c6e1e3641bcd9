"""A small client of the rlx protocol, and what can be wrong with it or unusual about it.

It stands for clients in other languages: it imports nothing of relaax_like and no library, and
writes and reads protobuf and frames itself.

    python tests/support/broken_clients.py --rlx-server HOST:PORT --name NAME [FAULT or ODDITY ...]

Its environment is a cart on a track: "steer" changes the speed, "gear" the reward. An episode is
terminated at the ends of the track, and truncated after LIMIT steps. It gives up a server that is
silent for 4 s, and reconnects after 0.3 to 0.6 s.
"""

import random
import signal
import socket
import struct
import sys
import time

FAULTS = {
    "little_endian_length": "the length of a frame has its lowest byte first",
    "hello_twice": "sends its hello twice",
    "step_before_hello": "sends a step first",
    "does_not_wait_for_ready": "sends the first step together with the hello",
    "own_name": "ignores --name",
    "token_in_name": "sends its token in the name, and not as the token",
    "unsorted_features": "lists its features unsorted",
    "bounds_swapped": "declares a box whose low is above its high",
    "rewards_first": "sends rewards with the first observations",
    "no_outcome": "sends observations without rewards after actions",
    "steps_ahead": "sends the next step before the answer to the last one",
    "other_dtype": "declares float32 observations and sends float64",
    "swapped_bytes": "sends big-endian numbers",
    "masks_unasked": "sends masks, although Ready does not list them",
    "short_masks": "sends masks with a choice less than the action has",
    "agents_miscounted": "names three agents for two slots",
    "sends_nan": "sends NaN when the cart stops",
    "flags_as_floats": "sends terminated as float32",
    "one_row_after_reset": "sends one row instead of two in the step after an episode has ended",
    "no_final_observations": "truncates without final observations",
    "final_of_next_episode": "sends the first observation of the next episode as the final one",
    "both_flags": "sets terminated and truncated at each end",
    "rewards_of_other_slot": "sends the rewards of slot 0 and 1 exchanged",
    "actions_of_other_slot": "gives slot 0 the actions of slot 1, and the reverse",
    "equal_seeds": "all slots play the same episodes",
    "other_leaf": "steers with the value of the leaf gear",
    "requires_version": "takes an answer without a version for an error",
    "one_recv_is_one_message": "takes what one recv returns for one message",
    "drops_rest_of_recv": "takes the first message of what recv returns, and drops the rest",
    "dies_of_unknown_fields": "takes a field that it does not know for an error",
    "fixed_field_order": "expects the fields of a message in the order of their numbers",
    "fixed_map_order": "takes the first entry of the actions for gear, the second for steer",
    "impatient": "gives up when an answer takes longer than a second",
    "never_gives_up": "waits forever for an answer",
    "answers_pings": "answers each ping with an empty message",
    "pings_unasked": "sends pings, although Ready does not list them",
    "unnumbered_steps": "lists step_id and sends steps without a number",
    "ignores_error": "ignores an error, and sends the next step",
    "status_0_after_error": "ends with status 0 after an error",
    "ignores_finished": "continues after the end of training",
    "returns_after_finished": "reconnects after the end of training",
    "returns_unauthenticated": "reconnects although its token was refused",
    "reconnects_at_once": "reconnects without a pause",
    "continues_old_episode": "sends an outcome first after a reconnection",
    "keeps_state": "does not reset its environments after a reconnection",
    "repeats_step": "repeats its last step after a reconnection",
}
ODDITIES = {
    "reversed_fields": "sends the fields of each message in reverse order",
    "single_bytes": "sends each byte in a packet of its own",
    "no_features": "lists no features",
    "no_final_at_termination": "sends final observations only with truncations",
    "unknown_fields": "sends fields with numbers that nobody knows",
    "long_varints": "pads each varint with a byte",
    "unpacked": "sends repeated numbers one by one",
    "ends_together": "ends the episodes of all slots together, and sends no observations then",
    "float64_rewards": "sends rewards as float64",
    "names_to_escape": "has leaves whose names are not words, and not sorted",
    "one_slot": "has one slot",
    "sends_points": "sends points of curves between steps",
    "later_features": "names agents, and sends masks if Ready lists them",
}
GEAR, STEER = "gear", "steer"
LIMIT = 25
TERMINAL = 1.0
UNKNOWN = 12_345
DO = set()
BYTE_ORDER = "<"


class Lost(Exception):
    """The connection is lost, or another attempt can succeed."""


class Refused(Exception):
    """The server sent an error after which a retry fails, too."""


class Finished(Exception):
    """The training has ended."""


class Cart:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.reset()

    def reset(self):
        self.x, self.speed = self.random.uniform(-0.5, 0.5), self.random.uniform(-0.1, 0.1)
        self.steps = 0

    def step(self, steer, gear):
        self.speed += (0.1 if steer else -0.1) + self.random.uniform(-0.01, 0.01)
        self.x += 0.3 * self.speed
        self.steps += 1
        terminated = abs(self.x) > TERMINAL
        return 1.0 - gear / 4, terminated, not terminated and self.steps >= LIMIT

    def observe(self):
        if "sends_nan" in DO and self.steps == 7:
            return [float("nan")] * 3
        numbers = [self.x, self.speed, self.steps / LIMIT]
        if "swapped_bytes" in DO:  # so that they are no NaN
            packed = [struct.pack("<f", number) for number in numbers]
            numbers = [struct.unpack("<f", bytes([one[0] & 0x3F]) + one[1:])[0] for one in packed]
        return numbers


# Protobuf.


def varint(number):
    groups = []
    while True:
        groups.append(number & 0x7F)
        number >>= 7
        if not number:
            break
    if "long_varints" in DO:
        groups.append(0)
    return bytes([group | 0x80 for group in groups[:-1]] + groups[-1:])


def field(number, value):
    """One field: a number is a varint, bytes have a length, a tuple is (fixed64,)."""
    if isinstance(value, tuple):
        return varint(number << 3 | 1) + struct.pack("<Q", *value)
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    return varint(number << 3) + varint(value)


def message(fields, is_entry=False):
    if "unknown_fields" in DO and not is_entry:
        fields = [*fields, (UNKNOWN, 7), (UNKNOWN + 1, b"later")]
    if "reversed_fields" in DO:
        fields = sorted(fields, key=lambda one: -one[0])
    return b"".join(field(*one) for one in fields)


def entry(key, value):
    return message([(1, key.encode()), (2, value)], is_entry=True)


def numbers(number, values):
    if "unpacked" in DO:
        return [(number, value) for value in values]
    return [(number, b"".join(map(varint, values)))]


def array(dtype, shape, values):
    code = {"float32": "f", "float64": "d", "bool": "?"}[dtype]
    data = struct.pack(f"{BYTE_ORDER}{len(values)}{code}", *values)
    return message([(1, dtype.encode()), *numbers(2, shape), (3, data)])


def read_varint(body, at):
    number = shift = 0
    while True:
        byte = body[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return number, at


def read_fields(body, known):
    """Returns number -> values, in their order."""
    found, at, last = {}, 0, 0
    while at < len(body):
        tag, at = read_varint(body, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = read_varint(body, at)
        else:
            size = {1: 8, 5: 4}.get(kind)
            if size is None:
                size, at = read_varint(body, at)
            value, at = body[at : at + size], at + size
            if len(value) != size:
                raise Refused("a field that is cut off")
        if "dies_of_unknown_fields" in DO and number not in known:
            raise Refused(f"unknown field {number}")
        if "fixed_field_order" in DO and number < last:
            raise Refused(f"field {number} after {last}")
        last = number
        found.setdefault(number, []).append(value)
    return found


# The connection.


class Connection:
    def __init__(self, address):
        host, _, port = address.rpartition(":")
        try:
            self.socket = socket.create_connection((host, int(port)), timeout=4)
        except OSError as error:
            raise Lost(error) from None
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if "impatient" in DO:
            self.socket.settimeout(1)
        if "never_gives_up" in DO:
            self.socket.settimeout(None)
        self.buffer = b""
        self.features = []

    def send(self, number, body):
        body = message([(number, body)])
        order = "little" if "little_endian_length" in DO else "big"
        frame = len(body).to_bytes(4, order) + body
        try:
            if "single_bytes" in DO:
                for byte in frame:
                    self.socket.sendall(bytes([byte]))
            else:
                self.socket.sendall(frame)
        except OSError as error:
            self.read_error(error)

    def read_error(self, error):
        """The server can have sent an error before it closed the connection."""
        while True:
            number, body = self.receive()
            if number == 3:
                fail(body)

    def receive(self):
        """Returns number and value of the next message that is not a ping."""
        while True:
            try:
                body = self.receive_frame()
            except OSError as error:
                raise Lost(error) from None
            try:
                ((number, (value,)),) = (
                    one for one in read_fields(body, (1, 2, 3, 4)).items() if one[0] <= 4
                )
            except (ValueError, IndexError):
                raise Refused("not a message") from None
            if number != 4:
                return number, value
            if "answers_pings" in DO:
                self.socket.sendall(bytes(4))

    def receive_frame(self):
        if "one_recv_is_one_message" in DO:
            return self.read(1 << 16)[4:]
        while len(self.buffer) < 4 or len(self.buffer) < 4 + self.length():
            self.buffer += self.read(1 << 16)
        end = 4 + self.length()
        body, self.buffer = self.buffer[4:end], self.buffer[end:]
        if "drops_rest_of_recv" in DO:
            self.buffer = b""
        return body

    def length(self):
        return int.from_bytes(self.buffer[:4], "big")

    def read(self, size):
        data = self.socket.recv(size)
        if not data:
            raise Lost("the server has closed the connection")
        return data


def fail(body):
    if "ignores_error" in DO:
        return
    error = read_fields(body, (1, 2, 3))
    code = error.get(1, [0])[0]
    text = f"error {code}: {error.get(2, [b''])[0].decode()}"
    if code in (6, 9) or (code == 7 and "returns_unauthenticated" in DO):
        raise Lost(text)
    raise Refused(text, code)


# Messages.


def make_hello(name, slots, token):
    high, low = struct.pack("<3f", 10, 10, 10), struct.pack("<3f", -10, -10, -10)
    if "bounds_swapped" in DO:
        low, high = high, low
    bounds = [
        (number, message([(1, b"float32"), *numbers(2, [3]), (3, data)]))
        for number, data in ((4, low), (5, high))
    ]
    box = message([(1, 1), (2, b"float32"), *numbers(3, [3]), *bounds])
    actions = [
        (5, entry(leaf, message([(1, 2), (2, b"int64"), *numbers(6, [n])])))
        for leaf, n in ((GEAR, 3), (STEER, 2))
    ]
    features = [b"ping", b"timings"]
    if "answers_pings" not in DO:
        features.insert(0, b"hello_ping")
    if "unnumbered_steps" in DO:
        features.insert(-1, b"step_id")
    if "unsorted_features" in DO:
        features.reverse()
    if DO & {"no_features", "pings_unasked"}:
        features = []
    agents = []
    if DO & {"later_features", "masks_unasked", "short_masks", "agents_miscounted"}:
        features = [b"agents", *features[:-1], b"masks", b"slot_versions", b"timings"]
        features.sort()
        agents = [b"left", b"right", b"third"][: 3 if "agents_miscounted" in DO else slots]
    if "token_in_name" in DO:
        name, token = f"{name} {token}", ""
    return message(
        [
            (1, 1),
            (2, b"cart" if "own_name" in DO else name.encode()),
            (3, slots),
            *((4, entry(leaf, box)) for leaf in leaves()),
            *actions,
            (6, 1),
            *([(7, token.encode())] if token else []),
            *((8, feature) for feature in features),
            *((11, agent) for agent in agents),
        ]
    )


def leaves():
    return ["arm/1", "arm/0.x-y"] if "names_to_escape" in DO else ["observation"]


def make_observations(number, rows):
    dtype = "float64" if "other_dtype" in DO else "float32"
    values = [value for row in rows for value in row]
    return [(number, entry(leaf, array(dtype, [len(rows), 3], values))) for leaf in leaves()]


def make_flags(number, flags):
    if "flags_as_floats" in DO:
        return [(number, array("float32", [len(flags)], [float(flag) for flag in flags]))]
    return [(number, array("bool", [len(flags)], flags))]


def read_actions(body, slots):
    """Returns the actions as (gear, steer) of each slot; None: there are none."""
    found = read_fields(body, (1, 2, 3, 4, 6, 7))
    if found.get(3, [b""])[0]:
        if "ignores_finished" not in DO:
            raise Finished(found[3][0].decode())
        return [(0, 0)] * slots
    if "requires_version" in DO and 4 not in found:
        raise Refused("no version")
    for end in found.get(2, ()):
        read_fields(end, (1, 2, 3))
    entries = []
    for body in found.get(1, ()):
        pair = read_fields(body, (1, 2))
        data = read_fields(pair[2][0], (1, 2, 3))[3][0]
        entries.append((pair[1][0].decode(), struct.unpack(f"<{slots}q", data)))
    if not entries:
        return None
    if "fixed_map_order" in DO:
        entries = [(leaf, row) for leaf, (_, row) in zip((GEAR, STEER), entries, strict=True)]
    rows = dict(entries)
    if max(rows[GEAR]) > 2 or max(rows[STEER]) > 1:
        raise Refused("an action that the environment does not have")
    pairs = list(zip(rows[GEAR], rows[STEER], strict=True))
    return pairs[::-1] if "actions_of_other_slot" in DO else pairs


class Game:
    """The carts, and what was sent of them last."""

    def __init__(self, slots):
        self.slots = slots
        self.last = None
        self.has_masks = False
        self.restart()

    def restart(self):
        seeds = [random.random() for _ in range(self.slots)]
        if "equal_seeds" in DO:
            seeds = seeds[:1] * self.slots
        self.carts = [Cart(seed) for seed in seeds]

    def begin(self):
        step = make_observations(1, [cart.observe() for cart in self.carts]) + self.make_masks()
        if "rewards_first" in DO:
            step += self.make_outcome(
                [0.0] * self.slots, [False] * self.slots, [False] * self.slots
            )
        return step

    def make_masks(self):
        if not (self.has_masks or "masks_unasked" in DO):
            return []
        n = 2 if "short_masks" in DO else 3
        return [(11, entry(GEAR, array("bool", [self.slots, n], [True] * n * self.slots)))]

    def make_outcome(self, rewards, terminated, truncated):
        if "rewards_of_other_slot" in DO:
            rewards = rewards[::-1]
        if "both_flags" in DO:
            terminated = truncated = [a or b for a, b in zip(terminated, truncated, strict=True)]
        dtype = "float64" if "float64_rewards" in DO else "float32"
        return [
            (2, array(dtype, [len(rewards)], rewards)),
            *make_flags(3, terminated),
            *make_flags(4, truncated),
        ]

    def step(self, actions):
        """Returns the fields of a step, and whether it has observations."""
        if "other_leaf" in DO:
            actions = [(gear, gear > 0) for gear, _ in actions]
        results = [
            cart.step(steer, gear) for cart, (gear, steer) in zip(self.carts, actions, strict=True)
        ]
        rewards, terminated, truncated = (list(column) for column in zip(*results, strict=True))
        if "ends_together" in DO and any(terminated + truncated):
            truncated = [not flag for flag in terminated]
        ended = [a or b for a, b in zip(terminated, truncated, strict=True)]
        final = [cart.observe() for cart in self.carts]
        for cart, has_ended in zip(self.carts, ended, strict=True):
            if has_ended:
                cart.reset()
        rows = [cart.observe() for cart in self.carts]
        if "final_of_next_episode" in DO:
            final = rows
        if "one_row_after_reset" in DO and any(ended):
            rows = rows[:1]
        step = self.make_outcome(rewards, terminated, truncated)
        if "no_outcome" in DO:
            step = []
        is_last = "ends_together" in DO and all(ended)
        if not is_last:
            step = make_observations(1, rows) + step + self.make_masks()
        wants_final = any(truncated) if "no_final_at_termination" in DO else any(ended)
        if wants_final and "no_final_observations" not in DO:
            step += make_observations(6, final)
        return step, not is_last


def play_session(address, name, game, token, is_first):
    connection = Connection(address)
    try:
        play(connection, make_hello(name, game.slots, token), game, is_first)
    finally:
        connection.socket.close()


def play(connection, hello, game, is_first):
    if "step_before_hello" in DO:
        connection.send(2, message(game.begin()))
    connection.send(1, hello)
    if "hello_twice" in DO:
        connection.send(1, hello)
    if "does_not_wait_for_ready" in DO:
        connection.send(2, message(game.begin()))
    number, body = connection.receive()
    if number == 3:
        fail(body)
    if number != 1:
        raise Refused("no Ready")
    game.has_masks = b"masks" in read_fields(body, (1, 2, 3, 4)).get(4, ())
    if is_first or "keeps_state" not in DO:
        game.restart()
    fields, has_observations = game.begin(), True
    if not is_first and "continues_old_episode" in DO:
        fields, has_observations = game.step([(0, 0)] * game.slots)
    if not is_first and "repeats_step" in DO:
        fields = game.last or fields
    if "does_not_wait_for_ready" not in DO:
        connection.send(2, message(fields))
    while True:
        game.last = fields
        if "steps_ahead" in DO and has_observations:
            connection.send(2, message(game.step([(0, 0)] * game.slots)[0]))
        number, body = connection.receive()
        if number == 3:
            fail(body)
            actions = [(0, 0)] * game.slots
        elif number == 2:
            actions = read_actions(body, game.slots)
        else:
            raise Refused("no Actions")
        if (actions is not None) != has_observations:
            raise Refused("actions are missing, or nobody asked for them")
        if "sends_points" in DO:
            point = message(
                [(1, b"cart/x"), (2, (struct.unpack("<Q", struct.pack("<d", 0.5))[0],))]
            )
            connection.send(3, message([(1, point)]))
        if "pings_unasked" in DO:
            connection.send(4, b"")
        fields, has_observations = (game.begin(), True) if actions is None else game.step(actions)
        connection.send(2, message(fields))


def main(arguments):
    global BYTE_ORDER
    flags = {"--rlx-server": "localhost:7001", "--name": "cart", "--token-file": None}
    while arguments:
        word = arguments.pop(0)
        if word in flags:
            flags[word] = arguments.pop(0)
        elif word in FAULTS or word in ODDITIES:
            DO.add(word)
        else:
            print(f"unknown argument {word}", file=sys.stderr)
            return 2
    if "swapped_bytes" in DO:
        BYTE_ORDER = ">"
    token = ""
    if flags["--token-file"]:
        with open(flags["--token-file"]) as file:
            token = file.read().strip()
    game = Game(1 if "one_slot" in DO else 2)
    is_first = True
    while True:
        try:
            play_session(flags["--rlx-server"], flags["--name"], game, token, is_first)
        except Finished as reason:
            print(f"finished: {reason}")
            if "returns_after_finished" not in DO:
                return 0
        except Refused as error:
            print(f"cart: {error}", file=sys.stderr)
            if "status_0_after_error" in DO:
                return 0
            return 2 if error.args[-1] in (2, 3, 7) else 1
        except Lost as error:
            print(f"cart: lost the server ({error})", file=sys.stderr)
        is_first = False
        if "reconnects_at_once" not in DO:
            time.sleep(random.uniform(0.3, 0.6))


if __name__ == "__main__":
    signal.alarm(120)  # if the process that started it is killed
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
