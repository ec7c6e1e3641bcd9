"""The tutorial's four calls (protos/bridge.proto), for clients generated from only that file.

The calls have no id: each call takes effect, so a client must not simply retry one. `bridge_pb2`
is only loaded with this module, in servers: protobuf refuses two files that define the same names
without a package in one process, and a user's agent might have generated its own `bridge_pb2`.
"""

import itertools
from collections.abc import Iterator

import grpc
import numpy as np

from relaax_like.bridge import bridge_pb2
from relaax_like.bridge.servicer import remaining_sec
from relaax_like.core.manifest import Manifest
from relaax_like.core.records import Push
from relaax_like.core.roles import ParameterServerBackend
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.ndarray import message_to_ndarray, ndarray_to_message


class TutorialServicer:
    """Serves `/ParameterServer/...` from the same backend as our own protocol.

    Args:
      backend: the parameter server.
    """

    service = bridge_pb2.DESCRIPTOR.services_by_name["ParameterServer"]

    def __init__(self, backend: ParameterServerBackend):
        self._backend = backend

    def IncrementGlobalT(
        self, request: bridge_pb2.NullMessage, context: grpc.ServicerContext
    ) -> bridge_pb2.Step:
        """Counts one environment step."""
        push = Push(client_id=_client_id(context), env_steps=1)
        reply = self._backend.push(push, remaining_sec(context))
        return bridge_pb2.Step(n=reply.global_t)

    def ApplyGradients(
        self, request_iterator: Iterator[bridge_pb2.NdArray], context: grpc.ServicerContext
    ) -> bridge_pb2.NullMessage:
        """Applies one gradient: an array per trainable variable or buffer, in manifest order."""
        self._backend.push(
            Push(
                client_id=_client_id(context),
                gradient=_read_gradient(request_iterator, self._backend.manifest),
                gradient_version=self._backend.pull().version,
                fingerprint=self._backend.manifest.fingerprint,
            ),
            remaining_sec(context),
        )
        return bridge_pb2.NullMessage()

    def GetValues(
        self, request: bridge_pb2.NullMessage, context: grpc.ServicerContext
    ) -> Iterator[bridge_pb2.NdArray]:
        """Streams trainable variables and buffers, one array each, in manifest order."""
        values = self._backend.pull(_client_id(context)).values
        assert values is not None
        manifest = self._backend.manifest
        trainable = values.flat[: manifest.gradient_bytes]
        for array in manifest.unpack(trainable, gradient=True):
            yield ndarray_to_message(array, bridge_pb2.NdArray)

    def StoreScalarMetric(
        self, request: bridge_pb2.ScalarMetric, context: grpc.ServicerContext
    ) -> bridge_pb2.NullMessage:
        """Records one point of a curve; without x, at the newest global_t."""
        x = request.x.value if request.HasField("x") else None
        self._backend.metrics().scalar(request.name, request.y, x)
        return bridge_pb2.NullMessage()


def _client_id(context: grpc.ServicerContext) -> str:
    return f"tutorial-{context.peer()}"[:200]


def _read_gradient(messages: Iterator[bridge_pb2.NdArray], manifest: Manifest) -> np.ndarray:
    segments = manifest.pushed
    arrays: list[np.ndarray] = []
    for message in itertools.islice(messages, len(segments) + 1):
        if len(arrays) == len(segments):
            raise InvalidInputError(
                f"gradients: received more arrays than expected ({len(segments)}); send one for "
                "each trainable variable"
            )
        segment = segments[len(arrays)]
        arrays.append(message_to_ndarray(message, segment.name, segment.num_bytes))
    return manifest.pack(arrays, gradient=True)
