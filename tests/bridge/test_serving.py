"""Services over a real port: exceptions of their methods become status codes, with their texts."""

from concurrent import futures

import grpc
import pytest

from relaax_like.bridge.serving import add_service
from relaax_like.v1 import parameter_server_pb2 as pb
from relaax_like.wire.errors import InvalidInputError, LeasedError

_NAME = "relaax.v1.Test"


def Save(request, context):
    raise LeasedError("not here")


def Pull(request, context):
    yield pb.SaveReply(path="first")
    raise InvalidInputError("no second one")


def Stop(request, context):
    raise RuntimeError("a mistake")


@pytest.fixture
def call():
    server = grpc.server(futures.ThreadPoolExecutor(2))
    unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
    read = pb.SaveRequest.FromString
    add_service(server, _NAME, (unary, Save, read), (stream, Pull, read), (unary, Stop, read))
    port = server.add_insecure_port("localhost:0")
    server.start()
    with grpc.insecure_channel(f"localhost:{port}") as channel:

        def run(make, name):
            method = getattr(channel, make)(
                f"/{_NAME}/{name}",
                request_serializer=pb.SaveRequest.SerializeToString,
                response_deserializer=pb.SaveReply.FromString,
            )
            return method(pb.SaveRequest(), timeout=30)

        yield run
    server.stop(0).wait(10)


def test_an_exception_ends_the_call_with_its_code_and_text(call):
    with pytest.raises(grpc.RpcError) as caught:
        call("unary_unary", "Save")
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert caught.value.details() == "not here"


def test_an_exception_after_a_message_of_a_stream_ends_it(call):
    replies = call("unary_stream", "Pull")
    assert next(replies).path == "first"
    with pytest.raises(grpc.RpcError) as caught:
        next(replies)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "no second one"


def test_an_exception_without_a_code_is_unknown(call):
    with pytest.raises(grpc.RpcError) as caught:
        call("unary_unary", "Stop")
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
