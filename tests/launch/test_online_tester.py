"""Tests while a run learns, copies of its policy, and starting from another run's weights."""

# covers J10, P17, P18, P19, P23

import errno
import io
import itertools
import logging
import re
import shutil
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.cluster import ROOT, TRACE, Cluster, Processes, find_command, wait_until
from support.durable import make_push, open_server
from support.here import run_relaax
from support.learning import (
    COLUMNS,
    PlainPolicy,
    make_plain_learner,
    make_plain_server,
    make_rewarded,
)
from support.uncompiled import copy_uncompiled

import relaax_like
from relaax_like.client.interactor import Transition
from relaax_like.config.loader import load_experiment
from relaax_like.core.metrics import NullMetrics
from relaax_like.core.records import Episode, TrainReturn
from relaax_like.launch.evaluation import play_greedy
from relaax_like.launch.online_tester import (
    OnlineTester,
    TestHook,
    VersionTests,
    make_version_tests,
)
from relaax_like.learn.checkpoint import load_checkpoint
from relaax_like.learn.frozen_policy import FrozenPolicy
from relaax_like.metrics.curves import read_curves
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.snapshots import list_names, read_best, read_latest
from relaax_like.parameter_server.stop_condition import StopCondition
from relaax_like.wire.errors import ConfigError, RelaaxError
from relaax_like.wire.spaces import Box, Discrete

PPO = ROOT / "algorithms" / "ppo" / "ppo.yaml"
A2C = ROOT / "algorithms" / "a2c" / "a2c.yaml"
SMALL = (
    *("algorithm.epochs=1", "algorithm.num_steps=256", "algorithm.name=null"),
    "algorithm.network={layers: [4]}",
)
TESTED = ("learner.eval_freq=2", "learner.num_eval_eps=3", "learner.save_freq=3", "seed=3")


def train(folder: Path, run_dir: str, *sets: str) -> str:
    """Trains a small ppo without XLA; the folder has it, see `tested`. Returns lines of the log."""
    lines = io.StringIO()
    handler, logger = logging.StreamHandler(lines), logging.getLogger("relaax_like")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    own = (f"run_dir={folder / run_dir}", f"algorithm.path={folder / 'ppo'}")
    try:
        assert relaax_like.train(PPO, [*SMALL, *own, *sets]).exit_status == 0
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    return lines.getvalue()


@pytest.fixture(scope="module")
def tested(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run of four iterations of 256 steps, tested after the second and the fourth."""
    folder = tmp_path_factory.mktemp("tested")
    copy_uncompiled("ppo", folder)
    return folder / "run", train(folder, "run", "algorithm.max_global_step=1024", *TESTED)


def test_the_policy_is_tested_every_so_many_iterations(tested: tuple[Path, str]) -> None:
    run, output = tested
    assert "evaluation at step 512: mean return" in output
    assert "evaluation at step 1,024: mean return" in output
    curves = read_curves(run / "metrics")
    assert curves["Test/Return"].steps.tolist() == [512, 1024]
    # CartPole gives 1 for each step.
    assert curves["Test/Return"].values == pytest.approx(curves["Test/Episode Length"].values)


def test_the_policy_with_the_best_test_is_kept_with_its_score(tested: tuple[Path, str]) -> None:
    run, _ = tested
    returns = read_curves(run / "metrics")["Test/Return"]
    best = read_best(run / "checkpoints")
    assert best is not None
    assert best.score == pytest.approx(max(returns.values), rel=1e-6)
    assert best.global_t == returns.steps[np.argmax(returns.values)]
    assert len(list_names(run / "checkpoints")) > 1  # it is not just the newest


def test_an_evaluation_that_reaches_its_target_ends_the_training_for_good(
    tested: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # covers D8
    folder = tested[0].parent
    sets = ("algorithm.max_global_step=100000", *TESTED[:2], "learner.target_eval_return=1")
    output = train(folder, "reached", *sets)
    assert re.search(r"finished: mean return \S+ of an evaluation reached the target 1\b", output)
    state = read_latest(folder / "reached" / "checkpoints")
    assert state is not None
    assert state.global_t == 512  # after the first evaluation
    monkeypatch.chdir(folder)
    again = run_relaax("resume", "reached")
    assert again.status == 0, again
    assert "this run has already finished" in again.output


def test_beside_agents_a_judged_version_that_reaches_the_target_ends_the_training(
    tmp_path: Path,
) -> None:
    # covers D8
    def play(values: Any, version: int, episodes: int) -> Any:
        return np.full(episodes, float(version)), np.full(episodes, 9)

    sequences = itertools.count(1)

    def open_run(target: float) -> ParameterServer:
        return open_server(tmp_path / "run", keep_best=1, target_score=target)

    with open_run(3.0) as server, make_tests(server, play):

        def has_finished() -> bool:
            server.push(make_push(next(sequences)))
            return bool(server.finished)

        wait_until(has_finished, "the end")
        assert server.best_score is not None
        assert server.best_score >= 3.0
    with open_run(1e9) as server:
        assert server.finished == ""
        server.save_checkpoint(score=2e9)  # of a training, not of an evaluation
    with open_run(1e9) as server:
        assert server.finished == ""
    with open_run(3.0) as server:
        assert "of an evaluation reached the target 3" in server.finished


def test_a_copy_of_policy_and_optimizers_is_kept_every_so_many_iterations(
    tested: tuple[Path, str],
) -> None:
    run, _ = tested
    assert [path.name for path in (run / "ckpt").iterdir()] == ["iteration_3.npz"]
    copy = load_checkpoint(run / "ckpt" / "iteration_3.npz")
    assert (copy.last_iter, copy.last_step) == (3, 768)
    assert {"value/policy.0.W", "slots/actor", "slots/critic"} <= set(copy.policy)


def test_a_run_starts_from_another_ones_weights_and_tells_what_differs(
    tested: tuple[Path, str],
) -> None:
    previous, _ = tested
    before = read_latest(previous / "checkpoints")
    assert before is not None
    # With rates of zero the weights stay what they were at the start.
    still = (
        *("algorithm.learning_rate=0", "algorithm.critic_learning_rate=0", "seed=3"),
        *("algorithm.max_global_step=256", f"learner.previous={previous}"),
    )
    output = train(previous.parent, "second", *still)
    assert "algorithm.learning_rate is 0.0, in the previous run it was 0.001" in output
    assert f"starting from the weights of {previous} at step 1,024" in output
    assert "these begin again: learning rates, moments of the optimizers" in output
    after = read_latest(previous.parent / "second" / "checkpoints")
    assert after is not None
    np.testing.assert_array_equal(after.values, before.values)
    assert after.global_t == 256
    untouched = read_latest(previous / "checkpoints")
    assert untouched is not None
    assert untouched.global_t == before.global_t


@pytest.mark.parametrize(
    ("name", "sets", "words"),
    [
        ("nowhere", (), "nowhere"),
        ("run", ("algorithm.network={layers: [8]}",), "run has a different model"),
    ],
    ids=["no run", "another model"],
)
def test_what_cannot_be_started_from_is_refused(
    tested: tuple[Path, str], name: str, sets: Sequence[str], words: str
) -> None:
    folder = tested[0].parent
    with pytest.raises(ConfigError, match=words):
        train(folder, "third", f"learner.previous={folder / name}", *sets)
    assert not (folder / "third" / "ckpt").exists()


def test_beside_agents_the_parameter_server_tests_its_versions(tmp_path: Path) -> None:
    """A snapshot of the very values that came out best is kept."""
    a2c = copy_uncompiled("a2c", tmp_path)
    sets = ("algorithm.name=null", f"algorithm.path={a2c}", "learner.target_return=null")
    flags = [part for text in sets for part in ("--set", text)]
    budget = ("--max-global-step", str(10**9))
    with Cluster(tmp_path) as cluster:
        command = [find_command("relaax"), "train", str(A2C), "--run-dir", "run", *budget, *flags]
        command += ["--save-freq", "40"]
        program = cluster.start("train", [*command, "--eval-freq", "20", "--num-eval-eps", "3"])
        wait_until(lambda: program.output.count("over 3 greedy episodes") >= 3, program)
        assert program.stop(signal.SIGINT) == 128 + signal.SIGINT
    assert TRACE not in program.output
    returns = read_curves(tmp_path / "run" / "metrics")["Test/Return"]
    assert len(returns.steps) >= 3
    best = read_best(tmp_path / "run" / "checkpoints")
    assert best is not None
    assert best.score == pytest.approx(max(returns.values), rel=1e-6)
    assert best.global_t == returns.steps[np.argmax(returns.values)]
    # covers F27
    copies = [load_checkpoint(path) for path in (tmp_path / "run" / "ckpt").glob("version_*.npz")]
    assert copies
    assert min(copy.last_iter for copy in copies) >= 40


def test_agents_that_cannot_play_with_values_at_hand_are_not_tested(tmp_path: Path) -> None:
    folder = shutil.copytree(ROOT / "algorithms" / "policy_gradient", tmp_path / "mine")
    experiment = load_experiment(
        folder / "policy_gradient.yaml",
        ["algorithm.name=null", "algorithm.path=./", "learner.eval_freq=2"],
    )
    server: Any = None  # refused before it is looked at
    with pytest.raises(
        ConfigError, match=r"learner\.eval_freq: .* agents have several Algorithms, or act"
    ):
        make_version_tests(experiment, server)


def test_an_environment_that_cannot_be_played_here_is_refused_at_the_start() -> None:
    bandit = f"environment={{path: '{ROOT / 'environments' / 'bandit'}'}}"
    experiment = load_experiment(A2C, [bandit, "learner.eval_freq=2"])
    server: Any = None
    with pytest.raises(ConfigError, match=r"slots\.py"):
        make_version_tests(experiment, server)


def make_tests(server: ParameterServer, test: Callable[..., Any]) -> VersionTests:
    """Makes tests after each version, which a function plays."""
    learner = SimpleNamespace(eval_freq=1, num_eval_eps=2)
    experiment: Any = SimpleNamespace(learner=learner)
    tests = VersionTests(experiment, server)
    tester: Any = SimpleNamespace(test=test, close=lambda: None)
    tests._tester = tester
    return tests


def test_evaluations_that_fail_end_after_three_and_training_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> Any:
        raise RelaaxError("no such joint")

    sequences = itertools.count(1)
    with open_server(tmp_path / "run") as server, make_tests(server, fail) as tests:

        def is_over() -> bool:
            assert server.push(make_push(next(sequences))).outcome in ("applied", "nothing")
            return not tests._thread.is_alive()

        wait_until(is_over, "the end of the tests")
    assert caplog.text.count("an evaluation failed: no such joint; training continues") == 3
    assert caplog.text.count("there are no more evaluations") == 1


def test_an_environment_that_cannot_be_closed_after_a_failure_ends_no_evaluations(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise RelaaxError("no such joint")

    sequences = itertools.count(1)
    with open_server(tmp_path / "run") as server:
        tests = make_tests(server, fail)
        monkeypatch.setattr(tests._tester, "close", fail)
        with tests:

            def has_failed_twice() -> bool:
                server.push(make_push(next(sequences)))
                return caplog.text.count("an evaluation failed: no such joint") >= 2

            wait_until(has_failed_twice, "two evaluations")
    assert "the evaluations' environment could not be closed: no such joint" in caplog.text


def test_a_tester_whose_environment_cannot_be_closed_makes_a_new_one() -> None:
    experiment: Any = None
    tester = OnlineTester(experiment, lambda: False)
    tester._parts = "closed"
    tester._stack.callback(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        tester.close()
    assert tester._parts is None
    tester.close()


def test_a_snapshot_that_cannot_be_written_ends_no_evaluations(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each evaluation is the best so far, and the disk has no room for it."""

    def play(values: Any, version: int, episodes: int) -> Any:
        return np.full(episodes, float(version)), np.full(episodes, 9)

    sequences = itertools.count(1)
    with open_server(tmp_path / "run") as server, make_tests(server, play) as tests:
        with monkeypatch.context() as patch:
            patch.setattr(
                "relaax_like.parameter_server.snapshots.write_files",
                lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "no space left")),
            )

            def has_failed_often() -> bool:
                server.push(make_push(next(sequences)))
                return caplog.text.count("no space left; older snapshots are untouched") > 3

            wait_until(has_failed_often, "four snapshots that could not be written")
        assert tests._thread.is_alive()

        def has_saved() -> bool:
            server.push(make_push(next(sequences)))
            return server.best_score is not None

        wait_until(has_saved, "a snapshot")


def test_an_evaluation_that_hangs_is_not_waited_for_and_changes_nothing(tmp_path: Path) -> None:
    begun, release = threading.Event(), threading.Event()

    def hang(values: Any, version: int, episodes: int) -> Any:
        begun.set()
        assert release.wait(60)
        return np.full(episodes, 7.0), np.full(episodes, 9)

    with open_server(tmp_path / "run") as server:
        tests = make_tests(server, hang)
        with tests:
            server.push(make_push(1))
            assert begun.wait(60)
        assert tests._thread.is_alive()
        server.save_checkpoint()
        names = list_names(tmp_path / "run")
        release.set()
        tests._thread.join(60)
        assert not tests._thread.is_alive()
        assert list_names(tmp_path / "run") == names
        assert server.best_score is None


ENDLESS = '''
import gymnasium as gym, numpy as np
class Same(gym.Env):
    """Ends when an action differs from the one before: greedily, it never does."""
    observation_space = gym.spaces.Box(0, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.actions = []
        return np.zeros(4, np.float32), {}
    def step(self, action):
        self.actions.append(int(action))
        if len(self.actions) == 2000:
            open("endless", "w").close()
        ended = len(set(self.actions)) > 1
        return np.zeros(4, np.float32), 0.0, ended, False, {}
gym.register(id="Same-v0", entry_point=Same)
'''


def test_ctrl_c_ends_a_test_that_never_ends(tested: tuple[Path, str], tmp_path: Path) -> None:
    """The test gives no score, and the run's state is saved."""
    (tmp_path / "same.py").write_text(ENDLESS)
    sets = [*SMALL, f"algorithm.path={tested[0].parent / 'ppo'}", "environment.env=same:Same-v0"]
    argv = [find_command("relaax"), "train", PPO, "--eval-freq", "1", "--run-dir", "run"]
    with Processes(tmp_path) as processes:
        program = processes.start("train", [*argv, *(x for one in sets for x in ("--set", one))])
        wait_until((tmp_path / "endless").exists, program)
        assert program.stop(signal.SIGINT) == 128 + signal.SIGINT
        assert "evaluation at step" not in program.output
        assert TRACE not in program.output
    state = read_latest(tmp_path / "run" / "checkpoints")
    assert state is not None
    assert state.global_t == 256


class Fixed:
    """Tests that always come to the same."""

    def test(self, values: Any, version: int, episodes: int) -> tuple[np.ndarray, np.ndarray]:
        return np.full(episodes, 7.0), np.full(episodes, 9)


def test_a_best_training_return_is_followed_by_a_test(caplog: pytest.LogCaptureFixture) -> None:
    """Windows of two episodes, two in each iteration: as many iterations, as many returns."""
    policy = PlainPolicy()
    policy.global_t = 0  # type: ignore[attr-defined]
    returns = [5.0, 3.0, 6.0, 6.0, 8.0, 1.0, 0.0, 0.0, 0.0, 7.0]
    tested = []
    with make_plain_server(stop=StopCondition(target_return=1000.0), window=2) as server:
        learner = make_plain_learner(server, policy)
        tester: Any = Fixed()
        hook = TestHook(tester, policy, server, every=9, episodes=3)
        learner._learner.register_hook(hook)
        learner.load()
        with caplog.at_level(logging.INFO):
            for number, mean in enumerate(returns, 1):
                caplog.clear()
                episodes = [Episode(mean - 1, 4), Episode(mean + 1, 4)]
                learner.source.add(make_rewarded(COLUMNS, 0.0), episodes)
                assert learner.learn() is not None
                if "mean return 7.00 over 3 greedy episodes" in caplog.text:
                    tested.append(number)
    # The returns of iterations 1, 3 and 5 were the best; the ninth is tested anyway.
    assert tested == [2, 4, 6, 9]


def test_returns_of_the_same_episodes_are_compared_once() -> None:
    """One episode in an iteration, windows of three: iterations 3, 6 and 9 end one."""
    tested: list[int] = []

    def test(values: Any, version: int, episodes: int) -> tuple[np.ndarray, np.ndarray]:
        tested.append(version)
        return Fixed().test(values, version, episodes)

    publisher: Any = SimpleNamespace(
        best_score=None,
        metrics=NullMetrics,
        save_next_publication=lambda score: None,
        train_return=None,
    )
    policy: Any = SimpleNamespace(get_values=list, global_t=0)
    tester: Any = SimpleNamespace(test=test)
    hook = TestHook(tester, policy, publisher, every=100, episodes=1)
    for number in range(1, 11):
        hook(SimpleNamespace(updates=number, logger=logging.getLogger()))
        # Rises all the time: were it compared each time, all iterations would be tested.
        if number >= 3:
            publisher.train_return = TrainReturn(float(number), 3, number)
    assert tested == [4, 7, 10]


@dataclass
class Uneven:
    """Two slots: episodes of one step in the first, of five in the second; reward 1 a step."""

    slots: int = 2
    observation_space = Box(dtype="float32", shape=(1,))
    action_space = Discrete(n=2)

    def reset(self, mask: Any = None) -> np.ndarray:
        self.t = np.zeros(2, int)
        return np.zeros((2, 1), np.float32)

    def step(self, actions: Any) -> Transition:
        self.t += 1
        ended = self.t == [1, 5]
        self.t[ended] = 0
        zeros = np.zeros((2, 1), np.float32)
        return Transition(
            observations=zeros,
            rewards=np.ones(2),
            terminated=ended,
            truncated=np.zeros(2, bool),
            final_observations=zeros if ended.any() else None,
        )


class Idle:
    """Always takes action 0."""

    def step(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(actions=np.zeros(2, np.int64), finished="", version=0)


@pytest.mark.parametrize(("episodes", "want"), [(4, [1, 5, 1, 5]), (3, [1, 5, 1]), (1, [1])])
def test_each_slot_plays_as_many_episodes_so_that_short_ones_are_not_preferred(
    episodes: int, want: list[int]
) -> None:
    """Of all slots together, the first four to end would have one step each."""
    environment = SimpleNamespace(random_steps=0, max_episode_steps=None)
    experiment: Any = SimpleNamespace(environment=environment, seed=0)
    agents: Any = Idle()
    played = play_greedy(experiment, Uneven(), agents, episodes)
    assert [episode.length for episode in played] == want


def test_fixed_values_are_handed_out_and_answer_what_comes() -> None:
    heard = []
    fixed = FrozenPolicy([np.zeros(2)], 3)
    fixed.start(heard.append)
    fixed.set([np.ones(2)], 4)
    work: Any = SimpleNamespace(number=7)
    fixed.submit(work)
    assert [(one.version, list(one.numbers)) for one in heard] == [(3, []), (4, []), (4, [7])]
    assert heard[1].values is not None
    np.testing.assert_array_equal(heard[1].values[0], np.ones(2))
    assert heard[2].values is None  # no newer ones
