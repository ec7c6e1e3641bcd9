"""The table "What works where" of docs/algorithms.md: each cell is tried.

One run per column has every feature that the column honours, and another one the plan `Episodes`; a
feature that it refuses is refused in a run of its own, with file and line.
"""

# covers F2, F9

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from support.cluster import ROOT, TRACE, Cluster
from support.contract import find_line, write_folder
from support.contract.slots import CountingSlots
from support.cues.slots import CueSlots
from support.event_files import read_scalars
from support.hierarchy import FOLDER as HIERARCHICAL

import relaax_like
from relaax_like.client import Interactor, RlxClient
from relaax_like.experience.trajectory_files import (
    TRAJECTORY_FOLDER,
    find_trajectories,
    read_trajectories,
)
from relaax_like.parameter_server.snapshot_format import State
from relaax_like.parameter_server.snapshots import read_latest
from relaax_like.wire.errors import ConfigError

CUES = ROOT / "tests" / "support" / "cues"
# A folder with two Algorithms, which is another folder.
SEVERAL = "several Algorithms"
# Rows of the table, in its order; which line a refusal names, and what it says.
FEATURES = {
    "prepare": ("", ""),
    "stop": ("", ""),
    "review": ("", ""),
    "phases": ("", ""),
    "frozen": ("", ""),
    "target": ("", ""),
    "buffers": ("", ""),
    "settings": ("", ""),
    "random": ("", ""),
    "exploration": ("def policy", "policy takes `explore`"),
    "rows": ("", ""),
    "several rewards": ("def get_reward_specs", r"the rewards are speed \[1\], costs \[2\]"),
    "acting": ("", ""),
    "next actions": ("", ""),
    "data handler": ("def make_data_handler", "make_data_handler"),
    "recordings": ("", ""),
    "predict": ("def predict", "predict is overridden"),
    "replay": ("def plan", "plan is Replay"),
    "episodes": ("def plan", "plan is Episodes"),
    SEVERAL: ("def plan", "plan is by name"),
}
# Each in a run of its own, since an algorithm has one plan.
PLANS = {"replay", "episodes", SEVERAL}
# Wanted by the experiment, not by the algorithm.
KEYS = {"recordings"}
PREFIX = "Optimizer/"  # of what `learn` returns
COLUMNS = ("agent", "server", "serial", "workers", "offline")


def read_table() -> dict[tuple[str, str], str]:
    """Returns the cells by column and feature."""
    text = (ROOT / "docs" / "algorithms.md").read_text().partition("## What works where")[2]
    lines = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith("|")]
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    assert tuple(head[1:]) == COLUMNS
    return {
        (column, feature): cell
        for feature, row in zip(FEATURES, rows, strict=True)
        for column, cell in zip(COLUMNS, row[1:], strict=True)
    }


TABLE = read_table()


def select(word: str) -> list[tuple[str, str]]:
    return [place for place, cell in TABLE.items() if cell == word]


@dataclass
class Trained:
    """What a run has left.

    Attributes:
      curves: of what `learn` returned: the first call's, and means of some seconds.
      state: of the parameter server.
      values: of the variables, by name.
      folder: of the run's folder and the rows.
    """

    curves: dict[str, list[float]]
    state: State
    values: dict[str, np.ndarray]
    folder: Path


def make_hook(folder: Path) -> str:
    """Returns an override with the hook that the contract registers, which writes a file."""
    hook = {"type": f"note {folder.name}", "position": "after_iter"}
    return f"learner.hook={json.dumps({'note': {**hook, 'ext_args': {'file': f'{folder}/note'}}})}"


def get_options(column: str, folder: Path, features: set[str] | None = None) -> list[str]:
    run = [f"run_dir={folder / 'run'}"]
    if features is not None and SEVERAL in features:
        if column != "agent":
            run.append("algorithm.rollouts={goal: 4, control: 4}")
    else:
        run.append(make_hook(folder))
        keeps = column != "offline" and "replay" not in (features or ())
        run += ["learner.collect_traj=true"] if keeps else []
    run.append(f"learner.placement={'agent' if column == 'agent' else 'server'}")
    return [*run, "learner.workers=1"] if column == "workers" else run


def write_experiment(folder: Path, features: set[str]) -> Path:
    """Writes the folder of an algorithm with these features, and an experiment beside it."""
    folder.mkdir(exist_ok=True)
    file = folder / "experiment.yaml"
    if SEVERAL in features:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(HIERARCHICAL, folder / "contract", ignore=ignored)
        file.write_text(
            "algorithm: {path: ./contract, max_global_step: 512}\n"
            f"environment: {{path: {CUES}, slots: 4}}\n"
        )
        return file
    write_folder(folder / "contract", features)
    file.write_text(
        f"algorithm: {{path: ./contract, max_global_step: 512, rows_file: {folder / 'rows.npz'}}}\n"
        "environment: {path: ./contract, slots: 4}\n"
    )
    return file


def load_rows(run: Trained) -> dict[str, np.ndarray]:
    with np.load(run.folder / "rows.npz", allow_pickle=False) as file:
        return dict(file)


def read_run(folder: Path) -> Trained:
    state = read_latest(folder / "run" / "checkpoints")
    assert state is not None
    curves: dict[str, list[float]] = {}
    for metrics in (folder / "run").glob("metrics*"):
        for name, points in read_scalars(metrics).items():
            if name.startswith(PREFIX):
                curves[name.removeprefix(PREFIX)] = [y for _, y in points]
    segments = state.manifest.segments
    arrays = state.manifest.unpack(state.values)
    values = {segment.name: y for segment, y in zip(segments, arrays, strict=True)}
    return Trained(curves, state, values, folder)


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Trained]:
    """Returns the run of a column, or of a plan there, which is made when it is first asked for."""
    done: dict[tuple[str, str], Trained] = {}

    def make(column: str, plan: str = "") -> Trained:
        if (column, plan) not in done:
            folder = tmp_path_factory.mktemp(column)
            features = {feature for place, feature in select("yes") if place == column}
            features -= PLANS | KEYS
            if plan == SEVERAL:
                features = {plan}
            elif plan:
                features = {plan, "several rewards"}  # as the client of `serve` sends them
            if column == "server":
                serve(folder, features)
            else:
                options = get_options(column, folder, features)
                if column == "offline":
                    recorded = make("serial").folder / "run" / TRAJECTORY_FOLDER
                    options.append(f"learner.offline={recorded}")
                relaax_like.train(write_experiment(folder, features), options)
            done[column, plan] = read_run(folder)
        return done[column, plan]

    return make


def serve(folder: Path, features: set[str]) -> None:
    """Trains in the parameter server, with a client over the network."""
    write_experiment(folder, features)
    settings = [*get_options("server", folder, features)[1:], "algorithm.max_global_step=512"]
    if SEVERAL not in features:
        settings.append(f"algorithm.rows_file={folder / 'rows.npz'}")
    slots = CueSlots(4, 0) if SEVERAL in features else CountingSlots()
    with Cluster(folder, folder / "contract", *settings) as cluster:
        ps, rlx = cluster.start_both_servers()
        spaces = (slots.observation_space, slots.action_space)
        with RlxClient(f"localhost:{cluster.rlx_port}", *spaces, slots=4) as client:
            Interactor(slots, client).run()
        assert ps.wait() == 0
        rlx.stop()
        assert TRACE not in ps.output + rlx.output


# What each feature leaves behind; see support/contract.


def check_prepare(run: Trained) -> None:
    assert 0 < run.curves["prepared"][-1] < 18


def check_review(run: Trained) -> None:
    updates, _, names = (run.folder / "reviewed.txt").read_text().partition(" ")
    assert int(updates) >= 1
    assert "critic seen" in names


def check_stop(run: Trained) -> None:
    # One update of each iteration of 32 steps, instead of three epochs.
    assert 0 < 32 * run.state.steps["critic"] <= run.state.global_t


def check_phases(run: Trained) -> None:
    assert run.state.steps["actor"] == run.state.steps["critic"] // 2 > 0


def check_frozen(run: Trained) -> None:
    assert run.state.steps.get("fixed", 0) == 0
    assert 0 < run.curves["fixed"][0] == run.curves["fixed"][-1]  # of the same input


def check_target(run: Trained) -> None:
    for name in ("critic.out.W", "critic.out.b"):
        assert run.values[f"target/{name}"].tobytes() == run.values[name].tobytes()
    assert run.values["critic.out.b"] != 0


def check_buffers(run: Trained) -> None:
    assert run.values["counted"] == run.state.steps["critic"] > 0


def check_settings(run: Trained) -> None:
    assert run.curves["steps"][0] < run.curves["steps"][-1] <= run.state.global_t
    assert run.curves["epsilon"][0] == 1.0 - run.curves["steps"][0] / 256
    assert run.curves["epsilon"][-1] < 0.5
    assert set(run.curves["inputs"]) == {1.0}


def check_random(run: Trained) -> None:
    draws = run.curves["draw"]
    assert len(set(draws)) == len(draws) > 1


def check_exploration(run: Trained) -> None:
    assert run.curves["explores"][0] == 1.0
    assert run.curves["explores"][-1] < 0.5


def check_rows(run: Trained) -> None:
    arrays = load_rows(run)
    assert arrays["found"].max() == 21  # three times the last step of a rollout
    np.testing.assert_array_equal(arrays["found"], arrays["expected"])


def check_rewards(run: Trained) -> None:
    assert set(run.curves["costs"]) == {0.25}


def check_acting(run: Trained) -> None:
    assert set(run.curves["critic seen"]) == {0.0}


def check_next_actions(run: Trained) -> None:
    assert set(run.curves["after"]) == {0.0}
    assert 0.2 < run.curves["odd after"][0] < 0.8


def check_episodes(run: Trained) -> None:
    assert set(run.curves["whole"]) == {1.0}
    assert run.state.version >= 512 // (4 * 10) - 4  # but for some that are not finished


def check_replay(run: Trained) -> None:
    # Of ten steps the last one has only itself, and the others one more.
    assert min(run.curves["ahead"]) > 1.5
    assert max(run.curves["ahead"]) <= 2.0
    # At the budget's end a learner can be behind by 64 slots' steps and one call, and agents ahead
    # of it by 8 rollouts of 4 slots.
    due, behind = 0.25 * (run.state.global_t - 64), 0.25 * 64 + 4 + 0.25 * 8 * 4
    assert due - behind - 4 <= run.state.steps["critic"] <= due


def check_several(run: Trained) -> None:
    assert {"goal/default", "control/default"} <= run.curves.keys()
    assert run.state.steps.keys() == {"goal/default", "control/default"}
    assert min(run.state.steps.values()) > 0
    assert run.state.version == sum(run.state.steps.values())
    assert 512 <= run.state.global_t < 1024


def check_data_handler(run: Trained) -> None:
    assert load_rows(run)["expected"].max() == 21


def check_recordings(run: Trained) -> None:
    files = find_trajectories(run.folder / "run" / TRAJECTORY_FOLDER)
    rollouts = [read_trajectories(file) for file in files]
    assert 256 <= sum(rollout.env_steps for rollout in rollouts) <= run.state.global_t
    assert {rollout.next_alive.shape[0] for rollout in rollouts} == {8}


CHECKS: dict[str, Callable[[Trained], None]] = {
    "prepare": check_prepare,
    "stop": check_stop,
    "review": check_review,
    "phases": check_phases,
    "frozen": check_frozen,
    "target": check_target,
    "buffers": check_buffers,
    "settings": check_settings,
    "random": check_random,
    "exploration": check_exploration,
    "rows": check_rows,
    "several rewards": check_rewards,
    "acting": check_acting,
    "next actions": check_next_actions,
    "data handler": check_data_handler,
    "recordings": check_recordings,
    "episodes": check_episodes,
    "replay": check_replay,
    SEVERAL: check_several,
}


@pytest.mark.slow
@pytest.mark.parametrize(("column", "feature"), select("yes"))
def test_what_works_works(column: str, feature: str, train: Callable[..., Trained]) -> None:
    CHECKS[feature](train(column, feature if feature in PLANS else ""))


@pytest.mark.parametrize("column", COLUMNS)
def test_hooks_are_called(column: str, train: Callable[..., Trained]) -> None:
    note = (train(column).folder / "note").read_text()
    assert re.fullmatch(r"iteration [1-9]\d*, critic \d.*", note)


def test_a_plan_of_complete_updates_is_refused_for_several_algorithms(tmp_path: Path) -> None:
    file = write_experiment(tmp_path, {"episodes"})
    model = tmp_path / "contract" / "model.py"
    model.write_text(model.read_text().replace("def make_model", "def make_other_model"))
    (tmp_path / "contract" / "agent.py").write_text(
        "from relaax_like.agent import SimpleRLAgent\n\n\nclass Agent(SimpleRLAgent):\n    pass\n"
    )
    algorithm = tmp_path / "contract" / "algorithm.py"
    algorithm.write_text(
        algorithm.read_text() + "\n\ndef make_algorithms(config, seed):\n"
        "    from .model import make_other_model\n\n"
        "    return {'one': Contract(make_other_model(config, seed), config, seed)}\n"
    )
    place = re.escape(find_line(tmp_path / "contract", "def plan"))
    with pytest.raises(
        ConfigError, match=rf"{place}: plan is Episodes, the plan of one Algorithm.*define"
    ):
        relaax_like.train(file, get_options("serial", tmp_path))


def test_phases_are_refused_where_gradients_are_held_back(tmp_path: Path) -> None:
    file = write_experiment(tmp_path, {"phases"})
    options = [*get_options("agent", tmp_path), "relaax-parameter-server.combine.method=avg"]
    place = re.escape(find_line(tmp_path / "contract", "phases ="))
    with pytest.raises(ConfigError, match=rf"{place}: phases .*: avg holds .*; set it to fifo"):
        relaax_like.train(file, options)


@pytest.mark.parametrize(("column", "feature"), select("refused"))
def test_what_does_not_work_is_refused_with_file_and_line(
    column: str, feature: str, tmp_path: Path, train: Callable[..., Trained]
) -> None:
    # Recordings have what the rewards of their run had.
    recorded = {"several rewards"} if column == "offline" and feature != SEVERAL else set()
    file = write_experiment(tmp_path, {feature, *recorded})
    code, words = FEATURES[feature]
    wanted = f"{re.escape(find_line(tmp_path / 'contract', code))}: .*{words}"
    options = get_options(column, tmp_path, {feature})
    if column == "offline":
        options.append(f"learner.offline={train('serial').folder / 'run' / TRAJECTORY_FOLDER}")
    if column == "server":
        with Cluster(tmp_path, tmp_path / "contract", "learner.placement=server") as cluster:
            server = cluster.start_parameter_server()
            assert server.wait() == 2
            assert re.search(wanted, server.output), server.output
            assert TRACE not in server.output
        return
    with pytest.raises(ConfigError, match=wanted):
        relaax_like.train(file, options)
