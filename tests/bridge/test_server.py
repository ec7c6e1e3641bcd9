"""The gRPC server of the bridge: ports, health, absence, raw and wrong messages."""

# covers R13, R14

import math
import re
import socket
import threading
from dataclasses import replace

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.bridge import ONES, make_backend, serve

from relaax_like.bridge import bridge_pb2, bridge_pb2_grpc
from relaax_like.bridge import stub as stub_module
from relaax_like.bridge.control import BridgeControl
from relaax_like.core.records import MAX_SERVED_CLIENTS, ClientsReport, ServedClient
from relaax_like.parameter_server import statistics
from relaax_like.v1 import parameter_server_pb2 as pb
from relaax_like.v1 import parameter_server_pb2_grpc as pb_grpc
from relaax_like.wire.errors import (
    ConfigError,
    InvalidInputError,
    RelaaxError,
    ServerUnavailableError,
)


@pytest.fixture
def stub(address):
    with grpc.insecure_channel(address) as channel:
        yield pb_grpc.ParameterServerStub(channel)


def header(**fields):
    return pb.PushPullRequest(header=pb.PushHeader(client_id="raw", **fields))


def test_a_second_server_on_the_port_is_refused_and_the_holder_named(backend, address):
    with pytest.raises(RelaaxError, match=r"cannot bind .*pid \d+"):
        BridgeControl().create_server(address, backend)


def test_the_holder_of_an_ipv6_address_is_named(backend):
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with listener:
        port = listener.getsockname()[1]
        with pytest.raises(RelaaxError, match=rf"\[::1\]:{port}: port {port} is in use by pid \d+"):
            BridgeControl().create_server(f"[::1]:{port}", backend)


def test_an_address_without_a_port_is_refused_before_a_connection_is_made():
    with pytest.raises(ConfigError, match="'localhost': port missing"):
        BridgeControl().connect("localhost")


def test_health_check_answers_serving(address):
    with grpc.insecure_channel(address) as channel:
        reply = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(), timeout=5
        )
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_status_tells_what_happened(backend, address):
    with BridgeControl().connect(address) as link, link.parameter_server_stub() as client:
        client.increment_global_t(3)
        client.push_pull(ONES)
        status = link.status()
    assert (status.global_t, status.version, status.parameters) == (3, 1, 9)
    assert status.mean_return is None
    assert status.clients == 1


HUGE = ((1 << 40) + 1, 1 << 63, (1 << 64) - 1)
ODD = (math.nan, -math.inf, math.inf, -1.0, 1e300)
NUMBERS = {
    **dict.fromkeys(("slots", "answers", "max_wait_ms", "late", "discarded_steps"), HUGE),
    **dict.fromkeys(("p50_ms", "p99_ms"), ODD),
}


def test_what_an_rlx_server_reports_is_in_the_status(address):
    client = ServedClient(
        name="robot", session="session-1", slots=2, answers=9, p50_ms=0.5, p99_ms=12.5,
        max_wait_ms=20, late=3, discarded_steps=64, stall="the client has been silent for 12 s",
        versions={"mujoco": "3.3.7"},
    )  # fmt: skip
    report = ClientsReport(server_id="rlx-1", clients=(client,), num_clients=5)
    with BridgeControl().connect(address) as link:
        assert link.status().served == ()
        link.report_clients(report)
        status = link.status()
        assert (status.served, status.served_clients) == ((client,), 5)
        link.report_clients(replace(report, clients=(replace(client, p50_ms=None),)))
        assert link.status().served[0].p50_ms is None
        for wrong, want in (
            (replace(report, server_id=""), "server_id is empty"),
            (replace(report, clients=(client,) * (MAX_SERVED_CLIENTS + 1)), "101 clients"),
            (
                replace(report, clients=(client, replace(client, name="x" * 501))),
                r"clients\[1\].name: 'x+' of length 501, expected at most 500 printable",
            ),
            (replace(report, server_id="x" * 201), "server_id: 'x+' of length 201"),
            (replace(report, server_id="\x1b[2J"), r"server_id: '\\x1b\[2J' of length 4"),
            (replace(report, clients=(replace(client, stall="a\nb"),)), r"clients\[0\].stall: "),
            *(
                (
                    replace(report, clients=(replace(client, **{field: number}),)),
                    re.escape(f"clients[0].{field} is {number}, expected 0 to 1099511627776"),
                )
                for field, numbers in NUMBERS.items()
                for number in numbers
            ),
            (
                replace(report, clients=(replace(client, versions={"a b": "1"}),)),
                r"clients\[0\].versions: 1 pairs",
            ),
            *((replace(report, num_clients=n), f"num_clients is {n}") for n in HUGE),
        ):
            with pytest.raises(InvalidInputError, match=want):
                link.report_clients(wrong)


def test_no_numbers_of_servers_together_keep_the_status_from_all(address, monkeypatch):
    # A busy machine takes longer than ten seconds for so many reports.
    monkeypatch.setattr(statistics, "_REPORT_SEC", 600.0)
    most = 1 << 40
    client = ServedClient(
        name="robot", session="s", slots=most, answers=most, p50_ms=most, p99_ms=most,
        max_wait_ms=most, late=most, discarded_steps=most,
    )  # fmt: skip
    with BridgeControl().connect(address) as link:
        for number in range(1000):
            report = ClientsReport(
                server_id=f"rlx-{number}", clients=(client,) * 100, num_clients=most
            )
            link.report_clients(report)
        assert link.status().served_clients == 1000 * most


def test_an_error_of_a_backend_that_asks_another_server_is_passed_on(backend, address, monkeypatch):
    def fail(*arguments):
        raise ServerUnavailableError("no answer from the parameter server at elsewhere:7000")

    report = ClientsReport(server_id="rlx-1", clients=(), num_clients=0)
    with BridgeControl().connect(address) as link, grpc.insecure_channel(address) as channel:
        for name in ("status", "report_clients", "pull"):
            monkeypatch.setattr(backend, name, fail)
        with pytest.raises(ServerUnavailableError, match="elsewhere:7000"):
            link.status()
        with pytest.raises(ServerUnavailableError, match="elsewhere:7000"):
            link.report_clients(report)
        tutorial = bridge_pb2_grpc.ParameterServerStub(channel)
        with pytest.raises(grpc.RpcError, match="elsewhere:7000") as caught:
            list(tutorial.GetValues(bridge_pb2.NullMessage(), timeout=5))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_status_of_an_absent_server_is_an_error_that_names_the_address():
    with BridgeControl().connect("127.0.0.1:1") as link:
        with pytest.raises(ServerUnavailableError, match=r"127\.0\.0\.1:1"):
            link.status(timeout_sec=2.0)


def test_waiting_for_a_server_that_is_never_up_ends_at_the_timeout():
    with BridgeControl().connect("127.0.0.1:1") as link:
        with pytest.raises(ServerUnavailableError):
            link.wait(timeout_sec=0.3)


def test_a_client_waits_for_a_server_that_comes_up_later(backend):
    with serve(backend) as address:
        pass  # the port is free again, and known
    with BridgeControl().connect(address) as link:
        found = []
        waiter = threading.Thread(target=lambda: found.append(link.wait(30.0)))
        waiter.start()
        with serve(backend, address):
            waiter.join(30.0)
        assert found == [backend.manifest]


def test_agents_go_on_while_the_server_is_away_and_again_when_it_is_back():
    with make_backend() as first, serve(first) as address:
        link = BridgeControl().connect(address)
        client = link.parameter_server_stub()
        client.push_pull(ONES)
    with link, client:
        client.increment_global_t(5)
        kept = client.push_pull(ONES)
        np.testing.assert_array_equal(kept[1], [-1, -1, -1])
        assert client.discarded_pushes == 1
        with make_backend() as second, serve(second, address):
            client.increment_global_t(2)
            for _ in range(200):  # gRPC reconnects by itself, within its backoff
                values = client.get_values()
                if client.version == 0:
                    break
                threading.Event().wait(0.05)
            np.testing.assert_array_equal(values[1], [0, 0, 0])
            np.testing.assert_array_equal(client.push_pull(ONES)[1], [-1, -1, -1])
            assert second.global_t == 2


def test_a_gradient_of_a_lost_future_is_dropped_and_the_agent_goes_on():
    """The server came back from an older snapshot: version 1 is gone."""
    with make_backend() as first, serve(first) as address:
        link = BridgeControl().connect(address)
        client = link.parameter_server_stub()
        client.push_pull(ONES)
    with link, client, make_backend() as second, serve(second, address):
        assert link.wait(30.0)
        values = client.push_pull(ONES)
        assert second.version == 0
        np.testing.assert_array_equal(values[1], [0, 0, 0])
        client.push_pull(ONES)
        assert second.version == 1


@pytest.mark.parametrize(
    "make_messages",
    [
        lambda m: [pb.PushPullRequest(chunk=b"x")],
        lambda m: [pb.PushPullRequest()],
        lambda m: [header(gradient_bytes=4)],
        lambda m: [header(gradient_bytes=m.gradient_bytes, fingerprint=1)],
        lambda m: [header(gradient_bytes=m.gradient_bytes, fingerprint=m.fingerprint)],
        lambda m: [
            header(gradient_bytes=m.gradient_bytes, fingerprint=m.fingerprint),
            pb.PushPullRequest(chunk=bytes(m.gradient_bytes + 1)),
        ],
        lambda m: [
            header(gradient_bytes=m.gradient_bytes, fingerprint=m.fingerprint),
            header(),
        ],
        lambda m: [header(), pb.PushPullRequest(chunk=b"1234")],
        lambda m: [header(env_steps=2**63)],
        lambda m: [header(gradient_bytes=2**62, fingerprint=m.fingerprint)],
        lambda m: [pb.PushPullRequest(header=pb.PushHeader(client_id=""))],
        lambda m: [pb.PushPullRequest(header=pb.PushHeader(client_id="x" * 201))],
        lambda m: [header(episodes=[pb.Episode(episode_return=float("nan"), length=1)])],
    ],
    ids=[
        "chunk before header",
        "empty message",
        "wrong length",
        "foreign layout",
        "missing bytes",
        "too many bytes",
        "two headers",
        "chunk without gradient",
        "too many steps",
        "giant length",
        "no client id",
        "long client id",
        "NaN return",
    ],
)
def test_a_malformed_push_is_an_invalid_argument_and_changes_nothing(stub, backend, make_messages):
    messages = make_messages(backend.manifest)
    with pytest.raises(grpc.RpcError) as raised:
        list(stub.PushPull(iter(messages), timeout=10))
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (backend.version, backend.global_t) == (0, 0)


def test_garbage_bytes_do_not_disturb_the_next_caller(address, backend):
    with grpc.insecure_channel(address) as channel:
        call = channel.stream_stream("/relaax.v1.ParameterServer/PushPull")
        with pytest.raises(grpc.RpcError, match="expected the header as the first message"):
            list(call(iter([b"\xff\xff\xff\xff"]), timeout=10))
    with BridgeControl().connect(address) as link, link.parameter_server_stub() as client:
        client.push_pull(ONES)
    assert backend.version == 1


def test_a_server_that_hangs_is_asked_shortly_by_all_stubs_until_it_answers(monkeypatch):
    """One call waits for its whole deadline; the next ones, of other stubs too, for a probe."""
    with make_backend() as backend, serve(backend) as address:
        with BridgeControl().connect(address) as link:
            first, second = (link.parameter_server_stub() for _ in range(2))
            for client in (first, second):
                client.get_values()
            first._timeout_sec = 0.5
            hang = threading.Event()
            push = backend.push

            def push_slowly(record, timeout_sec):
                hang.wait(30)
                return push(record, timeout_sec)

            monkeypatch.setattr(backend, "push", push_slowly)
            first.push_pull(ONES)
            assert first.discarded_pushes == 1
            assert link._health.away
            hang.set()
            monkeypatch.setattr(stub_module, "_PROBE_SEC", 20.0)  # all that hung is answered first
            np.testing.assert_array_equal(second.push_pull(ONES)[0].shape, (2, 3))
            assert second.discarded_pushes == 0
            assert not link._health.away
