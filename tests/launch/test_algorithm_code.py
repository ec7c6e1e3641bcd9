"""Errors of an algorithm folder's code: one line that says where."""

from pathlib import Path

import pytest
from support.broken import copy_broken
from support.cluster import TRACE, Cluster, Program, find_command
from support.serial import train as run_training

from relaax_like.config.algorithm_folder import load_algorithm_module
from relaax_like.launch.algorithm_code import locate_errors
from relaax_like.wire.errors import ConfigError, ServerUnavailableError


def test_the_innermost_line_of_the_folder_is_named(tmp_path: Path) -> None:
    code = "def make(text):\n    return parse(text)\n\n\ndef parse(text):\n    return int(text)\n"
    (tmp_path / "model.py").write_text(code)
    model = load_algorithm_module(tmp_path, "model")
    with pytest.raises(ConfigError) as caught, locate_errors(tmp_path):
        model.make("many")
    assert str(caught.value) == (
        f"{tmp_path / 'model.py'}:6: ValueError: invalid literal for int() with base 10: 'many'"
    )
    # None of its code was reached.
    with pytest.raises(ConfigError) as caught, locate_errors(tmp_path / "other"):
        model.make("many")
    assert str(caught.value).startswith(f"{tmp_path / 'other'}: ValueError: invalid")


def test_our_own_errors_come_through_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(ServerUnavailableError, match=r"^away$"), locate_errors(tmp_path):
        raise ServerUnavailableError("away")


@pytest.mark.parametrize(
    ("name", "file", "function"),
    [
        ("ppo", "model.py", "make_model"),
        ("a2c", "algorithm.py", "make_algorithm"),
    ],
)
def test_a_constructor_that_fails_is_one_short_error(
    tmp_path: Path, name: str, file: str, function: str
) -> None:
    """The model is built for the initial values first, then the algorithm."""
    statement = 'raise ValueError("hidden: 3 came, expected an even number")'
    place = copy_broken(tmp_path / "mine", name, file, function, statement)
    with Cluster(tmp_path) as cluster:
        program = train(cluster, name)
        assert program.wait() == 2, program
    assert_one_error(program, f"{place}: ValueError: hidden: 3 came, expected an even number")


def test_a_learn_that_fails_while_it_is_traced_ends_the_training(tmp_path: Path) -> None:
    place = copy_broken(tmp_path / "mine", "a2c", "algorithm.py", "learn", "batch.returs")
    with Cluster(tmp_path) as cluster:
        program = train(cluster, "a2c", "learner.placement=agent")
        assert program.wait() == 2, program
    assert_one_error(program, f"{place}: AttributeError: 'Batch' object has no attribute 'returs'")


@pytest.mark.parametrize(
    ("function", "statement", "error"),
    [
        ("make_algorithm", 'raise ValueError("3 came")', "ValueError: 3 came"),
        ("learn", "batch.returs", "AttributeError: 'Batch' object has no attribute 'returs'"),
    ],
)
def test_a_learner_of_iterations_fails_with_the_same_error(
    tmp_path: Path, function: str, statement: str, error: str
) -> None:
    """In this process; that an error is one line of `relaax train` is shown above."""
    place = copy_broken(tmp_path / "mine", "ppo", "algorithm.py", function, statement)
    sets = ("algorithm.name=null", f"algorithm.path={tmp_path / 'mine'}")
    with pytest.raises(ConfigError) as caught:
        run_training(tmp_path / "mine" / "ppo.yaml", f"run_dir={tmp_path / 'run'}", *sets)
    assert str(caught.value) == f"{place}: {error}"


def train(cluster: Cluster, name: str, *sets: str) -> Program:
    """Trains the algorithm in the folder `mine`, with the settings of the one it is a copy of."""
    folder = cluster.folder / "mine"
    overrides = ["algorithm.name=null", f"algorithm.path={folder}", *sets]
    return cluster.start(
        "train",
        [
            *(find_command("relaax"), "train", folder / f"{name}.yaml", "--run-dir", "run"),
            *[part for text in overrides for part in ("--set", text)],
        ],
    )


def assert_one_error(program: Program, text: str) -> None:
    """Fails unless a program printed one error, last, and apart from it lines of the log alone."""
    errors = [line for line in program.lines if "rror:" in line]
    assert errors == [f"error: {text}"], program
    assert program.lines[-1] == errors[0]
    assert TRACE not in program.output
