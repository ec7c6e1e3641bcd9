"""Training from Python, and an algorithm folder's own trainer."""

# covers J1, J11, J17

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.cluster import BARE, ROOT, TRACE, Cluster, Program, find_command
from support.here import run_relaax
from support.recordings import record
from support.serial import STOP_AT, STOPPED

import relaax_like
from relaax_like.config.loader import load_experiment
from relaax_like.config.run_spaces import read_run_spaces
from relaax_like.launch.offline_trainer import OfflineTrainer
from relaax_like.launch.trainer import Trainer
from relaax_like.launch.training import TrainingResult, make_trainer
from relaax_like.parameter_server.snapshots import read_latest
from relaax_like.wire.errors import ConfigError, RelaaxError

STOPPING = Path(__file__).parents[1] / "support" / "stopping"
# Two lessons: episodes of 20 steps at most, then whole ones.
CURRICULUM = """
import dataclasses
import logging
import threading

from relaax_like.client.interactor import Interactor
from relaax_like.launch.base_trainer import BaseTrainer
from relaax_like.launch.local import open_slots


class Trainer(BaseTrainer):
    def train(self, server, stop):
        for env, limit, target in (("CartPole-v0", 20, 15.0), ("CartPole-v1", None, 1e9)):
            logging.getLogger(__name__).info("lesson %s", env)
            environment = self.experiment.environment.model_copy(update={"env": env})
            lesson = dataclasses.replace(self.experiment, environment=environment)
            self.teach(lesson, limit, target, server, stop)

    def teach(self, lesson, limit, target, server, stop):
        over = threading.Event()

        def take(episode):
            self.show_episode(episode)
            status = server.status()
            mastered = status.episodes >= 10 and status.mean_return >= target
            if mastered or server.finished or stop.is_set():
                over.set()

        with open_slots(lesson, "train") as slots:
            agents = self.make_agents(slots, server, stop)
            try:
                Interactor(slots, agents, max_episode_steps=limit, stop=over, on_episode=take).run()
            finally:
                agents.close()
"""


def write_experiment(folder: Path, program: str = "program: OpenAI_Gym", trainer: str = "") -> Path:
    """Writes an experiment with an algorithm that needs no TensorFlow, and maybe its trainer."""
    shutil.copytree(BARE, folder / "algorithm", ignore=shutil.ignore_patterns("__pycache__"))
    if trainer:
        (folder / "algorithm" / "trainer.py").write_text(trainer)
    file = folder / "mine.yaml"
    file.write_text(
        f"run_dir: {folder / 'run'}\n"
        "algorithm: {path: ./algorithm, max_global_step: 2000}\n"
        f"environment: {{{program}, env: CartPole-v1}}\n"
    )
    return file


def start(cluster: Cluster, *arguments: object) -> Program:
    return cluster.start("train", [find_command("relaax"), *arguments])


# From Python.


def test_a_script_trains_in_a_line_and_gets_to_know_how_it_ended(tmp_path: Path) -> None:
    file = write_experiment(tmp_path)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    result = relaax_like.train(file, ["algorithm.max_global_step=900"])
    state = read_latest(tmp_path / "run" / "checkpoints")
    assert state is not None
    assert result.global_t == state.global_t >= 900
    spaces = read_run_spaces(tmp_path / "run")  # although the settings define them
    assert spaces is not None
    assert spaces.observations["observation"].high is not None  # type: ignore[attr-defined]
    # This agent learns once from each episode, when it is over.
    assert state.version == state.statistics["episodes"] > 10
    assert result == TrainingResult(
        run_dir=tmp_path / "run",
        global_t=state.global_t,
        mean_return=state.statistics["mean_return"],
        finished="budget of 900 env steps used up",
        exit_status=0,
    )
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    # As by the command: a run is not gone on with by mistake.
    with pytest.raises(ConfigError, match=r"already contains a run, at step .*relaax resume"):
        relaax_like.train(file)
    anew = relaax_like.train(file, ["algorithm.max_global_step=300"], force=True)
    assert anew.global_t < state.global_t
    kept = read_latest(tmp_path / "run.old-1" / "checkpoints")
    assert kept is not None
    assert kept.global_t == state.global_t


def test_ctrl_c_stops_a_training_from_python_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STOP_AT, "300")
    handler = signal.getsignal(signal.SIGINT)
    result = relaax_like.train(write_experiment(tmp_path, f"path: '{STOPPING}'"))
    assert (result.exit_status, result.finished) == (STOPPED, "")
    assert 0 < result.global_t <= 300
    assert signal.getsignal(signal.SIGINT) is handler
    state = read_latest(tmp_path / "run" / "checkpoints")
    assert state is not None
    assert state.global_t == result.global_t


def test_another_thread_is_refused_as_signals_would_not_come_to_it(tmp_path: Path) -> None:
    errors: list[Exception] = []

    def train() -> None:
        try:
            relaax_like.train(write_experiment(tmp_path))
        except RelaaxError as error:
            errors.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    (error,) = errors
    assert "main thread" in str(error)
    assert not (tmp_path / "run").exists()


def test_the_name_is_there_where_only_the_client_s_libraries_are(tmp_path: Path) -> None:
    """In a base install there is no pydantic; then it is the call that fails."""
    code = (
        "import sys; sys.modules['pydantic'] = None\n"
        "import relaax_like, relaax_like.client\n"
        "assert callable(relaax_like.train)\n"
        "relaax_like.train('experiment.yaml')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 1
    assert "pydantic" in done.stderr.splitlines()[-1]


# Trainers.


def test_a_folder_s_own_trainer_runs_a_curriculum(tmp_path: Path) -> None:
    file = write_experiment(tmp_path, trainer=CURRICULUM)
    done = run_relaax("train", file, "--set", "relaax-rlx-server.score_lines=true")
    assert done.status == 0, done
    assert TRACE not in done.output
    first, second = (done.output.index(f"lesson CartPole-v{n}") for n in (0, 1))
    lengths = [
        [int(n) for n in re.findall(r"slot 0: score \d+, (\d+) steps", part)]
        for part in (done.output[first:second], done.output[second:])
    ]
    assert len(lengths[0]) >= 10
    assert max(lengths[0]) <= 20 < max(lengths[1])
    assert "finished: budget of 2000 env steps used up" in done.output
    # What any run has: snapshots, curves, its settings; and it can be evaluated.
    state = read_latest(tmp_path / "run" / "checkpoints")
    assert state is not None
    assert state.global_t >= 2000
    assert state.statistics["episodes"] >= len(lengths[0]) + len(lengths[1])
    assert list((tmp_path / "run" / "metrics").rglob("events.*"))
    assert (tmp_path / "run" / "experiment.info").is_file()
    played = run_relaax("eval", tmp_path / "run", "--episodes", 2)
    assert played.status == 0, played


def test_a_folder_s_own_trainer_stops_and_goes_on(tmp_path: Path) -> None:
    file = write_experiment(tmp_path, trainer=CURRICULUM)
    with Cluster(tmp_path) as cluster:
        first = start(cluster, "train", file, "--max-global-step", 10**9)
        first.wait_for("lesson CartPole-v1")
        assert first.stop(signal.SIGINT) == STOPPED, first
        state = read_latest(tmp_path / "run" / "checkpoints")
        assert state is not None
        second = start(
            cluster, "resume", tmp_path / "run", "--max-global-step", state.global_t + 500
        )
        assert second.wait() == 0, second
    second.wait_for(f"global_t is {state.global_t}$")
    assert TRACE not in first.output + second.output


@pytest.mark.parametrize(
    ("trainer", "want"),
    [
        ("x = 1\n", "no class Trainer"),
        ("class Trainer:\n    pass\n", "Trainer is <class"),
        ("Trainer = 3\n", "Trainer is 3"),
        (
            "from relaax_like.launch.base_trainer import BaseTrainer\n\n\n"
            "class Trainer(BaseTrainer):\n    pass\n",
            "class Trainer lacks train; define it, see BaseTrainer",
        ),
        ("import nothing_of_that_name\n", r"trainer\.py:1: ModuleNotFoundError"),
    ],
    ids=["none", "derives from nothing", "no class", "lacks its method", "fails"],
)
def test_a_trainer_that_cannot_be_used_is_refused(tmp_path: Path, trainer: str, want: str) -> None:
    experiment = load_experiment(write_experiment(tmp_path, trainer=trainer))
    with pytest.raises(ConfigError, match=want) as caught:
        make_trainer(experiment)
    assert os.fspath(tmp_path / "algorithm" / "trainer.py") in str(caught.value)


BASE = "from relaax_like.launch.base_trainer import BaseTrainer\n\n\nclass Trainer(BaseTrainer):\n"
TRAIN = "    def train(self, server, stop):\n        pass\n\n"


@pytest.mark.parametrize(
    ("body", "want"),
    [
        (
            "    def train(self, server: object = None) -> None:\n        pass\n",
            "Trainer.train takes (self, server=None): too many positional arguments; "
            "expected (self, server, stop), see BaseTrainer",
        ),
        (
            "    def train(server, stop):\n        pass\n",
            "Trainer.train takes (server, stop): too many positional arguments; "
            "expected (self, server, stop), see BaseTrainer",
        ),
        (
            "    def train(self, server, stop, *, lessons):\n        pass\n",
            "Trainer.train takes (self, server, stop, *, lessons): missing a required "
            "argument: 'lessons'; expected",
        ),
        ("    train = 3\n", "Trainer.train is 3; expected (self, server, stop)"),
        (
            f"{TRAIN}    def make_agents(self, slots):\n        pass\n",
            "Trainer.make_agents takes (self, slots): too many positional arguments; expected "
            "(self, slots, server, stop)",
        ),
        (
            f"{TRAIN}    def __init__(self, experiment):\n        super().__init__(experiment)\n",
            "Trainer.__init__ takes (self, experiment): too many positional arguments; expected "
            "(self, experiment, overrides=(), log=",
        ),
    ],
    ids=["too few", "no self", "too many", "no method", "make_agents", "__init__"],
)
def test_methods_that_could_not_be_called_are_refused(tmp_path: Path, body: str, want: str) -> None:
    experiment = load_experiment(write_experiment(tmp_path, trainer=BASE + body))
    with pytest.raises(ConfigError) as caught:
        make_trainer(experiment)
    assert str(caught.value).startswith(f"{tmp_path / 'algorithm' / 'trainer.py'}: {want}")


@pytest.mark.parametrize(
    "body",
    [
        "    def train(self, *everything):\n        pass\n",
        "    @staticmethod\n    def train(ps, until):\n        pass\n",
        f"{TRAIN}    def __init__(self, *a, extra=1, **k):\n        super().__init__(*a, **k)\n",
        f"{TRAIN}    def make_agents(self, slots, server, stop, lesson=None):\n        pass\n",
    ],
    ids=["*everything", "other names, static", "__init__", "one more"],
)
def test_methods_may_have_a_form_of_their_own(tmp_path: Path, body: str) -> None:
    make_trainer(load_experiment(write_experiment(tmp_path, trainer=BASE + body)))


def test_a_trainer_and_workers_exclude_each_other(tmp_path: Path) -> None:
    folder = tmp_path / "ppo"
    shutil.copytree(ROOT / "algorithms" / "ppo", folder, ignore=shutil.ignore_patterns("__*"))
    (folder / "trainer.py").write_text("")
    file = tmp_path / "experiment.yaml"
    file.write_text(
        f"algorithm: {{path: '{folder}', state_size: 4, num_actions: 2}}\n"
        "environment: {program: OpenAI_Gym, env: CartPole-v1}\n"
    )
    experiment = load_experiment(file, ["learner.workers=2"])
    with pytest.raises(ConfigError, match=r"learner\.workers: 2, but .*trainer\.py starts its own"):
        make_trainer(experiment)


def test_relaax_run_refuses_a_trainer_that_it_would_not_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = write_experiment(tmp_path, trainer=CURRICULUM)
    done = run_relaax("run", file)
    assert done.status == 2, done
    (line,) = done.lines
    trainer = tmp_path / "algorithm" / "trainer.py"
    assert line.startswith(f"error: {trainer}: relaax run does not use trainers")
    assert f"`relaax train {file}`" in line
    assert not (tmp_path / "run").exists()


def test_without_one_the_settings_decide(tmp_path: Path) -> None:
    assert type(make_trainer(load_experiment(write_experiment(tmp_path)))) is Trainer
    file = Path(__file__).parents[2] / "algorithms" / "bc" / "bc.yaml"
    experiment = load_experiment(file, [f"learner.offline={tmp_path / 'recorded'}"])
    record(experiment, tmp_path / "recorded", files=1)
    assert type(make_trainer(experiment)) is OfflineTrainer
