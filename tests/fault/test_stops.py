"""A parameter server that is stopped, frozen or not alone."""

import os
import shutil
import signal
import time

import numpy as np
import pytest
from support.cluster import TRACE, Cluster, freeze, wait_until
from support.history import History

from relaax_like.bridge import stub as stub_module
from relaax_like.bridge.control import BridgeControl
from relaax_like.core.records import Push, Reply, Status
from relaax_like.wire.failpoints import ENVIRONMENT_VARIABLE

LONG = int(os.environ.get("RELAAX_FAULT_SEEDS", "1")) >= 20
FROZEN_SEC = 60.0 if LONG else 3.0
AFTER_SIGTERM = 128 + signal.SIGTERM
PARAMETERS = 100


@pytest.fixture
def history(cluster: Cluster):
    """Clients that are there before the server is."""
    history = History(f"localhost:{cluster.ps_port}", pause_sec=0.005, parameters=PARAMETERS)
    history.start()
    yield history
    history.abandon()


def test_a_frozen_server_keeps_folder_and_port_and_goes_on(
    cluster: Cluster, history: History
) -> None:
    assert cluster.status() is None  # clients can come first
    server = cluster.start_parameter_server()
    wait_until(lambda: len({one.client for one in history.acknowledged}) == 3, "all clients")
    thawed_at = time.monotonic() + FROZEN_SEC
    freeze(server.pid)
    before = len(history.acknowledged)
    same_port = cluster.start_parameter_server("run_dir=other")
    same_folder = cluster.start_parameter_server("relaax-parameter-server.bind=localhost:0")
    assert same_port.wait() == 1
    assert f"port {cluster.ps_port} is in use by pid {server.pid}" in same_port.output
    assert same_folder.wait() == 1
    assert f"relaax train or relaax fsck (pid {server.pid})" in same_folder.output
    for program in (same_port, same_folder):
        assert TRACE not in program.output
    time.sleep(max(0.0, thawed_at - time.monotonic()))
    assert len(history.acknowledged) <= before + 3  # replies that were there already
    server.send(signal.SIGCONT)
    history.wait(20)
    history.stop()
    history.check()


def test_what_a_client_gave_up_takes_no_effect_when_the_server_goes_on(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stub_module, "_RETRY_SEC", 0.0)
    server = cluster.start_parameter_server()
    with BridgeControl().connect(f"localhost:{cluster.ps_port}") as link:
        with link.parameter_server_stub("one", timeout_sec=60.0, keep_stream_open=True) as client:
            client.push_pull()
            client._timeout_sec = 0.3
            freeze(server.pid)
            client.increment_global_t(1000)
            client.push_pull()
            assert client.discarded_pushes == 1
            server.send(signal.SIGCONT)
            cluster.wait_status(lambda status: True, "any answer")
    with BridgeControl().connect(f"localhost:{cluster.ps_port}") as link:
        with link.parameter_server_stub("two", timeout_sec=60.0) as other:
            other.increment_global_t(1)
    cluster.wait_status(lambda status: status.global_t > 0, "steps")
    assert cluster.wait_status(lambda status: True, "any answer").global_t == 1


def test_two_servers_that_start_together_share_neither_folder_nor_port(
    cluster: Cluster, history: History
) -> None:
    first = cluster.start_parameter_server()
    second = cluster.start_parameter_server("relaax-parameter-server.bind=localhost:0")
    third = cluster.start_parameter_server("run_dir=other")
    for pair in ((first, second), (first, third)):
        wait_until(lambda pair=pair: not all(one.alive for one in pair), pair)
    history.wait(20)
    for program in (first, second, third):
        assert program.alive or (program.wait() == 1 and "error: " in program.output)
        assert TRACE not in program.output
    history.stop()
    history.check()


def test_a_late_duplicate_of_an_earlier_life_is_refused(cluster: Cluster) -> None:
    server = cluster.start_parameter_server()
    with BridgeControl().connect(f"localhost:{cluster.ps_port}") as link:
        with link.parameter_server_stub("twin", timeout_sec=60.0) as stub:

            def push(incarnation: int, sequence: int, gradient_version: int) -> Reply:
                record = Push(
                    client_id="twin",
                    incarnation=incarnation,
                    sequence=sequence,
                    gradient=np.ones(PARAMETERS, np.float32).view(np.uint8),
                    gradient_version=gradient_version,
                    env_steps=10,
                    fingerprint=stub.manifest.fingerprint,
                )
                return stub._call_push_pull(record, False, gradient_version)

            assert get_numbers(push(1, 1, 0)) == ("applied", 1, 10)
            assert get_numbers(push(1, 2, 1)) == ("applied", 2, 20)
            assert get_numbers(push(2, 1, 2)) == ("applied", 3, 30)
            for again in (False, True):  # before a crash and after it
                for incarnation, sequence in [(1, 1), (1, 2), (1, 3)]:
                    late = push(incarnation, sequence, 2)
                    assert get_numbers(late) == ("dropped", 3, 30)
                    assert (
                        f"push {sequence} of incarnation {incarnation} arrived late" in late.reason
                    )
                assert get_numbers(push(2, 1, 2)) == ("applied", 3, 30)
                assert get_numbers(link.status()) == ("", 3, 30)
                if not again:
                    server.stop(signal.SIGKILL)
                    cluster.start_parameter_server()
                    link.wait(60.0)
            assert get_numbers(push(2, 2, 3)) == ("applied", 4, 40)


def get_numbers(reply: Reply | Status) -> tuple[str, int, int]:
    return getattr(reply, "outcome", ""), reply.version, reply.global_t


def test_sigterm_drains_and_saves_and_a_second_one_waits_for_nothing(
    cluster: Cluster, history: History
) -> None:
    checkpoints = cluster.folder / "run" / "checkpoints"
    for _ in range(20 if LONG else 1):
        server = cluster.start_parameter_server()
        history.wait(40)
        assert server.stop() == AFTER_SIGTERM
        assert TRACE not in server.output
        # All is in the snapshot: without the journal nothing is missing.
        shutil.rmtree(checkpoints / "journal")
    server = cluster.start_parameter_server(**{ENVIRONMENT_VARIABLE: "ps.in_snapshot=sleep:1000"})
    history.wait(40)
    server.send(signal.SIGTERM)
    wait_until(lambda: list(checkpoints.glob(".tmp-cp-*")), "the last snapshot")
    assert server.alive
    assert server.stop() == AFTER_SIGTERM
    cluster.start_parameter_server()
    history.wait(20)
    history.stop()
    history.check()
