"""The pages show what the examples say, and the examples work."""

import ast
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import tensorflow as tf
from support.cluster import ROOT

import relaax_like

PAGES = "".join(
    (ROOT / page).read_text("utf-8")
    for page in ("README.md", "docs/algorithms.md", "docs/coming_from.md", "docs/scripts.md")
)
EXCERPTS = re.findall(r"```python\n# (docs/examples/\S+)\n(.*?)```", PAGES, re.DOTALL)
MINIMAL = ROOT / "docs" / "examples" / "minimal"
OWN_HEADS = ROOT / "docs" / "examples" / "own_heads"


def test_the_pages_show_all_examples():
    shown = {path for path, _ in EXCERPTS}
    there = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "docs" / "examples").rglob("*.py")
        if path.name != "__init__.py"
    }
    assert shown == there


@pytest.mark.parametrize(("path", "excerpt"), EXCERPTS, ids=lambda value: value[:40])
def test_an_excerpt_is_what_its_file_says(path, excerpt):
    assert excerpt in (ROOT / path).read_text("utf-8")


def test_the_tutorial_shows_what_its_files_say():
    folder = ROOT / "algorithms" / "policy_gradient_tutorial"
    files = [*folder.glob("*.py"), ROOT / "relaax_like" / "bridge" / "tutorial_servicer.py"]
    files.append(ROOT / "tests" / "bridge" / "tutorial_client.py")
    text = "".join(file.read_text("utf-8") for file in files)
    text = "".join(text.split())  # the formatter indents excerpts of methods differently
    page = (ROOT / "docs" / "tutorial.md").read_text("utf-8")
    excerpts = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(excerpts) > 10
    for excerpt in excerpts:
        assert "".join(excerpt.split()) in text


def test_the_minimal_algorithm_needs_few_names():
    names = set()
    for path in MINIMAL.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("relaax_like"):
                names.update(alias.name for alias in node.names)
    assert 8 <= len(names) <= 12, names


def test_the_minimal_algorithm_learns(tmp_path):
    """Returns at the start are about 20."""
    sets = [f"run_dir={tmp_path}", "algorithm.max_global_step=60000", "seed=1"]
    sets += ["learner.target_return=60", "learner.target_episodes=100"]
    result = relaax_like.train(MINIMAL / "minimal.yaml", sets)
    assert result.global_t < 60_000
    assert result.mean_return >= 60


def test_heads_of_ones_own_recall_what_the_encoder_has_seen(tmp_path):
    """A cue, a blank, then the answer: without memory the best mean return is 0.5."""
    sets = [f"run_dir={tmp_path}", "seed=1", "algorithm.max_global_step=12000"]
    result = relaax_like.train(OWN_HEADS / "own_heads.yaml", sets)
    assert result.global_t >= 12_000
    assert result.mean_return > 0.8


def load_example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_layer_computes_the_same_for_arrays_and_tensors() -> None:
    layer = load_example("residual_layer").Residual("block", 3, seed=1)
    layer.gain.assign([0.5, -1.0, 2.0])
    layer.arrays = {name: one.numpy() for name, one in layer.get_variables().items()}
    x = np.random.default_rng(2).normal(size=(5, 3)).astype(np.float32)
    acting = layer(x)
    assert isinstance(acting, np.ndarray)
    assert acting.dtype == np.float32
    with tf.GradientTape() as tape:
        learning = layer(tf.constant(x))
        cost = tf.reduce_sum(learning)
    np.testing.assert_allclose(acting, learning.numpy(), rtol=1e-5)
    assert [variable.name for variable in layer.find_variables()] == ["block.W", "block.gain"]
    assert all(grad is not None for grad in tape.gradient(cost, layer.trainable_variables))


def test_the_script_with_complete_trajectories_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # covers P1, P27
    monkeypatch.chdir(tmp_path)
    means = load_example("complete_trajectories").main(iterations=3, where="processes")
    assert means[0] < 30
    assert means[-1] > 45


def test_the_script_with_a_learner_of_its_own_finds_the_line(tmp_path: Path) -> None:
    # covers D8
    module = load_example("base_learner")
    learner = module.main(tmp_path)
    assert learner.last_iter < 5_000
    np.testing.assert_allclose(learner.policy.state_dict()["line"], module.GOAL, atol=1e-2)
    (file,) = (tmp_path / "ckpt").iterdir()
    assert file.name == f"iteration_{learner.last_iter}.npz"
