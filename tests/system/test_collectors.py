"""Collectors on another machine, with TLS and tokens. covers D23, D26"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.certificates import OPERATOR, Authority, write_private
from support.cluster import Program, find_command, wait_until
from support.machines import HERE, THERE, Machines

RELAAX = find_command("relaax")
LEARNER = "learner-token-00000000000004"
PORT = 7004


class Site(Machines):
    """A coordinator, and the files of certificates and tokens that all machines have."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        authority = Authority(folder / "secrets")
        authority.issue(HERE, THERE)
        self.tls = ["--tls-cert", authority.cert, "--tls-key", authority.key]
        self.tls += ["--tls-ca", authority.ca]
        tokens = f"learner {LEARNER}\noperator {OPERATOR}\n"
        self.tokens = ["--tokens-file", write_private(folder / "tokens", tokens)]
        self.learner = ["--token-file", write_private(folder / "learner-token", LEARNER)]
        token = write_private(folder / "operator-token", OPERATOR)
        self.operator = ["--token-file", token, "--tls-ca", authority.ca]
        self.connect()

    def serve(self) -> None:
        argv = [RELAAX, "jobs", "serve", self.folder / "queue", "--bind", f"{HERE}:{PORT}"]
        self.start_in(self.here, "serve", [*argv, *self.tls, *self.tokens]).wait_for(
            "coordinator on"
        )

    def work(self, machine: Program, name: str, *flags: object) -> Program:
        """Starts a slave."""
        work = ["--name", name, "--work", self.folder / name, *self.learner]
        argv = [RELAAX, "jobs", "work", f"{HERE}:{PORT}", *work, *flags]
        return self.start_in(machine, name, argv)

    def ask(self, *arguments: object) -> str:
        """Returns what a command of the operator prints."""
        argv = [RELAAX, "jobs", *arguments, "--coordinator", f"{HERE}:{PORT}", *self.operator]
        program = self.start_in(self.here, "operator", argv)
        assert program.wait() == 0, program
        return program.output


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path) as site:
        yield site


@pytest.mark.slow
def test_four_collectors_on_two_machines_train_cartpole(site: Site) -> None:
    site.serve()
    here = [*site.tls, *site.tokens, "--advertise", HERE]
    there = [*site.tls, *site.tokens, "--advertise", THERE]
    for name, machine, flags in (
        ("here-1", site.here, here),
        ("here-2", site.here, here),
        ("there-1", site.there, there),
        ("there-2", site.there, [*there, "--own-policy"]),
        ("there-3", site.there, [*there, "--own-policy"]),
    ):
        site.work(machine, name, *flags).wait_for("is connected")
    sets = ["--set", "relaax-parameter-server.progress_interval_sec=1"]
    assert site.ask("submit", "ppo", "--collectors", 4, *sets) == "job 1"
    played = wait_until(lambda: _find_playing(site.ask("list")), "four collectors", 120)
    assert len({name.partition("-")[0] for name in played}) == 2
    text = wait_until(lambda: _find_done(site.ask("list")), site.started, 200, 5.0)
    assert float(text) >= 475


def _find_playing(listed: str) -> list[str]:
    found = re.findall(r"slave (\S+): job 1, collector \d", listed)
    return found if len(found) == 4 else []


def _find_done(listed: str) -> str:
    assert "failed" not in listed, listed
    found = re.search(r" done .* mean return ([\d.]+) of the last", listed)
    return found[1] if found else ""


def test_another_machine_is_refused_without_tls_and_tokens(site: Site) -> None:
    plain = site.work(site.there, "plain", "--advertise", THERE)
    assert plain.wait() == 2
    assert "--advertise" in plain.output
    for flag in ("--tls-ca", "--tls-cert", "--tls-key", "--tokens-file"):
        assert flag in plain.output
    foreign = site.work(site.there, "foreign", *site.tls, *site.tokens, "--advertise", HERE)
    assert foreign.wait() == 2
    assert re.search(rf"--advertise: {re.escape(HERE)}: no port", foreign.output)
