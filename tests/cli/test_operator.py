"""`relaax status`, `save`, `stop` and the page for Prometheus of a live server. covers R24"""

import contextlib
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster import BARE, Cluster, find_command, find_free_port
from support.here import refuse_here, run_here
from support.history import History, write_initial_values
from support.terminal import Terminal

from relaax_like.bridge.control import BridgeControl
from relaax_like.cli.servers import APPS
from relaax_like.parameter_server.snapshots import read_latest

RELAAX = find_command("relaax")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, BARE, *write_initial_values(tmp_path, 100)) as cluster:
        yield cluster


def run_command(cluster: Cluster, command: str) -> tuple[int, str]:
    with contextlib.chdir(cluster.folder):
        status, output = run_here(command, f"localhost:{cluster.ps_port}")
    return status, output.rstrip("\n")


def test_an_operator_looks_saves_and_stops(cluster: Cluster) -> None:
    port = find_free_port()
    server = cluster.start_parameter_server(
        f"relaax-parameter-server.prometheus_bind=localhost:{port}",
        "relaax-parameter-server.checkpoint_time_interval=null",
    )
    history = History(f"localhost:{cluster.ps_port}", clients=2, pushes=15)
    history.start()
    history.join()

    status, text = run_command(cluster, "save")
    assert (status, text.count("\n")) == (0, 0)
    state = read_latest(cluster.folder / "run" / "checkpoints")
    assert state is not None
    assert state.version == 30
    assert Path(text).is_dir()

    status, text = run_command(cluster, "status")
    assert status == 0
    for part in ("verified ", "client-0: 15 gradients", "versions behind", "MB"):
        assert part in text, text
    with urllib.request.urlopen(f"http://localhost:{port}/metrics", timeout=10) as answer:
        page = answer.read().decode()
    assert "relaax_version 30.0" in page
    assert f"relaax_env_steps_total {state.global_t:.1f}" in page
    assert "relaax_crash_loses_updates 0.0" in page

    status, text = run_command(cluster, "stop")
    assert status == 0
    assert "is saving and will then exit" in text
    assert server.wait() == 0
    cluster.start_parameter_server()
    history.check()


@pytest.mark.parametrize("command", ["save", "stop"])
def test_without_a_server_it_is_one_line(cluster: Cluster, command: str) -> None:
    status, text = run_command(cluster, command)
    assert status == 1
    assert text.startswith("error: ")
    assert str(cluster.ps_port) in text


def refuse_page(cluster: Cluster, address: str) -> str:
    bind = f"relaax-parameter-server.prometheus_bind={address}"
    return refuse_here("--config", cluster.config, "--set", bind, app=APPS["parameter_server"])


def test_a_page_for_other_machines_is_refused(cluster: Cluster) -> None:
    assert "prometheus_bind: 0.0.0.0:0 can be reached from other machines" in refuse_page(
        cluster, "0.0.0.0:0"
    )


def test_a_replaced_machine_goes_on_from_the_mirror(cluster: Cluster) -> None:
    mirror = f"relaax-parameter-server.mirror_url=file://{cluster.folder}/mirror"
    server = cluster.start_parameter_server(mirror)
    history = History(f"localhost:{cluster.ps_port}", clients=2, pushes=10)
    history.start()
    history.join()
    assert server.stop(signal.SIGTERM) == 128 + signal.SIGTERM
    (cluster.folder / "run").rename(cluster.folder / "lost")
    again = cluster.start_parameter_server(mirror)
    again.wait_for("downloaded the newest snapshot from the mirror")
    history.check()
    status, text = run_command(cluster, "status")
    assert status == 0
    assert "mirror" in text


def test_a_page_at_the_server_s_own_address_is_refused(cluster: Cluster) -> None:
    line = refuse_page(cluster, f"127.0.0.1:{cluster.ps_port}")
    assert "collides with the server's own address" in line


def test_names_of_clients_are_shown_as_they_are(cluster: Cluster) -> None:
    server = cluster.start_parameter_server()
    server.wait_for("parameter server on")
    with BridgeControl().connect(f"localhost:{cluster.ps_port}") as link:
        with link.parameter_server_stub(f"env[/1] [red]b {'c' * 150}") as client:
            client.push_pull()
    status, text = run_command(cluster, "status")
    assert status == 0
    assert "env[/1] [red]b" in text
    # The table is as wide as possible, and complete after Ctrl-C.
    argv = [RELAAX, "status", f"localhost:{cluster.ps_port}", "--watch"]
    with Terminal(argv, cluster.folder) as terminal:
        terminal.wait_for(lambda screen: "└" in screen.text)
        terminal.type("\x03")
        terminal.process.send_signal(signal.SIGINT)
        screen = terminal.wait()
    assert screen.text.count("parameter server localhost") == 1, screen.text
