"""Agents of several Algorithms behind real sockets; the curve of success. covers F10, F11, F13"""

import functools
import sys
import threading
import time

import numpy as np
import pytest
from support.bridge import make_backend, serve
from support.cues.slots import CueSlots
from support.hierarchy import FOLDER, load, make_host
from support.hierarchy import serve as serve_several
from support.rlx import RawClient, ServerThread, array, make_next, make_start, serve_rlx

from relaax_like.bridge.control import BridgeControl
from relaax_like.client.client import Retry, RlxClient
from relaax_like.client.interactor import Interactor
from relaax_like.config.loader import load_experiment
from relaax_like.core.metrics import Metrics
from relaax_like.launch.agents import make_linked_host
from relaax_like.launch.parameter_server import make_parameter_server
from relaax_like.launch.rlx_server import make_rlx_server
from relaax_like.learn.child_learner import ChildLearner
from relaax_like.metrics.buffered import BufferedMetrics
from relaax_like.rlx_server import session
from relaax_like.v1 import rlx_pb2
from relaax_like.wire.errors import RelaaxError


class Recorder(Metrics):
    def __init__(self):
        self.points = {}

    def scalar(self, name, y, x=None):
        self.points.setdefault(name, []).append(y)


class ServedRecorder(BufferedMetrics):
    """Takes points over the network, too."""

    def __init__(self):
        super().__init__("recorder")
        self.names = set()
        self._thread.start()

    def _consume(self, points, closing):
        self.names.update(point.name for point in points)
        return len(points)


@pytest.fixture
def experiment(tmp_path):
    # A busy machine can keep the agents 100 steps behind the values. With 0.05, the two policies
    # then chase each other: one run in 50 needs more than the budget.
    file = tmp_path / "experiment.yaml"
    file.write_text(
        f"run_dir: {tmp_path}/run\n"
        f"algorithm: {{path: '{FOLDER}', max_global_step: 60000, learning_rate: 0.02}}\n"
        "learner: {target_return: 5.5, target_episodes: 50}\n"
        "relaax-rlx-server: {min_free_memory_mb: 0}\n"
    )
    return load_experiment(file)


def test_a_hierarchy_learns_from_two_clients_over_the_network(experiment):
    recorder = ServedRecorder()
    runs = []

    def play(port, slots, seed):
        env = CueSlots(slots, seed)
        with RlxClient(
            f"127.0.0.1:{port}",
            env.observation_space,
            env.action_space,
            slots=slots,
            retry=Retry(min_sleep_sec=0.2, max_sleep_sec=0.5),  # until the learner has come up
        ) as client:
            runs.append(Interactor(env, client).run())

    # The initial values come from a process of their own, as in a real run.
    with (
        make_parameter_server(experiment, (), recorder) as backend,
        serve(backend) as address,
        BridgeControl().connect(address) as link,
    ):
        names = [(s.name, s.group) for s in backend.manifest.segments]
        override = f"relaax-rlx-server.parameter_server={address}"
        learner = ChildLearner(
            [sys.executable, "-m", "relaax_like.launch.learner_main", experiment.file, override],
        )
        host = make_linked_host(
            experiment,
            lambda name: link.parameter_server_stub(name, recorder),
            learner,
            recorder,
        )
        rlx = make_rlx_server(experiment.rlx_server, host, recorder)
        with ServerThread(rlx, "127.0.0.1", 0) as running:
            players = [
                threading.Thread(target=play, args=(running.port, slots, slots)) for slots in (2, 5)
            ]
            for player in players:
                player.start()
            for player in players:
                player.join(60)
            exploited = play_exploiting(running.port)
        host.close()
        learner.stop()
        status = backend.status()
    recorder.close()
    assert names == [
        ("goal/logits.W", "goal/default"),
        ("goal/logits.b", "goal/default"),
        ("control/logits.W", "control/default"),
        ("control/logits.b", "control/default"),
    ]
    assert "reached the target 5.5" in status.finished  # no policy of one alone is above 0
    assert [run.finished for run in runs] == [status.finished] * 2
    # Every step once, whichever learned from it; those of unfinished rollouts are not sent.
    assert sum(run.steps for run in runs) - 8 * 7 * 3 <= status.global_t
    assert status.global_t <= sum(run.steps for run in runs)
    for name in ("goal", "control"):
        assert f"Optimizer/{name}/default" in recorder.names
    assert "Train/Lag" in recorder.names  # as where the learner is in the parameter server
    assert np.mean(exploited) > 0.9


def play_exploiting(port):
    """Returns the mean rewards per step of whole episodes."""
    env, scores = CueSlots(3, 9), []
    with RlxClient(
        f"127.0.0.1:{port}", env.observation_space, env.action_space, slots=3, exploit=True
    ) as client:
        Interactor(
            env, client, max_episodes=20, on_episode=lambda e: scores.append(e.score / e.length)
        ).run()
    return scores


def test_the_algorithms_of_all_agents_are_asked_in_one_call_each():
    config = load("config").Config()
    with serve_several(config) as backend:
        host = make_host(config, backend)
        agents = [host.make_agent(slots) for slots in (1, 3, 2)]
        sizes = []
        for name, processor in host._processors.items():
            actor = processor._actor
            act = actor.act

            def count(inputs, *others, name=name, act=act):
                sizes.append((name, len(next(iter(inputs.values())))))
                return act(inputs, *others)

            actor.act = count
        for agent, slots in zip(agents, (1, 3, 2), strict=True):
            agent.observe({"observation": np.zeros((slots, 2), np.float32)})
        left = agents
        while left:
            answers = host.predict([agent.request() for agent in left])
            taken = [agent.take(a) for agent, a in zip(left, answers, strict=True)]
            left = [agent for agent, actions in zip(left, taken, strict=True) if actions is None]
        assert sizes == [("goal", 6), ("control", 6)]
        host.close()


@pytest.mark.parametrize(
    ("rollout_steps", "main_algorithm", "want"),
    [
        (
            {"control": 8},
            "control",
            "rollout_steps: no number for the Algorithm 'goal', only for control",
        ),
        (
            {"goal": 4, "control": 8},
            "act",
            "main_algorithm is 'act', expected one of goal, control, or None",
        ),
    ],
    ids=["no schedule", "no such Algorithm"],
)
def test_what_an_algorithm_folder_got_wrong_is_said(
    monkeypatch, rollout_steps, main_algorithm, want
):
    config = load("config").Config(rollout_steps=rollout_steps)
    monkeypatch.setattr(load("agent").Agent, "main_algorithm", main_algorithm)
    with serve_several(config) as backend:
        host = make_host(config, backend)
        with pytest.raises(RelaaxError, match=want):
            host.make_agent()
        host.close()


def test_an_algorithm_whose_values_cannot_be_fetched_leaves_no_thread_of_another(monkeypatch):
    config = load("config").Config()
    with serve_several(config) as backend:
        host = make_host(config, backend)
        make = host._make_processors

        def make_broken():
            processors = make()
            monkeypatch.setattr(processors["control"], "start", fail)
            return processors

        def fail():
            raise RelaaxError("away")

        host._make_processors = make_broken
        with pytest.raises(RelaaxError, match="away"):
            host.make_agent()
        assert not [t for t in threading.enumerate() if t.name == "training"]
        host._make_processors = make
        host.make_agent()
        host.close()


# Success.


@pytest.fixture
def hurried(monkeypatch):
    make = functools.partial(session.GatheredMetric, interval_sec=0.0)
    monkeypatch.setattr(session, "GatheredMetric", make)


def end(terminated, success):
    return make_next(2, terminated=array(terminated, "bool"), success=array(success, "int8"))


@pytest.mark.parametrize(
    ("mode", "want"), [(rlx_pb2.TRAIN, [1.0, 0.0, 1.0]), (rlx_pb2.EXPLOIT, None)]
)
def test_success_is_recorded_where_an_episode_ended_and_somebody_said(hurried, mode, want):
    recorder = Recorder()
    with make_backend() as backend:
        with serve_rlx(backend, metrics=recorder) as port, RawClient(port) as client:
            client.greet(slots=2, mode=mode)
            client.ask(make_start(2))
            client.ask(end([0, 0], [1, 1]))  # nothing has ended
            client.ask(end([1, 0], [1, -1]))
            client.ask(end([1, 1], [-1, 0]))
            client.ask(end([0, 1], [0, 1]))
            client.ask(make_next(2, terminated=array([1, 1], "bool")))
    assert recorder.points.get("success") == want


def test_success_is_the_mean_of_the_episodes_since_the_last_point(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    recorder = Recorder()
    mean = session.GatheredMetric(recorder, "success", is_mean=True)
    for value in (1, 0, 0):
        mean.add(value)
    now[0] += 1.0
    mean.add(1)
    mean.add(1)
    assert recorder.points == {"success": [0.5]}
