"""A learner in a process of its own: real processes, killed, stopped, and started again."""

# covers F11

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading

import numpy as np
import psutil
import pytest
from support.batch import serve_a2c
from support.bridge import serve
from support.broken import copy_broken
from support.cluster import ROOT, wait_until
from support.rollouts import make_rollout

from relaax_like.config.loader import load_experiment
from relaax_like.core.records import Episode, LearnRequest
from relaax_like.learn.learner_process import LearnerProcess
from relaax_like.wire.errors import ServerUnavailableError

LEARNER = [sys.executable, "-m", "relaax_like.launch.learner_main"]


@pytest.fixture
def config(tmp_path):
    file = tmp_path / "experiment.yaml"
    file.write_text(
        "run_dir: run\n"
        f"algorithm: {{path: {ROOT / 'algorithms' / 'a2c'}, state_size: 4, num_actions: 2, "
        "network: {layers: [8]}}\n"
    )
    return file


@contextlib.contextmanager
def running(argv, **options):
    process = LearnerProcess(argv, **options)
    process.start()
    try:
        yield process
    finally:
        process.stop()


@contextlib.contextmanager
def serving(config):
    """A parameter server in this process; gives it and the arguments of a learner of it."""
    with (
        serve_a2c(load_experiment(config).algorithm) as server,
        serve(server) as address,
    ):
        yield server, [*LEARNER, str(config), f"relaax-rlx-server.parameter_server={address}"]


class Answers:
    """Takes what a learner says."""

    def __init__(self, learner):
        self.all = []
        self.fail = False
        self._learner = learner

    def start(self):
        # As a server does whose clients come back until it has a learner.
        wait_until(self._try_to_start, "the first values", 60)

    def _try_to_start(self):
        try:
            self._learner.start(self._take)
        except ServerUnavailableError:
            return False
        return True

    def _take(self, learned):
        if self.fail:
            raise RuntimeError("no")
        self.all.append(learned)

    def wait_for(self, number):
        find = lambda: [learned for learned in self.all if number in learned.numbers]  # noqa: E731
        return wait_until(find, f"the answer to work {number}")[0]


def wait_printed(capfd, text):
    """What the process prints is passed on by a thread."""
    parts = []

    def read():
        parts.append(capfd.readouterr().out)
        return text in "".join(parts)

    wait_until(read, text, 10)


def test_works_become_versions_and_a_killed_learner_is_started_again(config, caplog):
    steps = []
    with serving(config) as (server, argv), running(argv, on_global_t=steps.append) as process:
        learner = process.learner("RL")
        answers = Answers(learner)
        answers.start()
        assert answers.all[0].version == 0
        first = [np.array(value) for value in answers.all[0].values]

        learner.submit(LearnRequest(1, make_rollout(3, 0), [Episode(7.0, 4)], 15))
        learned = answers.wait_for(1)
        assert (learned.version, learned.global_t, steps[-1]) == (1, 15, 15)
        assert any((one != other).any() for one, other in zip(first, learned.values, strict=True))
        assert server.status().mean_return == 7.0

        # What is under way when it dies is answered all the same: no agent waits for ever.
        old = process.pid
        os.kill(old, signal.SIGSTOP)
        learner.submit(LearnRequest(2, make_rollout(3, 1), (), 15))
        wait_until(lambda: process._under_way.get("RL"), "the work's way out")
        os.kill(old, signal.SIGKILL)
        assert answers.wait_for(2).values is None
        assert "ended with status -9; 1 rollout(s) in flight are lost" in caplog.text
        learner.submit(LearnRequest(20, make_rollout(3, 1), (), 15))  # while there is none
        assert answers.wait_for(20).values is None

        wait_until(lambda: process.pid not in (None, old), "another process")
        wait_until(lambda: len([a for a in answers.all if not a.numbers]) == 2, "its first values")
        learner.submit(LearnRequest(3, make_rollout(3, 2), (), 15))
        assert answers.wait_for(3).version == 2
        assert server.global_t == 30
        assert "the learner is back; 2 rollout(s) were lost in the meantime" in caplog.text
        pid = process.pid
    assert not psutil.pid_exists(pid)
    assert not [t for t in threading.enumerate() if t.name in ("learner", "to learner")]


def test_a_stop_first_learns_what_was_handed_over(config):
    with serving(config) as (server, argv), running(argv) as process:
        answers = Answers(process.learner("RL"))
        answers.start()
        learner = process.learner("RL")
        learner.submit(LearnRequest(1, make_rollout(3, 0), (), 15))
        answers.wait_for(1)  # compiles; a stop would not wait for that
        learner.submit(LearnRequest(2, make_rollout(3, 1), (), 15))
        process.stop()
        assert answers.wait_for(2).version == 2
        assert server.global_t == 30


def test_the_learner_ends_when_the_other_side_has_gone(config):
    with serving(config) as (_, argv):
        ours, theirs = socket.socketpair()
        with theirs:
            command = [*argv, str(theirs.fileno())]
            child = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        assert ours.recv(1)  # its first answer begins
        ours.close()
        assert child.wait(10) == 0


def test_a_stop_before_it_has_come_up_waits_for_nothing(config, monkeypatch):
    monkeypatch.setattr("relaax_like.learn.learner_process._STOP_SEC", 1e6)
    argv = [*LEARNER, str(config), "relaax-rlx-server.parameter_server=localhost:1"]
    with running(argv) as process:
        pid = wait_until(lambda: process.pid, "the process")
        process.stop()
        assert not psutil.pid_exists(pid)


def test_a_parameter_server_of_another_model_ends_it_for_good(config, capfd):
    failed = threading.Event()
    with serving(config) as (_, argv):
        other = "algorithm.network={layers: [16]}"
        with running([*argv, other], on_failure=lambda status: failed.set(), fatal=(2,)):
            assert failed.wait(60)
    wait_printed(capfd, "values do not fit the model")


def test_what_cannot_be_taken_or_sent_ends_no_thread(config, caplog):
    with serving(config) as (_, argv), running(argv) as process:
        learner = process.learner("RL")
        answers = Answers(learner)
        answers.start()
        bad = make_rollout(1, 0)
        bad.actions["action"] = np.array([[object()]])
        learner.submit(LearnRequest(1, bad))
        assert answers.wait_for(1).values is None
        assert "could not send" in caplog.text
        answers.fail = True
        learner.submit(LearnRequest(2, make_rollout(3, 0), (), 15))
        wait_until(lambda: "could not process a reply" in caplog.text, "the failure")
        answers.fail = False
        learner.submit(LearnRequest(3, make_rollout(3, 0), (), 15))
        assert answers.wait_for(3).version == 2


def test_a_learner_that_hangs_is_killed_and_started_again(config, caplog, monkeypatch):
    monkeypatch.setattr("relaax_like.learn.learner_process._SILENCE_SEC", 1.0)
    with serving(config) as (_, argv), running(argv) as process:
        answers = Answers(process.learner("RL"))
        answers.start()
        hung = process.pid
        os.kill(hung, signal.SIGSTOP)
        process.learner("RL").submit(LearnRequest(1, make_rollout(3, 0), (), 15))
        assert answers.wait_for(1).values is None
        assert "no message from the learner for" in caplog.text
        wait_until(lambda: process.pid not in (None, hung), "another process")


def test_an_idle_learner_is_left_alone(config, caplog, monkeypatch):
    monkeypatch.setattr("relaax_like.learn.learner_process._SILENCE_SEC", 0.2)
    with serving(config) as (_, argv), running(argv) as process:
        answers = Answers(process.learner("RL"))
        answers.start()
        pid = process.pid
        with pytest.raises(AssertionError, match="in vain"):
            wait_until(lambda: process.pid != pid, "its end", 1.0)
        assert "no message from the learner" not in caplog.text


def test_no_descriptors_left_is_no_end(config, caplog, monkeypatch):
    pairs, socketpair = [], socket.socketpair

    def make_pair():
        pairs.append(None)
        if len(pairs) == 1:
            raise OSError(24, "Too many open files")
        return socketpair()

    monkeypatch.setattr("relaax_like.learn.child.socket.socketpair", make_pair)
    with serving(config) as (_, argv), running(argv) as process:
        Answers(process.learner("RL")).start()
        assert "cannot start the learner's process: [Errno 24]" in caplog.text


def test_without_a_parameter_server_there_are_no_values_yet(config, monkeypatch):
    monkeypatch.setattr("relaax_like.learn.learner_process._START_WAIT_SEC", 0.1)
    argv = [*LEARNER, str(config), "relaax-rlx-server.parameter_server=localhost:1"]
    with running(argv) as process:
        with pytest.raises(ServerUnavailableError, match="the learner is not ready"):
            process.learner("RL").start(lambda learned: None)
        pid = process.pid
    assert not psutil.pid_exists(pid)


def test_a_learner_that_was_stopped_cannot_be_started():
    process = LearnerProcess(LEARNER)
    process.stop()
    with pytest.raises(ServerUnavailableError, match="shutting down; reconnect later"):
        process.learner("RL").start(lambda learned: None)


def test_an_error_while_learn_is_traced_ends_it_for_good(config, tmp_path, capfd):
    folder = tmp_path / "mine"
    place = copy_broken(folder, "a2c", "algorithm.py", "learn", "batch.returs")
    config.write_text(config.read_text().replace(str(ROOT / "algorithms" / "a2c"), str(folder)))
    statuses = []
    with (
        serving(config) as (server, argv),
        running(argv, on_failure=statuses.append, fatal=(2,)) as process,
    ):
        answers = Answers(process.learner("RL"))
        answers.start()
        process.learner("RL").submit(LearnRequest(1, make_rollout(3, 0), (), 15))
        assert answers.wait_for(1).values is None
        wait_until(lambda: statuses, "its end")
        assert (statuses, server.global_t) == ([2], 0)
        # Its agents do not wait for it.
        process.learner("RL").submit(LearnRequest(2, make_rollout(3, 0), (), 15))
        assert answers.wait_for(2).values is None
    wait_printed(capfd, f"error: {place}: AttributeError: 'Batch' object has no attribute 'returs'")


def test_a_user_s_mistake_ends_it_for_good(tmp_path, capfd):
    failed = threading.Event()
    with running(
        [*LEARNER, str(tmp_path / "missing.yaml")],
        on_failure=lambda status: failed.set() if status == 2 else None,
        fatal=(2,),
    ) as process:
        assert failed.wait(30)
        assert process.pid is None
    wait_printed(capfd, "missing.yaml")
