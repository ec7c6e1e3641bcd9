"""Services over a real port: exceptions of their methods become status codes, with their texts."""

from concurrent import futures

import grpc
import pytest

from relaax_like.bridge import frames
from relaax_like.bridge.serving import add_service, open_method
from relaax_like.v1 import parameter_server_pb2 as pb
from relaax_like.v1 import parameter_server_pb2_grpc as pb_grpc
from relaax_like.wire.errors import InvalidInputError, LeasedError


class Servicer(pb_grpc.ParameterServerServicer):
    service = frames.PARAMETER_SERVER

    def Save(self, request, context):
        raise LeasedError("not here")

    def Pull(self, request, context):
        yield pb.SaveReply(path="first")
        raise InvalidInputError("no second one")

    def Stop(self, request, context):
        raise RuntimeError("a mistake")


@pytest.fixture
def call():
    server = grpc.server(futures.ThreadPoolExecutor(2))
    add_service(server, Servicer())
    port = server.add_insecure_port("localhost:0")
    server.start()
    with grpc.insecure_channel(f"localhost:{port}") as channel:

        def run(name):
            method = open_method(
                channel, frames.PARAMETER_SERVER, name, read=pb.SaveReply.FromString
            )
            return method(pb.SaveRequest(), timeout=30)

        yield run
    server.stop(0).wait(10)


def test_an_exception_ends_the_call_with_its_code_and_text(call):
    with pytest.raises(grpc.RpcError) as caught:
        call("Save")
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert caught.value.details() == "not here"


def test_an_exception_after_a_message_of_a_stream_ends_it(call):
    replies = call("Pull")
    assert next(replies).path == "first"
    with pytest.raises(grpc.RpcError) as caught:
        next(replies)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "no second one"


def test_an_exception_without_a_code_is_unknown(call):
    with pytest.raises(grpc.RpcError) as caught:
        call("Stop")
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
