"""Streams of experience by task, and the services at their end. covers F10, F11"""

import contextlib
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from support.cluster import wait_until
from support.learning import (
    COLUMNS,
    ENV_STEPS,
    make_plain_learner,
    make_plain_server,
    make_plain_service,
    make_rewarded,
    unpack,
)
from support.threads import WAIT_SEC

from relaax_like.bridge.control import BridgeControl, Link
from relaax_like.core.records import LearnRequest
from relaax_like.learn import experience_service, holding
from relaax_like.learn.experience_service import ExperienceService
from relaax_like.learn.experience_services import ExperienceServices
from relaax_like.learn.remote_learner import RemoteLearner
from relaax_like.learn.remote_learners import RemoteLearners
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.wire.errors import ConfigError, LeasedError, RelaaxError

TASKS = ("goal", "control")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experience_service, "_POLL_SEC", 0.05)
    for name in ("_MIN_SILENCE_SEC", "_MAX_SILENCE_SEC"):  # nobody falls silent by being slow
        monkeypatch.setattr(holding, name, 600.0)


@pytest.fixture
def servers() -> Iterator[dict[str, ParameterServer]]:
    """A server for each task, so that it shows which one has learned; that of `goal` is served."""
    with contextlib.ExitStack() as stack:
        yield {task: stack.enter_context(make_plain_server()) for task in TASKS}


def make_services(
    servers: dict[str, ParameterServer], make_service: Callable[..., ExperienceService]
) -> ExperienceServices:
    def make_learners() -> dict:
        return {
            task: make_plain_learner(server, None, COLUMNS, 4 * COLUMNS)
            for task, server in servers.items()
        }

    return ExperienceServices(make_learners, make_service, pytest.fail, TASKS)


def make_service(task: str, make_learner: Callable, on_failure: Callable) -> ExperienceService:
    return ExperienceService(make_learner, COLUMNS, 1 << 24, on_failure, task=task)


@contextlib.contextmanager
def serve(server: ParameterServer, services: ExperienceServices) -> Iterator[Link]:
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
    """The agents of one task."""

    def __init__(self, learners: RemoteLearners, task: str, variables: list[str] | None = None):
        self.learner = learners.learner(task, variables, variables)
        self.done: list[int] = []
        self.values: list[np.ndarray] = []
        self.learner.start(self._hear)

    def _hear(self, update) -> None:
        self.done += update.numbers
        self.values = self.values if update.values is None else list(update.values)

    def submit(self, number: int, columns: int, agent: str = "agent") -> None:
        rollout = make_rewarded(columns, 1.0)
        self.learner.submit(LearnRequest(number, rollout, (), rollout.env_steps, agent))

    def wait(self, *numbers: int) -> None:
        wait_until(lambda: set(numbers) <= set(self.done), f"{numbers} of {self.done}")


def make_remote(link: Link, failures: list[RelaaxError]) -> RemoteLearners:
    return RemoteLearners(
        lambda task: RemoteLearner(
            lambda: link.collect_stream("rlx", WAIT_SEC, task), "rlx", on_failure=failures.append
        )
    )


def test_each_task_learns_from_its_own_streams(servers: dict[str, ParameterServer]) -> None:
    with serve(servers["goal"], make_services(servers, make_service)) as link:
        remote = make_remote(link, [])
        goal, control = (Agents(remote, task) for task in TASKS)
        assert remote.wait_loaded(WAIT_SEC)
        control.submit(1, COLUMNS)
        control.wait(1)
        assert (servers["goal"].global_t, servers["control"].global_t) == (0, ENV_STEPS)
        for number in (1, 2):
            goal.submit(number, COLUMNS)
            goal.wait(number)
        assert servers["goal"].global_t == 2 * ENV_STEPS
        assert servers["control"].global_t == ENV_STEPS
        remote.stop()
        remote.stop()


def test_values_come_in_the_order_of_the_task(servers: dict[str, ParameterServer]) -> None:
    names = [segment.name for segment in servers["goal"].manifest.segments]
    assert len(names) > 1
    chosen = [names[-1], names[0]]
    with serve(servers["goal"], make_services(servers, make_service)) as link:
        remote = make_remote(link, [])
        agents = Agents(remote, "goal", chosen)
        want = unpack(servers["goal"])
        assert len(agents.values) == 2
        for value, index in zip(agents.values, (-1, 0), strict=True):
            np.testing.assert_array_equal(value, want[index])
        remote.stop()


def test_nobody_waits_for_an_iteration_that_is_not_complete(
    servers: dict[str, ParameterServer],
) -> None:
    """Agents that play could fill it, but for all that is known they wait for another task."""
    with serve(servers["goal"], make_services(servers, make_service)) as link:
        remote = make_remote(link, [])
        agents = Agents(remote, "goal")
        for number, agent in enumerate(("a", "b", "a", "b"), start=1):
            agents.submit(number, COLUMNS // 2, agent)
            agents.wait(number)
        agents.submit(5, 1, "a")
        agents.wait(5)  # `b` plays
        remote.stop()


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("act", "for task 'act', but .* expects one of goal, control; use the same algorithm"),
        ("", "for no task, but .* expects one of goal, control"),
    ],
)
def test_an_unknown_task_is_refused_by_name(
    task: str, words: str, servers: dict[str, ParameterServer]
) -> None:
    failures: list[RelaaxError] = []
    with serve(servers["goal"], make_services(servers, make_service)) as link:
        remote = make_remote(link, failures)
        remote.learner(task)
        wait_until(lambda: failures, "a failure")
        remote.stop()
    with pytest.raises(LeasedError, match=words):
        raise failures[0]


def test_a_task_is_refused_where_there_is_one(servers: dict[str, ParameterServer]) -> None:
    server = servers["goal"]
    service = make_plain_service(server)
    grpc_server, port = BridgeControl().create_server("127.0.0.1:0", server, experience=service)
    grpc_server.start()
    with BridgeControl().connect(f"127.0.0.1:{port}") as link:
        stream = link.collect_stream("rlx", WAIT_SEC, "goal")
        stream.open(1, 0, 0)
        with pytest.raises(LeasedError, match=r"for task 'goal', but .* expects no task, since it"):
            next(iter(stream))
    grpc_server.stop(0).wait(WAIT_SEC)


def test_a_failure_of_all_tasks_is_reported_once() -> None:
    made: list[int] = []
    failures: list[Exception] = []

    def fail() -> dict:
        made.append(1)
        raise ConfigError("no such model")

    services = ExperienceServices(fail, make_service, failures.append, TASKS)
    services.start()
    services.join()
    assert [str(failure) for failure in failures] == ["no such model"]
    assert len(made) == 1
    assert not [t for t in threading.enumerate() if t.name == "learner"]
    services.stop()
