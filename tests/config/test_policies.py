"""Several policies in one file. covers PE20"""

import pytest

from relaax_like.config.loader import dump_experiment, load_experiment
from relaax_like.config.policies import map_agents
from relaax_like.wire.errors import ConfigError, InvalidInputError

TEXT = """
run_dir: {folder}/run
seed: 3
relaax-parameter-server: {{checkpoints_to_keep: 7}}
algorithm: {{name: ppo, state_size: 4, num_actions: 2, learning_rate: 0.5, gamma: 0.5}}
policies:
  cat:
    agents: ["cat_*"]
    algorithm: {{learning_rate: 0.25}}
  mouse:
    agents: [mouse]
    algorithm: {{name: dqn, state_size: 3, num_actions: 2}}
    learner: {{max_episodes: 9}}
policies_to_train: [mouse]
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "experiment.yaml"
    path.write_text(TEXT.format(folder=tmp_path))
    return path


def test_a_policy_has_the_keys_of_the_file_and_its_own(file):
    experiment = load_experiment(file, several=True)
    cat, mouse = experiment.policies.values()
    assert (cat.agents, cat.trains, mouse.agents, mouse.trains) == (
        ("cat_*",),
        False,
        ("mouse",),
        True,
    )
    cat, mouse = experiment.runs
    assert (cat.algorithm.learning_rate, cat.algorithm.gamma) == (0.25, 0.5)
    assert (mouse.algorithm.name, mouse.algorithm.gamma) == ("dqn", 0.99)  # nothing of ppo's
    assert (cat.learner.max_episodes, mouse.learner.max_episodes) == (None, 9)
    assert {run.parameter_server.checkpoints_to_keep for run in experiment.runs} == {7}
    folders = [run.run_dir.relative_to(experiment.run_dir).as_posix() for run in experiment.runs]
    assert folders == ["policies/cat", "policies/mouse"]
    assert all(run.run_dir in run.parameter_server.checkpoint_dir.parents for run in (cat, mouse))
    assert len({experiment.seed, cat.seed, mouse.seed}) == 3
    assert cat.parameter_server.bind.port == mouse.parameter_server.bind.port == 0


def test_each_policy_has_a_device_of_its_own(file):  # covers F30
    sets = ["learner.device=cpu", "policies.mouse.learner.device=gpu"]
    assert [run.learner.device for run in load_experiment(file, sets, several=True).runs] == [
        "cpu",
        "gpu",
    ]


def test_one_policy_can_be_chosen(file):
    experiment = load_experiment(file, ["policy=mouse"])
    assert experiment == load_experiment(file, several=True).policies["mouse"].experiment


def test_the_resolved_file_gives_the_same_policies(file, tmp_path):
    text = dump_experiment(load_experiment(file, several=True))
    other = tmp_path / "config.yaml"
    other.write_text(text)
    assert dump_experiment(load_experiment(other, several=True)) == text


def test_a_flag_counts_more_than_the_files_keys_of_policies(file):
    sets = ["algorithm.gamma=0.75", "algorithm.learning_rate=0.125"]
    sets += ["policies.mouse.algorithm.gamma=0.875"]
    cat, mouse = load_experiment(file, sets, several=True).runs
    assert (cat.algorithm.gamma, cat.algorithm.learning_rate) == (0.75, 0.125)
    assert (mouse.algorithm.gamma, mouse.algorithm.learning_rate) == (0.875, 0.125)


@pytest.mark.parametrize(
    ("flag", "key"),
    [
        ("policies=[]", "policies:"),
        ("policies.cat.agents=[]", "policies.cat.agents:"),
        ("policies.cat.agents=cat_0", "policies.cat.agents:"),
        ("policies.cat=7", "policies.cat:"),
        ("policies.cat.color=red", "policies.cat.color:"),
        ("policies.cat.learner=[]", "policies.cat.learner:"),
        ("policies.9lives.agents=[a]", "policies.9lives:"),
        ("policies.cat.algorithm.learning_rate=fast", "algorithm.learning_rate:"),
        ("policies_to_train=[dog]", "policies_to_train:"),
        ("policies_to_train=dog", "policies_to_train:"),
        ("policy=dog", "policy:"),
        ("policies.cat.learner.workers=2", "policies.cat.learner.workers:"),
        ("policies.cat.learner.placement=standalone", "policies.cat.learner.placement:"),
        ("relaax-parameter-server.mirror_url=memory://x", "relaax-parameter-server.mirror_url:"),
        ("relaax-metrics-server.bind=localhost:9", "relaax-metrics-server:"),
    ],
)
def test_wrong_keys_are_refused_by_name(file, flag, key):
    with pytest.raises(ConfigError) as error:
        load_experiment(file, [flag], several=True)
    assert key in str(error.value)


def test_a_command_for_one_policy_refuses_several(file):
    with pytest.raises(ConfigError) as error:
        load_experiment(file)
    assert "policies:" in str(error.value)
    assert "policy=" in str(error.value)


def test_a_process_of_a_policy_needs_policies(tmp_path):
    path = tmp_path / "one.yaml"
    path.write_text("algorithm: {name: ppo, state_size: 4, num_actions: 2}\npolicy: cat\n")
    with pytest.raises(ConfigError) as error:
        load_experiment(path, several=True)
    assert "policies:" in str(error.value)


PATTERNS = {"cat": ["cat_*", "tom"], "mouse": ["mouse", "cat_9"], "any": ["m*", "tomcat"]}


def test_a_name_counts_more_than_patterns():
    agents = ["cat_1", "cat_9", "tom", "mouse", "mole", "cat_1"]
    wanted = ["cat", "mouse", "cat", "mouse", "any", "cat"]
    assert map_agents(agents, PATTERNS) == wanted


@pytest.mark.parametrize("agents", [["tom", "dog"], ["tom", "cat_m", "x"]])
def test_an_agent_without_one_policy_is_refused(agents):
    patterns = PATTERNS | {"last": ["*_m"]}
    with pytest.raises(InvalidInputError) as error:
        map_agents(agents, patterns)
    assert error.value.field == "agents"
    assert "agents[1]" in str(error.value)
