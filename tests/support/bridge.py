"""A small parameter server, served over real gRPC."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from relaax_like.bridge.control import BridgeControl
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.core.manifest import Variable, make_manifest
from relaax_like.core.metrics import Metrics, NullMetrics
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.store import Store
from relaax_like.wire.security import ServerSecurity

VARIABLES = (
    Variable("W1", np.arange(6, dtype=np.float32).reshape(2, 3)),
    Variable("b1", np.zeros(3, np.float32)),
)
ONES = [np.ones((2, 3), np.float32), np.ones(3, np.float32)]


def make_backend(
    variables: Sequence[Variable] = VARIABLES, metrics: Metrics | None = None, **options: Any
) -> ParameterServer:
    """Plain SGD with rate 1: after a gradient g the weights are w - g exactly."""
    manifest = make_manifest(variables)
    flat = manifest.pack([variable.value for variable in variables])
    optimizers = {"default": OptimizerConfig(name="sgd", learning_rate=1.0)}
    store = Store(manifest, flat, optimizers)
    return ParameterServer(store, metrics=metrics or NullMetrics(), **options)


@contextlib.contextmanager
def serve(
    backend: ParameterServer,
    address: str = "127.0.0.1:0",
    security: ServerSecurity | None = None,
) -> Iterator[str]:
    """Serves a backend over gRPC; gives the address."""
    server, port = BridgeControl().create_server(address, backend, security)
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(grace=None).wait()
