"""Hindsight as a setting of an algorithm with a replay table: what it needs, and that it learns.

covers J14
"""

import shutil
from pathlib import Path

import numpy as np
import pytest
from support.batch import load

import relaax_like
from relaax_like.agent.data_processor import ComputationDataProcessor
from relaax_like.algorithm.acting import make_actor
from relaax_like.algorithm.model import get_variables
from relaax_like.config.loader import load_experiment
from relaax_like.core.metrics import NullMetrics
from relaax_like.core.prediction import ONLY_NAME
from relaax_like.launch.evaluation import evaluate_policies, evaluation_to_dict, format_evaluation
from relaax_like.learn.frozen_policy import FrozenPolicy
from relaax_like.learn.replayed import make_table
from relaax_like.replay import Hindsight
from relaax_like.rlx_server.hosting import BatchHost
from relaax_like.rlx_server.slots import SlotSpec
from relaax_like.rlx_server.transition import ReceivedStep
from relaax_like.wire.errors import ConfigError, InvalidInputError

FOLDER = Path(__file__).parents[2] / "algorithms" / "dqn"
SETTINGS = {
    "num_actions": 3,
    "network": {"layers": (8,)},
    "observations": {"achieved_goal": {"size": 3}, "desired_goal": {"size": 3}},
    "batch_size": 4,
    "capacity": 64,
    "warm_up_steps": 6,
}
BITS = (
    *("algorithm.network={layers: [64]}", "algorithm.batch_size=64", "algorithm.capacity=20000"),
    *("algorithm.warm_up_steps=512", "algorithm.learning_rate=3e-3", "algorithm.target_every=64"),
    *("algorithm.epsilon={kind: linear, start: 1.0, end: 0.1, steps: 6000}", "seed=3"),
)


def make(hindsight, **settings):
    config = load("config", "dqn").Config.model_validate(
        {**SETTINGS, "hindsight": hindsight, **settings}
    )
    return make_table(config.plan, load("model", "dqn").make_model(config, 0), {}, 0)


def test_the_settings_reach_the_table() -> None:
    items = make({"strategy": "final", "goals": 2, "tolerance": 0.5, "ends_at_goal": True})._items
    assert isinstance(items, Hindsight)
    assert (items._strategy, items._share, items.discount) == (1, 2 / 3, 0.99)
    rewards, ended = items._compute_rewards(np.array([[0.0, 0.4], [0, 0.6]]), np.zeros((2, 2)))
    assert (rewards.tolist(), ended.tolist()) == ([0.0, -1.0], [True, False])
    assert not isinstance(make(None)._items, Hindsight)


@pytest.mark.parametrize(
    ("hindsight", "settings", "want"),
    [
        ({"desired": "goal"}, {}, r"hindsight\.desired: there is no observation 'goal', only 'ach"),
        (
            {},
            {"observations": {"achieved_goal": {"size": 3}, "desired_goal": {"size": 2}}},
            r"'achieved_goal' has shape \[3\] and 'desired_goal' \[2\], expected the same",
        ),
    ],
)
def test_goals_that_are_not_there_are_refused(hindsight, settings, want) -> None:
    with pytest.raises(ConfigError, match=want):
        make(hindsight, **settings)


def test_several_rewards_are_refused() -> None:
    config = load("config", "dqn").Config.model_validate({**SETTINGS, "hindsight": {}})

    class TwoRewards(type(load("model", "dqn").make_model(config, 0))):
        def get_reward_specs(self):
            return [("a", {"shape": [1]}), ("b", {"shape": [1]})]

    with pytest.raises(ConfigError, match=r"2 rewards, but algorithm\.hindsight replaces"):
        make_table(config.plan, TwoRewards(config, 0), {}, 0)


def test_what_has_the_old_goal_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"hindsight: works with n_step: 1 and .* got 3 and 1"):
        load_experiment(FOLDER / "bit_flip.yaml", ["algorithm.n_step=3"])


def test_it_reaches_goals_that_it_was_never_given(tmp_path: Path) -> None:
    """Eight bits; of goals that random actions reach, one in 30 is."""
    sets = [
        *BITS,
        f"run_dir={tmp_path}/run",
        "algorithm.max_global_step=16000",
        "environment.args.bits=8",
    ]
    relaax_like.train(FOLDER / "bit_flip.yaml", sets)
    experiment = load_experiment(FOLDER / "bit_flip.yaml", sets)
    found = evaluate_policies(experiment, 100)[""]
    assert found.success_rate >= 0.9
    assert f", success rate {found.success_rate:.2f}; weights" in format_evaluation(found)
    assert evaluation_to_dict(found)["success_rate"] == found.success_rate


def make_short_run(tmp_path: Path) -> list[str]:
    """Returns the overrides of a short run with the algorithm's copy in this folder."""
    return [
        *BITS,
        f"run_dir={tmp_path}/run",
        "algorithm.name=null",
        f"algorithm.path={tmp_path}/dqn",
        "algorithm.max_global_step=1200",
        "environment.args.bits=4",
    ]


def test_a_folder_can_define_the_rewards(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "dqn", ignore=shutil.ignore_patterns("__pycache__"))
    with open(tmp_path / "dqn" / "algorithm.py", "a") as file:
        file.write(
            "\n\ndef compute_rewards(achieved, desired):\n"
            f"    open({str(tmp_path / 'called')!r}, 'w').write(str(achieved.shape[1:]))\n"
            "    reached = (achieved == desired).all(1)\n"
            "    return reached.astype('float32'), reached\n"
        )
    sets = make_short_run(tmp_path)
    relaax_like.train(tmp_path / "dqn" / "bit_flip.yaml", sets)
    assert (tmp_path / "called").read_text() == "(4,)"


@pytest.mark.parametrize("placement", ["agent", "server"])
def test_an_error_in_the_folder_s_rewards_ends_the_run_with_its_line(
    tmp_path: Path, placement: str
) -> None:
    shutil.copytree(FOLDER, tmp_path / "dqn", ignore=shutil.ignore_patterns("__pycache__"))
    with open(tmp_path / "dqn" / "algorithm.py", "a") as file:
        file.write("\n\ndef compute_rewards(achieved, desired):\n    return achieved.no_such\n")
    sets = [*make_short_run(tmp_path), f"learner.placement={placement}"]
    with pytest.raises(ConfigError, match=r"dqn/algorithm\.py:\d+: AttributeError: .*no_such"):
        relaax_like.train(tmp_path / "dqn" / "bit_flip.yaml", sets)


@pytest.mark.parametrize(("hindsight", "exploit"), [({}, False), ({}, True), (None, False)])
def test_a_terminated_episode_needs_its_last_observation(hindsight, exploit) -> None:
    config = load("config", "dqn").Config.model_validate({**SETTINGS, "hindsight": hindsight})
    model = load("model", "dqn").make_model(config, 0)
    frozen = FrozenPolicy([variable.value for variable in get_variables(model)], 0)
    processor = ComputationDataProcessor(make_actor(model, 0, config), frozen, NullMetrics(), "x")
    host = BatchHost(config, lambda: {ONLY_NAME: processor})
    try:
        spaces = config.observation_spaces, config.action_spaces
        slots = host.make_slot_agents(SlotSpec(*spaces, 2, client_id="x", exploit=exploit))
        seen = {name: np.zeros((2, 3), np.float32) for name in config.observation_spaces}
        slots.observe(ReceivedStep(observations=seen))
        slots.decide(host.predict([slots.request()])[0])
        ended, rewards = np.array([False, True]), np.zeros((2, 1), np.float32)
        last = ReceivedStep(observations=seen, rewards=rewards, terminated=ended, ended=ended)
        last = last._replace(truncated=np.zeros(2, bool))
        if hindsight is not None and not exploit:
            with pytest.raises(InvalidInputError, match="final_observations: missing, but slot 1"):
                slots.observe(last)
            last = last._replace(final_observations=seen)
        slots.observe(last)
        slots.close()
    finally:
        host.close()
