"""TLS and tokens of the rlx server, over real sockets, with uvloop."""

import contextlib
import functools
import os
import socket
import ssl
import warnings

import numpy as np
import pytest
from support.bridge import make_backend
from support.certificates import (
    AGENT,
    ALL_TOKENS,
    ENVIRONMENT,
    Authority,
    write_private,
    write_tokens,
)
from support.cluster import wait_until
from support.doors import DOORS, Door
from support.rlx import (
    ACTION_SPACE,
    OBSERVATION_SPACE,
    RawClient,
    RecordingAgent,
    make_hello,
    make_next,
    make_start,
    serve_rlx,
)
from websockets.exceptions import InvalidStatus

from relaax_like.client import ClientSecurity, Retry, RlxClient
from relaax_like.rlx_server.admission import Admission
from relaax_like.rlx_server.client_log import LINES_PER_SECOND, LogBudget
from relaax_like.v1 import rlx_pb2
from relaax_like.wire import watched_files
from relaax_like.wire.errors import (
    ConfigError,
    NotAllowedError,
    ServerUnavailableError,
)
from relaax_like.wire.security import Tokens
from relaax_like.wire.spaces import Box

STATE = np.zeros(2, np.float32)
# A client that would try again forever, were it not refused for good.
RETRY = Retry(min_sleep_sec=0.01, max_sleep_sec=0.02)


@pytest.fixture(autouse=True)
def check_files_at_each_use(monkeypatch):
    monkeypatch.setattr(watched_files, "CHECK_SEC", 0.0)


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def tokens(tmp_path):
    return Tokens(write_tokens(tmp_path / "tokens"))


@contextlib.contextmanager
def serve(**options):
    with make_backend() as backend, serve_rlx(backend, **options) as port:
        yield f"localhost:{port}"


def connect(address, security=None, **options):
    spaces = (OBSERVATION_SPACE, ACTION_SPACE)
    return RlxClient(address, *spaces, security=security, timeout_sec=20, **options)


def play(client, steps=3):
    """Plays an episode of rewards of 1, and returns its score."""
    client.act(STATE)
    for _ in range(steps - 1):
        client.reward_and_act(1.0, STATE)
    return client.reward_and_reset(1.0)


# Tokens.


@pytest.mark.parametrize("token", [ENVIRONMENT, AGENT])
def test_a_token_of_the_role_or_above_lets_in(tokens, token, tmp_path):
    with serve(tokens=tokens) as address:
        with connect(address, ClientSecurity(token=token)) as client:
            assert play(client) == 3
        with connect(address, token=token) as client:
            assert play(client) == 3
        file = write_private(tmp_path / "token", token)
        with connect(address, ClientSecurity(token_file=file)) as client:
            assert play(client) == 3


@pytest.mark.parametrize(
    ("token", "want"),
    [
        (
            "",
            r"no token was sent, but one of role environment is required; set token_file "
            r"\(--token-file\)",
        ),
        (
            ENVIRONMENT + "x",
            r"not known to this server; compare the client's token \(token_file\) with",
        ),
    ],
)
def test_a_refusal_is_told_before_anything_is_built_and_disturbs_nobody(
    tokens, token, want, caplog
):
    with serve(tokens=tokens) as address:
        with connect(address, ClientSecurity(token=ENVIRONMENT)) as served:
            served.act(STATE)
            with pytest.raises(NotAllowedError, match=want):
                connect(address, ClientSecurity(token=token), retry=RETRY)
            assert len(RecordingAgent.instances) == 1
            served.reward_and_act(1.0, STATE)
    assert "UNAUTHENTICATED" in caplog.text
    for secret in ALL_TOKENS:
        assert secret not in caplog.text


def test_a_client_reads_its_token_anew_when_it_reconnects(tokens, tmp_path):
    file = write_private(tmp_path / "token", ENVIRONMENT)
    new = "environment-token-after-it"
    with serve(tokens=tokens) as address:
        with connect(address, ClientSecurity(token_file=file)) as client:
            play(client)
            write_private(tmp_path / "tokens", f"environment {new}\n")
            assert play(client) == 3  # a session that was let in continues
            with pytest.raises(NotAllowedError, match="not known to this server"):
                client.connect()
            write_private(file, new)
            client.connect()
            assert play(client) == 3


def test_a_hello_without_a_token_is_refused_before_it_is_parsed(tokens, monkeypatch):
    from relaax_like.rlx_server import protobuf_codec

    monkeypatch.setattr(protobuf_codec, "_parse", None)
    with serve(tokens=tokens) as address, pytest.raises(NotAllowedError, match="no token was sent"):
        connect(address)


def test_a_server_without_tokens_asks_for_none():
    with serve() as address, connect(address, ClientSecurity(token=AGENT)) as client:
        assert play(client) == 3


def test_both_ways_to_give_a_token_at_once_are_refused():
    with pytest.raises(ConfigError, match="token and security are both set"):
        connect("localhost:1", ClientSecurity(token=AGENT), token=AGENT)


# TLS.


def test_steps_large_and_small_go_through_tls(authority):
    """Messages of more than a TLS record, and more than the first buffer, in both directions."""
    space = Box(dtype="uint8", shape=(300_000,))
    with serve(tls=authority.server_tls()) as address:
        with RlxClient(address, space, space, security=authority.client()) as client:
            with pytest.raises(Exception, match="action"):  # the agent's actions are small numbers
                client.act(np.arange(300_000, dtype=np.uint8))
        assert RecordingAgent.instances[-1].calls[0][1][:3] == [0, 1, 2]
        assert len(RecordingAgent.instances[-1].calls[0][1]) == 300_000
        with connect(address, authority.client()) as client:
            assert play(client, 50) == 50


def test_many_clients_at_once(authority, tokens):
    with serve(tls=authority.server_tls(), tokens=tokens) as address:
        with contextlib.ExitStack() as stack:
            clients = [
                stack.enter_context(connect(address, authority.client(ENVIRONMENT)))
                for _ in range(8)
            ]
            for client in clients:
                client.act(STATE)
            for client in clients:
                assert client.reward_and_reset(2.0) == 2.0


def test_mutual_tls_wants_a_certificate_of_its_ca(authority, tmp_path):
    foreign = Authority(tmp_path, "foreign")
    write_private(foreign.ca, authority.ca.read_bytes())
    with serve(tls=authority.server_tls(client_cert_required=True)) as address:
        with connect(address, authority.client(certificate=True)) as client:
            assert play(client) == 3
        with pytest.raises(
            ServerUnavailableError, match="requires a client certificate, set tls_cert"
        ):
            connect(address, authority.client())
        with pytest.raises((NotAllowedError, ServerUnavailableError)):
            connect(address, foreign.client(certificate=True))
        with connect(address, authority.client(certificate=True)) as client:
            assert play(client) == 3


def test_handshakes_that_never_end_are_counted_and_keep_nobody_out(authority):
    admission = Admission(2, 0, max_unknown=4)
    options = {"admission": admission, "hello_timeout_sec": 300.0}
    with serve(tls=authority.server_tls(), **options) as address:
        port = int(address.rpartition(":")[2])
        with contextlib.ExitStack() as stack:
            silent = [stack.enter_context(RawClient(port)) for _ in range(8)]
            for oldest in silent[:4]:
                assert oldest.is_closed_by_server()
            assert admission.unknown <= 4
            with connect(address, authority.client()) as client:
                assert play(client) == 3
        wait_until(lambda: admission.unknown == 0, "the handshakes have ended")


def test_a_certificate_of_another_ca_is_not_believed(authority, tmp_path):
    with serve(tls=authority.server_tls()) as address:
        with pytest.raises(NotAllowedError, match="tls_ca must contain the certificate"):
            connect(address, Authority(tmp_path, "other").client(AGENT), retry=RETRY)
    # The token was not sent to that program.
    assert RecordingAgent.instances == []


def test_a_client_in_the_clear_is_told_and_disturbs_nobody(authority):
    with serve(tls=authority.server_tls()) as address:
        with connect(address, authority.client()) as served:
            served.act(STATE)
            with pytest.raises(NotAllowedError, match="this server uses TLS"):
                connect(address, retry=RETRY)
            assert served.reward_and_reset(1.0) == 1.0


def test_a_tls_client_of_a_server_in_the_clear_is_told_and_disturbs_nobody(authority, caplog):
    with serve() as address, connect(address) as served:
        served.act(STATE)
        with pytest.raises(NotAllowedError, match="it does not use TLS on this port"):
            connect(address, authority.client(), retry=RETRY)
        assert served.reward_and_reset(1.0) == 1.0
    assert "received a TLS handshake, but this server does not use TLS" in caplog.text


def test_who_never_shakes_hands_is_dropped(authority, caplog):
    with serve(tls=authority.server_tls(), hello_timeout_sec=2.0) as address:
        port = int(address.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=20) as silent:
            assert silent.recv(1) == b""
        with connect(address, authority.client()) as client:
            assert play(client) == 3
    assert caplog.text.count("127.0.0.1: the TLS handshake failed: ") == 1


def test_failed_handshakes_are_limited_lines_without_the_peers_text(authority, caplog, monkeypatch):
    budget = functools.partial(LogBudget, clock=lambda: 0.0)  # all within one second
    monkeypatch.setattr("relaax_like.rlx_server.server.LogBudget", budget)
    with serve(tls=authority.server_tls()) as address:
        port = int(address.rpartition(":")[2])
        for data in (b"", *(2 * LINES_PER_SECOND) * [b"\x16any-text"]):
            with socket.create_connection(("127.0.0.1", port), timeout=20) as raw:
                raw.sendall(data)
                raw.shutdown(socket.SHUT_WR)  # a health check sends nothing: it is not worth a line
                with contextlib.suppress(ConnectionError):
                    raw.recv(1)
        with connect(address, authority.client()) as client:
            assert play(client) == 3
    assert (
        len([line for line in caplog.messages if "handshake failed: " in line]) == LINES_PER_SECOND
    )
    assert "any-text" not in caplog.text


def test_a_client_that_hangs_up_without_a_farewell_takes_nothing_with_it(authority):
    with serve(tls=authority.server_tls()) as address:
        port = int(address.rpartition(":")[2])
        context = authority.client().tls.make_context()
        plain = socket.create_connection(("127.0.0.1", port), timeout=20)
        secured = context.wrap_socket(plain, server_hostname="localhost")
        secured.sendall(b"\x00\x00\x00\x20half")
        os.close(secured.detach())
        with connect(address, authority.client()) as client:
            assert play(client) == 3


def get_serial(address, authority):
    """Returns the serial number of the certificate that a new connection sees."""
    host, _, port = address.rpartition(":")
    context = authority.client().tls.make_context()
    with socket.create_connection((host, int(port)), timeout=20) as plain:
        with context.wrap_socket(plain, server_hostname=host) as secured:
            return secured.getpeercert()["serialNumber"]


def test_a_replaced_certificate_counts_without_a_restart(authority):
    with serve(tls=authority.server_tls(), hello_timeout_sec=2.0) as address:
        with connect(address, authority.client()) as client:
            client.act(STATE)
            before = get_serial(address, authority)
            authority.issue()
            wait_until(lambda: get_serial(address, authority) != before, "the new certificate")
            assert client.reward_and_reset(1.0) == 1.0
        write_private(authority.cert, "nonsense")
        with connect(address, authority.client()) as client:
            assert play(client) == 3


def test_an_expired_certificate_is_told_and_can_be_renewed(authority):
    authority.issue(expired=True)
    with serve(tls=authority.server_tls(), hello_timeout_sec=2.0) as address:
        with pytest.raises(NotAllowedError, match=r"certificate has expired.*renew it"):
            connect(address, authority.client(), retry=RETRY)
        authority.issue()

        def try_to_play():
            with contextlib.suppress(NotAllowedError), connect(address, authority.client()) as c:
                return play(c)

        assert wait_until(try_to_play, "the renewed certificate") == 3


def test_old_versions_of_tls_are_refused(authority):
    with serve(tls=authority.server_tls()) as address:
        host, _, port = address.rpartition(":")
        context = authority.client().tls.make_context()
        context.set_ciphers("ALL:@SECLEVEL=0")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # that is the point
            context.minimum_version = ssl.TLSVersion.TLSv1
            context.maximum_version = ssl.TLSVersion.TLSv1_1
        with socket.create_connection((host, int(port)), timeout=20) as plain:
            with pytest.raises((ssl.SSLError, ConnectionResetError)):
                context.wrap_socket(plain, server_hostname=host)


# Other doors.


@pytest.mark.parametrize("door", DOORS)
def test_each_door_without_tls_is_told_that_the_server_uses_it(authority, door):
    with serve(tls=authority.server_tls()) as address:
        try:
            with Door(int(address.rpartition(":")[2]), door) as client:
                told = client.ask(make_hello()).error.message
        except InvalidStatus as error:
            told = error.response.body.decode()
        assert "this server uses TLS" in told
        with connect(address, authority.client()) as client:
            assert play(client) == 3


@pytest.mark.parametrize("door", DOORS)
def test_each_door_works_over_tls_and_wants_a_token(authority, tokens, door):
    context = ssl.create_default_context(cafile=authority.ca)
    tls = authority.server_tls()
    with serve(tls=tls, tokens=tokens) as address:
        port = int(address.rpartition(":")[2])
        with Door(port, door, tls=context) as client:
            assert client.ask(make_hello()).error.code == rlx_pb2.UNAUTHENTICATED
        with Door(port, door, tls=context) as client:
            assert client.ask(make_hello(token=ENVIRONMENT)).WhichOneof("body") == "ready"
            assert client.ask(make_start()).WhichOneof("body") == "actions"
            assert client.ask(make_next()).WhichOneof("body") == "actions"
