"""The installed commands: help, settings mistakes, doctor, status. covers R17, R24"""

import importlib.metadata
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support.cluster import GYM_MAIN, ROOT, TRACE, Cluster, find_command
from support.here import refuse_here, run_here

from relaax_like.cli.doctor import _find_version
from relaax_like.cli.options import to_overrides
from relaax_like.cli.servers import APPS

SUBCOMMANDS = (
    "run",
    "train",
    "resume",
    "eval",
    "serve",
    "export",
    "plot",
    "compare",
    "status",
    "save",
    "stop",
    "trace",
    "fsck",
    "doctor",
)
HELP = [
    (find_command("relaax-parameter-server"), "--config"),
    (f"{sys.executable} {GYM_MAIN}", "--rlx-server"),
    (f"{sys.executable} {ROOT / 'environments' / 'bandit' / 'main'}", "usage"),
]
# Runs one command after the other in one process: entry and arguments, separated by "/".
ONE_AFTER_THE_OTHER = """
import sys
from relaax_like.cli import entry

for words in " ".join(sys.argv[1:]).split("/"):
    name, *arguments = words.split()
    sys.argv = [name, *arguments]
    try:
        getattr(entry, name)()
    except SystemExit as error:
        print(words, "ended with", error.code)
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        yield cluster


def run_without_tensorflow(argv: Sequence[str], folder: Path) -> str:
    """Returns what a command prints where TensorFlow must not be imported; not to a terminal."""
    (folder / "tensorflow.py").write_text("raise SystemExit('tensorflow was imported')")
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin", "COLUMNS": "100"},
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(("command", "text"), HELP, ids=lambda value: Path(value).name[-40:])
def test_help_is_printed_without_loading_tensorflow(
    command: str, text: str, tmp_path: Path
) -> None:
    for flag in ("--help", "-h"):
        assert text in run_without_tensorflow([*command.split(), flag], tmp_path)


def test_help_of_commands_is_printed_without_loading_tensorflow(tmp_path: Path) -> None:
    commands = [*APPS, "relaax", *(f"relaax {name}" for name in SUBCOMMANDS)]
    calls = [f"{name} {flag}" for name in commands for flag in ("--help", "-h")]
    argv = [sys.executable, "-c", ONE_AFTER_THE_OTHER, "/".join(calls)]
    printed = run_without_tensorflow(argv, tmp_path)
    for call in calls:
        text, found, printed = printed.partition(f"{call} ended with 0\n")
        assert found, printed
        assert re.search(rf"Usage: {call.rpartition(' ')[0]} ", text), text
    assert not printed


RELAAX = find_command("relaax")


SERVERS = ("parameter_server", "rlx_server", "metrics_server")


@pytest.mark.parametrize("command", [*SERVERS, "run", "train", "eval", "serve", "export"])
def test_an_unknown_key_is_named_with_its_line(command: str, cluster: Cluster) -> None:
    lines = cluster.config.read_text().replace("clients: 2", "clientz: 2")
    cluster.config.write_text("# a comment\n" + lines)
    if command in SERVERS:
        output = refuse_here("--config", cluster.config, app=APPS[command])
    else:
        output = refuse_here(command, cluster.config)
    number = len(cluster.config.read_text().splitlines())
    assert f"{cluster.config}:{number}: environment.clientz" in output
    assert "did you mean clients" in output
    assert not (cluster.folder / "run").exists()


MISTAKES = {
    "no such section": ("alogrithm.max_global_step=1", "algorithm"),
    "no such key": ("algorithm.max_global_steps=1", "max_global_step"),
    "wrong type": ("algorithm.max_global_step=many", "max_global_step"),
    "out of range": ("relaax-rlx-server.max_clients=0", "max_clients"),
    "no equals sign": ("algorithm.max_global_step", "="),
    "no key": ("=3", "="),
    "contradiction": ("relaax-rlx-server.max_slots_per_client=1", "environment.slots"),
}


@pytest.mark.parametrize(("override", "want"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistyped_set_is_named(override: str, want: str, cluster: Cluster) -> None:
    sets = ("--set", "environment.slots=2", "--set", override)
    output = refuse_here("--config", cluster.config, *sets, app=APPS["parameter_server"])
    assert output.startswith("error: ")
    assert want in output


def test_no_config_file_is_one_line() -> None:
    assert "nowhere.yaml" in refuse_here("train", "nowhere.yaml")


def test_a_flag_is_an_override_of_its_section_and_a_later_set_wins(cluster: Cluster) -> None:
    flags = "--checkpoint-dir one --metrics-dir two --log-level warning --bind localhost:1"
    program = cluster.start(
        "ps",
        [
            *(find_command("relaax-parameter-server"), "--config", cluster.config, *flags.split()),
            *("--checkpoint-time-interval", 7),
            *("--set", f"relaax-parameter-server.bind=localhost:{cluster.ps_port}"),
        ],
    )
    status = cluster.wait_status(lambda s: True, "any answer")
    assert status.checkpoint_dir == "one"
    assert program.stop() == 128 + signal.SIGTERM
    assert program.lines == []  # warnings only
    config = (cluster.folder / "run" / "config.yaml").read_text()
    assert "metrics_dir: two" in config
    assert "checkpoint_time_interval: 7" in config


def test_status_of_a_live_server_and_a_start_from_its_saved_configuration(
    cluster: Cluster,
) -> None:
    first = cluster.start_parameter_server("algorithm.max_global_step=77", "seed=3")
    first.wait_for("parameter server on")
    status, shown = run_here("status", f"localhost:{cluster.ps_port}")
    assert status == 0
    for row in ("running", "steps/s", "mean return", "parameters", "clients", "run/checkpoints"):
        assert row in shown
    watching = cluster.start("watch", [RELAAX, "status", f"localhost:{cluster.ps_port}", "--watch"])
    watching.wait_for("running|parameter server")
    assert watching.stop(signal.SIGINT) == 128 + signal.SIGINT
    assert TRACE not in watching.output
    first.stop()
    saved = cluster.folder / "run" / "config.yaml"
    text = saved.read_text()
    again = cluster.start("ps", [find_command("relaax-parameter-server"), "--config", saved])
    again.wait_for(f"parameter server on .*:{cluster.ps_port}")
    assert "building the initial values" not in again.output
    assert saved.read_text() == text


def test_doctor_finds_this_installation_healthy(cluster: Cluster) -> None:
    # Importing the real one takes seconds; whether one is imported, the next test tells.
    (cluster.folder / "tensorflow.py").touch()
    program = cluster.start("doctor", [RELAAX, "doctor"], PYTHONPATH=str(cluster.folder))
    assert program.wait() == 0, program
    for what in ("python", "numpy", "tensorflow", "numba", "gymnasium", "kernels", "port 7000"):
        assert any(what in line for line in program.lines), what
    assert "FAIL" not in program.output
    assert TRACE not in program.output


def test_doctor_names_what_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("import os; os.abort()")
    (tmp_path / "gymnasium.py").write_text("raise ImportError('no [such] symbol')")
    done = subprocess.run(
        [RELAAX, "doctor"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "60"},
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (1, "")
    lines = {line.split(":")[0].split()[-1]: line for line in done.stdout.splitlines()}
    assert lines["tensorflow"].startswith("FAIL")
    assert "cannot be imported: its process was killed by SIGABRT" in lines["tensorflow"]
    assert lines["gymnasium"].startswith("note")
    assert "cannot be imported: ImportError: no [such] symbol" in lines["gymnasium"]
    assert lines["numpy"].startswith("ok")


@pytest.mark.parametrize("flags", [(), ("--watch",)], ids=["once", "watch"])
def test_status_without_a_server_is_one_line(cluster: Cluster, flags: tuple[str, ...]) -> None:
    address = f"localhost:{cluster.ps_port}"
    line = refuse_here("status", address, *flags, status=1)
    want = f"error: no answer from the parameter server at {address}: nothing listens there"
    assert line.startswith(want)
    for word in ("UNAVAILABLE", "UNKNOWN", "ipv4", "last error"):
        assert word not in line


def test_the_text_of_an_option_stays_text() -> None:
    flags = {"checkpoint_dir": "7", "metrics_dir": "a #b", "bind": None, "interval": 7.5}
    assert to_overrides("ps", flags, ["seed=1"]) == [
        'ps.checkpoint_dir="7"',
        'ps.metrics_dir="a #b"',
        "ps.interval=7.5",
        "seed=1",
    ]


def test_doctor_names_the_distribution_that_provides_a_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    providers = {"yaml": ["PyYAML"]}
    monkeypatch.setattr(importlib.metadata, "packages_distributions", lambda: providers)
    version = importlib.metadata.version("PyYAML")
    assert _find_version("no-such-distribution", "yaml") == f"PyYAML {version}"
    assert _find_version("no-such-distribution", "no_such_module") == "unknown version"
