"""Errors of an algorithm folder's code: one line that says where."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.broken import copy_broken
from support.cluster import ROOT, TRACE
from support.here import Done, run_relaax
from support.serial import train as run_training

from relaax_like.bridge.in_process import InProcessClient
from relaax_like.config.algorithm_folder import load_algorithm_module
from relaax_like.config.loader import load_experiment
from relaax_like.config.models import Experiment
from relaax_like.launch.algorithm_code import locate_errors
from relaax_like.launch.learners import make_compiled_updates, make_learners
from relaax_like.wire.errors import ConfigError, RelaaxError, ServerUnavailableError


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


def test_a_model_that_cannot_be_made_is_one_short_error(tmp_path: Path) -> None:
    """It is built for the initial values first."""
    statement = 'raise ValueError("hidden: 3 came, expected an even number")'
    place = copy_broken(tmp_path / "mine", "ppo", "model.py", "make_model", statement)
    assert_one_error(
        train(tmp_path, "ppo"), f"{place}: ValueError: hidden: 3 came, expected an even number"
    )


def test_a_learn_that_fails_while_it_is_traced_ends_the_training(tmp_path: Path) -> None:
    place = copy_broken(tmp_path / "mine", "a2c", "algorithm.py", "learn", "batch.returs")
    done = train(tmp_path, "a2c", "learner.placement=agent")
    assert_one_error(done, f"{place}: AttributeError: 'Batch' object has no attribute 'returs'")


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


# What is wrong -> file, code, wrong code, the error behind the folder.
MISTAKES: dict[str, tuple[str, str, str, str]] = {
    "a plan without return": (
        "config.py",
        "return OnPolicy",
        "OnPolicy",
        "config.py:15: plan returns None, but agents that learn by algorithm.py need one",
    ),
    "specs without return": (
        "model.py",
        'return [("action"',
        '[("action"',
        "model.py:21: get_action_specs returned None, expected a list",
    ),
    "an unknown dtype": (
        "model.py",
        "int64",
        "int6",
        "model.py:21: get_action_specs returned the dtype 'int6' of 'action', expected",
    ),
    "a shape that is a number": (
        "model.py",
        '{"shape": [4]}',
        '{"shape": 4}',
        "model.py:18: get_input_specs returned the shape 4 of 'observation', expected a list",
    ),
    "a spec without a name": (
        "model.py",
        '[("observation", {"shape": [4]})]',
        '[{"shape": [4]}]',
        "model.py:18: get_input_specs returned {'shape': [4]}, expected a name and a dict",
    ),
    "no call of super": (
        "model.py",
        "        super().__init__()\n",
        "",
        "model.py:13: __init__ of class PolicyModel does not call that of Model; begin it with",
    ),
    "one value": (
        "model.py",
        ", memory\n",
        "\n",
        "model.py:24: policy returned one value, of type dict, expected two; return",
    ),
    # In `policy` itself: AutoGraph would take an equal function of another folder for this one, and
    # would not know the line.
    "three inputs": (
        "model.py",
        'inputs["observation"]',
        'inputs["observation"][..., :3]',
        "model.py:25: ValueError: layer policy.0 was built for 4 inputs, but receives 3 numbers",
    ),
    "no algorithm returned": (
        "algorithm.py",
        "return Reinforce(",
        "Reinforce(",
        "algorithm.py:29: make_algorithm returned None, expected an object of a class that",
    ),
}


@pytest.mark.parametrize(("file", "old", "new", "error"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_a_minimal_folder_is_an_error_with_its_line(
    tmp_path: Path, file: str, old: str, new: str, error: str
) -> None:
    folder = copy_minimal(tmp_path / "mine", file, old, new)
    with pytest.raises(RelaaxError) as caught:
        run_training(folder / "minimal.yaml", f"run_dir={tmp_path / 'run'}")
    assert str(caught.value).startswith(f"{folder}/{error}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [make_compiled_updates, lambda experiment: make_learners(experiment, InProcessClient, "test")],
    ids=["iterations", "gradients"],
)
@pytest.mark.parametrize("name", ["an unknown dtype", "no call of super", "no algorithm returned"])
def test_a_learner_in_its_own_process_refuses_the_same(
    tmp_path: Path, name: str, make: Callable[[Experiment], object]
) -> None:
    file, old, new, error = MISTAKES[name]
    folder = copy_minimal(tmp_path / "mine", file, old, new)
    with pytest.raises(ConfigError) as caught:
        make(load_experiment(folder / "minimal.yaml"))
    assert str(caught.value).startswith(f"{folder}/{error}")


def test_too_many_outputs_are_an_error_with_their_cure(tmp_path: Path) -> None:
    folder = copy_minimal(tmp_path / "mine", "model.py", "(4,), 2", "(4,), 3")
    with pytest.raises(RelaaxError) as caught:
        run_training(folder / "minimal.yaml", f"run_dir={tmp_path / 'run'}")
    assert str(caught.value) == (
        f"{folder / 'model.py'}:24: policy computes 3 logits for 'action', expected 2 for the "
        "environment's action space, Discrete of 2 values; correct the number of outputs "
        "(num_parameters of relaax_like.nn.action_heads returns it)"
    )


def test_an_agent_of_one_s_own_can_replace_actions_that_the_environment_lacks(
    tmp_path: Path,
) -> None:
    folder = copy_minimal(tmp_path / "mine", "model.py", "(4,), 2", "(4,), 3")
    model = folder / "model.py"
    model.write_text(model.read_text().replace("n=2", "n=3"))
    (folder / "agent.py").write_text(LIMITING_AGENT)
    sets = (f"run_dir={tmp_path / 'run'}", "algorithm.max_global_step=600")
    assert run_training(folder / "minimal.yaml", *sets) == 0


LIMITING_AGENT = """
from relaax_like.agent.batch_agent import SimpleRLAgent

class Agent(SimpleRLAgent):
    def take(self, prediction):
        actions = super().take(prediction)
        return {name: action.clip(0, 1) for name, action in actions.items()}
"""


def copy_minimal(folder: Path, file: str, old: str, new: str) -> Path:
    """Copies the example of the documentation with another piece of code."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "docs" / "examples" / "minimal", folder, ignore=ignored)
    code = (folder / file).read_text()
    assert code.count(old) == 1
    (folder / file).write_text(code.replace(old, new))
    return folder


def train(tmp_path: Path, name: str, *sets: str) -> Done:
    """Trains the algorithm in the folder `mine`, with the settings of the one it is a copy of."""
    folder = tmp_path / "mine"
    overrides = ["algorithm.name=null", f"algorithm.path={folder}", *sets]
    return run_relaax(
        *("train", folder / f"{name}.yaml", "--run-dir", tmp_path / "run"),
        *[part for text in overrides for part in ("--set", text)],
    )


def assert_one_error(done: Done, text: str) -> None:
    """Fails unless a command printed one error, last, and apart from it lines of the log alone."""
    assert done.status == 2, done
    errors = [line for line in done.lines if "rror:" in line]
    assert errors == [f"error: {text}"], done
    assert done.lines[-1] == errors[0]
    assert TRACE not in done.output
