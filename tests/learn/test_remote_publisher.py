"""RemotePublisher: a learner's own process publishes each thing once, and only while it is the one.

covers R2, N1
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cluster import find_free_port, wait_until
from support.learning import VARIABLES, make_plain_server
from support.threads import WAIT_SEC, Caller

from relaax_like.bridge.control import BridgeControl
from relaax_like.bridge.publishing import MAX_EPISODES, PublisherStub
from relaax_like.core.manifest import Variable
from relaax_like.core.metrics import NullMetrics
from relaax_like.core.records import (
    Counts,
    Episode,
    Lease,
    Publication,
    PublishTicket,
    Received,
    RunState,
    TableStatus,
)
from relaax_like.learn.remote_publisher import RemotePublisher
from relaax_like.parameter_server.learner_lease import LearnerLease
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.snapshots import Snapshots
from relaax_like.wire.errors import InvalidInputError, LeasedError, ServerUnavailableError

LEASE_SEC = 1.0


@contextmanager
def serving(folder: Path, port: int) -> Iterator[ParameterServer]:
    """A parameter server of a run with a learner in a process of its own; not saved at its end."""
    snapshots = Snapshots(folder)
    lease = LearnerLease(folder, LEASE_SEC)
    server = make_plain_server(snapshots=snapshots, learner_lease=lease)
    server.restore_latest_checkpoint()
    grpc_server, _ = BridgeControl().create_server(f"127.0.0.1:{port}", server, publisher=server)
    grpc_server.start()
    try:
        yield server
    finally:
        grpc_server.stop(grace=None).wait()
        server.close(save=False)


class Run:
    """Learners of one parameter server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = find_free_port()
        self.link = BridgeControl().connect(f"127.0.0.1:{self.port}")
        self.lost: list[Exception] = []
        self._publishers: list[RemotePublisher] = []

    def make_publisher(
        self, name: str = "one", stub: Any = None, publishes_ahead: bool = False
    ) -> RemotePublisher:
        publisher = RemotePublisher(
            stub or self.link.publisher_stub(),
            name,
            make_plain_server().manifest,
            NullMetrics(),
            on_lost=self.lost.append,
            publishes_ahead=publishes_ahead,
        )
        publisher.address = f"localhost:{len(name)}"
        self._publishers.append(publisher)
        return publisher

    def close(self) -> None:
        for publisher in self._publishers:
            publisher.close()
        self.link.__exit__(None, None, None)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path / "checkpoints")
    yield run
    run.close()


def make_publication(lease: Lease, x: float, **fields: Any) -> Publication:
    values = [np.full_like(variable.value, x) for variable in VARIABLES]
    return Publication(
        number=1,
        values=lease.manifest.pack(values),
        slots={group: np.full_like(slots, x) for group, slots in lease.slots.items()},
        steps=dict.fromkeys(lease.slots, int(x)),
        **fields,
    )


def test_what_is_published_is_what_comes(run: Run) -> None:
    with serving(run.folder, run.port) as server:
        publisher = run.make_publisher()
        lease = publisher.lease()
        assert (lease.number, lease.version, lease.finished) == (0, 0, "")
        assert server.learner_address == ("localhost:3", publisher.term)
        received = {"rlx": Received(7, 3, 2)}
        episodes = tuple(Episode(float(i), i + 1) for i in range(3))
        publication = make_publication(
            lease, 2.5, env_steps=40, episodes=episodes, received=received
        )
        reply = publisher.publish(publication)
        assert (reply.outcome, reply.version, reply.global_t) == ("applied", 1, 40)
        publisher.count(Counts(env_steps=2, received=received))
        again = server.lease()
        assert again.values.tobytes() == publication.values.tobytes()
        for group, slots in publication.slots.items():
            np.testing.assert_array_equal(again.slots[group], slots)
        assert again.steps == publication.steps
        assert again.received == received
        assert (again.number, again.global_t) == (1, 42)
        assert server.status().episodes == 3
        assert (status := server.status()).learner_address == "localhost:3"
        assert (status.learner_term, status.overdue_updates) == (publisher.term, None)
        publisher.get_table_status = lambda: TableStatus(7.0, 0, 12, 5)
        wait_until(lambda: server.status().overdue_updates == 7.0, "the next renewal")
        assert server.status().given_up_step == 0
        assert (server.status().table_steps, server.status().prior_steps) == (12, 5)
        # Agents get them from the learner.
        values = publisher.pull().values
        assert values is not None
        assert values.flat.tobytes() == publication.values.tobytes()
        assert publisher.pull(have_version=1).values is None


class LosingStub:
    """Loses answers, as a connection does that breaks after the server has read a message."""

    def __init__(self, stub: PublisherStub, lost: set[int]) -> None:
        self._stub = stub
        self._lost = lost
        self.calls = 0

    def publish(self, item: Any) -> RunState:
        state = self._stub.publish(item)
        self.calls += 1
        if self.calls in self._lost:
            raise ServerUnavailableError("the connection was lost")
        return state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stub, name)


def test_an_item_whose_answer_was_lost_takes_effect_once(run: Run) -> None:
    with serving(run.folder, run.port) as server:
        stub = LosingStub(run.link.publisher_stub(), {1, 2, 4})
        publisher = run.make_publisher(stub=stub)
        lease = publisher.lease()
        publisher.publish(make_publication(lease, 1.0, env_steps=10, episodes=(Episode(1.0, 2),)))
        publisher.count(Counts(env_steps=5, episodes=(Episode(3.0, 4),)))
        assert stub.calls == 5
        status = server.status()
        assert (status.global_t, status.version, status.episodes) == (15, 1, 2)


def test_a_publication_whose_answer_was_lost_was_applied(run: Run) -> None:
    with serving(run.folder, run.port):
        publisher = run.make_publisher(stub=LosingStub(run.link.publisher_stub(), {1}))
        lease = publisher.lease()
        reply = publisher.publish(make_publication(lease, 1.0, env_steps=10))
        assert (reply.outcome, reply.version, reply.global_t) == ("applied", 1, 10)


class FinishingStub(LosingStub):
    """The training has finished with the first publication."""

    def publish(self, item: Any) -> RunState:
        return replace(super().publish(item), finished="the last step")


def test_the_last_publication_is_what_agents_get(run: Run) -> None:
    with serving(run.folder, run.port):
        publisher = run.make_publisher(stub=FinishingStub(run.link.publisher_stub(), set()))
        publication = make_publication(publisher.lease(), 1.0, env_steps=1)
        assert publisher.publish(publication).outcome == "applied"
        values = publisher.pull().values
        assert values is not None
        assert (values.version, values.flat.tobytes()) == (1, publication.values.tobytes())


def write_no_more(server: ParameterServer) -> None:
    """From now on, states are not written, as if they came faster than the disk takes them."""
    publications = server._applier._publications
    assert publications is not None
    publications._not_before = float("inf")


def test_what_a_crashed_server_has_lost_comes_again_and_the_learner_continues(run: Run) -> None:
    with serving(run.folder, run.port) as server:
        publisher = run.make_publisher()
        lease = publisher.lease()
        term = publisher.term
        publisher.publish(make_publication(lease, 1.0, env_steps=10, episodes=(Episode(1.0, 2),)))
        write_no_more(server)
        publisher.publish(make_publication(lease, 2.0, env_steps=7, episodes=(Episode(2.0, 2),)))
        publisher.count(Counts(env_steps=3))
        assert server.global_t == 20
    third = make_publication(lease, 3.0, env_steps=5, episodes=(Episode(4.0, 2),))
    caller = Caller(lambda: publisher.publish(third))  # the server is away
    with serving(run.folder, run.port) as server:
        assert server.global_t == 10
        reply = caller.get()
        assert reply.global_t == server.global_t == 25
        status = server.status()
        assert (status.version, status.episodes) == (2, 3)
        state = server.lease()
        assert (state.number, state.values.tobytes()) == (2, third.values.tobytes())
        assert publisher.term == term
        publisher.publish(make_publication(lease, 4.0, env_steps=1))
        assert (server.lease().number, server.global_t) == (3, 26)
    assert run.lost == []


def test_counts_that_follow_a_crash_bring_the_lost_values_too(run: Run) -> None:
    with serving(run.folder, run.port) as server:
        publisher = run.make_publisher()
        lease = publisher.lease()
        write_no_more(server)
        publisher.publish(make_publication(lease, 1.0, env_steps=10))
    with serving(run.folder, run.port) as server:
        assert server.global_t == 0
        publisher.count(Counts(env_steps=2))
        assert server.global_t == 12
        assert server.lease().values.tobytes() == make_publication(lease, 1.0).values.tobytes()


def test_only_one_of_two_learners_publishes(run: Run) -> None:
    with serving(run.folder, run.port) as server:
        first, second = run.make_publisher("one"), run.make_publisher("second")
        lease = first.lease()
        term = first.term
        first.publish(make_publication(lease, 1.0, env_steps=10))
        caller = Caller(second.lease)
        caller.join(1.5 * LEASE_SEC)
        assert caller.is_alive()  # the first one renews it
        first.close()  # as if it were stopped: it renews no more
        other = caller.get()
        assert (other.number, second.term) == (1, term + 1)
        assert other.values.tobytes() == make_publication(lease, 1.0).values.tobytes()
        # The first one continues, and sends what it had under way.
        late = replace(make_publication(lease, 9.0, env_steps=100), ticket=PublishTicket(term, 2))
        with pytest.raises(LeasedError, match=f"term {term} of the lease has ended"):
            run.link.publisher_stub().publish(late)
        second.publish(make_publication(lease, 2.0, env_steps=5))
        assert (server.global_t, server.lease().number) == (15, 2)
        assert server.learner_address == ("localhost:6", term + 1)


def test_a_learner_that_cannot_renew_publishes_nothing_until_it_has(run: Run) -> None:
    with serving(run.folder, run.port) as server:
        stub = run.link.publisher_stub()
        publisher = run.make_publisher(stub=stub)
        lease = publisher.lease()
        renew = stub.renew

        def fail(*arguments: Any) -> RunState:
            raise ServerUnavailableError("the network is down")

        stub.renew = fail  # type: ignore[method-assign]
        wait_until(lambda: publisher._clock() > publisher._usable_until, "half of the lease")
        caller = Caller(lambda: publisher.publish(make_publication(lease, 1.0, env_steps=1)))
        caller.join(0.5)
        assert caller.is_alive()
        assert server.version == 0
        stub.renew = renew  # type: ignore[method-assign]
        assert caller.get().version == 1


def test_a_learner_whose_lease_another_one_holds_is_told_once(run: Run) -> None:
    with serving(run.folder, run.port) as server:
        publisher = run.make_publisher()
        lease = publisher.lease()
        server._learner_lease._expires = 0.0  # type: ignore[union-attr]
        server.grant_lease("other", "localhost:9")
        wait_until(lambda: run.lost, "the news")
        with pytest.raises(LeasedError):
            publisher.publish(make_publication(lease, 1.0, env_steps=1))
        assert len(run.lost) == 1
        assert server.global_t == 0


def test_more_episodes_than_fit_one_message_are_sent_in_several(run: Run) -> None:
    with serving(run.folder, run.port) as server:
        publisher = run.make_publisher()
        lease = publisher.lease()
        episodes = (Episode(1.0, 1),) * (MAX_EPISODES + 5)
        publisher.publish(make_publication(lease, 1.0, env_steps=9, episodes=episodes))
        status = server.status()
        assert (status.episodes, status.global_t, status.version) == (len(episodes), 9, 1)


def test_the_first_of_several_parts_has_all_but_the_other_episodes(run: Run) -> None:
    with serving(run.folder, run.port) as server:
        stub = run.link.publisher_stub()
        publish = stub.publish
        sent: list[tuple[type, int, Mapping[str, Received]]] = []

        def note(item: Publication | Counts) -> RunState:
            sent.append((type(item), item.env_steps, item.received))
            return publish(item)

        stub.publish = note  # type: ignore[method-assign]
        publisher = run.make_publisher(stub=stub)
        lease = publisher.lease()
        before, after = {"rlx": Received(7, 3, 2)}, {"rlx": Received(7, 9, 8)}
        publisher.count(Counts(env_steps=1, received=before))
        episodes = (Episode(1.0, 1),) * (MAX_EPISODES + 5)
        reply = publisher.publish(
            make_publication(lease, 1.0, env_steps=9, episodes=episodes, received=after)
        )
        # If this learner ends between the two parts, no steps are lost.
        assert sent == [(Counts, 1, before), (Publication, 9, after), (Counts, 0, after)]
        assert (reply.outcome, reply.version, reply.global_t) == ("applied", 1, 10)
        assert server.lease().received == after


def test_more_lost_episodes_than_fit_one_message_are_sent_in_several(run: Run) -> None:
    with serving(run.folder, run.port) as server:
        publisher = run.make_publisher()
        lease = publisher.lease()
        write_no_more(server)
        episodes = (Episode(1.0, 1),) * MAX_EPISODES
        publisher.publish(make_publication(lease, 1.0, env_steps=10, episodes=episodes))
    with serving(run.folder, run.port) as server:
        assert server.global_t == 0
        second = make_publication(lease, 2.0, env_steps=2, episodes=episodes[:5])
        reply = publisher.publish(second)
        assert (reply.outcome, reply.global_t) == ("applied", 12)
        assert server.status().episodes == MAX_EPISODES + 5
        assert server.lease().values.tobytes() == second.values.tobytes()
        assert publisher.count(Counts(env_steps=1)).global_t == 13


class HoldingStub(LosingStub):
    """Holds publications back until they are let through."""

    def __init__(self, stub: PublisherStub) -> None:
        super().__init__(stub, set())
        self.is_open = threading.Event()

    def publish(self, item: Any) -> RunState:
        assert self.is_open.wait(WAIT_SEC)
        return super().publish(item)


def test_a_publication_that_is_sent_ahead_counts_as_applied_and_the_next_one_waits(
    run: Run,
) -> None:
    with serving(run.folder, run.port) as server:
        stub = HoldingStub(run.link.publisher_stub())
        publisher = run.make_publisher(stub=stub, publishes_ahead=True)
        lease = publisher.lease()
        first = make_publication(lease, 1.0, env_steps=10, episodes=(Episode(1.0, 2),))
        reply = publisher.publish(first)
        assert (reply.outcome, reply.version, reply.global_t) == ("applied", 0, 10)
        assert (publisher.global_t, server.version) == (10, 0)
        pulled = publisher.pull().values
        assert pulled is not None
        assert pulled.version == 0  # agents get only what has been applied
        second = Caller(lambda: publisher.publish(make_publication(lease, 2.0, env_steps=5)))
        second.join(0.3)
        assert second.is_alive()
        stub.is_open.set()
        reply = second.get()
        assert (reply.version, reply.global_t) == (1, 15)
        publisher.wait_published()
        assert (server.version, server.global_t, publisher.global_t) == (2, 15, 15)
        assert (server.lease().number, server.status().episodes) == (2, 1)
        assert publisher.count(Counts(env_steps=1)).global_t == publisher.global_t == 16


def test_counts_and_a_crash_after_a_publication_that_was_sent_ahead(run: Run) -> None:
    with serving(run.folder, run.port) as server:
        publisher = run.make_publisher(publishes_ahead=True)
        lease = publisher.lease()
        publisher.publish(make_publication(lease, 1.0, env_steps=10))
        publisher.wait_published()
        write_no_more(server)
        publisher.publish(make_publication(lease, 2.0, env_steps=7))
        publisher.count(Counts(env_steps=3))
        assert server.global_t == 20
    third = make_publication(lease, 3.0, env_steps=5)
    reply = publisher.publish(third)  # the server is away
    assert (reply.version, reply.global_t) == (2, 25)
    with serving(run.folder, run.port) as server:
        publisher.wait_published()
        assert publisher.global_t == server.global_t == 25
        state = server.lease()
        assert (state.number, state.values.tobytes()) == (2, third.values.tobytes())
        reply = publisher.publish(make_publication(lease, 4.0, env_steps=1))
        assert (reply.version, reply.global_t) == (2, 26)
        publisher.wait_published()
        assert (server.version, server.global_t) == (3, 26)
    assert run.lost == []


def test_the_error_of_a_publication_that_was_sent_ahead_is_raised_by_the_next_call(
    run: Run,
) -> None:
    with serving(run.folder, run.port) as server:
        publisher = run.make_publisher(publishes_ahead=True)
        lease = publisher.lease()
        wrong = make_publication(lease, 1.0, env_steps=4, episodes=(Episode(float("nan"), 1),))
        publisher.publish(wrong)
        with pytest.raises(InvalidInputError, match="finite"):
            publisher.publish(make_publication(lease, 1.0, env_steps=4))
        publisher.wait_published()  # it was raised
        assert (server.global_t, server.version, publisher.global_t) == (0, 0, 0)
    publisher.publish(make_publication(lease, 1.0, env_steps=4))  # the server is away
    publisher.close()
    with pytest.raises(ServerUnavailableError, match="closing"):
        publisher.wait_published()


@pytest.mark.parametrize(
    ("change", "want"),
    [
        ({"values": np.zeros(5, np.uint8)}, "values"),
        ({"slots": {"default": np.zeros((1, 1), np.float32)}}, "slots of default"),
        ({"values": np.zeros(10_000, np.uint8)}, "bytes or more, expected"),
        ({"steps": {}}, "steps of group"),
        ({"episodes": (Episode(float("nan"), 1),)}, "finite"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(
    run: Run, change: dict[str, Any], want: str
) -> None:
    with serving(run.folder, run.port) as server:
        publisher = run.make_publisher()
        lease = publisher.lease()
        wrong = replace(make_publication(lease, 1.0, env_steps=4), **change)
        with pytest.raises(InvalidInputError, match=want):
            publisher.publish(wrong)
        assert (server.global_t, server.version) == (0, 0)
        assert server.learner_address[1] == publisher.term


def test_another_model_is_refused_by_name(run: Run) -> None:
    with serving(run.folder, run.port):
        publisher = run.make_publisher()
        other = make_plain_server((Variable("x", np.zeros(7, np.float32)),))
        publisher._manifest = other.manifest
        with pytest.raises(InvalidInputError, match="another model"):
            publisher.lease()


def test_a_run_without_a_learner_of_its_own_grants_no_lease(run: Run, tmp_path: Path) -> None:
    server = make_plain_server()
    with pytest.raises(LeasedError, match=r"set learner\.placement to standalone"):
        server.grant_lease("one", "localhost:1")


def test_a_start_that_replayed_a_journal_saves_it_before_the_first_lease(tmp_path: Path) -> None:
    """A publication does not continue the journal: without the snapshot there would be a gap."""
    folder = tmp_path / "checkpoints"
    lease = LearnerLease(folder.parent)
    lease.grant("of an earlier start", "localhost:1")
    server = make_plain_server(
        snapshots=Snapshots(folder), learner_lease=LearnerLease(folder.parent, 0.0)
    )
    server.restore_latest_checkpoint()
    saved: list[str] = []
    assert server._saver is not None
    server._saver.save_replayed = lambda: saved.append("saved")  # type: ignore[method-assign]
    for name in ("one", "two"):
        server.grant_lease(name, "localhost:2")
    assert saved == ["saved"]
    server.close(save=False)
