"""Errors of an algorithm folder's code: one line that says where. covers R12"""

import shutil
from pathlib import Path

import pytest
from support.cluster import ROOT, TRACE, Cluster, find_command

from relaax_like.config.algorithm_folder import load_algorithm_module
from relaax_like.launch.algorithm_code import naming_place
from relaax_like.wire.errors import ConfigError, ServerUnavailableError


def test_the_innermost_line_of_the_folder_is_named(tmp_path: Path) -> None:
    code = "def make(text):\n    return parse(text)\n\n\ndef parse(text):\n    return int(text)\n"
    (tmp_path / "model.py").write_text(code)
    model = load_algorithm_module(tmp_path, "model")
    with pytest.raises(ConfigError) as caught, naming_place(tmp_path):
        model.make("many")
    assert str(caught.value) == (
        f"{tmp_path / 'model.py'}:6: ValueError: invalid literal for int() with base 10: 'many'"
    )
    # None of its code was reached.
    with pytest.raises(ConfigError) as caught, naming_place(tmp_path / "other"):
        model.make("many")
    assert str(caught.value).startswith(f"{tmp_path / 'other'}: ValueError: invalid")


def test_our_own_errors_come_through_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(ServerUnavailableError, match=r"^away$"), naming_place(tmp_path):
        raise ServerUnavailableError("away")


@pytest.mark.parametrize(
    ("name", "file", "function"),
    [
        ("ppo", "model.py", "def make_model("),
        ("ppo", "algorithm.py", "def make_algorithm("),
        ("a2c", "algorithm.py", "def make_algorithm("),
    ],
)
def test_a_constructor_that_fails_is_one_short_error(
    tmp_path: Path, name: str, file: str, function: str
) -> None:
    """The model is built for the initial values first, then the algorithm."""
    folder = tmp_path / "mine"
    shutil.copytree(
        ROOT / "algorithms" / name, folder, ignore=shutil.ignore_patterns("__pycache__")
    )
    lines = (folder / file).read_text().splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.startswith(function)]
    lines[at + 1 : at + 1] = ['    raise ValueError("hidden: 3 came, expected an even number")']
    (folder / file).write_text("\n".join(lines))
    with Cluster(tmp_path) as cluster:
        program = cluster.start(
            "train",
            [
                *(find_command("relaax"), "train", folder / f"{name}.yaml", "--run-dir", "run"),
                *("--set", "algorithm.name=null", "--set", f"algorithm.path={folder}"),
            ],
        )
        assert program.wait() == 2, program
    error = next(line for line in program.lines if line.startswith("error"))
    assert error == (
        f"error: {folder / file}:{at + 2}: ValueError: hidden: 3 came, expected an even number"
    )
    assert TRACE not in program.output
    # Nothing but it, and lines of the log.
    assert program.lines[-1] == error
