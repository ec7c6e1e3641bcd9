"""A learner in a process of its own: real processes, killed, stopped, and started again."""

import contextlib
import errno
import io
import os
import queue
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
from support.cluster import freeze, wait_until
from support.rollouts import make_rollout
from support.uncompiled import copy_uncompiled

from relaax_like.bridge.pair import open_pair
from relaax_like.config.loader import load_experiment
from relaax_like.core.manifest import Variable, make_manifest
from relaax_like.core.records import Episode, LearnRequest
from relaax_like.learn.child_learner import ChildLearner
from relaax_like.learn.frozen_policy import FrozenPolicy
from relaax_like.learn.learner_service import LearnerService
from relaax_like.v1 import experience_pb2
from relaax_like.wire.errors import ConfigError, ServerUnavailableError

LEARNER = [sys.executable, "-m", "relaax_like.launch.learner_main"]
MANIFEST = make_manifest([Variable("w", np.zeros(3, np.float32))])  # of what is never read


@pytest.fixture
def config(tmp_path):
    file = tmp_path / "experiment.yaml"
    file.write_text(
        "run_dir: run\n"
        f"algorithm: {{path: {copy_uncompiled('a2c', tmp_path)}, state_size: 4, num_actions: 2, "
        "rollout_steps: 5, network: {layers: [8]}}\n"
    )
    return file


@contextlib.contextmanager
def running(argv, **options):
    child = ChildLearner(argv, **options)
    child.start()
    try:
        yield child
    finally:
        child.stop()


@contextlib.contextmanager
def serving(config):
    """A parameter server in this process; yields it and the arguments of a learner of it."""
    with (
        serve_a2c(load_experiment(config).algorithm) as server,
        serve(server) as address,
    ):
        yield server, [*LEARNER, str(config), f"relaax-rlx-server.parameter_server={address}"]


def get_pid(child):
    """Returns the number of the process; None: there is none at this moment."""
    one = child._child
    return None if one is None or not one.is_running else one.process.pid


class Answers:
    """Takes what a learner says."""

    def __init__(self):
        self.all = []
        self.fail = False

    def start(self, learner):
        # As a server does whose clients retry until it has a learner.
        wait_until(lambda: self._try_to_start(learner), "the first values", 60)
        return learner

    def _try_to_start(self, learner):
        try:
            learner.start(self._take)
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
    caplog.set_level("INFO")
    steps, answers = [], Answers()
    with serving(config) as (server, argv), running(argv, on_global_t=steps.append) as child:
        learner = answers.start(child.learner("RL", server.manifest))
        assert answers.all[0].version == 0
        first = [np.array(value) for value in answers.all[0].values]

        learner.submit(LearnRequest(1, make_rollout(3, 0), [Episode(7.0, 4)], 15))
        learned = answers.wait_for(1)
        assert (learned.version, learned.global_t, steps[-1]) == (1, 15, 15)
        assert any((one != other).any() for one, other in zip(first, learned.values, strict=True))
        assert server.status().mean_return == 7.0

        # What is under way when it dies is answered all the same: no agent waits forever.
        old = get_pid(child)
        freeze(old)
        learner.submit(LearnRequest(2, make_rollout(3, 1), (), 15))
        wait_until(lambda: child._learners[0]._under_way, "the work's way out")
        os.kill(old, signal.SIGKILL)
        assert answers.wait_for(2).values is None
        assert "ended with status -9" in caplog.text
        learner.submit(LearnRequest(20, make_rollout(3, 1), (), 15))  # while there is none
        assert answers.wait_for(20).values is None

        wait_until(lambda: get_pid(child) not in (None, old), "another process")
        wait_until(lambda: len([a for a in answers.all if not a.numbers]) == 2, "its first values")
        learner.submit(LearnRequest(3, make_rollout(3, 2), (), 15))
        assert answers.wait_for(3).version == 2
        # The steps of work that was never sent are counted with the next; it was not pushed before.
        assert server.global_t == 45
        assert "the learner is back; 2 rollout(s) were lost" in caplog.text
        pid = get_pid(child)
    assert not psutil.pid_exists(pid)
    assert not [t for t in threading.enumerate() if t.name in ("learner", "to learner")]


def test_the_learner_ends_when_the_other_side_has_gone(config):
    """It ends with the control socket, even though its stream is open."""
    with serving(config) as (_, argv):
        control, theirs = socket.socketpair()
        with theirs:
            command = [*argv, str(theirs.fileno())]
            child = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        pair = open_pair(control)
        header = experience_pb2.ExperienceHeader(client_id="RL")
        pair.send(experience_pb2.ExperienceRequest(header=header))
        assert pair.receive()  # its first values
        control.close()
        assert child.wait(10) == 0
        pair.close()


def test_a_stop_before_it_has_come_up_waits_for_nothing(config, monkeypatch):
    monkeypatch.setattr("relaax_like.learn.remote_learner._STOP_SEC", 1e6)
    argv = [*LEARNER, str(config), "relaax-rlx-server.parameter_server=localhost:1"]
    with running(argv) as child:
        child.learner("RL", MANIFEST)
        pid = wait_until(lambda: get_pid(child), "the process")
        child.stop()
        assert not psutil.pid_exists(pid)


def test_a_parameter_server_of_another_model_ends_it_for_good(config, capfd):
    failed = threading.Event()
    with serving(config) as (server, argv):
        other = "algorithm.network={layers: [16]}"
        failing = {"on_failure": lambda error: failed.set(), "fatal": (2,)}
        with running([*argv, other], **failing) as child:
            child.learner("RL", server.manifest)
            assert failed.wait(60)
    wait_printed(capfd, "values do not fit the model")


def test_what_cannot_be_taken_or_sent_ends_no_thread_and_a_stop_first_learns(config, caplog):
    answers = Answers()
    with serving(config) as (server, argv), running(argv) as child:
        learner = answers.start(child.learner("RL", server.manifest))
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
        # It has compiled, for which a stop would not wait; what was handed over it waits for.
        learner.submit(LearnRequest(4, make_rollout(3, 1), (), 15))
        child.stop()
        assert answers.wait_for(4).version == 3
        assert server.global_t == 45


def test_no_descriptors_left_or_an_idle_learner_are_no_end_but_one_that_hangs_is(
    config, caplog, monkeypatch
):
    """The first try to start it fails; one that hangs is killed, and started again."""
    monkeypatch.setattr("relaax_like.learn.child_learner._SILENCE_SEC", 0.2)
    pairs, socketpair = [], socket.socketpair

    def make_pair():
        pairs.append(None)
        if len(pairs) == 1:
            raise OSError(24, "Too many open files")
        return socketpair()

    monkeypatch.setattr("relaax_like.learn.child_learner.socket.socketpair", make_pair)
    answers = Answers()
    with serving(config) as (server, argv), running(argv) as child:
        learner = answers.start(child.learner("RL", server.manifest))
        assert "cannot start the learner's process: [Errno 24]" in caplog.text

        hung = get_pid(child)
        with pytest.raises(AssertionError, match="in vain"):
            wait_until(lambda: get_pid(child) != hung, "its end", 1.0)
        assert "no message from the learner" not in caplog.text

        freeze(hung)
        learner.submit(LearnRequest(1, make_rollout(3, 0), (), 15))
        assert answers.wait_for(1).values is None
        assert "no message from the learner for" in caplog.text
        wait_until(lambda: get_pid(child) not in (None, hung), "another process")


def test_without_a_parameter_server_there_are_no_values_yet(config, monkeypatch):
    monkeypatch.setattr("relaax_like.learn.remote_learner._START_WAIT_SEC", 0.1)
    argv = [*LEARNER, str(config), "relaax-rlx-server.parameter_server=localhost:1"]
    with running(argv) as child:
        with pytest.raises(ServerUnavailableError, match="the learner is not ready"):
            child.learner("RL", MANIFEST).start(lambda learned: None)
        pid = get_pid(child)
    assert not psutil.pid_exists(pid)


def test_a_learner_that_was_stopped_cannot_be_started():
    child = ChildLearner(LEARNER)
    learner = child.learner("RL", MANIFEST)
    child.stop()
    with pytest.raises(ServerUnavailableError, match="shutting down; reconnect later"):
        learner.start(lambda learned: None)


def test_a_start_after_a_stop_has_no_effect(tmp_path):
    """As when this process ends while a client's host is still being made."""
    with running(make_argv(tmp_path / "starts", 0)) as child:
        learner = child.learner("RL", MANIFEST)
        child.stop()
        old = child._child
        child.start()
        assert child._child is old
        with pytest.raises(ServerUnavailableError, match="shutting down; reconnect later"):
            learner.start(lambda learned: None)


def test_an_error_while_learn_is_traced_ends_it_for_good(config, tmp_path, capfd):
    folder = tmp_path / "mine"
    place = copy_broken(folder, "a2c", "algorithm.py", "learn", "batch.returs")
    config.write_text(config.read_text().replace(str(tmp_path / "a2c"), str(folder)))
    errors, answers = [], Answers()
    with (
        serving(config) as (server, argv),
        running(argv, on_failure=errors.append, fatal=(2,)) as child,
    ):
        learner = answers.start(child.learner("RL", server.manifest))
        learner.submit(LearnRequest(1, make_rollout(3, 0), (), 15))
        assert answers.wait_for(1).values is None
        wait_until(lambda: errors, "its end")
        wait_until(lambda: server.global_t == 15, "its steps, which were taken all the same")
        assert len(errors) == 1
        # Its agents do not wait for it.
        learner.submit(LearnRequest(2, make_rollout(3, 0), (), 15))
        assert answers.wait_for(2).values is None
    wait_printed(capfd, f"error: {place}: AttributeError: 'Batch' object has no attribute 'returs'")


def make_argv(starts, status):
    """A program that writes a letter to a file, and ends with a status."""
    return [sys.executable, "-c", f"open({str(starts)!r}, 'a').write('x'); exit({status})"]


def test_a_program_that_dies_at_once_is_started_again_and_again(tmp_path, monkeypatch):
    monkeypatch.setattr("relaax_like.learn.remote_learner._MIN_RESTART_SEC", 0.01)
    starts = tmp_path / "starts"
    with running(make_argv(starts, 1), fatal=(2,)) as child:
        child.learner("RL", MANIFEST)
        wait_until(lambda: starts.exists() and len(starts.read_text()) > 2, "three starts", 30)


def test_a_fatal_end_is_one_for_all_algorithms(tmp_path):
    errors, starts = [], tmp_path / "starts"
    with running(make_argv(starts, 2), on_failure=errors.append, fatal=(2,)) as child:
        for name in ("goal", "control"):
            child.learner(name, MANIFEST)
        wait_until(lambda: len(errors) == 2, "the end of both", 30)
    assert starts.read_text() == "x"


def test_a_user_s_mistake_ends_it_for_good(tmp_path, capfd):
    failed = threading.Event()
    with running(
        [*LEARNER, str(tmp_path / "missing.yaml")],
        on_failure=lambda error: failed.set(),
        fatal=(2,),
    ) as child:
        child.learner("RL", MANIFEST)
        assert failed.wait(30)
        assert get_pid(child) is None
    wait_printed(capfd, "missing.yaml")


class Stuck(FrozenPolicy):
    def stop(self) -> None:
        raise RuntimeError("a hook has failed")


def test_the_error_that_ended_learning_is_raised_although_a_learner_cannot_be_stopped():
    service = object.__new__(LearnerService)  # its thread would end this process
    service._failure, service._pairs = None, queue.SimpleQueue()
    learners = {"RL": (Stuck([np.zeros(3, np.float32)], 0), MANIFEST)}
    service.fail(ConfigError("algorithm.py:7: a mistake"))
    with pytest.raises(ConfigError, match="a mistake"):
        service.serve(learners)
    service._failure = None  # every stream has ended
    with pytest.raises(RuntimeError, match="a hook has failed"):
        service.serve(learners)


def test_output_that_cannot_be_printed_does_not_disturb_the_program(tmp_path, monkeypatch):
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    done = tmp_path / "done"
    program = f"print('line\\n' * 100_000, flush=True); open({str(done)!r}, 'w')"
    with running([sys.executable, "-c", program]):
        wait_until(done.exists, "the end of the program", 30)
