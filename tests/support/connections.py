"""A connection of the rlx server without a socket: its owner decides what comes, and when."""

import asyncio
import logging

from relaax_like.core.metrics import NullMetrics
from relaax_like.rlx_server.admission import Admission
from relaax_like.rlx_server.client_log import ClientLog
from relaax_like.rlx_server.connection import ServerConnection
from relaax_like.rlx_server.points import ClientPoints
from relaax_like.rlx_server.protobuf_codec import ProtobufCodec
from relaax_like.rlx_server.server import RlxServer


class Transport:
    """Notes what a connection does with it."""

    def __init__(self):
        self.reading, self.aborted = True, False
        self.written = b""

    def write(self, data):
        self.written += data

    def get_extra_info(self, name):
        return None

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True

    def can_write_eof(self):
        return False

    def abort(self):
        self.aborted = True

    def close(self):
        """Nothing to close."""


class Listener:
    """A session that notes what it is given, and answers nothing, or PENDING."""

    blocking, greeted, finished, client_name = False, True, False, "listener"
    ready = is_preparing = False
    last_message, max_wait_sec = "step", None
    max_message_bytes = 1 << 20

    def __init__(self, answer=None, features=()):
        self.codec = ProtobufCodec()
        self.points = ClientPoints(NullMetrics())
        self.log = ClientLog(logging.getLogger("relaax_like"))
        self.bodies = []
        self._answer = answer
        self._features = features

    def has_feature(self, name):
        return name in self._features

    def describe_wait(self):
        return "the learner"

    def receive(self, body, received_at):
        self.bodies.append(bytes(body))
        return self._answer

    def write_error(self, error):
        return str(error).encode()

    def close(self):
        """Nothing to close."""


def make_connection(session):
    server = RlxServer(
        lambda name: session,
        Admission(1, 0),
        max_message_bytes=1 << 20,
        hello_timeout_sec=10,
        idle_timeout_sec=10,
    )
    server.loop = asyncio.get_running_loop()
    connection = ServerConnection(server, session)
    transport = Transport()
    connection.connection_made(transport)
    return connection, transport


def feed(connection, data):
    view = connection.get_buffer(-1)
    view[: len(data)] = data
    connection.buffer_updated(len(data))
