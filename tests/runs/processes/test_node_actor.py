"""The actor of a node, without Ray, and what of ours Ray gets to pickle."""

import ast
import inspect
import json
import os
import re
import socket
import sys
import tempfile
import typing
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import ray
from ray import cloudpickle
from support.cluster import ROOT, wait_until

from relaax_like.launch.samplers import SamplerHost
from relaax_like.runs.processes.node_actor import NodeActor, find_free_address
from relaax_like.runs.processes.ray_launcher import RayLauncher, _RayProcess, shorten
from relaax_like.runs.processes.topology import Node
from relaax_like.wire.errors import RelaaxError

# A call that gives Ray a class, a function or an object.
GIVES = re.compile(r"\bray\.(remote|put)$")


@pytest.fixture
def actor() -> Iterator[NodeActor]:
    folder = os.getcwd()
    actor = NodeActor(term_sec=1.0)
    yield actor
    actor.kill()
    os.chdir(folder)


def make_command(script: str, folder: str = "/none", **fields: Any) -> str:
    command = {"name": "rlx", "role": "rlx server", "argv": ["", "-c", script], "env": {}}
    return json.dumps({**command, "folder": folder, "config": "e.yaml", "text": "", **fields})


def read_all(actor: NodeActor) -> list[list[str]]:
    """Returns the events up to the end of the process."""
    events: list[list[str]] = []

    def read() -> bool:
        events.extend(json.loads(actor.read(0.5)))
        return events[-1:] != [] and events[-1][0] == "end"

    wait_until(read, events, 30)
    return events


def test_a_process_s_lines_and_reports_and_at_last_its_status(
    actor: NodeActor, tmp_path: Path
) -> None:
    script = (
        "import os, sys\n"
        "os.write(int(os.environ['RELAAX_REPORTS']), b'ready \\n')\n"
        "print(os.getcwd(), os.environ['KEY'], sys.executable)\n"
        "sys.exit(7)"
    )
    assert isinstance(actor.start(make_command(script, str(tmp_path), env={"KEY": "v"})), int)
    events = read_all(actor)
    assert sorted(events[:-1]) == [
        ["line", f"{tmp_path} v {sys.executable}"],
        ["report", "ready \n"],
    ]
    assert events[-1] == ["end", "7"]


def test_the_next_life_has_its_own_lines(actor: NodeActor) -> None:
    for text in ("first", "second"):
        actor.start(make_command(f"print({text!r})"))
        assert read_all(actor) == [["line", text], ["end", "0"]]


def test_the_end_leaves_no_descendant(actor: NodeActor) -> None:
    sleep = "import time; time.sleep(600)"
    script = (
        "import subprocess, sys\n"
        f"print(subprocess.Popen([sys.executable, '-c', {sleep!r}]).pid, flush=True)\n{sleep}"
    )
    pid = actor.start(make_command(script))
    wait_until(lambda: json.loads(actor.read(0.5)) or None, "its line", 30)
    (child,) = psutil.Process(int(pid)).children()
    actor.terminate()
    assert read_all(actor)[-1] == ["end", "-15"]
    psutil.wait_procs([child], 10)
    assert not child.is_running()


def test_a_machine_without_the_file_or_with_another_one_gets_a_copy(
    actor: NodeActor, tmp_path: Path
) -> None:
    file = tmp_path / "e.yaml"
    script = "import pathlib, sys; p = pathlib.Path(sys.argv[1]); print(p, p.read_text())"
    places = []
    for has in (None, "seed: 2", "seed: 1"):
        if has is not None:
            file.write_text(has)
        argv = ["", "-c", script, str(file)]
        actor.start(make_command("", argv=argv, config=str(file), text="seed: 1"))
        (_, line), end = read_all(actor)
        assert end == ["end", "0"]
        place, _, text = line.partition(" ")
        assert text == "seed: 1"
        places.append(place)
    assert places[0] != places[1] != str(file) == places[2]
    assert not any(Path(place).exists() for place in places[:2])


def test_what_cannot_be_started_is_said(actor: NodeActor) -> None:
    answer = actor.start(make_command("", argv=["/no/such/program"]))
    assert isinstance(answer, str)
    assert "rlx: cannot start /no/such/program" in answer


def test_a_machine_without_space_for_the_file_says_so(
    actor: NodeActor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    answer = actor.start(make_command(""))
    assert isinstance(answer, str)
    assert re.match(r"rlx: cannot prepare the start on .*none.*: No such file", answer), answer


def test_what_a_method_of_an_actor_raises_is_shown_without_ray_s_traceback() -> None:
    error: Any = Exception("ray::NodeActor.find_address() (pid=7)\n  File ...")
    assert shorten(error) == "ray::NodeActor.find_address() (pid=7)"
    error.cause = RelaaxError("127.0.0.1: no free port")
    assert shorten(error) == "127.0.0.1: no free port"


def test_a_node_that_cannot_be_placed_has_a_cure() -> None:
    error: Any = Exception("The actor died.")

    def get(*_: object, **__: object) -> None:
        raise error

    exceptions = SimpleNamespace(GetTimeoutError=TimeoutError, RayError=Exception)
    launcher: Any = SimpleNamespace(
        ray=SimpleNamespace(get=get, exceptions=exceptions), placement_sec=1.0
    )
    node: Any = SimpleNamespace(name="rlx")
    actor: Any = SimpleNamespace(find_address=SimpleNamespace(remote=lambda: None))
    with pytest.raises(RelaaxError, match="rlx: cannot be placed: The actor died; check that all"):
        RayLauncher._place(launcher, node, actor)
    error.cause = RelaaxError("127.0.0.1: no free port; end a program")
    with pytest.raises(RelaaxError, match=r"no free port; end a program$"):
        RayLauncher._place(launcher, node, actor)


def test_a_cluster_that_is_lost_before_a_start_has_a_place_is_said() -> None:
    def refuse(node: Node) -> None:
        raise ray.exceptions.RayError("the head is gone")

    launcher: Any = SimpleNamespace(ray=ray, validate_start=refuse)
    lines: list[bytes] = []
    node = Node(name="ps", role="parameter server", argv=[])
    process = _RayProcess(launcher, node, lines.extend, lambda line: None)
    process.begin()
    assert process.wait(10)
    assert process.poll() == 1
    want = b"ps: Ray cannot start it: the head is gone; check that the cluster's head is up"
    assert lines == [want]


def test_a_free_port_is_on_the_machine_s_address() -> None:
    address = find_free_address("127.0.0.1")
    with socket.socket() as server:
        server.bind((address.host, address.port))
    with pytest.raises(RelaaxError, match=r"192\.0\.2\.1 is not an address of this machine"):
        find_free_address("192.0.2.1")


@pytest.mark.parametrize(("actor", "least"), [(NodeActor, 4), (SamplerHost, 1)])
def test_ray_gets_a_class_of_the_package_by_its_name_and_text_and_numbers(
    actor: Any, least: int
) -> None:
    pickled = cloudpickle.dumps(actor)
    assert len(pickled) < 100  # a name; by value it has the code of all methods
    assert cloudpickle.loads(pickled) is actor
    plain = (str, bytes, int, float, int | str, None, type(None))
    methods = [m for n, m in inspect.getmembers(actor, inspect.isfunction) if n[0] != "_"]
    assert len(methods) >= least
    for method in (*methods, actor.__init__):
        assert set(typing.get_type_hints(method).values()) <= set(plain), method


def test_no_other_class_or_function_is_handed_to_ray() -> None:
    remote = []
    for path in (ROOT / "relaax_like").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and GIVES.search(ast.unparse(node.func)):
                remote.append((path.name, ast.unparse(node)))
    assert sorted(remote) == [
        ("ray_launcher.py", "self.ray.remote(NodeActor)"),
        ("samplers.py", "ray.remote(SamplerHost)"),
    ]


def test_a_signal_handler_can_kill_while_its_thread_holds_the_lock() -> None:
    launcher: Any = None
    node = Node(name="env1", role="environment", argv=["true"])
    process = _RayProcess(launcher, node, lambda lines: None, lambda line: None)
    with process._lock:
        process.kill()
    assert process._asked_to_end
