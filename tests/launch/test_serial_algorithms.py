"""Several Algorithms with `placement: server`, in one process: they learn, stop and resume."""

# covers F10

import shutil
from pathlib import Path

import pytest
from support.cluster import ROOT
from support.compare import compare
from support.hierarchy import FOLDER
from support.serial import STOPPED, read_run, train

from relaax_like.config.loader import load_experiment
from relaax_like.launch.backprop_main import measure
from relaax_like.launch.evaluation import evaluate_policies
from relaax_like.metrics.curves import read_curves
from relaax_like.wire.errors import ConfigError

CUES = ROOT / "tests" / "support" / "cues"
# Iterations of 16 goals and of 32 steps; the slots are 3, so that rollouts wait.
ROLLOUTS = "{goal: 4, control: 4}"


def write_experiment(
    folder: Path, algorithm: Path = FOLDER, learner: str = "", rollouts: str = ROLLOUTS
) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / "experiment.yaml"
    file.write_text(
        f"run_dir: {folder / 'run'}\n"
        "relaax-parameter-server: {progress_interval_sec: 1000}\n"
        f"learner: {{placement: server, {learner}}}\n"
        f"algorithm: {{path: '{algorithm}', rollouts: {rollouts}}}\n"
        f"environment: {{path: '{CUES}', slots: 3}}\n"
    )
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the algorithm."""
    shutil.copytree(FOLDER, tmp_path / "own", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "own"


def test_a_hierarchy_learns_in_one_process(tmp_path: Path) -> None:
    file = write_experiment(tmp_path, learner="target_return: 5.5, target_episodes: 50")
    assert train(file, "algorithm.max_global_step=60000") == 0
    run = read_run(tmp_path / "run")
    # No policy of one Algorithm alone has a mean return above 0.
    assert run["global_t"] < 60000
    curves = read_curves(tmp_path / "run" / "metrics")
    for name in ("goal", "control"):
        assert f"Optimizer/{name}/default" in curves
    # Each iteration of either is one publication, and one step of its own optimizer.
    assert run["steps"].keys() == {"goal/default", "control/default"}
    assert run["published"] == run["version"] == sum(run["steps"].values())
    assert run["steps"]["control/default"] == run["global_t"] // 32
    evaluation = evaluate_policies(load_experiment(file), episodes=20)[""]
    assert (evaluation.returns / evaluation.lengths).mean() > 0.9


@pytest.mark.parametrize("placement", ["server", pytest.param("agent", marks=pytest.mark.slow)])
def test_one_algorithm_can_learn_from_a_replay_table(placement: str, tmp_path: Path) -> None:
    file = write_experiment(tmp_path, learner="target_return: 5.5, target_episodes: 50")
    sets = ("algorithm.replayed=[control]", f"learner.placement={placement}")
    # Few updates for each step: the cost is that of the policy that has made the choices.
    rate = ("algorithm.updates_per_step=0.125", "algorithm.batch_size=64")
    assert train(file, *sets, *rate, "algorithm.max_global_step=60000") == 0
    run = read_run(tmp_path / "run")
    assert run["global_t"] < 60000
    assert min(run["steps"].values()) > 10


def test_iterations_of_one_algorithm_can_have_a_size_and_those_of_another_none(
    folder: Path, tmp_path: Path
) -> None:
    file = folder / "config.py"
    old, new = "rollouts=rollouts)", "rollouts=rollouts if name == 'goal' else None)"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    assert train(write_experiment(tmp_path, folder), "algorithm.max_global_step=600") == 0
    run = read_run(tmp_path / "run")
    assert min(run["steps"]["goal/default"], run["steps"]["control/default"]) > 0
    # Each rollout of 8 steps of the three slots is an iteration by itself.
    assert run["steps"]["control/default"] == run["global_t"] // 24


def test_stopped_and_resumed_it_equals_an_uninterrupted_run(tmp_path: Path) -> None:
    files = [write_experiment(tmp_path / name) for name in ("a", "b")]
    budget = "algorithm.max_global_step=1200"
    # A schedule follows all steps of the run, whichever counts them.
    rate = (
        "relaax-parameter-server.optimizers={default: {learning_rate: 0.05, schedule: linear, "
        "learning_rate_end: 0, schedule_env_steps: 1200}}"
    )
    assert train(files[0], budget, rate) == 0
    assert train(files[1], budget, rate, stop_at=104) == STOPPED
    waiting = read_run(tmp_path / "b" / "run")["serial"]["state"]["agents"]["processors"]
    assert {name for name, state in waiting.items() if has_waiting(state)} == {"goal", "control"}
    assert train(files[1], budget, rate, stop_at=201) == STOPPED
    assert train(files[1], budget, rate) == 0
    first, second = (read_run(tmp_path / name / "run") for name in ("a", "b"))
    assert compare(first, second, "run") == ""
    assert first["global_t"] >= 1200


def test_each_algorithm_resumes_with_its_replay_table(tmp_path: Path) -> None:
    files = [write_experiment(tmp_path / name) for name in ("a", "b")]
    sets = ("algorithm.replayed=[goal,control]", "algorithm.max_global_step=900")
    assert train(files[0], *sets) == 0
    assert train(files[1], *sets, stop_at=151) == STOPPED
    assert train(files[1], *sets) == 0
    first, second = (read_run(tmp_path / name / "run") for name in ("a", "b"))
    assert compare(first, second, "run") == ""
    # Updates per row of the table: control has a row for each step, goal one for each goal.
    goal, control = (first["steps"][f"{name}/default"] for name in ("goal", "control"))
    assert control == pytest.approx((first["global_t"] - 32) / 2, abs=30)
    assert 10 < goal < control / 3


@pytest.mark.parametrize("placement", ["server", "agent"])
def test_a_prior_of_one_of_them_is_refused_by_name(
    placement: str, folder: Path, tmp_path: Path
) -> None:
    file = folder / "config.py"
    text = file.read_text()
    file.write_text(text.replace("capacity=500,", "capacity=500, prior=('/recorded',),"))
    sets = ("algorithm.replayed=[control]", f"learner.placement={placement}")
    with pytest.raises(ConfigError, match=r"config\.py:\d+: prior of 'control' is /recorded, "):
        train(write_experiment(tmp_path, folder), *sets)


def has_waiting(state: dict) -> bool:
    collector = state["learner"]["collector"]
    return bool(collector["num_added"] - collector["num_taken"] > 0)


def test_iterations_of_another_size_do_not_resume_in_the_middle(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert train(write_experiment(tmp_path), stop_at=20) == STOPPED
    other = write_experiment(tmp_path, rollouts="{goal: 4, control: 5}")
    assert train(other, "algorithm.max_global_step=100") == 0
    assert "columns of an iteration is {'goal': 4, 'control': 5}, but was" in caplog.text
    assert "episodes restart" in caplog.text


def test_an_iteration_of_each_algorithm_is_measured(tmp_path: Path) -> None:
    assert measure(load_experiment(write_experiment(tmp_path))) > 0


def test_an_algorithm_that_stops_epochs_can_be_evaluated(folder: Path, tmp_path: Path) -> None:
    """Learners beside their agents would refuse it, but nobody learns."""
    file = folder / "algorithm.py"
    stop = "    def stop(self, metrics):\n        return metrics['default'] > 1e9\n\n"
    file.write_text(file.read_text().replace("    def learn(", f"{stop}    def learn("))
    experiment = write_experiment(tmp_path, folder)
    assert train(experiment, "algorithm.max_global_step=200") == 0
    assert evaluate_policies(load_experiment(experiment), episodes=2)[""].lengths.min() >= 3


def test_plans_by_algorithm_without_rollouts_learn_beside_the_agents(
    folder: Path, tmp_path: Path
) -> None:
    file = folder / "config.py"
    file.write_text(file.read_text().replace("rollouts=rollouts)", "rollouts=None)"))
    experiment = write_experiment(tmp_path, folder)
    experiment.write_text(experiment.read_text().replace("placement: server", "placement: agent"))
    assert train(experiment, "algorithm.max_global_step=200") == 0
    run = read_run(tmp_path / "run")
    assert run["steps"]["control/default"] == run["global_t"] // (3 * 8) > 0
    assert run["steps"]["goal/default"] > 0


def refuse(file: Path, match: str, *sets: str) -> None:
    with pytest.raises(ConfigError, match=match):
        train(file, *sets)


def find_line(file: Path, text: str) -> str:
    lines = file.read_text().splitlines()
    return rf"{file}:{next(i for i, line in enumerate(lines, 1) if text in line)}: "


@pytest.mark.parametrize(
    ("learner", "match"),
    [
        (
            "collect_traj: true",
            "collect_traj: files are written by the learner .* has make_algorithms",
        ),
        (
            "save_freq: 5",
            "save_freq: 5, but with placement server, copies .* has make_algorithms; set it to -1",
        ),
        (
            "eval_freq: 5",
            "eval_freq: 5, but evaluations .* need make_model .* make_algorithms makes 2",
        ),
        (
            "hook: {show: {type: log_show, position: after_iter}}",
            "learner.hook.show: hooks are called by the learner .* has make_algorithms",
        ),
    ],
)
def test_what_needs_one_learner_is_refused(learner: str, match: str, tmp_path: Path) -> None:
    refuse(write_experiment(tmp_path, learner=learner), match)


def test_learners_that_make_each_update_together_are_refused(tmp_path: Path) -> None:
    place = find_line(FOLDER / "algorithm.py", "def make_algorithms").removesuffix(": ")
    refuse(
        write_experiment(tmp_path),
        f"combine.method: sync needs a function make_model in .*, but .* \\({place}\\); set it",
        "learner.placement=agent",
        "relaax-parameter-server.combine.method=sync",
    )


def test_a_data_handler_is_refused_with_file_and_line(folder: Path, tmp_path: Path) -> None:
    file = folder / "algorithm.py"
    file.write_text(file.read_text() + "\n\ndef make_data_handler(config):\n    return None\n")
    place = find_line(file, "def make_data_handler")
    refuse(write_experiment(tmp_path, folder), f"{place}make_data_handler needs .*makes 2")


def test_shared_variables_are_refused_with_file_and_line(folder: Path, tmp_path: Path) -> None:
    file = folder / "algorithm.py"
    text = file.read_text()
    text = text.replace(
        "    return {\n",
        "    goal = LinearPolicy('observation', 'goal', 0)\n"
        "    control = LinearPolicy('goal', 'action', 1)\n"
        "    control.layer = goal.layer\n    return {\n",
    )
    text = text.replace('LinearPolicy("observation", "goal", config.seed)', "goal")
    text = text.replace('LinearPolicy("goal", "action", config.seed + 1)', "control")
    file.write_text(text)
    place = find_line(file, "def make_algorithms")
    refuse(
        write_experiment(tmp_path, folder),
        f"{place}the Algorithms goal, control share the variable .*logits.W.* not their Model.*"
        "placement: agent",
    )


PLANS = {
    "of another Algorithm": (
        "rollouts=rollouts)\n            for name, rollouts in self.rollouts.items()",
        "rollouts=rollouts)\n            for name, rollouts in {'goal': 4, 'act': 4}.items()",
        "plan has the Algorithms goal, act, but make_algorithms makes goal, control",
    ),
    "empty": ("self.rollouts.items()", "()", "plan is an empty mapping; add a plan for each"),
    "offline": (
        "OnPolicy(rollout_steps=self.rollout_steps[name], rollouts=rollouts)",
        "__import__('relaax_like.config.plan').config.plan.Offline(batch_size=3)",
        "the plan of 'goal' is Offline, .* expected OnPolicy, Episodes or Replay",
    ),
    "one for all": (
        "        return {\n            name: OnPolicy(",
        "        return OnPolicy(rollout_steps=8, rollouts=4)\n        return {\n"
        "            name: OnPolicy(",
        "plan is OnPolicy, the plan of one Algorithm, but there is no make_model in model.py",
    ),
}


@pytest.mark.parametrize(("old", "new", "match"), PLANS.values(), ids=PLANS)
def test_plans_that_do_not_fit_are_refused_with_file_and_line(
    old: str, new: str, match: str, folder: Path, tmp_path: Path
) -> None:
    file = folder / "config.py"
    text = file.read_text()
    assert old in text
    file.write_text(
        text.replace(old, new).replace(
            "self.rollout_steps[name]", "self.rollout_steps.get(name, 8)"
        )
    )
    place = find_line(file, "def plan")
    refuse(write_experiment(tmp_path, folder), f"{place}{match}")


def test_plans_by_name_are_refused_where_there_is_one_algorithm(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "model.py").write_text(
        "from .algorithm import LinearPolicy\n\n\ndef make_model(config, seed):\n"
        "    return LinearPolicy('observation', 'action', seed)\n"
    )
    place = find_line(folder / "config.py", "def plan")
    refuse(write_experiment(tmp_path, folder), f"{place}plan is by name .* makes one Algorithm")


def test_recordings_of_several_algorithms_are_refused(tmp_path: Path) -> None:
    place = find_line(FOLDER / "config.py", "def plan")
    refuse(
        write_experiment(tmp_path, learner=f"offline: {tmp_path}"),
        rf"this algorithm \({place}plan is by name, .*only learns from what its agents",
    )
