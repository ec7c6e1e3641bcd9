"""`relaax jobs`: the typed lines of the documents, with a real training. covers D23"""

import json
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.certificates import write_private
from support.cluster import TRACE, Processes, Program, find_free_port, wait_until
from support.here import refuse_here
from typer.testing import CliRunner

from relaax_like.cli.main import app

RELAAX = (sys.executable, "-m", "relaax_like.cli.main")
# A snapshot each second, of a training that lasts for minutes.
SETS = (
    "relaax-parameter-server.checkpoint_time_interval=1",
    "relaax-parameter-server.progress_interval_sec=0.5",
    "learner.target_return=null",
    "environment.slots=2",
)


class Commands(Processes):
    """Runs `relaax jobs` for one coordinator."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.address = f"localhost:{find_free_port()}"

    def serve(self, *flags: object) -> Program:
        return self.start(
            "serve", [*RELAAX, "jobs", "serve", "queue", "--bind", self.address, *flags]
        )

    def work(self, name: str, *flags: object) -> Program:
        return self.start(name, [*RELAAX, "jobs", "work", self.address, "--name", name, *flags])

    def run(self, *arguments: object, expected: int = 0) -> str:
        """Runs an operator's command to its end; returns what it prints."""
        words = ["jobs", *map(str, arguments), "--coordinator", self.address]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == expected, done.output
        return done.output.rstrip()

    def get(self, job: int) -> dict[str, object]:
        (found,) = json.loads(self.run("list", job, "--json"))["jobs"]
        return dict(found)


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    with Commands(tmp_path) as commands:
        yield commands


def test_a_real_training_moves_to_another_slave_and_is_cancelled(commands: Commands) -> None:
    """covers D17, D24"""
    serve, first = commands.serve("--silence-sec", 2), commands.work("first")
    first.wait_for("is connected to the coordinator")
    assert psutil.Process(first.pid).memory_info().rss < 120e6  # without TensorFlow
    sets = [part for text in SETS for part in ("--set", text)]
    assert commands.run("submit", "policy_gradient/policy_gradient", *sets) == "job 1"
    serve.wait_for(r"job 1, attempt 1: version 1, step \d+")
    first.stop(signal.SIGKILL)
    serve.wait_for("job 1, attempt 1: its slave was silent for 2 s; the job is queued")
    step = int(str(commands.get(1)["step"]))
    assert step > 0
    second = commands.work("second")
    second.wait_for("job 1, attempt 2: relaax resume run")
    found = serve.wait_for(r"job 1, attempt 2: version \d+, step (\d+)")
    assert int(found[1]) > step
    table = commands.run("list")
    assert re.search(r"1 +policy_gradient +running +2 .* second\nslave second: job 1", table)

    # Ctrl-C: the newest version is sent, and the job waits for another slave.
    assert second.stop(signal.SIGINT) == 128 + signal.SIGINT
    assert commands.get(1)["state"] == "queued"
    assert "no slave that runs jobs is connected" not in commands.run("cancel", 1)
    shown = commands.run("list", 1)
    assert re.search(r"state +cancelled\n", shown)
    folder = Path(commands.folder, str(commands.get(1)["folder"]))
    assert (folder / "config.yaml").exists()
    assert not (commands.folder / "work-second" / "job").exists()
    assert "has already ended" not in commands.run("cancel", 1)  # once more is no mistake
    assert serve.stop(signal.SIGINT) == 128 + signal.SIGINT
    for program in (serve, second):
        assert TRACE not in program.output
    commands.assert_nothing_left()


def start_collecting(commands: Commands, steps: int, *others: str) -> Program:
    """Starts a job with two collectors, its coordinator and its learner by one command."""
    sets = [*SETS, f"algorithm.max_global_step={steps}"]
    flags = [part for text in sets for part in ("--set", text)] + [*others]
    name = "policy_gradient/policy_gradient"
    return commands.start("run", [*RELAAX, "jobs", "run", name, "--collectors", 2, *flags])


@pytest.mark.parametrize("flags", [(), ("--own-policy",)], ids=["served", "own policy"])
def test_one_command_runs_a_job_with_its_collectors(
    commands: Commands, flags: tuple[str, ...]
) -> None:
    """covers D26"""
    program = start_collecting(commands, 3_000, *flags)
    assert program.wait(120) == 0
    for number in (1, 2):
        program.wait_for(rf"job 1, attempt 1, collector {number}: (finished|ended)")
    program.wait_for(r"job 1: done: .* 3000 .* its folder is queue/runs/job-1/")
    assert TRACE not in program.output
    commands.assert_nothing_left()
    newest = max((commands.folder / "queue/runs/job-1/latest/checkpoints").glob("cp-*"))
    assert int(newest.name.split("-")[1]) >= 3_000


@pytest.mark.slow
def test_one_command_continues_the_job_that_it_was_interrupted_in(commands: Commands) -> None:
    """covers D23, D26"""
    first = start_collecting(commands, 20_000)
    first.wait_for(r"version 1, step \d+")
    assert first.stop(signal.SIGINT) == 128 + signal.SIGINT
    again = start_collecting(commands, 20_000)
    again.wait_for("job 1, attempt 2: relaax resume run")
    assert again.wait(120) == 0
    again.wait_for("job 1: done:")
    commands.assert_nothing_left()


MODULE = """
import gymnasium, pathlib
from gymnasium.envs.classic_control import CartPoleEnv
pathlib.Path({marker!r}).touch()
gymnasium.register("Own-v0", CartPoleEnv)
"""


def test_a_module_of_a_slaves_own_is_imported_from_its_installation_only(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed, imported, wrong = (commands.folder / n for n in ("site", "imported", "wrong"))
    installed.mkdir()
    (installed / "own_envs.py").write_text(MODULE.format(marker=str(imported)))
    # What lies in the folder where the slave was started is not imported, nor in that of a job.
    (commands.folder / "own_envs.py").write_text(MODULE.format(marker=str(wrong)))
    (commands.folder / "other_envs.py").write_text(MODULE.format(marker=str(wrong)))
    monkeypatch.setenv("PYTHONPATH", f".::{installed}")
    serve = commands.serve()
    allowed = ("--environment-module", "own_envs", "--environment-module", "other_envs")
    slave = commands.work("slave", *allowed)
    slave.wait_for("is connected to the coordinator")
    sets = ["--set", "algorithm.max_global_step=200", "--set", "learner.target_return=null"]

    def submit(env: str) -> None:
        commands.run(
            "submit", "policy_gradient/policy_gradient", *sets, "--set", f"environment.env={env}"
        )

    for env in ("own_envs:Own-v0", "other_envs:Own-v0", "os:Own-v0"):
        submit(env)
    serve.wait_for("job 1, attempt 1: done")
    serve.wait_for("job 2, attempt 3: failed")
    assert imported.exists()
    assert not wrong.exists()
    assert "No module named 'other_envs'" in commands.run("list", 2)
    assert "no connected slave has 'module-os' among its environments" in commands.run("list", 3)


def test_mistakes_are_one_line(commands: Commands) -> None:
    unreachable = commands.run("list", expected=1)
    assert unreachable == (
        f"error: no answer from the coordinator at {commands.address}: nothing listens there, or "
        "the connection was lost; is it running?"
    )
    assert commands.run("submit", "nothing", expected=2).startswith("error: nothing: no such file")
    refused = commands.run("submit", "sac", "--set", "learner.previous=/x", expected=2)
    assert "learner.previous: a job cannot have this key" in refused
    serve = commands.serve()
    serve.wait_for("coordinator on localhost")
    assert "no jobs; add one with: relaax jobs submit CONFIG" in commands.run("list")
    assert commands.run("cancel", 7, expected=1) == (
        "error: there is no job 7; `relaax jobs list` shows all"
    )
    submitted = commands.run("submit", "ppo", "--collectors", 300, expected=1)
    assert submitted.startswith("error: collectors: 300")
    plain = commands.run(
        "submit", "ppo", "--set", "learner.workers=2", "--collectors", 1, expected=1
    )
    assert "learner.workers: 2, but this job has collectors" in plain
    assert commands.run("submit", "ppo", "--collectors", 1) == "job 1"
    assert commands.run("collectors", 1, 3) == "job 1 is to have 3 collectors"
    assert commands.get(1)["collectors"] == 3
    bind = ("jobs", "serve", commands.folder / "queue", "--bind")
    other = refuse_here(*bind, "localhost:0", status=1)
    assert "in use by another coordinator (pid" in other
    exposed = refuse_here(*bind, "0.0.0.0:0")
    assert "has no TLS and no tokens. Configure TLS and tokens with --tls-cert" in exposed
    half = refuse_here(*bind[:-1], "--tls-cert", "x.pem")
    assert "--tls-key: missing, but --tls-cert is set" in half
    work = ("jobs", "work", commands.address, "--work", commands.folder / "work", "--name")
    wrong = refuse_here(*work, "wrong name", status=1)
    assert wrong.startswith("error: --name: 'wrong name', expected 1 to 100 characters")
    assert not Path("work-wrong name").exists()
    first = commands.work("same")
    first.wait_for("is connected")
    assert serve.stop(signal.SIGTERM) == 128 + signal.SIGTERM
    assert first.stop(signal.SIGINT) == 128 + signal.SIGINT
    for program in commands.started:
        assert TRACE not in program.output


def test_a_slave_without_a_token_ends_with_one_line(commands: Commands) -> None:
    tokens = write_private(commands.folder / "tokens", "learner learner-token-000000000001\n")
    token = write_private(commands.folder / "token", "learner-token-000000000001\n")
    commands.serve("--tokens-file", tokens).wait_for("coordinator on localhost")
    slave = commands.work("slave")
    assert slave.wait() == 2
    assert "refused: Poll: no token was sent, but one of role learner" in slave.lines[-1]
    assert commands.work("slave", "--token-file", token).wait_for("is connected")
    refused = commands.run("list", "--token-file", token, expected=2)
    assert "has role learner, but role operator is required" in refused


def test_help_says_what_it_does() -> None:
    shown = CliRunner().invoke(app, ["jobs", "--help"])
    for name in ("serve", "work", "submit", "list", "collectors", "cancel"):
        assert name in shown.stdout
        one = CliRunner().invoke(app, ["jobs", name, "--help"])
        assert one.exit_code == 0
        assert "--token" in one.stdout


def test_submission_from_python(commands: Commands) -> None:
    """The lines of docs/jobs.md."""
    from relaax_like.addons.coordinator.client import JobsClient
    from relaax_like.config.job_keys import make_job_config

    commands.serve().wait_for("coordinator on")
    with JobsClient(commands.address) as jobs:
        for seed in range(3):
            jobs.submit(f"cartpole-{seed}", make_job_config("ppo", [f"seed={seed}"]))
        found = wait_until(lambda: jobs.list()[0], "the jobs")
        assert [json.loads(jobs.list(job.job)[0][0].config)["seed"] for job in found] == [0, 1, 2]
