"""Rounds over one stream: kept open, ended in time, opened again."""

# covers R14

import contextlib
import gc
import os
import sys
import threading
import traceback

import grpc
import numpy as np
import pytest
from support.bridge import ONES, make_backend, serve
from support.threads import Caller, wait_until

from relaax_like.bridge import mailbox, push_stream
from relaax_like.bridge import stub as stub_module
from relaax_like.bridge.control import BridgeControl
from relaax_like.bridge.mailbox import Mailbox
from relaax_like.bridge.shared_memory import SharedVectors, UnusableError
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.core.manifest import Variable, make_manifest
from relaax_like.core.metrics import NullMetrics
from relaax_like.core.records import Episode, Push, Reply
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.store import Store
from relaax_like.v1 import parameter_server_pb2 as pb
from relaax_like.v1 import parameter_server_pb2_grpc as pb_grpc
from relaax_like.wire.errors import InvalidInputError, LeasedError, RelaaxError

LARGE = (Variable("W", np.zeros(500_001, np.float32)),)  # four chunks, the last one short


def connect(address, share=True):
    """Returns an agent that pushes often, and its link."""
    link = BridgeControl().connect(address)
    return link, link.parameter_server_stub(keep_stream_open=True, use_shared_memory=share)


def test_many_rounds_go_over_one_stream(backend, address, monkeypatch):
    opened = []
    link, client = connect(address)
    with link, client:
        open_call = client._push_stream._open_call
        monkeypatch.setattr(
            client._push_stream, "_open_call", lambda *args: opened.append(1) or open_call(*args)
        )
        for round in range(1, 6):
            np.testing.assert_array_equal(client.push_pull(ONES)[1], np.full(3, -round))
        client.apply_gradients(ONES)
        client.increment_global_t(7)
        client.push_pull()
    assert opened == [1]
    assert (backend.version, backend.global_t) == (6, 7)


def test_close_ends_the_stream_even_if_what_is_pending_is_refused(backend, address, monkeypatch):
    def refuse(*arguments):
        raise LeasedError("the run learns from experience")

    link, client = connect(address)
    with link:
        client.push_pull(ONES)
        client.increment_global_t(1)
        monkeypatch.setattr(client, "_call_push_pull", refuse)
        with pytest.raises(LeasedError, match="learns from experience"):
            client.close()
        assert client._push_stream._call is None


@pytest.mark.parametrize("share", [False, True], ids=["chunks", "shared memory"])
def test_a_large_model_goes_both_ways(share):
    gradient = np.random.default_rng(0).normal(size=500_001).astype(np.float32)
    with make_backend(LARGE) as backend, serve(backend) as address:
        with BridgeControl().connect(address) as link:
            with link.parameter_server_stub(use_shared_memory=share) as client:
                kept = []
                for _ in range(6):
                    (values,) = client.push_pull([gradient])
                    kept.append(values)
                    assert (client._push_stream._shared is not None) == share
                for round, values in enumerate(kept, 1):  # what was given out stays as it was
                    np.testing.assert_allclose(values, -round * gradient, rtol=1e-5)
                    assert not values.flags.writeable
                (pulled,) = client.get_values()
                np.testing.assert_array_equal(pulled, values)
                assert client.push_pull()[0].base is not None  # nothing new
        assert backend.version == 6


def test_a_server_that_cannot_share_memory_gets_chunks(monkeypatch):
    def decline(*arguments):
        raise UnusableError("not accessible: No such process")

    monkeypatch.setattr(SharedVectors, "attach", decline)
    with make_backend(LARGE) as backend, serve(backend) as address:
        with BridgeControl().connect(address) as link, link.parameter_server_stub() as client:
            for _ in range(2):
                (values,) = client.push_pull([np.ones(500_001, np.float32)])
                assert client._push_stream._shared is None
            assert values[500_000] == -2


def test_a_client_without_such_memory_sends_chunks(monkeypatch):
    def fail(*arguments):
        raise OSError("no memory")

    monkeypatch.setattr("os.memfd_create", fail)
    with make_backend(LARGE) as backend, serve(backend) as address:
        with BridgeControl().connect(address) as link, link.parameter_server_stub() as client:
            (values,) = client.push_pull([np.ones(500_001, np.float32)])
            assert values[500_000] == -1


def test_a_new_stream_has_new_memory_and_a_packed_gradient_is_taken_along(monkeypatch):
    """The server goes away between the packing of a gradient and its sending."""
    monkeypatch.setattr(stub_module, "_RETRY_SEC", 30.0)
    with make_backend(LARGE) as backend:
        with serve(backend) as address:
            link = BridgeControl().connect(address)
            client = link.parameter_server_stub()
            client.push_pull([np.ones(500_001, np.float32)])
            first = client._push_stream._shared
        with serve(backend, address):
            (values,) = client.push_pull([np.full(500_001, 2.0, np.float32)])
            assert client._push_stream._shared is not first
            assert (values[0], values[500_000]) == (-3, -3)
        client.close()
        link.close()


@pytest.mark.parametrize("pid", [0, 2**32 - 1])
def test_an_offer_of_nothing_is_declined_and_the_push_may_not_use_it(pid):
    with make_backend(LARGE) as backend, serve(backend) as address:
        manifest = backend.manifest
        push = pb.PushHeader(
            client_id="raw",
            gradient_bytes=manifest.gradient_bytes,
            fingerprint=manifest.fingerprint,
            shared_gradient=True,
        )
        offer = pb.SharedMemoryOffer(pid=pid, descriptor=1, nonce=b"x")
        messages = [pb.PushPullRequest(offer=offer), pb.PushPullRequest(header=push)]
        with grpc.insecure_channel(address) as channel:
            replies = pb_grpc.ParameterServerStub(channel).PushPull(iter(messages), timeout=10)
            answer = next(replies).answer
            assert not answer.accepted
            assert "not accessible" in answer.reason
            with pytest.raises(grpc.RpcError, match="no shared memory was agreed upon"):
                next(replies)
        assert backend.version == 0


def test_groups_of_a_large_model_go_through_shared_memory():
    variables = [
        Variable("one/W", np.zeros(200_000, np.float32), group="one"),
        Variable("two/W", np.zeros(300_000, np.float32), group="two"),
    ]
    manifest = make_manifest(variables)
    sgd = OptimizerConfig(name="sgd", learning_rate=1.0)
    flat = manifest.pack([variable.value for variable in variables])
    store = Store(manifest, flat, {"one": sgd, "two": sgd})
    with ParameterServer(store, metrics=NullMetrics()) as backend, serve(backend) as address:
        with BridgeControl().connect(address) as link, link.parameter_server_stub() as client:
            client.push_pull([np.ones(200_000, np.float32)], groups=["one"])
            one, two = client.push_pull([np.ones(300_000, np.float32)], groups=["two"])
            assert (one.min(), one.max(), two.min(), two.max()) == (-1, -1, -1, -1)
            assert client._push_stream._shared is not None


def count_waiting():
    """Returns how many of our server's threads wait for a client's letter."""
    stacks = [traceback.walk_stack(frame) for frame in sys._current_frames().values()]
    return sum(any(f.f_code is Mailbox.take.__code__ for f, _ in stack) for stack in stacks)


@pytest.mark.parametrize("mailboxes", [True, False], ids=["mailboxes", "stream"])
def test_small_models_share_memory_too_with_mailboxes_or_without(
    backend, address, mailboxes, monkeypatch
):
    if not mailboxes:
        monkeypatch.setattr(mailbox, "SUPPORTED", False)
    put, letters = Mailbox.put, []
    monkeypatch.setattr(Mailbox, "put", lambda self, data: letters.append(data) or put(self, data))
    link, client = connect(address)
    with link, client:
        for round in range(1, 4):
            np.testing.assert_array_equal(client.push_pull(ONES)[1], np.full(3, -round))
        assert client._push_stream._shared is not None
    assert len(letters) == (6 if mailboxes else 0)


def test_a_server_without_mailboxes_declines_an_offer_of_them(backend, address, monkeypatch):
    attach = SharedVectors.attach

    def attach_without(*offer):
        with monkeypatch.context() as patch:
            patch.setattr(mailbox, "SUPPORTED", False)
            return attach(*offer)

    monkeypatch.setattr(SharedVectors, "attach", attach_without)
    link, client = connect(address)
    with link, client:
        np.testing.assert_array_equal(client.push_pull(ONES)[1], [-1, -1, -1])
        assert client._push_stream._shared is None


def test_a_message_too_long_for_a_mailbox_goes_by_the_stream(backend, address, monkeypatch):
    monkeypatch.setattr(Mailbox, "fits", lambda self, data: len(data) < 1_000)
    link, client = connect(address)
    with link, client:
        for round in range(1, 4):
            for _ in range(100 * (round % 2)):  # ten bytes each
                client.add_episodes([Episode(1.0, 5)])
            np.testing.assert_array_equal(client.push_pull(ONES)[1], np.full(3, -round))
    assert backend.status().episodes == 200


def test_a_reply_too_long_for_a_mailbox_comes_by_the_stream(backend, address, monkeypatch):
    monkeypatch.setattr(Mailbox, "fits", lambda self, data: False)
    link, client = connect(address)
    with link, client:
        for round in range(1, 4):
            np.testing.assert_array_equal(client.push_pull(ONES)[1], np.full(3, -round))
        assert client._push_stream._shared is not None


def test_a_forked_process_disturbs_nobody(address, backend):
    link, client = connect(address)
    with link, client:
        client.push_pull(ONES)
        client.increment_global_t(5)
        pid = os.fork()
        if not pid:  # as one that leaves the `with` block
            try:
                client.close()
            except RelaaxError as error:
                os._exit(7 if "forked" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        np.testing.assert_array_equal(client.push_pull(ONES)[1], [-2, -2, -2])
    assert backend.global_t == 5


def test_not_a_message_in_a_mailbox_is_refused_and_nobody_else_is_disturbed(backend, address):
    link, client = connect(address)
    with link, client:
        client.push_pull(ONES)
        call, shared = client._push_stream._call, client._push_stream._shared
        shared.requests.put(b"\xff garbage")
        with pytest.raises(grpc.RpcError, match="expected the header"):
            next(call)
        with link.parameter_server_stub(keep_stream_open=True) as other:
            np.testing.assert_array_equal(other.push_pull(ONES)[1], [-2, -2, -2])
    assert backend.status().refused["malformed"] == 1


def test_not_a_message_in_the_replies_is_told(backend, address, monkeypatch):
    link, client = connect(address)
    with link, client:
        client.push_pull(ONES)
        replies = client._push_stream._shared.replies
        take = replies.take
        monkeypatch.setattr(replies, "take", lambda: take() and b"\xff" * 9)
        with pytest.raises(InvalidInputError, match=r"reply: .* not a valid PushPullReply message"):
            client.push_pull(ONES)
        np.testing.assert_array_equal(client.push_pull(ONES)[1], [-3, -3, -3])


@pytest.mark.parametrize("end", ["cancelled", "channel closed"])
def test_no_thread_of_the_server_waits_for_letters_of_a_client_that_is_gone(address, end):
    wait_until(lambda: not count_waiting(), "the end of earlier streams")
    link, client = connect(address)
    client.push_pull(ONES)
    wait_until(lambda: count_waiting() == 1, "the server waits")
    if end == "cancelled":
        client._push_stream._call.cancel()
    else:
        link.close()
    wait_until(lambda: not count_waiting(), "it waits no more")
    link.close()


def test_a_server_that_stops_ends_the_wait_for_its_reply(monkeypatch):
    monkeypatch.setattr(stub_module, "_RETRY_SEC", 0.0)
    with make_backend() as backend:
        with serve(backend) as address:
            link, client = connect(address)
            client.push_pull(ONES)
            held, free = threading.Event(), threading.Event()

            def hold(record, timeout_sec):
                held.set()
                assert free.wait(30)
                return Reply()

            monkeypatch.setattr(backend, "push", hold)
            caller = Caller(lambda: client.push_pull(ONES))
            assert held.wait(30)
            client._push_stream._call.cancel()  # as the end of the connection does
            caller.get()
            free.set()
        assert client.discarded_pushes == 1
        client.close()
        link.close()


def test_a_refused_push_ends_the_stream_and_the_next_opens_another(backend, address):
    link, client = connect(address, share=False)
    with link, client:
        client.push_pull(ONES)
        client._manifest = make_backend(LARGE).manifest  # of another model
        with pytest.raises(ValueError, match="bytes announced"):
            client.push_pull([np.ones(500_001, np.float32)])
        client._manifest = backend.manifest
        np.testing.assert_array_equal(client.push_pull(ONES)[1], [-2, -2, -2])


def test_a_push_by_mailbox_is_refused_in_words(backend, address):
    link, client = connect(address)
    with link, client:
        client.push_pull(ONES)
        with pytest.raises(InvalidInputError, match="b1: the gradient contains nan"):
            client.push_pull([ONES[0], np.full(3, np.nan, np.float32)])
        np.testing.assert_array_equal(client.push_pull(ONES)[1], [-2, -2, -2])


def count_mappings():
    with open("/proc/self/maps") as maps:
        return maps.read().count("/memfd:relaax vectors")


def test_a_call_whose_deadline_was_watched_holds_no_memory(backend, address, monkeypatch):
    """Its error has a traceback, whose frames know the memory."""
    looked, look, push = threading.Event(), push_stream._deadlines._cancel_late, backend.push

    def look_and_tell():
        look()
        looked.set()

    def push_slowly(record, timeout_sec):
        for _ in range(2):  # the first look might have begun before this push
            looked.clear()
            assert looked.wait(30)
        return push(record, timeout_sec)

    monkeypatch.setattr(push_stream._deadlines, "_cancel_late", look_and_tell)
    monkeypatch.setattr(backend, "push", push_slowly)
    link, client = connect(address)

    def fail():
        call, shared = client._push_stream._call, client._push_stream._shared
        shared.requests.put(b"\xff garbage")
        with pytest.raises(grpc.RpcError, match="expected the header"):
            next(call)

    with link, client:
        client.push_pull(ONES)
        fail()
    wait_until(lambda: gc.collect() >= 0 and not count_mappings(), "the end of the memory")


def test_a_refused_push_holds_no_memory(backend, address):
    """An error of gRPC is the call itself, and would keep what its frames know of."""
    wait_until(lambda: gc.collect() >= 0 and not count_mappings(), "the end of earlier streams")
    link, client = connect(address)
    gc.disable()
    try:
        with link, client:
            client.push_pull(ONES)
            assert count_mappings() == 2  # of the client, and of the server
            with contextlib.suppress(InvalidInputError):
                client.push_pull([ONES[0], np.full(3, np.nan, np.float32)])
            wait_until(lambda: not count_mappings(), "the end of both")
    finally:
        gc.enable()


def test_a_round_that_takes_too_long_is_cancelled_and_takes_effect_once(monkeypatch):
    monkeypatch.setattr(stub_module, "_RETRY_SEC", 60.0)
    with make_backend() as backend, serve(backend) as address:
        link, client = connect(address)
        with link, client:
            client.push_pull(ONES)
            client._timeout_sec = 0.3
            free, calls, push = threading.Event(), [], backend.push

            def push_slowly(record, timeout_sec):
                calls.append(record.sequence)
                assert free.wait(30)
                return push(record, timeout_sec)

            monkeypatch.setattr(backend, "push", push_slowly)
            caller = Caller(lambda: client.push_pull(ONES))
            wait_until(lambda: len(calls) >= 2, "the repetition")
            client._timeout_sec = 20.0
            free.set()
            np.testing.assert_array_equal(caller.get()[1], [-2, -2, -2])
            assert len(set(calls)) == 1
        assert backend.version == 2


def test_pushes_of_clients_that_gave_up_are_withdrawn(monkeypatch):
    monkeypatch.setattr(stub_module, "_RETRY_SEC", 0.0)
    free, held = threading.Event(), threading.Event()
    with make_backend() as backend, serve(backend) as address:
        apply = backend._queue._handle

        def hold(pushes):
            held.set()
            assert free.wait(30)
            return apply(pushes)

        monkeypatch.setattr(backend._queue, "_handle", hold)
        first = Caller(lambda: backend.push(Push(client_id="first", env_steps=1)))
        assert held.wait(30)
        link, client = connect(address)
        with link, client:
            client.get_values()
            client._timeout_sec = 0.3
            client.increment_global_t(100)
            client.push_pull(ONES)
            assert client.discarded_pushes == 1
            wait_until(lambda: len(backend._queue._waiting) == 0, "the end of its push")
            free.set()
            first.get()
            assert (backend.version, backend.global_t) == (0, 1)
            assert backend.status().refused["timeout"] >= 1


def test_a_server_that_comes_back_is_found_and_the_stream_opened_anew(monkeypatch):
    monkeypatch.setattr(stub_module, "_RETRY_SEC", 30.0)
    with make_backend() as backend:
        with serve(backend) as address:
            link, client = connect(address)
            client.push_pull(ONES)
        with serve(backend, address):
            np.testing.assert_array_equal(client.push_pull(ONES)[1], [-2, -2, -2])
        assert client.discarded_pushes == 0
        client.close()
        link.close()


def test_threads_end_with_the_client(backend, address):
    before = set(threading.enumerate())
    link, client = connect(address)
    client.push_pull(ONES)
    client.close()
    link.close()

    def is_ours(thread):  # one thread watches over all streams of the process, and stays
        return thread not in before and not thread.name.startswith(("bridge", "deadlines"))

    wait_until(lambda: not any(map(is_ours, threading.enumerate())), "gRPC's threads end")


def test_a_raw_stub_may_send_rounds_one_after_another(backend, address):
    manifest = backend.manifest
    push = pb.PushHeader(
        client_id="raw", gradient_bytes=manifest.gradient_bytes, fingerprint=manifest.fingerprint
    )
    gradient = np.ones(9, np.float32).tobytes()
    messages = []
    for _ in range(3):
        messages.append(pb.PushPullRequest(header=push))
        messages += [pb.PushPullRequest(chunk=gradient[i : i + 20]) for i in (0, 20)]
    with grpc.insecure_channel(address) as channel:
        replies = list(pb_grpc.ParameterServerStub(channel).PushPull(iter(messages), timeout=10))
    assert [reply.header.version for reply in replies] == [1, 2, 3]


def test_what_follows_a_whole_push_must_be_a_header(backend, address):
    messages = [
        pb.PushPullRequest(header=pb.PushHeader(client_id="raw", env_steps=2)),
        pb.PushPullRequest(chunk=b"1234"),
    ]
    with grpc.insecure_channel(address) as channel:
        replies = pb_grpc.ParameterServerStub(channel).PushPull(iter(messages), timeout=10)
        assert next(replies).header.global_t == 2
        with pytest.raises(grpc.RpcError, match="expected the header"):
            next(replies)
    assert backend.global_t == 2


def test_more_open_streams_than_once_had_threads_hold_up_nobody(backend, address):
    hold = threading.Event()

    def half_a_push():
        yield pb.PushPullRequest(
            header=pb.PushHeader(
                client_id="half",
                gradient_bytes=backend.manifest.gradient_bytes,
                fingerprint=backend.manifest.fingerprint,
            )
        )
        hold.wait(60)

    with grpc.insecure_channel(address) as channel:
        calls = [
            pb_grpc.ParameterServerStub(channel).PushPull(half_a_push(), timeout=60)
            for _ in range(100)
        ]
        link, client = connect(address)
        with link, client:
            np.testing.assert_array_equal(client.push_pull(ONES)[1], [-1, -1, -1])
        hold.set()
        for call in calls:
            call.cancel()
    assert backend.version == 1
