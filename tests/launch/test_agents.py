"""What an algorithm folder's files make of it. covers F10, F14, R9"""

import shutil
import types

import pytest
from support.cluster import BARE, POLICY_GRADIENT
from support.cues.slots import CueSlots
from support.hierarchy import FOLDER, serve
from support.hierarchy import make_host as make_hierarchy

from relaax_like.agent.batch_agent import SimpleRLAgent
from relaax_like.bridge.in_process import InProcessClient
from relaax_like.client.interactor import Interactor
from relaax_like.config.algorithm_folder import find_algorithm, load_algorithm_module
from relaax_like.config.combine import CombineConfig
from relaax_like.config.loader import load_experiment
from relaax_like.config.models import LearnerConfig
from relaax_like.launch.agents import make_agent_host
from relaax_like.launch.frozen_agents import make_frozen_host
from relaax_like.launch.initial_values_main import make_initial_values
from relaax_like.launch.local import LocalAgents
from relaax_like.learn.frozen_policy import FrozenPolicy
from relaax_like.rlx_server.hosting import BatchHost, PlainHost
from relaax_like.wire.errors import ConfigError, SnapshotError

ONE_ALGORITHM = """
from .more import LinearPolicy, Reinforce

def make_algorithm(config, model, seed):
    return Reinforce(model, seed)
"""
ONE_MODEL = """
from .more import LinearPolicy

def make_model(config, seed):
    return LinearPolicy("observation", "action", seed)
"""
FAILING_POLICY = """
from .more import LinearPolicy

class Failing(LinearPolicy):
    def policy(self, inputs, states):
        return {}, states["lost"]

def make_model(config, seed):
    return Failing("observation", "action", seed)
"""
OWN_AGENT = """
from relaax_like.agent.batch_agent import SimpleRLAgent
from relaax_like.client.interactor import Interactor

class Agent(SimpleRLAgent):
    pass
"""


def make_experiment(folder):
    config = load_algorithm_module(folder, "config").Config()
    learner = LearnerConfig(placement="agent")
    return types.SimpleNamespace(
        algorithm_folder=folder,
        algorithm=config,
        learner=learner,
        parameter_server=types.SimpleNamespace(combine=CombineConfig()),
        seed=0,
    )


def make_host(folder):
    return make_agent_host(make_experiment(folder), lambda name: None)  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path):
    """A copy of the hierarchical one."""
    shutil.copytree(FOLDER, tmp_path / "own", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "own"


@pytest.fixture
def one_algorithm(folder):
    """A folder of one Algorithm, whose agent is its own."""
    (folder / "algorithm.py").rename(folder / "more.py")
    (folder / "algorithm.py").write_text(ONE_ALGORITHM)
    (folder / "model.py").write_text(ONE_MODEL)
    (folder / "agent.py").write_text(OWN_AGENT)
    return folder


@pytest.mark.parametrize("path", [BARE, POLICY_GRADIENT], ids=["user's", "built-in"])
def test_a_plain_agent_class_makes_plain_agents(path):
    assert isinstance(make_host(path), PlainHost)


def test_a_file_without_an_agent_is_refused_with_its_name(one_algorithm):
    (one_algorithm / "agent.py").write_text("class Player:\n    pass\n")
    with pytest.raises(ConfigError, match=r"agent\.py: no class Agent found; define one"):
        make_host(one_algorithm)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "class Agent:\n    def act(self, state):\n        pass\n",
            "lacks reward_and_act, reward_and",
        ),
        ("from relaax_like.agent.agent import Agent\n", "class Agent is abstract; implement act, "),
    ],
    ids=["without verbs", "abstract"],
)
def test_an_agent_without_verbs_is_a_mistake_in_the_folder_s_code(one_algorithm, code, words):
    (one_algorithm / "agent.py").write_text(code)
    with pytest.raises(ConfigError, match=words):
        make_host(one_algorithm)


def test_a_plain_agent_cannot_send_experience():
    experiment = make_experiment(BARE)
    experiment.learner = LearnerConfig(placement="server")
    with pytest.raises(ConfigError, match=r"agent\.py: a plain Agent sends gradients"):
        make_agent_host(experiment, lambda name: None)  # type: ignore[arg-type]


def test_a_folder_without_an_agent_has_the_simple_one():
    folder = find_algorithm("a2c", BARE)
    config = load_algorithm_module(folder, "config").Config(state_size=4, num_actions=2)
    experiment = types.SimpleNamespace(algorithm_folder=folder, algorithm=config)
    host = make_agent_host(experiment, lambda name: None)  # type: ignore[arg-type]
    assert isinstance(host, BatchHost)
    assert host._agent_class is SimpleRLAgent


def test_an_agent_of_several_algorithms_is_batch_native():
    host = make_host(FOLDER)
    assert isinstance(host, BatchHost)
    assert host._agent_class is load_algorithm_module(FOLDER, "agent").Agent


def test_an_agent_of_one_algorithm_may_be_one_s_own(one_algorithm):
    host = make_host(one_algorithm)
    assert isinstance(host, BatchHost)
    assert host._agent_class is load_algorithm_module(one_algorithm, "agent").Agent
    variables = make_initial_values(make_experiment(one_algorithm))
    assert [(v.name, v.group) for v in variables] == [
        ("logits.W", "default"),
        ("logits.b", "default"),
    ]


def test_a_policy_that_fails_is_an_error_with_its_line(one_algorithm):
    (one_algorithm / "model.py").write_text(FAILING_POLICY)
    with pytest.raises(ConfigError, match=r"model\.py:6: KeyError: 'lost'$"):
        make_host(one_algorithm)


def test_several_algorithms_without_an_agent_are_refused_with_the_cure(folder):
    (folder / "agent.py").unlink()
    with pytest.raises(
        ConfigError,
        match=r"make_algorithms .* but SimpleRLAgent asks only one; define a class Agent",
    ):
        make_host(folder)


def test_a_run_of_several_algorithms_starts_from_all_their_models():
    names = [variable.name for variable in make_initial_values(make_experiment(FOLDER))]
    assert names == [f"{name}/logits.{part}" for name in ("goal", "control") for part in "Wb"]


def test_make_initial_values_decides(one_algorithm):
    mine = "\n\ndef make_initial_values(config, seed):\n    return ['mine']\n"
    (one_algorithm / "model.py").write_text(ONE_MODEL + mine)
    assert make_initial_values(make_experiment(one_algorithm)) == ["mine"]


def test_where_the_model_is_enough_the_algorithm_is_not_loaded(one_algorithm):
    (one_algorithm / "algorithm.py").write_text("raise RuntimeError('loaded')")
    names = [variable.name for variable in make_initial_values(make_experiment(one_algorithm))]
    assert names == ["logits.W", "logits.b"]


def test_a_folder_with_nothing_to_start_from_is_refused(folder):
    (folder / "algorithm.py").write_text("")
    with pytest.raises(ConfigError, match="nothing provides initial values"):
        make_initial_values(make_experiment(folder))


def test_the_serial_loop_asks_all_algorithms_and_counts_every_step_once():
    config = load_algorithm_module(FOLDER, "config").Config()
    with serve(config) as server:
        slots = CueSlots(3, 0)
        agents = LocalAgents(slots, make_hierarchy(config, server))
        summary = Interactor(slots, agents, max_steps=240).run()
        agents.close()
        steps = server._store.export_state().steps
    assert summary.steps == 240
    # Rollouts of 8 steps of 3 slots: the last one is whole with the step after it.
    assert server.global_t in (216, 240)
    assert steps["control/default"] == server.global_t // 24
    assert steps["goal/default"] > 3


@pytest.mark.parametrize(
    ("new", "words"),
    [
        ('Dense("others", 2, 2', r"are not those of 'goal' \(see goal/others\.W\); use"),
        ('Dense("logits", 2, 3', r"shape \[2, 2\] for variable logits\.W, .* has \[2, 3\]; use"),
    ],
    ids=["name", "shape"],
)
def test_a_snapshot_of_other_algorithms_is_refused(folder, new, words):
    code = (folder / "algorithm.py").read_text()
    assert 'Dense("logits", 2, 2' in code
    (folder / "algorithm.py").write_text(code.replace('Dense("logits", 2, 2', new))
    experiment = make_experiment(folder)
    experiment.parameter_server.checkpoint_dir = "run/checkpoints"
    config = load_algorithm_module(FOLDER, "config").Config()
    with serve(config) as server:
        fixed = FrozenPolicy(server.get_values(), 0)
        with pytest.raises(SnapshotError, match="run/checkpoints: the snapshot.*" + words):
            make_frozen_host(experiment, lambda name: InProcessClient(server, name), fixed, "test")


def test_a_limit_of_age_is_refused_for_plain_agents():
    file = POLICY_GRADIENT / "policy_gradient.yaml"
    experiment = load_experiment(file, ["learner.max_lag=3"])
    with pytest.raises(ConfigError, match=r"learner\.max_lag: 3, but a plain Agent"):
        make_agent_host(experiment, lambda client_id: None)  # type: ignore[arg-type]
