"""Buffers of a run in one process: counted, resumed bit for bit, and in what acts afterwards."""

import shutil
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from support.cluster import ROOT
from support.compare import compare
from support.serial import STOPPED, read_run, train, write_experiment

import relaax_like
from relaax_like.config.loader import load_experiment
from relaax_like.core.manifest import BUFFER, CONSTANT
from relaax_like.launch.export import export_policy
from relaax_like.parameter_server.snapshots import read_latest
from relaax_like.wire.errors import ConfigError

FOLDER = ROOT / "tests" / "support" / "buffers"
BUDGET = "algorithm.max_global_step=384"
PLACEMENTS = ["server", "agent"]


def write(folder: Path, placement: str) -> Path:
    return write_experiment(folder, placement, f"{{path: '{FOLDER}'}}")


def read_values(folder: Path) -> dict[str, np.ndarray]:
    state = read_latest(folder / "run" / "checkpoints")
    assert state is not None
    kinds = [s.kind for s in state.manifest.segments if s.kind in (BUFFER, CONSTANT)]
    assert kinds == [BUFFER, BUFFER, BUFFER, CONSTANT]
    names = [segment.name for segment in state.manifest.segments]
    return dict(zip(names, state.manifest.unpack(state.values), strict=True))


@pytest.fixture(scope="module", params=PLACEMENTS)
def straight(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    assert train(write(folder, request.param), BUDGET) == 0
    return folder


def test_a_run_sets_them_in_every_update(straight: Path) -> None:
    """Three iterations of eight updates."""
    values, run = read_values(straight), read_run(straight / "run")
    assert values["critic.steps"] == run["steps"]["critic"] == 3 * 8
    assert values["target/critic.steps"] == 24  # copied at every third
    assert values["critic.scale"] == 0.5
    assert values["mean"].all()
    assert (values["variance"] < 0.9).all()  # of CartPole, from 1


def test_a_stopped_run_resumes_bit_for_bit(straight: Path, tmp_path: Path) -> None:
    placement = load_experiment(straight / "experiment.yaml").learner.placement
    stopped = write(tmp_path, placement)
    assert train(stopped, BUDGET, stop_at=45) == STOPPED
    assert 0 < read_values(tmp_path)["critic.steps"] < 24
    assert train(stopped, BUDGET) == 0
    assert compare(read_run(straight / "run"), read_run(tmp_path / "run"), "run") == ""


def test_a_variable_of_which_nothing_is_declared_is_refused_before_the_run_begins(
    tmp_path: Path,
) -> None:
    shutil.copytree(FOLDER, tmp_path / "buffers", ignore=shutil.ignore_patterns("__pycache__"))
    model = tmp_path / "buffers" / "model.py"
    line = '        self.extra = tf.Variable(1.0, trainable=False, name="extra")\n'
    text = model.read_text().replace(
        "import numpy as np\n", "import numpy as np\nimport tensorflow as tf\n"
    )
    model.write_text(text.replace("        self.slow =", f"{line}        self.slow ="))
    file = write_experiment(tmp_path / "a", "server", f"{{path: '{tmp_path / 'buffers'}'}}")
    with pytest.raises(ConfigError, match=r"model.py:\d+: the variable 'extra' is not trainable"):
        train(file, BUDGET)
    assert not (tmp_path / "a" / "run" / "checkpoints" / "journal").exists()


def test_what_acts_afterwards_has_the_newest_buffers(straight: Path, tmp_path: Path) -> None:
    values = read_values(straight)
    x = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    centred = (x - values["mean"]) / np.sqrt(values["variance"] + 1e-3)
    want = (centred @ values["actor.out.W"] + values["actor.out.b"]).argmax(-1)
    plain = (x / np.sqrt(1.001)) @ values["actor.out.W"] + values["actor.out.b"]
    assert (plain.argmax(-1) != want).any()  # what the initial values would choose
    with relaax_like.load(str(straight / "run")) as policy:
        assert [int(policy.act(row)) for row in x] == want.tolist()
    exported = export_policy(load_experiment(straight / "experiment.yaml"), folder=tmp_path / "to")
    session = onnxruntime.InferenceSession(exported.files["ONNX"])
    (found,) = session.run(["action"], {"observation": x})
    assert found.tolist() == want.tolist()
