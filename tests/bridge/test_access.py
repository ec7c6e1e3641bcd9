"""TLS, tokens and roles on the bridge and on the metrics service, over real sockets."""

import contextlib
import logging
import socket
import threading

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.bridge import ONES, serve
from support.certificates import (
    AGENT,
    ALL_TOKENS,
    ENVIRONMENT,
    OPERATOR,
    Authority,
    make_security,
    write_private,
    write_tokens,
)
from support.cluster import wait_until
from support.event_files import read_scalars
from support.threads import Caller

from relaax_like.bridge.access import METHOD_ROLES
from relaax_like.bridge.control import BridgeControl
from relaax_like.bridge.metrics_client import MetricsClient
from relaax_like.bridge.metrics_servicer import create_metrics_server
from relaax_like.config.address import Address
from relaax_like.metrics.recorder import TensorBoardRecorder
from relaax_like.v1 import metrics_pb2, parameter_server_pb2
from relaax_like.v1 import parameter_server_pb2_grpc as pb_grpc
from relaax_like.wire import watched_files
from relaax_like.wire.errors import ConfigError, NotAllowedError, ServerUnavailableError
from relaax_like.wire.security import ClientSecurity, Role, ServerSecurity, Tokens


@pytest.fixture(autouse=True)
def check_files_at_each_use(monkeypatch):
    monkeypatch.setattr(watched_files, "CHECK_SEC", 0.0)


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@contextlib.contextmanager
def connect(address, security=None):
    with BridgeControl().connect(address, security) as link:
        yield link


def train(address, security):
    """Pushes a gradient of ones, and returns what the first weight then is."""
    with connect(address, security) as link, link.parameter_server_stub(timeout_sec=10) as client:
        return float(client.push_pull(ONES)[0][0, 0])


def test_a_token_that_is_taken_back_ends_an_open_stream(tmp_path, backend, monkeypatch):
    monkeypatch.setattr("relaax_like.bridge.access._ASK_SEC", 0.0)
    write_tokens(tmp_path / "tokens")
    tokens = ServerSecurity(tls=None, tokens=Tokens(tmp_path / "tokens"))
    with serve(backend, security=tokens) as address:
        with connect(address, ClientSecurity(token=AGENT)) as link:
            client = link.parameter_server_stub(timeout_sec=10, keep_stream_open=True)
            client.push_pull(ONES)
            write_private(tmp_path / "tokens", f"operator {OPERATOR}\n")
            with pytest.raises(NotAllowedError):
                client.push_pull(ONES)
    assert backend.version == 1


# Who is allowed to call what.


def find_methods():
    tutorial = ("IncrementGlobalT", "ApplyGradients", "GetValues", "StoreScalarMetric")
    health = health_pb2.DESCRIPTOR.services_by_name["Health"]
    services = [
        *parameter_server_pb2.DESCRIPTOR.services_by_name.values(),
        *metrics_pb2.DESCRIPTOR.services_by_name.values(),
        health,
    ]
    ours = [f"/{s.full_name}/{m.name}" for s in services for m in s.methods]
    return ours + [f"/ParameterServer/{method}" for method in tutorial]


def test_every_method_that_is_served_stands_in_the_table():
    assert set(find_methods()) <= set(METHOD_ROLES)


def call(address, method, token=None, metadata=()):
    """Calls a method with an empty message; returns the code of the answer and its details."""
    if token is not None:
        metadata = (("authorization", f"Bearer {token}"),)
    with grpc.insecure_channel(address) as channel:
        replies = channel.unary_stream(method)(b"", timeout=10, metadata=metadata)
        try:
            next(replies, None)
        except grpc.RpcError as error:
            return error.code(), error.details()
        replies.cancel()  # some continue
    return grpc.StatusCode.OK, ""


def may(address, method, token):
    code, _ = call(address, method, token)
    return code not in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


def test_each_method_is_for_its_role_and_above(backend, tmp_path):
    bearers = {
        None: None,
        Role.ENVIRONMENT: ENVIRONMENT,
        Role.AGENT: AGENT,
        Role.OPERATOR: OPERATOR,
    }
    with serve(backend, security=make_security(tmp_path)) as address:
        for method, needed in METHOD_ROLES.items():
            for role, token in bearers.items():
                want = needed is None or (role is not None and role >= needed)
                assert may(address, method, token) is want, (method, role)


def test_a_method_that_nobody_knows_is_for_operators(backend, tmp_path):
    with serve(backend, security=make_security(tmp_path)) as address:
        assert not may(address, "/relaax.v1.ParameterServer/Forgotten", AGENT)
        code, _ = call(address, "/relaax.v1.ParameterServer/Forgotten", OPERATOR)
        assert code == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("metadata", "code", "want"),
    [
        (
            (),
            grpc.StatusCode.UNAUTHENTICATED,
            "no token was sent, but one of role agent is required",
        ),
        ((("authorization", AGENT),), grpc.StatusCode.UNAUTHENTICATED, "no token was sent"),
        (
            (("authorization", f"Basic {AGENT}"),),
            grpc.StatusCode.UNAUTHENTICATED,
            "no token was sent",
        ),
        ((("token", f"Bearer {AGENT}"),), grpc.StatusCode.UNAUTHENTICATED, "no token was sent"),
        ((("authorization", "Bearer "),), grpc.StatusCode.UNAUTHENTICATED, "no token was sent"),
        (
            (("authorization", f"Bearer {AGENT}x"),),
            grpc.StatusCode.UNAUTHENTICATED,
            "not known to this server; compare the client's token (token_file) with the server's",
        ),
        (
            (("authorization", f"Bearer {ENVIRONMENT}"),),
            grpc.StatusCode.PERMISSION_DENIED,
            "has role environment, but role agent is required; set token_file",
        ),
    ],
)
def test_a_refusal_names_the_cure_and_never_the_token(
    backend, tmp_path, caplog, metadata, code, want
):
    with serve(backend, security=make_security(tmp_path)) as address:
        found = call(address, "/relaax.v1.ParameterServer/GetStatus", metadata=metadata)
        assert found[0] == code
        assert want in found[1]
        # The server logs it, too, with the client that it refused.
        assert "ipv4:127.0.0.1" in caplog.text
        assert want in caplog.text
        for token in ALL_TOKENS:
            assert token not in found[1] + caplog.text


def test_strangers_hold_no_thread_of_the_server(backend, tmp_path):
    def nothing():
        stop.wait(30)
        yield from ()

    stop = threading.Event()
    with serve(backend, security=make_security(tmp_path)) as address:
        with grpc.insecure_channel(address) as channel:
            # Streams that are opened and never written to: more of them than there are threads.
            push = channel.stream_stream("/relaax.v1.ParameterServer/PushPull")
            calls = [push(nothing(), timeout=30) for _ in range(80)]
            assert train(address, ClientSecurity(token=AGENT)) == -1.0
            codes = {call.code() for call in calls}
            stop.set()
    assert codes == {grpc.StatusCode.UNAUTHENTICATED}


# Our own client.


def test_agents_train_with_a_token_over_plain_loopback(backend, tmp_path):
    with serve(backend, security=make_security(tmp_path)) as address:
        assert train(address, ClientSecurity(token=AGENT)) == -1.0
        file = write_private(tmp_path / "token", f"{OPERATOR}\n")
        assert train(address, ClientSecurity(token_file=file)) == -2.0


@pytest.mark.parametrize("token", ["", AGENT + "x", ENVIRONMENT])
def test_a_client_without_the_right_token_is_told_at_once_and_for_good(backend, tmp_path, token):
    with serve(backend, security=make_security(tmp_path)) as address:
        with connect(address, ClientSecurity(token=token)) as link:
            for ask in (link.wait, link.status, link.parameter_server_stub):
                with pytest.raises(NotAllowedError, match=f"parameter server at {address} refused"):
                    ask()
        assert train(address, ClientSecurity(token=AGENT)) == -1.0


def test_a_token_that_is_withdrawn_while_running_stops_its_bearer_and_no_other(backend, tmp_path):
    security = make_security(tmp_path)
    file = write_private(tmp_path / "token", AGENT)
    with (
        serve(backend, security=security) as address,
        connect(address, ClientSecurity(token_file=file)) as link,
        connect(address, ClientSecurity(token=OPERATOR)) as other,
        link.parameter_server_stub() as client,
    ):
        client.push_pull(ONES)
        new = "agent-token-after-the-change"
        write_private(tmp_path / "tokens", f"agent {new}\noperator {OPERATOR}\n")
        with pytest.raises(NotAllowedError, match="not known to this server"):
            client.push_pull(ONES)
        assert other.status().version == 1
        write_private(file, new)  # the client reads its own file again
        client.push_pull(ONES)
        assert other.status().version == 2


def test_who_has_no_token_leaves_a_server_without_tokens_as_it_is(backend):
    with serve(backend) as address:
        assert train(address, None) == -1.0
        assert train(address, ClientSecurity(token=AGENT)) == -2.0  # asked for by nobody


# TLS.


def test_agents_train_over_tls_with_and_without_tokens(backend, authority, tmp_path):
    with serve(backend, security=ServerSecurity(tls=authority.server_tls())) as address:
        assert train(address, authority.client()) == -1.0
        assert train(address, authority.client(AGENT)) == -2.0
    with serve(backend, security=make_security(tmp_path, authority.server_tls())) as address:
        assert train(address, authority.client(AGENT)) == -3.0
        with connect(address, authority.client()) as link, pytest.raises(NotAllowedError):
            link.wait()


def test_mutual_tls_wants_a_certificate_of_its_ca(backend, authority, tmp_path):
    tls = authority.server_tls(client_cert_required=True)
    foreign = Authority(tmp_path, "foreign")
    write_private(foreign.ca, authority.ca.read_bytes())
    with serve(backend, security=ServerSecurity(tls=tls)) as address:
        assert train(address, authority.client(certificate=True)) == -1.0
        for client in (authority.client(), foreign.client(certificate=True)):
            with connect(address, client) as link:
                with pytest.raises(NotAllowedError, match=r"certificate.*set tls_cert and tls_key"):
                    link.status(timeout_sec=2)


def test_a_certificate_of_another_ca_is_not_believed(backend, authority, tmp_path):
    client = Authority(tmp_path, "other").client(AGENT)
    with serve(backend, security=ServerSecurity(tls=authority.server_tls())) as address:
        with connect(address, client) as link:
            with pytest.raises(NotAllowedError, match="tls_ca must contain the certificate"):
                link.status(timeout_sec=2)
            # A waiting process learns it from its second look, not never.
            with pytest.raises(NotAllowedError, match="tls_ca must contain the certificate"):
                link.wait()


def test_tls_on_one_end_alone_is_told(backend, authority):
    with serve(backend, security=ServerSecurity(tls=authority.server_tls())) as address:
        with connect(address) as link, pytest.raises(NotAllowedError, match="it uses TLS: set"):
            link.status(timeout_sec=2)
        assert train(address, authority.client()) == -1.0
    with serve(backend) as address:
        with connect(address, authority.client()) as link:
            with pytest.raises(NotAllowedError, match="does not use TLS"):
                link.status(timeout_sec=2)
        assert train(address, None) == -2.0


def test_an_absent_server_is_only_absent(authority):
    with connect("127.0.0.1:1", authority.client()) as link:
        with pytest.raises(ServerUnavailableError):
            link.status(timeout_sec=2)


def test_an_expired_certificate_that_is_replaced_counts_without_a_restart(
    backend, authority, caplog
):
    authority.issue(expired=True)
    with (
        caplog.at_level(logging.INFO),
        serve(backend, security=ServerSecurity(tls=authority.server_tls())) as address,
    ):
        with connect(address, authority.client()) as link:
            with pytest.raises(NotAllowedError, match="certificate has expired"):
                link.status(timeout_sec=2)
            authority.issue()
            # The same channel, too, gets through with its next attempt.
            assert wait_until(lambda: get_status_or_none(link), "the new certificate")
        assert train(address, authority.client()) == -1.0
    assert "reloaded after a change" in caplog.text


def get_status_or_none(link):
    try:
        return link.status(timeout_sec=2)
    except (NotAllowedError, ServerUnavailableError):
        return None


def test_a_clients_certificates_are_replaced_without_a_restart(backend, authority, tmp_path):
    stranger, security = Authority(tmp_path, "stranger"), authority.client(certificate=True)
    good = [path.read_bytes() for path in (security.tls_cert, security.tls_key)]

    def show(cert, key):
        write_private(security.tls_cert, cert)
        write_private(security.tls_key, key)

    show(stranger.client_cert.read_bytes(), stranger.client_key.read_bytes())
    tls = ServerSecurity(tls=authority.server_tls(client_cert_required=True))
    with serve(backend, security=tls) as address, connect(address, security) as link:
        with pytest.raises(NotAllowedError, match="certificate"):
            link.status(timeout_sec=2)
        show(*good)
        assert wait_until(lambda: get_status_or_none(link), "the new certificate")
        with link.parameter_server_stub(keep_stream_open=True) as client:
            client.push_pull(ONES)
            show(stranger.client_cert.read_bytes(), stranger.client_key.read_bytes())
            assert wait_until(lambda: get_status_or_none(link) is None, "the other's")
            client.push_pull(ONES)  # what is open continues
            assert client.discarded_pushes == 0
    assert backend.version == 2


def test_a_link_that_was_closed_stays_closed(backend, authority):
    with serve(backend, security=ServerSecurity(tls=authority.server_tls())) as address:
        link = BridgeControl().connect(address, authority.client())
        assert link.status(timeout_sec=5)
        link.close()
        authority.issue()
        with pytest.raises(ServerUnavailableError, match="has closed its connection"):
            link.status(timeout_sec=2)


def test_a_wait_ends_when_another_thread_closes_the_link():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        link = BridgeControl().connect(f"127.0.0.1:{listener.getsockname()[1]}")
        waiting = Caller(link.wait)
        with listener.accept()[0]:  # it waits for an answer
            link.close()
            with pytest.raises(ServerUnavailableError, match="has closed its connection"):
                waiting.get()


def test_connections_outlive_a_change_of_the_ca(backend, authority, tmp_path):
    other = Authority(tmp_path, "other")
    before = authority.client()
    with serve(backend, security=ServerSecurity(tls=authority.server_tls())) as address:
        with connect(address, before) as link, link.parameter_server_stub() as client:
            client.push_pull(ONES)
            authority.replace(other)
            assert train(address, other.client()) == -2.0
            assert float(client.push_pull(ONES)[0][0, 0]) == -3.0


def test_certificates_that_cannot_be_used_are_named_before_anything_is_sent(authority):
    authority.ca.unlink()
    with pytest.raises(ConfigError, match=r"tls_ca .*No such file"):
        BridgeControl().connect("127.0.0.1:1", authority.client())


# Health and metrics.


def test_health_is_told_to_anybody(backend, authority, tmp_path):
    security = make_security(tmp_path, authority.server_tls())
    credentials = grpc.ssl_channel_credentials(authority.ca.read_bytes())
    with serve(backend, security=security) as address:
        with grpc.secure_channel(address, credentials) as channel:
            reply = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=5
            )
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
            with pytest.raises(grpc.RpcError) as raised:
                next(iter(health_pb2_grpc.HealthStub(channel).Watch(
                    health_pb2.HealthCheckRequest(), timeout=5
                )))  # fmt: skip
    assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_the_metrics_server_asks_for_the_same(authority, tmp_path, caplog):
    security = make_security(tmp_path, authority.server_tls())
    with TensorBoardRecorder(tmp_path / "metrics") as recorder:
        server, port = create_metrics_server(Address("127.0.0.1", 0), recorder, security)
        server.start()
        try:
            for name, token in (("refused", ENVIRONMENT), ("taken", AGENT)):
                client = authority.client(token)
                # Leaving the block sends what is pending, or says why it cannot.
                with MetricsClient(f"localhost:{port}", lambda: 7, security=client) as metrics:
                    metrics.scalar(name, 1.0)
                    if name == "refused":
                        wait_until(lambda: "PERMISSION_DENIED" in caplog.text, "the refusal")
                    else:
                        assert metrics.flush(20.0)
        finally:
            server.stop(grace=None).wait()
    assert list(read_scalars(tmp_path / "metrics")) == ["taken"]
    for token in ALL_TOKENS:
        assert token not in caplog.text


def test_values_are_the_same_with_everything_on(backend, authority, tmp_path):
    tls = authority.server_tls(client_cert_required=True)
    with serve(backend, security=make_security(tmp_path, tls)) as address:
        with connect(address, authority.client(AGENT, certificate=True)) as link:
            with link.parameter_server_stub() as client:
                client.apply_gradients(ONES)
                np.testing.assert_array_equal(client.get_values()[1], [-1, -1, -1])


def test_an_own_stub_of_raw_grpc_needs_the_header_alone(backend, tmp_path):
    """What docs/security.md says to clients that are made from the proto."""
    write_tokens(tmp_path / "tokens")
    security = ServerSecurity(tokens=Tokens(tmp_path / "tokens"))
    with serve(backend, security=security) as address, grpc.insecure_channel(address) as channel:
        reply = pb_grpc.ParameterServerStub(channel).GetStatus(
            parameter_server_pb2.GetStatusRequest(),
            metadata=[("authorization", f"Bearer {AGENT}")],
            timeout=5,
        )
    assert reply.version == 0
