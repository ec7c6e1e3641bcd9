"""Runs tests such that chance does not decide: a test that fails is run once more, alone.

    python -P tests/support/gate.py PYTEST_ARGUMENTS [-- PYTEST_ARGUMENTS ...]

Each group of arguments is one run of pytest in the working directory, which must be pytest's root.
The tests that fail in it are run once more when it has ended, one by one:

- A test that fails again fails the gate. Later groups are not run.
- If all of them pass, the gate continues. It ends green, with a line `FLAKY: TEST` for each.
- Nothing is run again when a module cannot be collected, when pytest itself fails, or when more
  than 10 tests have failed so far: chance does not explain that.

Failures of fixtures count, and so does the crash of a worker of pytest-xdist.

build/flaky keeps a file for each test with both outputs, and with what reproduces the first one:

- the seed of hypothesis, which is drawn once per gate and used again when the test is repeated;
- the lines `RELAAX_NAME=VALUE` that the test printed, such as the failpoint of a server that it
  started. Variables whose names end with `_SEED` are set when the test is repeated.
"""

import dataclasses
import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

FOLDER = Path("build", "flaky")
MOST_RERUNS = 10
_RECORD = "--record"
_ASSIGNMENT = re.compile(r"^(RELAAX_\w+)=(.*)$", re.MULTILINE)


@dataclasses.dataclass
class Failures:
    """What failed in a run of pytest.

    Attributes:
      tests: test -> all that it printed, and the tracebacks of its failures.
      broken: modules that could not be collected.
    """

    tests: dict[str, str] = dataclasses.field(default_factory=dict)
    broken: list[str] = dataclasses.field(default_factory=list)


class Recorder:
    """A plugin of pytest's main process: writes failures to a file as they come."""

    def __init__(self, path: Path):
        self._path = path
        self._failures = Failures()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            parts = [f"{report.when} failed", report.longreprtext]
            parts += [f"--- {title} ---\n{text}" for title, text in report.sections]
            before = self._failures.tests.get(report.nodeid, "")
            self._failures.tests[report.nodeid] = before + "\n".join(parts) + "\n\n"
            self._write()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._failures.broken.append(report.nodeid)
            self._write()

    def _write(self) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(dataclasses.asdict(self._failures)))
        new.replace(self._path)  # complete, also when a crash of pytest follows


def run_and_record(arguments: Sequence[str], path: Path) -> int:
    """Runs pytest in this process; returns its exit status."""
    return int(pytest.main(list(arguments), plugins=[Recorder(path)]))


class Gate:
    """Runs groups of tests, and repeats what fails.

    Attributes:
      flaky: tests that failed and then passed.
    """

    def __init__(self) -> None:
        self.flaky: list[str] = []
        self._seed = f"--hypothesis-seed={secrets.randbits(32)}"

    def run(self, arguments: Sequence[str]) -> bool:
        """Runs a group; returns whether it is green."""
        status, failures = self._run_pytest(arguments)
        if status == pytest.ExitCode.OK:
            return True
        if failures.broken or status != pytest.ExitCode.TESTS_FAILED or not failures.tests:
            print(f"gate: pytest ended with status {status}; nothing is run again", flush=True)
            return False
        number = len(self.flaky) + len(failures.tests)
        if number > MOST_RERUNS:
            print(
                f"gate: {number} tests failed, more than {MOST_RERUNS}; nothing is run again",
                flush=True,
            )
            return False
        failed = [test for test, text in failures.tests.items() if not self._repeat(test, text)]
        for test in failed:
            print(f"FAILED TWICE: {test}", flush=True)
        return not failed

    def _run_pytest(self, arguments: Sequence[str]) -> tuple[int, Failures]:
        FOLDER.mkdir(parents=True, exist_ok=True)
        record = FOLDER / f"{os.getpid()}.json"
        record.write_text(json.dumps(dataclasses.asdict(Failures())))
        command = [sys.executable, "-P", __file__, _RECORD, str(record), self._seed, *arguments]
        try:
            return _wait(subprocess.Popen(command)), Failures(**json.loads(record.read_text()))
        finally:
            record.unlink()

    def _repeat(self, test: str, text: str) -> bool:
        """Runs a test again, alone; returns whether it passes now."""
        printed = dict.fromkeys(_ASSIGNMENT.findall(text))
        about = [f"{name}={value}" for name, value in printed]
        seeds = {name: value for name, value in printed if name.endswith("_SEED")}
        print(f"\ngate: once more, alone: {test}", flush=True)
        print("gate: the first time with", self._seed, *about, flush=True)
        path = FOLDER / f"{_make_file_name(test)}.txt"
        head = [time.strftime("%Y-%m-%d %H:%M:%S"), test, self._seed, *about]
        # A test can print what is not valid Unicode, such as a damaged file name.
        path.write_text("\n".join([*head, "", text]), errors="backslashreplace")
        command = [sys.executable, "-P", "-m", "pytest", self._seed, test]
        done = subprocess.run(
            command,
            env={**os.environ, **seeds},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        with path.open("a") as file:
            file.write(f"\nonce more, alone: status {done.returncode}\n{done.stdout}")
        if done.returncode != pytest.ExitCode.OK:
            print(done.stdout, flush=True)
            return False
        print(f"gate: it passed; the first failure is in {path}", flush=True)
        self.flaky.append(test)
        return True


def _wait(process: "subprocess.Popen[bytes]") -> int:
    """Waits for the end; Ctrl-C has reached the process as well, which ends in order."""
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue


def _make_file_name(test: str) -> str:
    return re.sub(r"[^\w.\[\]-]+", ".", test)[:200]


def split_groups(arguments: Sequence[str]) -> list[list[str]]:
    """Splits at each `--`."""
    groups: list[list[str]] = [[]]
    for argument in arguments:
        if argument == "--":
            groups.append([])
        else:
            groups[-1].append(argument)
    return groups


def main(arguments: Sequence[str]) -> int:
    """Runs all groups; returns the exit status."""
    gate = Gate()
    green = all(gate.run(group) for group in split_groups(arguments))
    for test in gate.flaky:
        print(f"FLAKY: {test}", flush=True)
    return 0 if green else 1


if __name__ == "__main__":
    given = sys.argv[1:]
    if given[:1] == [_RECORD]:
        sys.exit(run_and_record(given[2:], Path(given[1])))
    sys.exit(main(given))
