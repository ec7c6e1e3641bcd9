"""The gate, as `make test` calls it, on tests that fail once, twice, or all together."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

GATE = Path(__file__).with_name("gate.py")
# Fails when it is called for the first time.
ONCE = """
import os
from pathlib import Path

import pytest


def is_first(name):
    path = Path(name)
    first = not path.exists()
    path.touch()
    return first
"""
CHANCE = """
def test_call():
    print("RELAAX_FAILPOINT=ps.in_snapshot=kill@2")
    print("RELAAX_SOME_SEED=17")
    if is_first("call"):
        assert False, "the first failure"
    assert os.environ["RELAAX_SOME_SEED"] == "17"
    assert "RELAAX_FAILPOINT" not in os.environ
    assert "PYTEST_XDIST_WORKER" not in os.environ


@pytest.fixture
def breaks_in_the_end():
    yield
    assert not is_first("teardown")


def test_teardown(breaks_in_the_end):
    pass


def test_crash():
    if is_first("crash"):
        os._exit(7)


def test_good():
    pass
"""
ALWAYS = """
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

drawn = []


def test_bad():
    assert False, "as always"


@settings(max_examples=5, phases=[Phase.generate], database=None)
@given(st.integers(0, 2**60))
def test_draw(number):
    drawn.append(number)
    path = Path("drawn")
    if len(drawn) == 5 and not path.exists():
        path.write_text(str(number))
    assert not path.exists() or str(number) != path.read_text()
"""
GOOD = "def test_good():\n    pass\n"


def run_gate(folder: Path, *arguments: str, **modules: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]\n")
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    # Others take as long to import as all the rest.
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    env["PYTEST_PLUGINS"] = "xdist.plugin,_hypothesis_pytestplugin"
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(ONCE + text)
    return subprocess.run(
        [sys.executable, "-P", GATE, *arguments],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=100,
        check=False,
    )


def test_what_passes_alone_is_flaky_and_does_not_decide(tmp_path: Path) -> None:
    groups = ("-n2", "--dist=loadfile", "test_chance.py", "--", "test_good.py")
    done = run_gate(tmp_path, *groups, test_chance=CHANCE, test_good=GOOD)
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert sorted(lines[-3:]) == [
        f"FLAKY: test_chance.py::test_{name}" for name in ("call", "crash", "teardown")
    ]
    closing = [i for i, line in enumerate(lines) if re.search(r"\d passed.* in \d", line)]
    assert len(closing) == 2, "pytest's own last line, of each group"
    again = [i for i, line in enumerate(lines) if "once more, alone" in line]
    assert closing[0] < min(again) < max(again) < closing[1]
    kept = {path.name: path.read_text() for path in (tmp_path / "build" / "flaky").iterdir()}
    assert len(kept) == 3, kept.keys()
    first, second = kept["test_chance.py.test_call.txt"].split("once more, alone: status 0\n")
    assert "the first failure" in first
    assert "1 passed" in second
    assert "crashed" in kept["test_chance.py.test_crash.txt"]
    seed = re.search(r"--hypothesis-seed=\d+", first)
    assert seed is not None
    said = f"{seed[0]} RELAAX_FAILPOINT=ps.in_snapshot=kill@2 RELAAX_SOME_SEED=17\n"
    assert f"gate: the first time with {said}" in done.stdout


def test_what_fails_twice_fails_and_ends_the_gate(tmp_path: Path) -> None:
    groups = ("test_always.py", "--", "test_good.py")
    done = run_gate(tmp_path, *groups, test_always=ALWAYS, test_good=GOOD)
    assert done.returncode == 1
    twice = [line for line in done.stdout.splitlines() if line.startswith("FAILED TWICE: ")]
    assert [line.rpartition("::")[2] for line in twice] == ["test_bad", "test_draw"]
    assert "FLAKY" not in done.stdout
    assert "1 passed" not in done.stdout
    kept = (tmp_path / "build" / "flaky" / "test_always.py.test_bad.txt").read_text()
    first, second = kept.split("once more, alone: status 1\n")
    assert "as always" in first
    assert "as always" in second


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_a_module_that_cannot_be_collected_is_not_run_again(tmp_path: Path, workers: str) -> None:
    broken = "if is_first('import'):\n    raise ValueError('for once')\n"
    groups = (workers, "test_broken.py", "--", "test_good.py")
    done = run_gate(tmp_path, *groups, test_broken=broken, test_good=GOOD)
    assert done.returncode == 1, done.stdout
    assert "for once" in done.stdout
    assert "nothing is run again" in done.stdout
    assert "FLAKY" not in done.stdout
    assert "1 passed" not in done.stdout


def test_a_failure_that_is_not_unicode_is_kept(tmp_path: Path) -> None:
    text = """
def test_name():
    assert not is_first("name"), os.fsdecode(b"caf\\xe9")
"""
    done = run_gate(tmp_path, "test_name.py", test_name=text)
    assert done.returncode == 0, done.stdout
    kept = (tmp_path / "build" / "flaky" / "test_name.py.test_name.txt").read_text()
    assert "caf\\udce9" in kept


def test_many_failures_are_not_run_again(tmp_path: Path) -> None:
    many = """
@pytest.mark.parametrize("number", range(11))
def test_bad(number):
    assert not is_first(f"first {number}")
"""
    done = run_gate(tmp_path, "--tb=no", test_many=many)
    assert done.returncode == 1
    assert "11 tests failed, more than 10" in done.stdout
    assert "1 passed" not in done.stdout
