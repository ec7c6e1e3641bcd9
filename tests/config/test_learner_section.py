"""Keys of the section learner that contradict the algorithm or each other. covers J11, J15"""

from pathlib import Path
from types import SimpleNamespace

import pytest
from support.cluster import ROOT

from relaax_like.config.loader import dump_experiment, load_experiment
from relaax_like.config.models import Experiment
from relaax_like.config.plan import OnPolicy, get_own_plan
from relaax_like.wire.errors import ConfigError


def load(name: str, *sets: str) -> Experiment:
    return load_experiment(ROOT / "algorithms" / name / f"{name}.yaml", sets)


@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_algorithms_that_learn_from_their_own_actions_refuse_files(name: str) -> None:
    words = (
        r"learner\.offline: '/x', but this algorithm "
        rf"\(.*/{name}/config\.py:\d+: plan is OnPolicy\) only learns from what "
        r"its agents play; remove the key, or use an algorithm"
    )
    with pytest.raises(ConfigError, match=words):
        load(name, "learner.offline=/x", "learner.target_return=null")


@pytest.mark.parametrize(
    ("flag", "want"),
    [
        (
            "workers=2",
            "workers: 2, but no training episodes are played in a run .*; set it to 0",
        ),
        (
            "target_return=10",
            "target_return: 10.0, but no training episodes are played in a run .*; set it to null",
        ),
        (
            "collect_traj=true",
            "collect_traj: true, but no training episodes are played in a run .*; set it to false",
        ),
    ],
)
def test_what_needs_episodes_is_refused_where_none_are_played(flag: str, want: str) -> None:
    with pytest.raises(ConfigError, match=want):
        load("bc", f"learner.{flag}")


PLACES = {"ppo": "server", "a2c": "agent", "bc": "server", "policy_gradient": "agent"}


@pytest.mark.parametrize("name", PLACES)
def test_without_a_placement_the_plan_decides(name: str) -> None:
    assert load(name, "learner.placement=null").learner.placement == PLACES[name]


@pytest.mark.parametrize("placement", ["agent", "server"])
@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_an_on_policy_plan_runs_in_either_placement(name: str, placement: str) -> None:
    assert load(name, f"learner.placement={placement}").learner.placement == placement


@pytest.mark.parametrize(
    ("name", "placement", "ahead"),
    [("a2c", "agent", 1), ("a2c", "server", 0), ("ppo", "agent", 0), ("ppo", "server", 0)],
)
def test_agents_play_ahead_where_that_is_free(name: str, placement: str, ahead: int) -> None:
    assert load(name, f"learner.placement={placement}").learner.max_rollouts_ahead == ahead


@pytest.mark.parametrize(
    ("name", "sets", "want"),
    [
        (
            "policy_gradient",
            ["placement=server"],
            "placement: 'server', but the algorithm declares no plan, which a learner there needs "
            "for its updates; set it to 'agent'",
        ),
        (
            "bc",
            ["placement=agent"],
            "placement: 'agent', but no agents play, because .*config.py:.*: plan is Offline; set "
            "it to 'server'",
        ),
        (
            "ppo",
            ["max_lag=3"],
            r"max_lag: 3, but only learners beside agents \(placement: agent\) use this key; "
            "set it to null",
        ),
        (
            "policy_gradient",
            ["max_segment_sec=5"],
            r"max_segment_sec: 5.0, but only plans of kind OnPolicy can learn from rollouts that "
            r"lack steps, and those with overlap cannot \(this algorithm: no plan\); set it to "
            r"null",
        ),
        (
            "sarsa",
            ["max_segment_sec=5"],
            r"max_segment_sec: 5.0, .* those with overlap cannot \(this algorithm: OnPolicy\)",
        ),
        (
            "ppo",
            ["target_eval_return=3"],
            r"target_eval_return: 3.0, but there are no evaluations \(learner.eval_freq is 0\); "
            "set it to null, or set learner.eval_freq",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(name: str, sets: list[str], want: str) -> None:
    with pytest.raises(ConfigError, match=rf"learner\.{want}"):
        load(name, *(f"learner.{one}" for one in sets))


@pytest.mark.parametrize("placement", ["null", "server"])
@pytest.mark.parametrize("name", ["bc", "td3_bc"])
def test_one_learner_of_recordings_makes_no_updates_together_with_others(
    name: str, placement: str
) -> None:
    method = "relaax-parameter-server.combine.method"
    with pytest.raises(ConfigError) as caught:
        load(name, f"{method}=sync", f"learner.placement={placement}", "learner.offline=x")
    [line] = str(caught.value).splitlines()
    assert line == (
        f"--set {method}=sync: {method}: 'sync' is for several learners, but a run that learns "
        "from recordings has only one; set it to fifo"
    )


def test_folders_of_trajectories_are_relative_to_where_the_command_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "walk").mkdir()

    def find(value: str) -> object:
        return load("bc", f"learner.offline={value}").learner.offline

    first, walk = str(tmp_path / "runs" / "x"), str(tmp_path / "walk")
    assert find("runs/x") == (first,)
    assert find("[runs/x, walk]") == (first, walk)
    # Ids of Minari data sets are not paths; their folders are.
    assert find("[minari:D4RL/door/human-v2, minari:walk]") == (
        "minari:D4RL/door/human-v2",
        f"minari:{walk}",
    )
    too_long = f"minari:{'x' * 300}"
    assert find(too_long) == (too_long,)
    with pytest.raises(ConfigError, match=r"learner\.offline"):
        find("[]")


def test_sources_come_back_from_the_saved_form(tmp_path: Path) -> None:
    experiment = load("bc", "learner.offline=[runs/x, minari:a/b-v0]")
    (tmp_path / "config.yaml").write_text(dump_experiment(experiment))
    again = load_experiment(tmp_path / "config.yaml")
    assert again.learner.offline == experiment.learner.offline


def test_a_plan_of_another_kind_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "config.py").write_text(
        "from relaax_like.config.algorithm import AlgorithmConfig\n\n\n"
        "class Config(AlgorithmConfig):\n"
        '    plan: str = "on policy"\n'
    )
    file = tmp_path / "experiment.yaml"
    file.write_text("algorithm: {path: ./}\n")
    words = r"config\.py:\d+: plan is 'on policy'; expected OnPolicy, Episodes, Offline or Replay"
    with pytest.raises(ConfigError, match=words):
        load_experiment(file)


def test_recordings_without_a_plan_are_refused_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load("policy_gradient", "learner.offline=/x", "learner.target_return=null")
    [line] = str(caught.value).splitlines()
    assert "learner.offline: '/x', but this algorithm only learns from what" in line


def test_an_algorithm_without_a_plan_is_named_if_another_algorithm_is_a_number() -> None:
    config = SimpleNamespace(plan={1: OnPolicy(rollout_steps=4)})
    with pytest.raises(ConfigError, match="no plan for the Algorithm 'goal', only for 1; add one"):
        get_own_plan(config, "goal")
