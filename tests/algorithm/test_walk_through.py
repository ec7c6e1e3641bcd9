"""docs/algorithms.md, "step by step": a reader's changes of a2c, made as the page says, work."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.cluster import ROOT, find_free_port

from relaax_like.launch.conformance import check_algorithm, find_folder_experiment

PAGE = (ROOT / "docs" / "algorithms.md").read_text("utf-8")
STEPS = PAGE[PAGE.index("## Changing an algorithm") : PAGE.index("## Heads of your own")]
COPYING, TRYING = re.findall(r"```sh\n(.*?)```", STEPS, re.DOTALL)
CHANGES = re.findall(r"```diff\n# (\S+)/(\S+)\n(.*?)```", STEPS, re.DOTALL)


def run(commands: str, folder: Path) -> str:
    """Runs a block of commands up to the first that fails; returns what they print."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", commands],
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def make_copy(folder: Path, name: str) -> Path:
    """Follows the page up to its last change; returns the folder of algorithms."""
    run(COPYING.replace("smooth_a2c", name), folder)
    algorithms = folder / "mine" / "algorithms"
    for owner, file, diff in CHANGES:
        if owner != name and file.endswith(".py"):
            continue
        path = algorithms / name / file.replace(owner, name)
        lines = diff.splitlines(keepends=True)
        old, new = (
            "".join(line[1:] for line in lines if line[0] in signs) for signs in (" -", " +")
        )
        text = path.read_text()
        assert text.count(old) == 1, f"{path} does not have\n{old}"
        path.write_text(text.replace(old, new))
    experiment = algorithms / name / f"{name}.yaml"
    text = experiment.read_text()
    for port in ("7000", "7001"):  # others can be taken on a machine that runs tests
        assert port in text
        text = text.replace(port, str(find_free_port()))
    experiment.write_text(text)
    return algorithms


@pytest.mark.slow
@pytest.mark.timeout(300)  # five trainings, the checks and an export, as the page has them
def test_one_more_loss_is_trained_everywhere_resumed_and_exported(tmp_path: Path) -> None:
    algorithms = make_copy(tmp_path, "smooth_a2c")

    text = run(TRYING, algorithms)

    assert "smooth_a2c passes all checks that apply" in text
    assert text.count("finished: budget of 2000 env steps used up") >= 3
    assert "budget of 4000 env steps used up" in text
    assert "ONNX computes the same as the run's own agents" in text
    for name in ("one", "agents", "server"):
        assert (algorithms / "runs" / name / "results.json").is_file()


def test_a_target_network_holds_to_all_checks(tmp_path: Path) -> None:
    algorithms = make_copy(tmp_path, "target_a2c")

    results = list(check_algorithm(find_folder_experiment(str(algorithms / "target_a2c"))))

    assert {one.outcome for one in results} == {"passed"}, results
