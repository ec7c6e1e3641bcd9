"""docs/coming_from.md: its programs work, and the keys that it names are there."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cluster import ROOT, Cluster
from support.uncompiled import copy_uncompiled, write_initial_values

from relaax_like.config.algorithm import AlgorithmConfig
from relaax_like.config.algorithm_folder import find_algorithm, load_config_class
from relaax_like.config.models import EnvironmentConfig, LearnerConfig, ParameterServerConfig

EXAMPLES = ROOT / "docs" / "examples" / "coming_from"
PAGE = (ROOT / "docs" / "coming_from.md").read_text("utf-8")
SECTIONS = {
    "learner": [LearnerConfig],
    "environment": [EnvironmentConfig],
    "relaax-parameter-server": [ParameterServerConfig],
    "algorithm": [
        AlgorithmConfig,
        *(load_config_class(find_algorithm(name)) for name in ("a2c", "dqn", "ppo", "td3")),
    ],
}


def test_the_keys_that_it_names_are_ours() -> None:
    named = re.findall(rf"`({'|'.join(SECTIONS)})\.(\w+)[`:.]", PAGE)
    assert len(named) > 40
    unknown = [
        (section, key)
        for section, key in named
        if not any(key in model.model_fields for model in SECTIONS[section]) and key != "name"
    ]
    assert unknown == []


def test_a_policy_is_trained_and_used_as_with_stable_baselines3(tmp_path: Path) -> None:
    program = [sys.executable, EXAMPLES / "stable_baselines3.py", "--steps", "2000"]
    done = subprocess.run(
        [*program, "--run-dir", tmp_path / "run"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"budget of 2000 env steps used up; mean return \d+", done.stdout)
    assert re.search(r"a greedy episode: \d+", done.stdout)


@pytest.mark.parametrize(
    ("name", "sets"),
    [
        ("rllib", ["algorithm.state_size=4"]),
        ("ml_agents", ["algorithm.state_size=3", "learner.target_return=15"]),
    ],
)
def test_a_simulator_connects_by_itself(name: str, sets: list[str], tmp_path: Path) -> None:
    more = ["algorithm.num_actions=2", "algorithm.network={layers: [16]}"]
    more += ["algorithm.learning_rate=1e-2", "algorithm.max_global_step=20000"]
    budget = "algorithm.max_global_step=600" if name == "rllib" else "algorithm.gamma=0.5"
    folder = copy_uncompiled("a2c", tmp_path)
    initial = write_initial_values(folder, *more, *(one for one in sets if "size" in one))
    with Cluster(tmp_path, folder, *more, *sets, budget, initial) as cluster:
        ps, _ = cluster.start_both_servers()
        address = f"localhost:{cluster.rlx_port}"
        program = [sys.executable, EXAMPLES / f"{name}.py", "--rlx-server", address]
        client = cluster.start("client", program)
        assert client.wait() == 0
        client.wait_for("finished: (budget of 600|mean return)")
        assert ps.wait() == 0


def test_a_unity_agent_is_known_by_its_id_in_any_order_of_rows() -> None:
    page: Any = load_example("ml_agents")

    class Scene:
        """Tick by tick, the ids that ask and those whose episode has ended; the observation and the
        reward of an agent are its id."""

        ticks = iter(
            [
                ([3, 1, 2, 0], []),
                ([0, 3, 1, 2], []),
                ([], [2]),  # it ends alone; the others ask only in the next tick
                ([3, 9, 0, 1], []),
                ([9, 0], []),  # two ask before the others: they repeat their actions
                ([1, 3, 0, 9], []),
            ]
        )

        def __init__(self) -> None:
            self.actions: list[list[int]] = []

        def reset(self) -> None:
            self.step()

        def step(self) -> None:
            self.now = next(self.ticks)

        def set_actions(self, actions: np.ndarray) -> None:
            self.actions.append(actions.tolist())

        def get_steps(self) -> tuple[Any, Any]:
            return make_steps(self.now[0]), make_steps(self.now[1])

    def make_steps(ids: list[int]) -> Any:
        rows = np.array(ids, np.int64)
        observations = np.repeat(rows[:, None], page.OBSERVATIONS, 1).astype(np.float32)
        return page.Steps(observations, rows.astype(np.float32), rows, np.ones(len(ids), np.bool_))

    scene = Scene()
    slots = page.SceneSlots(scene)
    before = slots.reset()[:, 0].tolist()
    assert sorted(before) == [0, 1, 2, 3]
    slot = {int(agent): place for place, agent in enumerate(before)}
    actions = np.array(before, np.int64)  # an agent's action is its id
    rewards, seen, ended = [], [], []
    for _ in range(3):
        transition = slots.step(actions)
        rewards.append([float(transition.rewards[slot[agent]]) for agent in range(4)])
        seen.append([float(transition.observations[slot[agent], 0]) for agent in range(4)])
        ended.append([bool(transition.truncated[slot[agent]]) for agent in range(4)])
        if ended[-1][2]:
            assert transition.final_observations[slot[2], 0] == 2
    assert rewards == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 18, 3]]
    assert seen == [[0, 1, 2, 3], [0, 1, 9, 3], [0, 1, 9, 3]]
    assert ended == [[False] * 4, [False, False, True, False], [False] * 4]
    # Agent 9 has the slot of agent 2, and so its action here.
    assert scene.actions == [[3, 1, 2, 0], [0, 3, 1, 2], [], [3, 2, 0, 1], [2, 0]]


def load_example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module
