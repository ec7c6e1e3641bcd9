"""LearnerGroup: learners in step, and what happens when one is silent, late or gone."""

# covers D4

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest
from support.cluster import wait_until

from relaax_like.config.combine import CombineConfig
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.core.manifest import Variable, make_manifest
from relaax_like.core.metrics import NullMetrics
from relaax_like.core.records import GroupReply, GroupRequest, Push
from relaax_like.core.roles import GroupConnection
from relaax_like.parameter_server.learner_group import Membership
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.store import Store
from relaax_like.wire.errors import (
    InvalidInputError,
    LeasedError,
    ServerUnavailableError,
)

MAX_WAIT_SEC = 0.5


def make_server(method: str = "sync") -> ParameterServer:
    manifest = make_manifest([Variable("w", np.zeros(3, np.float32), "default", "trainable")])
    values = manifest.pack([np.zeros(3, np.float32)])
    store = Store(manifest, values, {"default": OptimizerConfig(name="sgd", learning_rate=1.0)})
    combine = CombineConfig.model_validate({"method": method, "max_wait_sec": MAX_WAIT_SEC})
    return ParameterServer(store, metrics=NullMetrics(), combine=combine)


@pytest.fixture
def server() -> Iterator[ParameterServer]:
    with make_server() as one:
        yield one


class Learner:
    """A learner whose requests wait in a thread of its own."""

    def __init__(self, server: ParameterServer, name: str):
        self.connection: GroupConnection = server.join_group(name)
        self.newest = GroupReply(outcome="out")
        self._thread = ThreadPoolExecutor(1)

    def enter(self, units: int = 1) -> Future[GroupReply]:
        return self._send(GroupRequest(kind="enter", units=units))

    def sum(self, *numbers: float, tag: str = "a") -> Future[GroupReply]:
        return self._send(self._make("sum", tag=tag, sums=np.array(numbers)))

    def step(self, *gradient: float, **fields: object) -> Future[GroupReply]:
        vector = np.array(gradient, np.float32)
        return self._send(self._make("step", gradient=vector, **fields))

    def wait_sent(self) -> None:
        """Waits until the group has this learner's request, which it does not answer yet."""
        assert isinstance(self.connection, Membership)
        member = self.connection
        wait_until(lambda: member.request is not None, "the request")

    def leave(self) -> None:
        self._send(GroupRequest(kind="leave")).result(5)

    def note_compiling(self) -> None:
        self._send(GroupRequest(kind="compiling")).result(5)

    def _make(self, kind: str, **fields: object) -> GroupRequest:
        newest = self.newest
        place = {"iteration": newest.iteration, "generation": newest.generation}
        return GroupRequest(kind=kind, **place, **fields)  # type: ignore[arg-type]

    def _send(self, request: GroupRequest) -> Future[GroupReply]:
        def exchange() -> GroupReply:
            reply = self.connection.exchange(request)
            if request.kind in ("enter", "sum", "step"):
                self.newest = reply
            return reply

        return self._thread.submit(exchange)


def enter_both(server: ParameterServer) -> tuple[Learner, Learner]:
    one, two = Learner(server, "one"), Learner(server, "two")
    for entered in (one.enter(3), two.enter(4)):
        assert entered.result(5).outcome == "done"
    return one, two


def test_an_iteration_begins_when_all_have_entered_it(server: ParameterServer) -> None:
    one, two = Learner(server, "one"), Learner(server, "two")
    first = one.enter(3)
    assert not first.done()
    second = two.enter(4)
    for rank, reply in enumerate((first.result(5), second.result(5))):
        assert (reply.outcome, reply.rank, reply.learners) == ("done", rank, 2)
        assert (reply.units, reply.units_before, reply.updates) == (7, [0, 3][rank], 0)
        assert reply.reply.values is not None


def test_sums_are_those_of_all(server: ParameterServer) -> None:
    one, two = enter_both(server)
    a, b = one.sum(1.0, 2.0), two.sum(10.0, 20.0)
    assert a.result(5).sums.tolist() == b.result(5).sums.tolist() == [11.0, 22.0]


def test_one_step_applies_the_sum_and_all_get_the_same_values(server: ParameterServer) -> None:
    one, two = enter_both(server)
    a, b = one.step(1.0, 0.0, 0.0), two.step(0.0, 2.0, 0.0)
    for reply in (a.result(5), b.result(5)):
        assert reply.reply.version == 1
        assert reply.reply.values is not None
        (values,) = server.manifest.unpack(reply.reply.values.flat)
        assert values.tolist() == [-1.0, -2.0, 0.0]
    assert server.updates == 1


def test_the_sum_is_clipped(server: ParameterServer) -> None:
    one, two = enter_both(server)
    clip = {"default": 1.0}
    a, b = one.step(1.5, 0.0, 0.0, clip=clip), two.step(1.5, 4.0, 0.0, clip=clip)
    assert a.result(5).norms == b.result(5).norms == {"default": 5.0}
    reply = b.result(5).reply
    assert reply.values is not None
    (values,) = server.manifest.unpack(reply.values.flat)
    assert values == pytest.approx([-0.6, -0.8, 0.0])


def test_the_others_repeat_an_update_without_one_that_is_silent(server: ParameterServer) -> None:
    one, two = enter_both(server)
    reply = one.sum(1.0).result(5)
    assert (reply.outcome, reply.learners, reply.sums.size) == ("again", 1, 0)
    assert one.sum(1.0).result(5).sums.tolist() == [1.0]
    # What the silent one sends late has no effect.
    assert two.step(9.0, 9.0, 9.0).result(5).outcome == "out"
    assert one.step(1.0, 0.0, 0.0).result(5).outcome == "done"
    assert server.updates == 1
    # It enters the next iteration.
    back = two.enter()
    two.wait_sent()
    one.leave()
    again = one.enter()
    assert back.result(5).learners == again.result(5).learners == 2


def test_one_that_does_not_enter_is_left_out_once(
    server: ParameterServer, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = enter_both(server)
    one.leave()
    two.leave()
    for _ in range(3):
        assert one.enter().result(5).learners == 1
        one.leave()
    assert caplog.text.count("learner two has been silent") == 1


def test_one_that_compiles_is_waited_for(server: ParameterServer) -> None:
    one, two = enter_both(server)
    two.note_compiling()
    waiting = one.sum(1.0)
    time.sleep(2 * MAX_WAIT_SEC)  # longer than it waits for one that is silent
    assert not waiting.done()
    two.sum(2.0)
    assert waiting.result(5).sums.tolist() == [3.0]


def test_one_that_is_gone_is_not_waited_for(server: ParameterServer) -> None:
    one, two = enter_both(server)
    waiting = one.sum(1.0)
    two.connection.close()
    assert waiting.result(5).outcome == "again"
    with pytest.raises(ServerUnavailableError, match="join again"):
        two.sum(1.0).result(5)


def test_one_without_rows_is_not_in_the_iteration(server: ParameterServer) -> None:
    one, two = Learner(server, "one"), Learner(server, "two")
    a, b = one.enter(0), two.enter(5)
    assert (a.result(5).outcome, b.result(5).outcome) == ("out", "done")
    assert b.result(5).learners == 1
    assert a.result(5).reply.values is not None


def test_one_that_comes_in_between_waits_for_the_next_iteration(server: ParameterServer) -> None:
    one = Learner(server, "one")
    one.enter().result(5)
    two = Learner(server, "two")
    entered = two.enter()
    two.wait_sent()
    assert one.sum(1.0).result(5).sums.tolist() == [1.0]
    assert not entered.done()
    one.leave()
    again = one.enter()
    assert entered.result(5).learners == again.result(5).learners == 2


def test_those_that_join_one_after_another_do_not_prolong_the_wait(
    server: ParameterServer,
) -> None:
    one, two = enter_both(server)
    one.leave()
    two.leave()
    entered = [one.enter(), two.enter()]
    began = time.monotonic()
    for number in range(100):
        if entered[0].done():
            break
        server.join_group(f"silent {number}")
        time.sleep(MAX_WAIT_SEC / 10)
    assert time.monotonic() - began < 4 * MAX_WAIT_SEC
    for reply in entered:
        assert reply.result(5).learners == 2


DIFFERENT = [
    (lambda learner: learner.sum(1.0, tag="b"), "tag: this learner has b, .* have a"),
    (lambda learner: learner.sum(1.0, 2.0), "sums: this learner has 2 number.* have 1 number"),
    (lambda learner: learner.step(1.0, 1.0, 1.0), "kind: this learner has step, .* have sum"),
]


@pytest.mark.parametrize(("send", "match"), DIFFERENT)
def test_the_later_one_of_two_that_differ_is_refused(
    server: ParameterServer, send: Callable[[Learner], Future[GroupReply]], match: str
) -> None:
    one, two = enter_both(server)
    a, b = one.sum(1.0), send(two)
    with pytest.raises(InvalidInputError, match=match):
        b.result(5)
    assert a.result(5).outcome == "again"
    assert one.sum(1.0).result(5).sums.tolist() == [1.0]
    with pytest.raises(ServerUnavailableError, match="join again"):
        two.enter().result(5)


@pytest.mark.parametrize(("send", "match"), DIFFERENT)
def test_one_that_differs_from_most_is_refused_alone(
    server: ParameterServer, send: Callable[[Learner], Future[GroupReply]], match: str
) -> None:
    odd, one, two = (Learner(server, name) for name in ("odd", "one", "two"))
    for reply in (odd.enter(), one.enter(), two.enter()):
        assert reply.result(5).learners == 3
    others = [one.sum(1.0), two.sum(2.0)]
    with pytest.raises(InvalidInputError, match=match):
        send(odd).result(5)
    for reply in others:
        assert reply.result(5).outcome == "again"
    for reply in (one.sum(1.0), two.sum(2.0)):
        assert reply.result(5).sums.tolist() == [3.0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_one_whose_gradient_is_not_finite_is_refused_alone(
    server: ParameterServer, bad: float
) -> None:
    one, two = enter_both(server)
    waiting = two.step(0.0, 1.0, 0.0)
    with pytest.raises(InvalidInputError, match=r"contains (nan|inf)|its norm is 1e\+30"):
        one.step(bad, 0.0, 0.0).result(5)
    assert waiting.result(5).outcome == "again"
    assert two.step(0.0, 1.0, 0.0).result(5).outcome == "done"
    assert server.updates == 1
    with pytest.raises(ServerUnavailableError, match="join again"):
        one.enter().result(5)


def test_one_whose_sums_are_not_finite_is_refused_alone(server: ParameterServer) -> None:
    one, two = enter_both(server)
    waiting = two.sum(1.0)
    with pytest.raises(InvalidInputError, match=r"sums\[0\] of 'a': nan, expected a finite"):
        one.sum(float("nan")).result(5)
    assert waiting.result(5).outcome == "again"
    assert two.sum(1.0).result(5).sums.tolist() == [1.0]


def test_costs_that_are_not_finite_are_only_curves(server: ParameterServer) -> None:
    one, two = enter_both(server)
    sums = np.array([np.inf])
    a, b = (learner.step(1.0, 0.0, 0.0, sums=sums) for learner in (one, two))
    assert a.result(5).sums.tolist() == b.result(5).sums.tolist() == [np.inf]


def test_a_gradient_that_only_one_has_made_is_dropped(server: ParameterServer) -> None:
    vector = np.ones(3, np.float32)
    reply = server.push(
        Push(
            client_id="alone",
            incarnation=1,
            sequence=1,
            gradient=vector,
            fingerprint=server.manifest.fingerprint,
        )
    )
    assert reply.outcome == "dropped"
    assert "combine.method: sync" in reply.reason


def test_without_sync_there_is_no_group() -> None:
    with make_server("fifo") as server, pytest.raises(LeasedError, match="set it to sync"):
        server.join_group("one")


def test_closing_the_server_ends_all_waits() -> None:
    server = make_server()
    one, _ = enter_both(server)
    waiting = one.sum(1.0)
    threading.Thread(target=server.close).start()
    with pytest.raises(ServerUnavailableError):
        waiting.result(5)


def test_requests_of_an_older_generation_do_not_make_the_others_wait(
    server: ParameterServer,
) -> None:
    one, two = enter_both(server)
    waiting = one.sum(1.0)
    stale = GroupRequest(kind="sum", iteration=two.newest.iteration, generation=0)
    while not waiting.done():
        assert two.connection.exchange(stale).outcome in ("again", "out")
    assert waiting.result(5).outcome == "again"


def test_the_name_of_the_group_is_reserved(server: ParameterServer) -> None:
    push = Push(client_id="learner-group", incarnation=1 << 60, sequence=1, env_steps=1)
    with pytest.raises(InvalidInputError, match="learner-group is reserved"):
        server.push(push)
    assert server.status().refused == {"bad client id": 1}


def test_a_slow_step_does_not_stop_those_who_ask(
    server: ParameterServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = enter_both(server)
    three = Learner(server, "three")
    entered, released = threading.Event(), threading.Event()
    push = server.push_joint

    def push_slowly(joint: Push) -> object:
        entered.set()
        assert released.wait(20)
        return push(joint)

    monkeypatch.setattr(server, "push_joint", push_slowly)
    a, b = one.step(1.0, 0.0, 0.0), two.step(0.0, 2.0, 0.0)
    assert entered.wait(5)
    assert server.status().joint_learners == 3
    three.connection.close()  # takes no lock for long either
    assert server.status().joint_learners == 2
    released.set()
    assert a.result(5).outcome == b.result(5).outcome == "done"


def test_after_the_end_of_the_training_nobody_waits(server: ParameterServer) -> None:
    one, two = enter_both(server)
    one.leave()
    two.leave()
    server._stop_condition.reason = "enough"
    reply = one.enter().result(5)
    assert (reply.outcome, reply.reply.finished) == ("out", "enough")
