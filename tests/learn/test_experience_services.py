"""Streams of experience by name, and the services at their end. covers F10, F11"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from support.cluster import wait_until
from support.learning import (
    COLUMNS,
    ENV_STEPS,
    VARIABLES,
    make_plain_learner,
    make_plain_server,
    make_plain_service,
    make_rewarded,
    unpack,
)
from support.threads import WAIT_SEC

from relaax_like.bridge.collecting import CollectStream
from relaax_like.bridge.control import BridgeControl, Link
from relaax_like.core.manifest import Variable, make_manifest
from relaax_like.core.records import Experience, LearnerUpdate, LearnRequest
from relaax_like.learn import experience_service, rollout_barrier
from relaax_like.learn.algorithm_publishers import AlgorithmPublishers
from relaax_like.learn.experience_service import ExperienceService
from relaax_like.learn.experience_services import ExperienceServices
from relaax_like.learn.remote_learner import RemoteLearner
from relaax_like.learn.remote_learners import RemoteLearners
from relaax_like.learn.rollout_messages import rollout_to_bytes
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.wire.errors import ConfigError, LeasedError, RelaaxError

NAMES = ("goal", "control")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experience_service, "_POLL_SEC", 0.05)
    # Nobody falls silent by being slow.
    for name in ("_MIN_SILENCE_SEC", "_MAX_SILENCE_SEC", "_FORGET_SEC"):
        monkeypatch.setattr(rollout_barrier, name, 600.0)


def make_variables() -> list[Variable]:
    return [
        replace(variable, name=f"{name}/{variable.name}", group=f"{name}/default")
        for name in NAMES
        for variable in VARIABLES
    ]


@pytest.fixture
def server() -> Iterator[ParameterServer]:
    """A run of two Algorithms, each with the variables of a PlainPolicy."""
    with make_plain_server(make_variables()) as server:
        yield server


def make_services(server: ParameterServer) -> ExperienceServices:
    def make_learners() -> dict:
        manifest = make_manifest(VARIABLES)
        publishers = AlgorithmPublishers(server, dict.fromkeys(NAMES, manifest))
        return {
            name: make_plain_learner(publishers.make_publisher(name))  # type: ignore[arg-type]
            for name in NAMES
        }

    return ExperienceServices(make_learners, make_service, pytest.fail, NAMES)


def read(server: ParameterServer, name: str) -> list[np.ndarray]:
    """Returns the newest values of an Algorithm, in its order."""
    by_name = zip(server.manifest.segments, unpack(server), strict=True)
    arrays = {segment.name: array for segment, array in by_name}
    return [arrays[f"{name}/{variable.name}"] for variable in VARIABLES]


def make_service(name: str, make_learner: Callable, on_failure: Callable) -> ExperienceService:
    return ExperienceService(make_learner, COLUMNS, 1 << 24, on_failure, name=name, has_others=True)


@contextlib.contextmanager
def serve(server: ParameterServer) -> Iterator[Link]:
    services = make_services(server)
    grpc_server, port = BridgeControl().create_server(
        "127.0.0.1:0", server, experience=services.sinks
    )
    grpc_server.start()
    services.start()
    try:
        with BridgeControl().connect(f"127.0.0.1:{port}") as link:
            yield link
    finally:
        services.stop(timeout_sec=None)
        services.join()
        grpc_server.stop(0).wait(WAIT_SEC)


class Agents:
    """The agents of one Algorithm.

    Attributes:
      done: numbers of the requests that were answered.
      versions: of the values that came.
      values: that came last.
      global_t: that was heard last.
    """

    def __init__(self, learners: RemoteLearners, name: str):
        names = [f"{name}/{variable.name}" for variable in VARIABLES]
        self.learner = learners.learner(name, names=names, variables=names)
        self.done: list[int] = []
        self.versions: list[int] = []
        self.values: list[np.ndarray] = []
        self.global_t = 0
        self.learner.start(self._hear)

    def _hear(self, update: LearnerUpdate) -> None:
        self.global_t = update.global_t
        if update.values is not None:
            self.values = list(update.values)
            self.versions.append(update.version)
        self.done += update.numbers

    def submit(self, number: int, columns: int, agent: str = "agent") -> None:
        rollout = make_rewarded(columns, 1.0)
        self.learner.submit(LearnRequest(number, rollout, (), rollout.env_steps, agent))

    def wait(self, *numbers: int) -> None:
        wait_until(lambda: set(numbers) <= set(self.done), f"{numbers} of {self.done}")

    def learn(self, number: int) -> None:
        """Sends an iteration, and waits until it has been learned from."""
        self.submit(number, COLUMNS)
        self.wait(number)


def make_remote(link: Link, failures: list[RelaaxError]) -> RemoteLearners:
    return RemoteLearners(
        lambda name, _: RemoteLearner(
            lambda: link.collect_stream("rlx", WAIT_SEC, name), "rlx", on_failure=failures.append
        )
    )


def test_each_algorithm_learns_from_its_own_streams(server: ParameterServer) -> None:
    with serve(server) as link:
        remote = make_remote(link, [])
        goal, control = (Agents(remote, name) for name in NAMES)
        assert remote.wait_loaded(WAIT_SEC)
        control.learn(1)
        assert not any(np.any(array) for array in read(server, "goal"))
        goal.learn(1)  # the same number
        goal.learn(2)
        assert (server.global_t, server.version) == (3 * ENV_STEPS, 3)
        for agents, name, want in ((goal, "goal", 30.0), (control, "control", 20.0)):
            for value, known in zip(agents.values, read(server, name), strict=True):
                np.testing.assert_array_equal(value, known)
                assert np.all(value == want)
        remote.stop()
        remote.stop()


def test_a_stream_has_the_values_of_its_algorithm_once(server: ParameterServer) -> None:
    with serve(server) as link:
        remote = make_remote(link, [])
        goal, control = (Agents(remote, name) for name in NAMES)
        for number in (1, 2, 3):
            control.learn(number)
        # With its next message, and heard of the steps of the other Algorithm.
        wait_until(lambda: goal.global_t == 3 * ENV_STEPS, "the newest step")
        assert goal.versions == [0]
        goal.learn(1)
        assert goal.versions == [0, 4]
        control.learn(4)
        assert control.versions == [0, 1, 2, 3, 5]
        late = make_remote(link, [])
        assert Agents(late, "goal").versions == [4]
        late.stop()
        remote.stop()


def test_until_its_learner_is_loaded_each_has_the_runs_version(
    server: ParameterServer,
) -> None:
    with serve(server) as link:
        remote = make_remote(link, [])
        Agents(remote, "control").learn(1)
        remote.stop()
    services = make_services(server)  # of another start; nothing is loaded
    assert services.sinks["goal"].version is None
    grpc_server, port = BridgeControl().create_server(
        "127.0.0.1:0", server, experience=services.sinks
    )
    grpc_server.start()
    with BridgeControl().connect(f"127.0.0.1:{port}") as link:
        remote = make_remote(link, [])
        assert Agents(remote, "goal").versions == [1]
        remote.stop()
    services.stop()
    grpc_server.stop(0).wait(WAIT_SEC)


def test_nobody_waits_for_an_iteration_that_is_not_complete(
    server: ParameterServer,
) -> None:
    """Agents that play could fill it, but for all that is known they wait for another Algorithm."""
    with serve(server) as link:
        remote = make_remote(link, [])
        agents = Agents(remote, "goal")
        for number, agent in enumerate(("a", "b", "a", "b"), start=1):
            agents.submit(number, COLUMNS // 2, agent)
            agents.wait(number)
        agents.submit(5, COLUMNS // 2, "a")
        agents.wait(5)  # `b` plays
        remote.stop()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("act", "for the Algorithm 'act', but .* has the Algorithms goal, control; use the same"),
        ("", "without a name, but .* has the Algorithms goal, control"),
    ],
)
def test_an_unknown_algorithm_is_refused_by_name(
    name: str, words: str, server: ParameterServer
) -> None:
    failures: list[RelaaxError] = []
    with serve(server) as link:
        remote = make_remote(link, failures)
        remote.learner(name)
        wait_until(lambda: failures, "a failure")
        remote.stop()
    with pytest.raises(LeasedError, match=words):
        raise failures[0]


def test_variables_of_another_algorithm_end_the_learners(server: ParameterServer) -> None:
    failures: list[RelaaxError] = []
    with serve(server) as link:
        remote = make_remote(link, failures)
        remote.learner("goal", names=["goal/other"], variables=["goal/other"])
        wait_until(lambda: failures, "a failure")
        remote.stop()
    with pytest.raises(ConfigError, match=r"goal/other.*the same algorithm folder"):
        raise failures[0]


def test_what_comes_again_after_a_restart_is_counted_once(server: ParameterServer) -> None:
    def send(link: Link, name: str, env_steps: int, *sequences: int) -> CollectStream:
        stream = link.collect_stream("rlx", WAIT_SEC, name)
        stream.open(1, 0, 0)
        for sequence in sequences:
            stream.send(
                Experience(
                    client_id="rlx",
                    incarnation=1,
                    sequence=sequence,
                    columns=COLUMNS,
                    rollout=rollout_to_bytes(make_rewarded(COLUMNS, 1.0)),
                    env_steps=env_steps,
                )
            )
        return stream

    with serve(server) as link:
        streams = [send(link, "goal", 0, 1), send(link, "control", ENV_STEPS, 1, 2)]
        wait_until(lambda: server.version == 3, "3 publications")
        for stream in streams:
            stream.close()
    with serve(server) as link:
        streams = [send(link, "goal", 0, 1, 2), send(link, "control", ENV_STEPS, 1, 2, 3)]
        wait_until(lambda: server.version == 5, "2 more")
        for stream in streams:
            stream.close()
    assert (server.global_t, server.version) == (3 * ENV_STEPS, 5)


def test_an_algorithm_is_refused_where_there_is_one(server: ParameterServer) -> None:
    service = make_plain_service(server)
    grpc_server, port = BridgeControl().create_server("127.0.0.1:0", server, experience=service)
    grpc_server.start()
    with BridgeControl().connect(f"127.0.0.1:{port}") as link:
        stream = link.collect_stream("rlx", WAIT_SEC, "goal")
        stream.open(1, 0, 0)
        with pytest.raises(
            LeasedError, match=r"for the Algorithm 'goal', but this run has one, without a name"
        ):
            next(iter(stream))
    grpc_server.stop(0).wait(WAIT_SEC)


def test_a_failure_of_all_algorithms_is_reported_once() -> None:
    made: list[int] = []
    failures: list[Exception] = []

    def fail() -> dict:
        made.append(1)
        raise ConfigError("no such model")

    services = ExperienceServices(fail, make_service, failures.append, NAMES)
    before = set(threading.enumerate())
    services.start()
    services.join()
    assert [str(failure) for failure in failures] == ["no such model"]
    assert len(made) == 1
    assert set(threading.enumerate()) <= before
    services.stop()
