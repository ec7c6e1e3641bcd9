"""Whether a cluster asks for a token, without Ray."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from support.cluster import find_free_port

from relaax_like.config.address import Address
from relaax_like.ray_engine.joining import _asks_for_token, join
from relaax_like.wire.errors import ConfigError, RelaaxError


class Head(grpc.GenericRpcHandler):
    """Answers as the head of a cluster does.

    Args:
      asks: for a token.
    """

    def __init__(self, asks: bool):
        self._asks = asks

    def service(self, handler_call_details: Any) -> Any:
        if handler_call_details.method != "/ray.rpc.NodeInfoGcsService/CheckAlive":
            return None

        def answer(request: bytes, context: Any) -> bytes:
            if self._asks:
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")
            return b""

        return grpc.unary_unary_rpc_method_handler(answer)


@pytest.mark.parametrize("asks", [True, False])
def test_a_proxy_is_not_asked(asks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_grpc_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{find_free_port()}")
    server = grpc.server(ThreadPoolExecutor(1), handlers=[Head(asks)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        assert _asks_for_token(Address("127.0.0.1", port)) is asks
    finally:
        server.stop(None).wait()


def test_what_is_not_there_is_named() -> None:
    address = f"127.0.0.1:{find_free_port()}"
    with pytest.raises(RelaaxError, match=rf"^--ray {address}: no Ray cluster answers there \("):
        join(f" {address}", 1, insecure=False)


@pytest.mark.parametrize(
    ("address", "problem"),
    [("a b", "'a b' is not an address"), ("10.0.0.1", "'10.0.0.1': port missing")],
)
def test_what_is_not_an_address_with_a_port_is_refused(address: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=rf"^--ray: {problem}; expected host:port.* or local, to"):
        join(address, 1, insecure=False)
