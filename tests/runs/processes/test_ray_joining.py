"""Whether a cluster asks for a token, and who can read it, without Ray."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.cluster import find_free_port

from relaax_like.config.address import Address
from relaax_like.runs.processes.ray_joining import _asks_for_token, _check_token_file, join
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


@pytest.fixture
def token_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "ray" / "token"
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
    return path


def test_a_new_token_can_be_read_by_its_owner_only(token_file: Path) -> None:
    umask = os.umask(0)
    try:
        _check_token_file(may_create=True)
    finally:
        os.umask(umask)
    assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(token_file.parent.stat().st_mode) == 0o700
    token = token_file.read_text()
    assert len(token) == 64
    _check_token_file(may_create=True)
    assert token_file.read_text() == token


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
@pytest.mark.parametrize("may_create", [False, True])
def test_a_token_that_others_can_read_or_write_is_refused(
    token_file: Path, mode: int, may_create: bool
) -> None:
    token_file.parent.mkdir()
    token_file.write_text("x" * 64)
    token_file.chmod(mode)
    with pytest.raises(ConfigError, match=rf"^--ray: the token file {token_file}: users other .*"):
        _check_token_file(may_create)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_token_of_another_user_is_refused(token_file: Path) -> None:
    token_file.parent.mkdir()
    token_file.touch(mode=0o600)
    os.chown(token_file, 12345, -1)
    with pytest.raises(ConfigError, match="belongs to user 12345, who knows the token"):
        _check_token_file(may_create=True)


def test_a_missing_token_of_a_cluster_is_named(token_file: Path) -> None:
    with pytest.raises(ConfigError, match=rf"{token_file}: No such file .*the same token"):
        _check_token_file(may_create=False)
