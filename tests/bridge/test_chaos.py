"""Call chaos: whatever is lost or repeated, each push takes effect once."""

import threading

import numpy as np
import pytest
from support import chaos
from support.bridge import VARIABLES, make_backend, serve
from support.cluster import wait_until

from relaax_like.bridge import stub as stub_module
from relaax_like.bridge.control import BridgeControl
from relaax_like.core.records import Reply
from relaax_like.wire.errors import InvalidInputError, ServerUnavailableError


@pytest.mark.parametrize("often", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        "request_lost=0.4",
        "reply_lost=0.4",
        "in_flight=0.4",
        "request_lost=0.2,reply_lost=0.2,in_flight=0.2,seed=5",
    ],
)
def test_each_push_takes_effect_once(text, often, monkeypatch):
    chaos.install(monkeypatch, text)
    monkeypatch.setattr(stub_module, "_RETRY_SLEEP_SEC", (0.0, 0.002))
    gradients = np.random.default_rng(1).normal(size=(40, 9)).astype(np.float32)
    want = np.concatenate([one.value.reshape(-1) for one in VARIABLES])
    with make_backend() as backend:
        with serve(backend) as address, BridgeControl().connect(address) as link:
            with link.parameter_server_stub(keep_stream_open=often) as client:
                for gradient in gradients:
                    client.increment_global_t(3)
                    values = client.push_pull([gradient[:6].reshape(2, 3), gradient[6:]])
                    want = want - gradient
                    np.testing.assert_array_equal(np.concatenate([v.ravel() for v in values]), want)
                assert client.discarded_pushes == 0
        assert (backend.version, backend.global_t) == (40, 120)


def test_each_kind_of_chaos_is_what_it_says():
    made = []

    def call():
        made.append(1)
        return Reply(version=7)

    for text, want in [("request_lost=1", 0), ("reply_lost=1", 1)]:
        made.clear()
        with pytest.raises(ServerUnavailableError, match="lost"):
            chaos.parse(text).call(call)
        assert len(made) == want
    assert chaos.parse("in_flight=0").call(call).version == 7


def test_a_refused_push_is_reported_to_its_caller_only(monkeypatch):
    threads, tracebacks = [], []

    def call():
        threads.append(threading.current_thread())
        raise InvalidInputError("the gradient contains nan")

    monkeypatch.setattr(threading, "excepthook", tracebacks.append)
    with pytest.raises(ServerUnavailableError, match="repeated while in progress"):
        chaos.parse("in_flight=1").call(call)
    wait_until(lambda: threads, "the call")
    threads[0].join()
    assert not tracebacks
    with pytest.raises(InvalidInputError):
        chaos.parse("in_flight=0").call(call)
