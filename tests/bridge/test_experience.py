"""Streams of experience over real gRPC: each rollout once, and nobody disturbs the others.

covers R14
"""

import contextlib
import dataclasses
import logging
import math
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from support import hostile
from support.certificates import AGENT, ENVIRONMENT, make_security
from support.cluster import find_free_port
from support.learning import (
    COLUMNS,
    ENV_STEPS,
    STEPS,
    PlainPolicy,
    assert_equal,
    make_experience,
    make_plain_server,
    make_plain_service,
    make_rewarded,
    serve,
    unpack,
)
from support.threads import Caller, wait_until

from relaax_like.bridge.collecting import CollectStream, ReleaseNotice
from relaax_like.bridge.control import BridgeControl, Link
from relaax_like.bridge.messages import ranges_to_messages
from relaax_like.core.manifest import Variable
from relaax_like.core.metrics import Metrics
from relaax_like.core.records import ClientsReport, Episode, Reply, StreamProgress
from relaax_like.experience.rollout import Rollout
from relaax_like.launch.learner import PublishedValues
from relaax_like.learn import experience_service, rollout_barrier
from relaax_like.learn.experience_service import ExperienceService, log_failure
from relaax_like.learn.rollout_messages import rollout_to_bytes
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.snapshots import Snapshots
from relaax_like.parameter_server.stop_condition import StopCondition
from relaax_like.v1 import experience_pb2
from relaax_like.v1 import parameter_server_pb2 as pb
from relaax_like.wire.errors import (
    CollectorFullError,
    ConfigError,
    InvalidInputError,
    LeasedError,
    NotAllowedError,
    ServerUnavailableError,
)
from relaax_like.wire.security import ClientSecurity

COLLECT = "/relaax.v1.Experience/Collect"


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experience_service, "_POLL_SEC", 0.05)
        for name in ("_MIN_SILENCE_SEC", "_MAX_SILENCE_SEC"):  # nobody falls silent by being slow
            patch.setattr(rollout_barrier, name, 600.0)
        yield


class Client:
    """One stream, read by a thread.

    Attributes:
      first: what the server said first.
      newest: what it said last.
      versions: of the values that came.
      values: that came last.
    """

    def __init__(
        self,
        link: Link,
        name: str = "client",
        incarnation: int = 1,
        have: tuple[int, int] = (0, 0),
        names: Sequence[str] | None = None,
    ):
        self.first: ReleaseNotice | None = None
        self.newest: ReleaseNotice | None = None
        self.versions: list[int] = []
        self.values: list[np.ndarray] = []
        self._name, self._incarnation = name, incarnation
        self._stream: CollectStream = link.collect_stream(name, 10.0)
        self._stream.open(incarnation, *have, names)
        self._reader = Caller(self._read)

    def send(self, sequence: int, rollout: Rollout | None = None, **fields: Any) -> None:
        fields = {"client_id": self._name, "incarnation": self._incarnation, **fields}
        self._stream.send(make_experience(sequence, rollout, **fields))

    def wait(self, received: int = 0, released: int = 0, version: int = 0) -> None:
        """Waits until the server has come so far."""

        def came() -> bool:
            newest = self.newest
            assert self._reader.is_alive(), self._reader.error
            return (
                newest is not None
                and newest.progress.received >= received
                and newest.progress.released >= released
                and newest.reply.version >= version
            )

        wait_until(came, f"{received} received, {released} released, version {version}")

    def assert_ends(self, kind: type[Exception], match: str = "") -> None:
        with pytest.raises(kind, match=match):
            self._reader.get()

    def finish(self) -> None:
        """Ends in order."""
        self._stream.finish(10.0)

    def close(self) -> None:
        self._stream.close()

    def _read(self) -> None:
        for advance in self._stream:
            if advance.reply.values is not None:
                self.versions.append(advance.reply.version)
                flat = advance.reply.values.flat
                self.values = self._stream.manifest.unpack(flat)
            self.first = self.first or advance
            self.newest = advance


class Site:
    """A served run and its clients.

    Attributes:
      policy: of its learner; without its gate set, an iteration does not end.
      failures: of its learner.
    """

    def __init__(self, folder: Path, **options: Any):
        self.policy = PlainPolicy()
        self.failures: list[Exception] = []
        server_options = options.pop("server", {})
        self.server: ParameterServer = make_plain_server(**server_options)
        self.service: ExperienceService = make_plain_service(
            self.server, self.policy, on_failure=self._note_failure, **options
        )
        self._stack = contextlib.ExitStack()
        self._stack.callback(self.server.close)
        address = self._stack.enter_context(serve(self.server, self.service))
        self._stack.callback(self.policy.gate.set)
        self.address, self.port = address, int(address.rpartition(":")[2])
        self.link = self._stack.enter_context(BridgeControl().connect(address))

    def _note_failure(self, error: Exception) -> None:
        log_failure(error)
        self.failures.append(error)

    def connect(self, name: str = "client", **options: Any) -> Client:
        client = Client(self.link, name, **options)
        self._stack.callback(client.close)
        return client

    def learned(self) -> list[list[float]]:
        """Returns the rewards of each iteration, by column."""
        return [rewards[0].tolist() for rewards in self.policy.rewards]

    def wait_learned(self, iterations: int) -> None:
        wait_until(lambda: len(self.policy.rewards) >= iterations, f"{iterations} iterations")

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def open_site(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    with contextlib.ExitStack() as stack:

        def open_one(**options: Any) -> Site:
            return stack.enter_context(contextlib.closing(Site(tmp_path, **options)))

        yield open_one


@pytest.fixture
def site(open_site: Callable[..., Site]) -> Site:
    return open_site()


# What comes and goes.


def test_rollouts_go_up_progress_and_values_come_down(site: Site) -> None:
    client = site.connect()
    client.wait()
    assert client.versions == [0]  # the first values, at once
    client.send(1, make_rewarded(2, 1.0), episodes=(Episode(3.0, 7),))
    client.wait(received=1, released=1)  # nobody else could fill the iteration
    assert site.learned() == []
    client.send(2, make_rewarded(2, 2.0), episodes=(Episode(5.0, 9),))
    client.wait(received=2, released=2, version=1)
    assert site.learned() == [[1.0, 1.0, 2.0, 2.0]]
    assert_equal(client.values, unpack(site.server))
    assert client.newest is not None
    assert client.newest.reply.global_t == ENV_STEPS
    assert client.versions == [0, 1]
    status = site.server.status()
    assert (status.episodes, status.mean_return, status.clients) == (2, 4.0, 1)


def test_the_first_answer_tells_what_was_there_before_the_stream(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart, a client tells by it what was lost: it is not what was sent again since."""
    wait, asked = site.service.wait, threading.Event()

    def wait_for_more(*arguments: Any, **options: Any) -> StreamProgress:
        if not asked.is_set():
            asked.set()
            wait("client", 1, StreamProgress(), 1 << 40, 0.5)  # for what must not be read yet
        return wait(*arguments, **options)

    monkeypatch.setattr(site.service, "wait", wait_for_more)
    client = site.connect()
    client.send(1, make_rewarded(2, 1.0))
    client.wait(received=1)
    assert client.first is not None
    assert client.first.progress == StreamProgress()


NETWORKS = [Variable(f"network{i}", np.full((1000,), i, np.float32)) for i in range(5)]


def test_a_client_gets_the_variables_that_it_names_alone(open_site: Callable[..., Site]) -> None:
    site = open_site(server={"variables": NETWORKS})
    client = site.connect(names=["network3", "network1"])
    for version in range(2):
        client.wait(version=version)
        for i, value in enumerate(unpack(site.server)):
            expected = value if i in (1, 3) else np.full((1000,), np.nan, np.float32)
            assert_equal([client.values[i]], [expected])
        client.send(version + 1, make_rewarded(4, 1.0))
        client.wait(received=version + 1, released=version + 1)
    site.wait_learned(2)


@pytest.mark.parametrize("names", [[], ["network1"], ["network1", "network2", "network4"]])
def test_only_the_bytes_of_these_variables_are_sent(
    open_site: Callable[..., Site], names: list[str]
) -> None:
    site = open_site(server={"variables": NETWORKS})
    ranges = ranges_to_messages(site.server.manifest.find_ranges(names))
    assert len(ranges) == len({"network1", "network4"} & set(names))
    with grpc.insecure_channel(site.address) as channel:
        call = channel.stream_stream(COLLECT)(iter([header(ranges=ranges)]))
        progress = experience_pb2.ExperienceReply.FromString(next(call)).progress
        call.cancel()
    assert progress.header.values_bytes == 4000 * (len(names) or 5)
    assert len(progress.header.first_chunk) == progress.header.values_bytes


def test_who_has_the_newest_values_gets_none(site: Site) -> None:
    client = site.connect(have=(0, site.server.epoch))
    client.wait()
    assert client.versions == []
    client.send(1, make_rewarded(COLUMNS, 1.0))
    client.wait(version=1)
    assert client.versions == [1]


def test_values_of_the_same_number_from_before_a_restart_are_not_the_newest(site: Site) -> None:
    client = site.connect(have=(0, site.server.epoch - 1))
    client.wait()
    assert client.versions == [0]


def test_a_rollout_that_comes_again_takes_effect_once(site: Site) -> None:
    client = site.connect()
    for _ in range(3):
        client.send(1, make_rewarded(2, 1.0), episodes=(Episode(3.0, 7),))
    client.send(2, make_rewarded(2, 2.0))
    client.send(1, make_rewarded(2, 1.0))
    client.send(3, make_rewarded(COLUMNS, 3.0))
    client.wait(released=3, version=2)
    assert site.learned() == [[1.0, 1.0, 2.0, 2.0], [3.0] * COLUMNS]
    assert site.server.status().episodes == 1


def test_after_a_reconnect_what_was_sent_again_takes_effect_once(site: Site) -> None:
    client = site.connect()
    client.send(1, make_rewarded(2, 1.0))
    client.wait(received=1)
    client.close()
    again = site.connect()
    for sequence in (1, 2, 3):
        again.send(sequence, make_rewarded(2, float(sequence)))
    again.wait(received=3, version=1)
    assert site.learned() == [[1.0, 1.0, 2.0, 2.0]]


def test_a_client_that_starts_anew_counts_anew_and_its_earlier_life_is_over(site: Site) -> None:
    old = site.connect(incarnation=5)
    old.send(1, make_rewarded(1, 1.0))
    old.wait(received=1)
    new = site.connect(incarnation=6)
    new.send(1, make_rewarded(1, 2.0))
    new.wait(received=1)
    old.send(2, make_rewarded(1, 3.0))
    old.assert_ends(
        InvalidInputError,
        "incarnation 5 of client client, but incarnation 6 has started since",
    )
    new.send(2, make_rewarded(2, 4.0))
    new.wait(version=1)
    assert site.learned() == [[1.0, 2.0, 4.0, 4.0]]


def test_two_streams_of_one_client_are_one_client(site: Site) -> None:
    one, two = site.connect(), site.connect()
    one.send(1, make_rewarded(1, 1.0))
    two.wait(received=1)
    two.send(2, make_rewarded(1, 2.0))
    two.send(1, make_rewarded(1, 9.0))
    one.wait(received=2)
    one.send(3, make_rewarded(2, 3.0))
    for client in (one, two):
        client.wait(released=3, version=1)
    assert site.learned() == [[1.0, 2.0, 3.0, 3.0]]


def test_experience_without_a_rollout_counts_episodes_and_is_released_at_once(site: Site) -> None:
    client = site.connect()
    client.send(1, episodes=(Episode(1.0, 2), Episode(3.0, 4)), env_steps=6)
    client.send(2)
    client.wait(received=2, released=2)
    client.send(3, make_rewarded(COLUMNS, 1.0))
    client.wait(version=1)
    assert site.server.global_t == 6 + ENV_STEPS
    assert (site.server.status().episodes, site.server.status().mean_return) == (2, 2.0)


def test_after_a_crash_no_step_is_counted_twice_and_lost_rollouts_can_come_again(
    tmp_path: Path,
) -> None:
    sent = [
        make_experience(1, make_rewarded(COLUMNS, 1.0), episodes=(Episode(1.0, 2),)),
        make_experience(2, make_rewarded(2, 2.0)),
        make_experience(3, env_steps=3),
        make_experience(4, make_rewarded(3, 4.0)),  # one column of it is not learned from
    ]
    with start_service(tmp_path) as (server, service, policy):
        for experience in sent:
            service.add(experience)
        wait_until(lambda: server.version == 2, "two iterations")
        assert server.global_t == 20 + 10 + 3 + 15
    with start_service(tmp_path) as (server, service, policy):
        assert (server.version, server.global_t) == (2, 48)
        for experience in sent:
            service.add(experience)
        assert service.wait("client", 1, StreamProgress(), 2, 0.0).received == 4
        service.add(make_experience(5, make_rewarded(1, 5.0)))
        wait_until(lambda: server.version == 3, "another iteration")
        assert policy.rewards[0][0].tolist() == [4.0, 4.0, 4.0, 5.0]
        assert (server.global_t, server.status().episodes) == (48 + 5, 1)
        with pytest.raises(InvalidInputError, match="incarnation 0"):
            service.add(make_experience(6, incarnation=0))


def test_what_no_iteration_needed_is_counted_when_the_service_stops(tmp_path: Path) -> None:
    with start_service(tmp_path) as (server, service, _):
        service.add(make_experience(1, make_rewarded(3, 1.0), episodes=(Episode(1.0, 2),)))
        service.add(make_experience(2, env_steps=4))
        assert server.global_t == 0
        service.stop()
        assert (server.version, server.global_t, server.status().episodes) == (0, 19, 1)
    with start_service(tmp_path) as (server, service, _):
        service.add(make_experience(2, env_steps=4))
        service.stop()
        assert server.global_t == 19


@contextlib.contextmanager
def start_service(
    folder: Path,
) -> Iterator[tuple[ParameterServer, ExperienceService, PlainPolicy]]:
    """Starts a run that continues with what is in its folder, and ends it as `kill -9` does."""
    policy = PlainPolicy()
    server = make_plain_server(snapshots=Snapshots(folder))
    server.restore_latest_checkpoint()
    service = make_plain_service(server, policy)
    service.start()
    try:
        yield server, service, policy
    finally:
        server.close(save=False)
        service.stop()


def make_large(slots: int, reward: float) -> Rollout:
    """Makes a rollout of some megabytes; the model does not read its camera."""
    rollout = make_rewarded(slots, reward)
    camera = np.zeros((STEPS + 1, slots, 100_000), np.float32)
    return dataclasses.replace(
        rollout,
        inputs={**rollout.inputs, "camera": camera[:-1]},
        next_inputs={**rollout.next_inputs, "camera": camera[1:]},
    )


def test_a_large_rollout_goes_in_chunks_and_large_values_come_so(
    open_site: Callable[..., Site],
) -> None:
    variables = (Variable("w", np.zeros(500_000, np.float32)),)
    site = open_site(server={"variables": variables})
    client = site.connect()
    for sequence in (1, 2):
        client.send(sequence, make_large(2, float(sequence)))
    client.wait(released=2, version=1)
    assert site.learned() == [[1.0, 1.0, 2.0, 2.0]]
    np.testing.assert_array_equal(client.values[0], STEPS * 6.0)


def test_observations_in_other_types_are_taken_as_the_model_reads_them(site: Site) -> None:
    client = site.connect()
    rollout = make_rewarded(2, 1.0)
    doubled = {name: array.astype(np.float64) for name, array in rollout.inputs.items()}
    client.send(1, dataclasses.replace(rollout, inputs=doubled))
    client.send(2, make_rewarded(2, 2.0))
    client.wait(released=2, version=1)


def test_a_rollout_of_more_slots_than_many_iterations_is_taken(
    open_site: Callable[..., Site],
) -> None:
    site = open_site(capacity=COLUMNS + 21)
    client = site.connect()
    client.send(1, make_rewarded(21, 1.0))
    client.wait(received=1, released=1, version=5)
    assert len(site.learned()) == 5
    # The last column is in no iteration yet; nobody waits for it.
    client.send(2, make_rewarded(3, 2.0))
    client.wait(released=2, version=6)
    assert site.learned()[-1] == [1.0, 2.0, 2.0, 2.0]


# Who waits for which client.


def test_agents_wait_for_an_iteration_while_others_can_fill_it(site: Site) -> None:
    one, two = site.connect("one"), site.connect("two")
    for sequence in (1, 2):
        one.send(sequence, make_rewarded(2, 1.0))
        two.send(sequence, make_rewarded(2, 2.0))
        for client in (one, two):
            client.wait(released=sequence, version=sequence)
    one.send(3, make_rewarded(2, 3.0))
    one.wait(received=3)
    assert one.newest is not None
    assert one.newest.progress.released == 2  # until the other comes
    two.send(3, agent="agent", is_leaving=True)
    one.wait(released=3)
    assert len(site.learned()) == 2


def test_while_an_iteration_is_learned_from_nobody_acts_on_without_its_values(site: Site) -> None:
    one, two, three = (site.connect(name) for name in ("one", "two", "three"))
    for client in (one, two):
        client.send(1, make_rewarded(2, 1.0))
    for client in (one, two):
        client.wait(released=1, version=1)
    site.policy.gate.clear()
    for client in (one, two):
        client.send(2, make_rewarded(2, 2.0))
    assert site.policy.begun.wait(20)
    # A third one cannot fill the next iteration alone; but the first two are to come for it.
    three.send(1, make_rewarded(2, 3.0))
    three.send(2)
    three.wait(received=2)
    for client, released in ((one, 1), (two, 1), (three, 0)):
        client.wait(received=2)
        assert client.newest is not None
        assert client.newest.progress.released == released
    site.policy.gate.set()
    for client in (one, two):
        client.wait(released=2, version=2)  # with the values that it led to
    assert three.newest is not None
    assert three.newest.progress.released == 0
    one.send(3, make_rewarded(2, 4.0))
    three.wait(released=2, version=3)


def test_a_client_that_fell_silent_is_not_waited_for(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout_barrier, "_MIN_SILENCE_SEC", 0.1)
    one, two = site.connect("one"), site.connect("two")
    one.send(1, make_rewarded(2, 1.0))
    two.send(1, make_rewarded(2, 2.0))
    two.wait(released=1, version=1)
    two.close()
    one.send(2, make_rewarded(2, 3.0))
    one.wait(released=2)


# Back-pressure.


def test_what_finds_no_room_waits_and_loses_nothing(site: Site) -> None:
    site.policy.gate.clear()
    client = site.connect()
    for sequence in range(1, 9):
        client.send(sequence, make_rewarded(COLUMNS, float(sequence)))
    # One is being learned from, four wait.
    client.wait(received=5)
    assert site.policy.begun.wait(20)
    assert client.newest is not None
    assert client.newest.progress.received == 5
    other = site.connect("other")  # can continue to read
    other.wait()
    site.policy.gate.set()
    client.wait(received=8, released=8, version=8)
    assert [rewards[0] for rewards in site.learned()] == [float(n) for n in range(1, 9)]


def test_counts_wait_while_the_disk_is_behind(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    client = site.connect()
    client.send(1, make_rewarded(COLUMNS, 1.0))
    client.wait(version=1)
    source = site.service._source
    assert source is not None
    add_counts = source.add_counts
    refused: list[Any] = []

    def refuse_twice(*arguments: Any) -> None:
        if len(refused) < 2:
            refused.append(arguments)
            raise CollectorFullError("the disk is behind; agents wait until it has caught up")
        add_counts(*arguments)

    monkeypatch.setattr(source, "add_counts", refuse_twice)
    client.send(2, episodes=(Episode(4.0, 2),), env_steps=3)
    client.wait(received=2, released=2)
    assert len(refused) == 2
    client.send(3, make_rewarded(COLUMNS, 2.0))
    client.wait(version=2)
    assert site.server.global_t == 2 * ENV_STEPS + 3
    assert (site.server.status().episodes, site.server.status().mean_return) == (1, 4.0)


def test_where_no_room_comes_the_stream_ends_and_may_be_tried_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experience_service, "_ROOM_SEC", 0.1)
    site.policy.gate.clear()
    client = site.connect()
    for sequence in range(1, 7):
        client.send(sequence, make_rewarded(COLUMNS, float(sequence)))
    client.assert_ends(ServerUnavailableError, "no room for it for .* s, .*; retry later")
    monkeypatch.setattr(experience_service, "_ROOM_SEC", 60.0)
    site.policy.gate.set()
    again = site.connect()
    for sequence in range(1, 7):
        again.send(sequence, make_rewarded(COLUMNS, float(sequence)))
    again.wait(released=6, version=6)
    assert [rewards[0] for rewards in site.learned()] == [float(n) for n in range(1, 7)]


# The end.


def test_clients_are_told_of_the_end_and_rollouts_afterwards_are_no_reason_to_wait(
    open_site: Callable[..., Site],
) -> None:
    site = open_site(server={"stop": StopCondition(ENV_STEPS)})
    one, two = site.connect("one"), site.connect("two")
    two.send(1, make_rewarded(1, 1.0))
    two.wait(received=1)
    one.send(1, make_rewarded(COLUMNS, 2.0))
    for client in (one, two):
        client.wait(released=1, version=1)
        assert client.newest is not None
        assert "budget" in client.newest.reply.finished
    one.send(2, make_rewarded(COLUMNS, 3.0), episodes=(Episode(1.0, 1),))
    one.wait(received=2, released=2)
    # The steps were taken all the same: one more column than the iteration needed, and these.
    wait_until(lambda: site.server.global_t == 25 + ENV_STEPS, "the last steps")
    assert (site.server.version, site.server.status().episodes) == (1, 0)
    site.server.wait_notified(20.0)
    late = site.connect("late")
    late.wait()
    assert late.newest is not None
    assert "budget" in late.newest.reply.finished
    for client in (one, two, late):
        client.finish()


def test_a_client_that_ends_in_order_is_read_to_its_end(site: Site) -> None:
    client = site.connect()
    for sequence in range(1, 9):
        client.send(sequence, make_rewarded(2, float(sequence)))
    client.finish()
    site.wait_learned(4)
    assert site.learned()[-1] == [7.0, 7.0, 8.0, 8.0]


def find_stream_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "experience"]


def test_streams_leave_no_thread_behind(site: Site) -> None:
    wait_until(lambda: not find_stream_threads(), "the end of earlier streams")
    clients = [site.connect(f"client-{n}") for n in range(20)]
    for client in clients:
        client.wait()
    wait_until(lambda: len(find_stream_threads()) == 20, "the threads")
    for client in clients[:10]:
        client.close()
    ends = [Caller(client.finish) for client in clients[10:]]
    for end in ends:
        end.get()
    wait_until(lambda: not find_stream_threads(), "the end of the threads")


def test_a_server_that_stops_ends_its_streams_at_once(site: Site) -> None:
    client = site.connect()
    client.wait()
    site.service.stop()
    site.service.stop()
    client.assert_ends(ServerUnavailableError, "is closing; reconnect later")
    late = site.connect()
    late.assert_ends(ServerUnavailableError, "is closing")
    wait_until(lambda: not site.service._thread.is_alive(), "the end of the learner's thread")


def test_what_was_taken_is_told_before_the_end_and_nothing_more_is_taken(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experience_service, "_STOP_SEC", 30.0)
    site.policy.gate.clear()
    client = site.connect()
    client.send(1, make_rewarded(COLUMNS, 1.0))
    assert site.policy.begun.wait(20)
    stopping = Caller(site.service.stop)
    wait_until(lambda: site.service._stopping, "the stop")
    late = make_experience(1, make_rewarded(COLUMNS, 2.0), client_id="late")
    adding = Caller(lambda: site.service.add(late))
    wait_until(lambda: "late" in site.service._clients, "the attempt")
    site.policy.gate.set()
    stopping.get()
    with pytest.raises(ServerUnavailableError, match="is closing"):
        adding.get()
    client.assert_ends(ServerUnavailableError, "is closing")
    assert client.newest is not None
    assert client.newest.progress == StreamProgress(1, 1)
    assert (site.server.version, len(site.learned())) == (1, 1)
    assert site.service._clients["late"].received == 0


def test_an_iteration_that_ends_after_the_server_is_no_failure(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(experience_service, "_STOP_SEC", 0.0)
    caplog.set_level(logging.INFO)
    site.policy.gate.clear()
    client = site.connect()
    client.send(1, make_rewarded(COLUMNS, 1.0))
    assert site.policy.begun.wait(20)
    site.service.stop()
    site.server.close()
    site.policy.gate.set()
    wait_until(lambda: not site.service._thread.is_alive(), "the end of the iteration")
    assert site.failures == []
    assert "updates that were not published are lost" in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_service_that_never_ran_can_be_stopped() -> None:
    with make_plain_server() as server:
        make_plain_service(server).stop()


@pytest.mark.parametrize("error", [MemoryError("out of memory"), InvalidInputError("NaN", "w")])
def test_a_learner_that_fails_is_told_once_and_ends_the_streams(
    site: Site, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    client = site.connect()
    client.wait()
    site.policy.error = error
    client.send(1, make_rewarded(COLUMNS, 1.0))
    client.assert_ends(ServerUnavailableError, "is closing")
    wait_until(lambda: site.failures == [error], "the failure")
    said = [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert [r.getMessage() for r in said] == [f"learning has failed: {error}"]
    # Only what nobody expects has a trace.
    assert bool(said[0].exc_info and said[0].exc_info[1]) == isinstance(error, MemoryError)
    assert site.server.version == 0


def test_a_data_handler_that_fails_ends_the_learning(site: Site) -> None:
    class Failing:
        def after_interact(self, rollout: Rollout) -> Rollout:
            raise KeyError("goal")

        def after_learn(self, training_data: object, policy_data: object) -> None:
            raise AssertionError("not called here")

    client = site.connect()
    client.send(1, make_rewarded(COLUMNS, 1.0))
    client.wait(version=1)
    source: Any = site.service._source
    source._collector.data_handler = Failing()
    client.send(2, make_rewarded(COLUMNS, 2.0))
    client.assert_ends(ServerUnavailableError, "the learner is closing; reconnect later")
    wait_until(lambda: bool(site.failures), "the failure")
    again = site.connect()
    again.send(2, make_rewarded(COLUMNS, 2.0))
    again.assert_ends(ServerUnavailableError, "the learner is closing; reconnect later")
    (error,) = site.failures
    assert isinstance(error, ConfigError)
    line = Failing.after_interact.__code__.co_firstlineno + 1
    assert str(error) == f"{__file__}:{line}: KeyError: 'goal'"


def test_a_learner_that_cannot_be_made_ends_the_streams() -> None:
    failures: list[Exception] = []

    def fail() -> Any:
        raise InvalidInputError("no such model", "model")

    with make_plain_server() as server:
        service = ExperienceService(fail, COLUMNS, 1 << 20, failures.append)
        with serve(server, service) as address, BridgeControl().connect(address) as link:
            client = Client(link)
            client.send(1, make_rewarded(COLUMNS, 1.0))
            client.assert_ends(ServerUnavailableError, "is closing")
    assert [str(failure) for failure in failures] == ["no such model"]


def test_rollouts_that_come_before_the_learner_is_there_wait_for_it(site: Site) -> None:
    made, make = threading.Event(), site.service._make_learner

    def make_late() -> Any:
        assert made.wait(20)
        return make()

    service = ExperienceService(make_late, COLUMNS, 1 << 20)
    with serve(site.server, service) as address, BridgeControl().connect(address) as link:
        client = Client(link)
        client.wait()  # values need no learner
        client.send(1, episodes=(Episode(1.0, 1),))
        client.send(2, make_rewarded(COLUMNS, 1.0), episodes=(Episode(3.0, 1),))
        made.set()
        client.wait(released=2, version=1)
        client.close()
    assert (site.server.status().episodes, site.server.status().mean_return) == (2, 2.0)


# Who is not allowed to.


def test_a_run_that_learns_beside_its_agents_takes_no_experience() -> None:
    with make_plain_server() as server, serve(server, None) as address:
        with BridgeControl().connect(address) as link:
            Client(link).assert_ends(LeasedError, "does not learn in its parameter server")


def test_who_may_only_act_may_not_send_experience(tmp_path: Path) -> None:
    with make_plain_server() as server:
        service = make_plain_service(server)
        with serve(server, service, security=make_security(tmp_path)) as address:
            for token, code in (
                ("", grpc.StatusCode.UNAUTHENTICATED),
                (ENVIRONMENT, grpc.StatusCode.PERMISSION_DENIED),
            ):
                metadata = [("authorization", f"Bearer {token}")] if token else []
                with grpc.insecure_channel(address) as channel:
                    call = channel.stream_stream(COLLECT)
                    with pytest.raises(grpc.RpcError) as refused:
                        list(call(iter([header()]), metadata=metadata, timeout=20))
                assert refused.value.code() is code
            with BridgeControl().connect(address, ClientSecurity(token=AGENT)) as link:
                client = Client(link)
                client.send(1, make_rewarded(COLUMNS, 1.0))
                client.wait(version=1)
                client.close()
            with BridgeControl().connect(address, ClientSecurity(token=ENVIRONMENT)) as link:
                with pytest.raises(NotAllowedError):
                    link.collect_stream("client", 10.0)


# Strangers. While they play, an honest client continues.


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with contextlib.closing(Site(tmp_path_factory.mktemp("site"))) as site:
        yield site


class Honest:
    """A client that sends one whole iteration after another, and knows what must come of it."""

    def __init__(self, site: Site):
        self._site = site
        self._client = site.connect("honest", incarnation=2)
        self._sequence = 0

    def check(self) -> None:
        """Fails unless the next rollout, and nothing but it, makes the next version."""
        self._sequence += 1
        site, reward = self._site, float(self._sequence)
        version, iterations = site.server.version, len(site.policy.rewards)
        self._client.send(self._sequence, make_rewarded(COLUMNS, reward))
        self._client.wait(received=self._sequence, released=self._sequence, version=version + 1)
        assert site.server.version == version + 1
        assert site.learned()[iterations:] == [[reward] * COLUMNS]
        assert site.failures == []


@pytest.fixture(scope="module")
def honest(shared: Site) -> Honest:
    return Honest(shared)


@pytest.fixture
def channel(shared: Site) -> Iterator[grpc.Channel]:
    with hostile.open_channel(shared.port) as channel:
        yield channel


def header(**fields: Any) -> bytes:
    """Returns a header that opens a stream, or a rollout's, changed."""
    fields = {"client_id": "stranger", "incarnation": 1, **fields}
    message = experience_pb2.ExperienceHeader(**fields)
    return experience_pb2.ExperienceRequest(header=message).SerializeToString()


def chunk(data: bytes) -> bytes:
    return experience_pb2.ExperienceRequest(chunk=data).SerializeToString()


def rollout_bytes(rollout: Rollout) -> bytes:
    return rollout_to_bytes(rollout).tobytes()


def whole(data: bytes, columns: int = 2, **fields: Any) -> bytes:
    """Returns a header with a rollout's bytes in it."""
    fields = {"sequence": 1, "columns": columns, "rollout_bytes": len(data), **fields}
    return header(first_chunk=data, **fields)


GOOD = make_rewarded(2, 7.0)
GOOD_BYTES = rollout_bytes(GOOD)
LENGTH = len(GOOD_BYTES)
HALF = GOOD_BYTES[: LENGTH // 2]
EPISODE = pb.Episode(episode_return=1.0, length=1)

# Name -> messages, and words of the refusal.
STREAMS: dict[str, tuple[Sequence[bytes], str]] = {
    "nothing": ([], "without a header"),
    "an empty message": ([b""], "without a header"),
    "bytes that are no message": ([b"\xff\xff\xff"], "without a header"),
    "a chunk first": ([chunk(GOOD_BYTES)], "without a header"),
    "an empty chunk first": ([chunk(b"")], "without a header"),
    "a long message that is no chunk": ([b"\x0a" + bytes(4_000_000)], ""),
    "a newer format": ([header(format=2)], "format 2 of this protocol, the server format 1"),
    "no client": ([header(client_id="")], "client_id"),
    "a name of 201": ([header(client_id="a" * 201)], "client_id"),
    "a name of a megabyte": ([header(client_id="a" * 1_000_000)], "client_id"),
    "a name with a line's end": ([header(client_id="a\nb")], "client_id"),
    "an agent of 201": ([header(sequence=1, agent="a" * 201)], "agent"),
    "an agent with a zero": ([header(sequence=1, agent="a\0b")], "agent"),
    "a range of nothing": ([header(ranges=[pb.ByteRange(offset=4)])], "at least one byte"),
    "a range beyond the values": ([header(ranges=[pb.ByteRange(length=10_000)])], "and 36;"),
    "an endless range": (
        [header(ranges=[pb.ByteRange(offset=(1 << 64) - 1, length=(1 << 64) - 1)])],
        "at least one byte between 0 and 36",
    ),
    "ranges that overlap": (
        [header(ranges=[pb.ByteRange(length=8), pb.ByteRange(offset=4, length=8)])],
        "bytes 4 to 12, expected at least one byte between 8 and 36",
    ),
    "65 537 ranges": (
        [header(ranges=[pb.ByteRange()] * 65_537)],
        "ranges: 65537, but at most 65536",
    ),
    "another client's name in the second header": (
        [header(), header(client_id="honest", incarnation=2, sequence=100)],
        "client 'honest', incarnation 2; expected 'stranger', incarnation 1",
    ),
    "another incarnation in the second header": (
        [header(), header(incarnation=7, sequence=1)],
        "as in the stream's first message",
    ),
    "a header where a chunk belongs": (
        [header(sequence=1, columns=2, rollout_bytes=LENGTH), header()],
        "received a second header, or another message that is not a chunk",
    ),
    "two headers at once": (
        [header(), whole(HALF, rollout_bytes=LENGTH), whole(HALF, rollout_bytes=LENGTH)],
        "received a second header, or another message that is not a chunk",
    ),
    "a chunk after the end": ([whole(GOOD_BYTES[:-1]), chunk(b"x")], "rollout"),
    "garbage in the middle": (
        [header(sequence=1, columns=2, rollout_bytes=LENGTH), chunk(HALF), b"\xff\xff"],
        "received a second header, or another message that is not a chunk",
    ),
    "an end in the middle": (
        [header(sequence=1, columns=2, rollout_bytes=LENGTH), chunk(HALF)],
        "rollout: received .* bytes, expected",
    ),
    "more bytes than announced": (
        [header(sequence=1, columns=2, rollout_bytes=10), chunk(GOOD_BYTES)],
        "bytes or more, expected 10;",
    ),
    "more than announced at once": (
        [whole(GOOD_BYTES, rollout_bytes=10)],
        "bytes or more, expected 10;",
    ),
    "fewer bytes than it needs": (
        [whole(HALF)],
        "rollout: not a valid Rollout message|bytes of data",
    ),
    "above the limit": ([header(sequence=1, rollout_bytes=(1 << 24) + 1)], "at most 16777216"),
    "endless": ([header(sequence=1, rollout_bytes=(1 << 64) - 1)], "bytes announced"),
    "bytes that are no rollout": ([whole(b"\xff" * 100)], "not a valid Rollout message"),
    "a rollout of nothing": ([whole(b"\xa2\x06\x00")], "next_alive|dtype"),
    "1 001 episodes": ([header(sequence=1, episodes=[EPISODE] * 1_001)], "1001 episodes"),
    "an episode of NaN": (
        [header(sequence=1, episodes=[EPISODE, pb.Episode(episode_return=np.nan, length=1)])],
        r"episodes\[1\]: return nan",
    ),
    "an infinite episode with a good rollout": (
        [whole(GOOD_BYTES, episodes=[pb.Episode(episode_return=-np.inf, length=1)])],
        r"episodes\[0\]: return -inf",
    ),
    "an empty episode": ([header(sequence=1, episodes=[pb.Episode()])], r"episodes\[0\].length"),
    "an endless episode": (
        [header(sequence=1, episodes=[pb.Episode(length=(1 << 64) - 1)])],
        r"episodes\[0\].length",
    ),
    "more steps than anybody takes": ([header(sequence=1, env_steps=(1 << 32) + 1)], "env_steps"),
    "no seconds": ([header(sequence=1, sampling_sec=math.nan)], "sampling_sec: nan"),
    "negative seconds": ([header(sequence=1, sampling_sec=-1.0)], "sampling_sec: -1.0"),
    "endless steps": (
        [whole(GOOD_BYTES, env_steps=(1 << 64) - 1)],
        r"expected 0 to 10 \(those of the rollout\)",
    ),
    "no columns": (
        [whole(GOOD_BYTES, columns=0)],
        "columns: 0, expected 2, the slots of the rollout",
    ),
    "2^32 - 1 columns": ([whole(GOOD_BYTES, columns=(1 << 32) - 1)], "columns: 4294967295"),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_with_a_mistake_is_refused(
    shared: Site, honest: Honest, channel: grpc.Channel, name: str
) -> None:
    messages, match = STREAMS[name]
    code, details = hostile.refuse(channel, COLLECT, messages)
    assert code is grpc.StatusCode.INVALID_ARGUMENT, details
    assert re.search(match, details), details
    assert len(details) < 1000
    honest.check()


def change(**fields: Any) -> Rollout:
    return dataclasses.replace(GOOD, **fields)


def see(observation: np.ndarray) -> Rollout:
    return change(inputs={"observation": observation}, next_inputs={"observation": observation})


def fill(array: np.ndarray, number: float) -> np.ndarray:
    """Returns the array with one number replaced."""
    array = array.copy()
    array.reshape(-1)[3] = number
    return array


OBSERVATION = GOOD.inputs["observation"]
ACTION = GOOD.actions["action"]


# Name -> rollout, and words of the refusal.
ROLLOUTS: dict[str, tuple[Rollout, str]] = {
    "no observation": (
        change(inputs={}, next_inputs={}),
        "inputs: observation is missing, received nothing",
    ),
    "an observation of another name": (
        change(inputs={"x": OBSERVATION}, next_inputs={"x": OBSERVATION}),
        "inputs: observation is missing, received x",
    ),
    "an observation with a longer name than any": (
        change(inputs={"x" * 5000: OBSERVATION}, next_inputs={"x" * 5000: OBSERVATION}),
        "name of an array has 5000 characters, expected at most 200",
    ),
    "more arrays than any": (
        change(states={f"x{i}": np.zeros((2, 1), np.float32) for i in range(1001)}),
        "rollout: 1001 arrays of one kind, expected at most 1000",
    ),
    "five numbers instead of four": (
        see(np.zeros((STEPS, 2, 5), np.float32)),
        r"inputs observation: float32 of \[5, 2, 5\], expected float32 of \[5, 2, 4\]",
    ),
    "a step more": (see(np.zeros((STEPS + 1, 2, 4), np.float32)), "inputs observation"),
    "NaN seen": (see(fill(OBSERVATION, np.nan)), r"inputs observation: nan at \[0, 0, 3\]"),
    "infinity seen": (see(fill(OBSERVATION, np.inf)), r"inputs observation: inf at \[0, 0, 3\]"),
    "more than a float32 holds": (
        see(fill(OBSERVATION.astype(np.float64), 1e300)),
        "inputs observation",
    ),
    "numbers whose squares a float32 does not hold": (
        see(fill(OBSERVATION, 1e30)),
        "overflows float32",
    ),
    "NaN seen next": (
        change(next_inputs={"observation": fill(OBSERVATION, np.nan)}),
        r"next_inputs observation: nan at \[0, 0, 3\]",
    ),
    "actions of another name": (
        change(actions={"a": ACTION}),
        "actions: action is missing, received a",
    ),
    "actions of float": (
        change(actions={"action": ACTION.astype(np.float32)}),
        "actions action: float32",
    ),
    "actions that there are not": (
        change(actions={"action": fill(ACTION, 2)}),
        r"actions action: .* outside 0\.\.1",
    ),
    "negative actions": (
        change(actions={"action": fill(ACTION, -1)}),
        r"actions action: .* outside 0\.\.1",
    ),
    "rewards of another shape": (
        change(rewards=np.zeros((STEPS, 2, 3), np.float32)),
        r"rewards: float32 of \[5, 2, 3\], expected float32 of \[5, 2, 1\]",
    ),
    "NaN for a reward": (
        change(rewards=fill(GOOD.rewards, np.nan)),
        r"rewards: nan at \[1, 1, 0\]",
    ),
    "a giant reward": (change(rewards=fill(GOOD.rewards, 3e38)), "overflows float32"),
    "NaN for a probability": (
        change(log_prob=fill(GOOD.log_prob, np.nan)),
        r"log_prob: nan at \[1, 1\]",
    ),
    "probabilities of one slot": (change(log_prob=GOOD.log_prob[:, :1]), "log_prob: float32 of"),
    "neither alive nor dead": (
        change(next_alive=fill(GOOD.next_alive, 0.5)),
        r"next_alive: .*, expected 1 \(continues\)",
    ),
    "NaN for alive": (
        change(next_alive=fill(GOOD.next_alive, np.nan)),
        r"next_alive: nan, expected 1 \(continues\)",
    ),
    "alive without slots": (
        change(next_alive=GOOD.next_alive[:, 0]),
        r"next_alive: shape \[5\], expected \[5, k\]",
    ),
    "no slot at all": (
        change(next_alive=np.zeros((STEPS, 0), np.float32)),
        r"next_alive: shape \[5, 0\]",
    ),
    "versions of another length": (change(versions=GOOD.versions[:2]), "versions: int64 of"),
    "versions of float": (change(versions=GOOD.versions.astype(np.float32)), "versions: float32"),
}


@pytest.mark.parametrize("name", ROLLOUTS)
def test_a_rollout_with_a_mistake_is_refused_by_name(
    shared: Site, honest: Honest, channel: grpc.Channel, name: str
) -> None:
    rollout, match = ROLLOUTS[name]
    columns = rollout.next_alive.shape[-1]
    data = rollout_bytes(rollout)
    code, details = hostile.refuse(channel, COLLECT, [whole(data, columns=columns)])
    assert code is grpc.StatusCode.INVALID_ARGUMENT, details
    assert re.search(match, details), details
    honest.check()


def test_a_refusal_is_counted_and_what_came_before_it_is_taken(
    shared: Site, honest: Honest
) -> None:
    before = shared.server.status().refused.get("malformed", 0)
    client = shared.connect("half-good", incarnation=3)
    client.send(1, make_rewarded(2, 70.0))
    client.send(2, change(rewards=fill(GOOD.rewards, np.nan)))
    client.send(3, make_rewarded(2, 80.0))
    client.assert_ends(InvalidInputError, r"rewards: nan at \[1, 1, 0\]")
    # So that the client knows what it need not send again.
    assert client.newest is not None
    assert client.newest.progress.received == 1
    assert shared.server.status().refused["malformed"] == before + 1
    again = shared.connect("half-good", incarnation=3)
    again.send(3, make_rewarded(2, 80.0))
    again.wait(received=3, released=3)
    assert shared.learned()[-1] == [70.0, 70.0, 80.0, 80.0]
    honest.check()


def test_a_refusal_waits_until_the_client_knows_what_was_taken(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = set(find_stream_threads())
    wait = site.service.wait

    def wait_and_be_late(*args: Any) -> StreamProgress:
        progress = wait(*args)
        if not late.is_set():  # what it says is old when it arrives
            late.set()
            wait_until(lambda: set(find_stream_threads()) <= others, "the end of the stream")
        return progress

    late = threading.Event()
    monkeypatch.setattr(site.service, "wait", wait_and_be_late)
    client = site.connect()
    client.send(1, make_rewarded(2, 70.0))
    client.send(2, change(rewards=fill(GOOD.rewards, np.nan)))
    client.assert_ends(InvalidInputError, r"rewards: nan at \[1, 1, 0\]")
    assert client.newest is not None
    assert client.newest.progress.received == 1


def test_a_first_rollout_does_not_decide_what_others_look_like(
    open_site: Callable[..., Site],
) -> None:
    """The collector holds rollouts to the first one; that must be one of this run."""
    site = open_site()
    with hostile.open_channel(site.port) as channel:
        rollout, _ = ROLLOUTS["five numbers instead of four"]
        code, _ = hostile.refuse(channel, COLLECT, [whole(rollout_bytes(rollout))])
        assert code is grpc.StatusCode.INVALID_ARGUMENT
    Honest(site).check()


class Publishing:
    """What a learner in a process of its own has: the newest values for all callers."""

    def __init__(self, server: ParameterServer):
        self._server = server

    def pull(self, have_version: int | None = None) -> Reply:
        return self._server.pull(have_version=have_version)

    def metrics(self) -> Metrics:
        return self._server.metrics()


@pytest.mark.parametrize("name", ["", "a" * 201, "a\nb"])
def test_a_learner_s_own_port_refuses_names_that_it_could_not_publish(
    site: Site, name: str
) -> None:
    publisher: Any = Publishing(site.server)
    backend = PublishedValues(site.server.manifest, publisher, site.link)
    grpc_server, port = BridgeControl().create_server("127.0.0.1:0", backend, None, site.service)
    grpc_server.start()
    with hostile.open_channel(port) as channel:
        messages = [header(client_id=name), header(client_id=name, sequence=1, env_steps=1)]
        code, details = hostile.refuse(channel, COLLECT, messages)
    grpc_server.stop(grace=None).wait()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "expected 1 to 200 printable characters" in details
    assert name not in site.service._clients


def test_a_learner_without_its_parameter_server_has_no_status_for_now(site: Site) -> None:
    publisher: Any = Publishing(site.server)
    with BridgeControl().connect(f"127.0.0.1:{find_free_port()}") as gone:
        backend = PublishedValues(site.server.manifest, publisher, gone)
        grpc_server, port = BridgeControl().create_server("127.0.0.1:0", backend)
        grpc_server.start()
        with BridgeControl().connect(f"127.0.0.1:{port}") as link:
            with pytest.raises(ServerUnavailableError, match="no answer from the parameter server"):
                link.status()
            with pytest.raises(ServerUnavailableError, match="no answer from the parameter server"):
                link.report_clients(ClientsReport(server_id="rlx", clients=(), num_clients=0))
        grpc_server.stop(grace=None).wait()


class Idle:
    """Raw streams that have said something and then nothing more."""

    def __init__(self, channel: grpc.Channel, messages: Sequence[bytes]):
        self._end = threading.Event()
        self.call = channel.stream_stream(COLLECT)(self._say(messages))

    def _say(self, messages: Sequence[bytes]) -> Iterator[bytes]:
        yield from messages
        self._end.wait(60)

    def close(self) -> None:
        self._end.set()
        self.call.cancel()


def test_200_idle_streams_disturb_nobody(
    shared: Site, honest: Honest, channel: grpc.Channel
) -> None:
    honest.check()
    others = set(find_stream_threads())
    idle = [Idle(channel, [header(client_id=f"idle-{n}")]) for n in range(200)]
    for stream in idle:
        next(stream.call)  # the values
    # A stream is read once its first answer has been sent.
    wait_until(lambda: len(set(find_stream_threads()) - others) == 200, "the threads")
    for _ in range(3):
        honest.check()
    for stream in idle:
        stream.close()
    wait_until(lambda: set(find_stream_threads()) <= others, "the end of the threads")


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [header(client_id="slow", sequence=1, columns=2, rollout_bytes=1 << 24)],
        [
            header(client_id="slow", sequence=1, columns=2, rollout_bytes=1 << 24),
            chunk(bytes(1000)),
        ],
    ],
    ids=["nothing", "a header", "a piece"],
)
def test_streams_that_stop_in_the_middle_disturb_nobody(
    shared: Site, honest: Honest, channel: grpc.Channel, messages: Sequence[bytes]
) -> None:
    slow = [Idle(channel, messages) for _ in range(40)]  # more than there is memory for
    for _ in range(3):
        honest.check()
    for stream in slow:
        stream.close()
    honest.check()


def test_clients_by_the_thousand_are_forgotten_and_those_that_wait_are_not(
    open_site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experience_service, "_MAX_CLIENTS", 10)
    site = open_site()
    one, two = site.connect("one"), site.connect("two")
    for client, reward in ((one, 1.0), (two, 2.0)):
        client.send(1, make_rewarded(2, reward))
        client.wait(received=1)
    for client in (one, two):
        client.wait(released=1, version=1)
    one.send(2, make_rewarded(2, 3.0))
    one.wait(received=2)
    for number in range(50):
        site.service.add(make_experience(1, client_id=f"passing-{number}"))
    assert len(site.service._clients) == 10
    assert one.newest is not None
    assert one.newest.progress.received == 2
    two.send(2, make_rewarded(2, 4.0))
    one.wait(received=2, released=2, version=2)
    assert site.learned() == [[1.0, 1.0, 2.0, 2.0], [3.0, 3.0, 4.0, 4.0]]
