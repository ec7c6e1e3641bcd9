"""Running statistics on their way: clients, messages, the server's merge. covers P16, R2"""

import threading

import grpc
import numpy as np
import pytest
from support.bridge import ONES, VARIABLES, make_backend, serve

from relaax_like.bridge import bridge_pb2, bridge_pb2_grpc
from relaax_like.bridge import client as client_module
from relaax_like.bridge.client_view import ClientView
from relaax_like.bridge.control import BridgeControl
from relaax_like.core.manifest import STATISTIC, Variable
from relaax_like.core.moments import Moments
from relaax_like.core.records import Push
from relaax_like.v1 import ndarray_pb2
from relaax_like.v1 import parameter_server_pb2 as pb
from relaax_like.v1 import parameter_server_pb2_grpc as pb_grpc
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.ndarray import ndarray_to_message


def make_statistic(name, *shape):
    return [
        Variable(f"{name}.count", np.zeros(()), kind=STATISTIC),
        Variable(f"{name}.mean", np.zeros(shape), kind=STATISTIC),
        Variable(f"{name}.m2", np.zeros(shape), kind=STATISTIC),
    ]


WITH_STATISTICS = (*VARIABLES, *make_statistic("observation", 2), *make_statistic("reward"))
ROWS = np.array([[1.0, 0.0], [3.0, 0.0], [8.0, 3.0]])  # mean 4 and 1, m2 26 and 6


def read(backend, name="observation"):
    """The server's present count, mean and m2, as lists."""
    values = backend.pull().values
    return [part.tolist() for part in backend.manifest.view_statistic(values.flat, name)]


@pytest.fixture
def backend():
    with make_backend(WITH_STATISTICS) as server:
        yield server


# Through clients.


def test_pending_rows_are_merged_and_take_effect_with_the_gradient(connect, backend):
    client = connect(backend)
    client.get_values()
    client.add_statistics("observation", Moments.of(ROWS[:2]))
    client.add_statistics("observation", Moments.of(ROWS[2:]))
    client.add_statistics("reward", Moments.of(np.array([1.0, 2.0])))
    assert read(backend) == [0, [0, 0], [0, 0]]
    values = client.push_pull(ONES)
    assert backend.version == client.version == 1
    np.testing.assert_array_equal(values[1], [-1, -1, -1])
    names = [segment.name for segment in client.manifest.segments]
    assert names[2:5] == ["observation.count", "observation.mean", "observation.m2"]
    assert [value.tolist() for value in values[2:5]] == [3, [4, 1], [26, 6]]
    assert read(backend, "reward") == [2, 1.5, 0.5]
    client.push_pull()
    assert backend.version == 1, "they were sent once"


def test_statistics_alone_make_a_version_and_leave_the_weights(connect, backend):
    client = connect(backend)
    client.add_statistics("observation", Moments.of(ROWS))
    values = client.push_pull()
    assert backend.version == client.version == 1
    np.testing.assert_array_equal(values[0], VARIABLES[0].value)
    assert values[3].tolist() == [4, 1]


def test_rows_are_sent_by_close_and_with_steps_too(connect, backend, monkeypatch):
    client = connect(backend)
    client.add_statistics("observation", Moments.of(ROWS[:2]))
    client.close()
    assert read(backend)[0] == 2
    monkeypatch.setattr(client_module, "FLUSH_SEC", 0.0)
    other = connect(backend)
    other.add_statistics("observation", Moments.of(ROWS[2:]))
    other.increment_global_t()
    assert read(backend) == [3, [4, 1], [26, 6]]


def test_no_rows_are_not_sent(connect, backend):
    client = connect(backend)
    client.add_statistics("observation", Moments.of(ROWS[:0]))
    client.push_pull()
    assert backend.version == 0


def test_an_exploit_client_reads_and_never_moves_them(connect, backend):
    trainer, client = connect(backend), connect(backend)
    trainer.add_statistics("observation", Moments.of(ROWS))
    trainer.push_pull()
    with ClientView(client, is_read_only=True) as exploit:
        exploit.add_statistics("observation", Moments.of(ROWS * 100))
        assert exploit.push_pull(ONES)[2:5][1].tolist() == [4, 1]
    assert (backend.version, read(backend)) == (1, [3, [4, 1], [26, 6]])


NOT_ADDED = [
    ("unknown name", "observations", Moments.of(ROWS), r"'observations'.*observation, reward"),
    ("a part's name", "observation.mean", Moments.of(ROWS), "unknown statistic"),
    (
        "too wide",
        "observation",
        Moments.of(np.ones((2, 3))),
        r"mean: expected float64 \[2\], got float64 \[3\]",
    ),
    (
        "a number",
        "observation",
        Moments.of(np.ones(2)),
        r"mean: expected float64 \[2\], got float64 \[\]",
    ),
    ("m2 too wide", "observation", Moments(1.0, np.ones(2), np.ones(3)), r"observation.m2: .*\[3"),
    (
        "float32",
        "reward",
        Moments(1.0, np.float32(0), np.float64(0)),
        r"reward\.mean: expected float64 \[\], got float32 \[\]",
    ),
    ("NaN", "observation", Moments.of(np.array([[1.0, np.nan]])), "observation.mean: nan"),
    ("infinity", "reward", Moments.of(np.array([np.inf])), "reward.mean"),
    ("overflow", "reward", Moments.of(np.array([1e200, -1e200])), "reward.m2: inf"),
    ("too far out", "reward", Moments.of(np.array([-1.1e100])), r"-1\.1e\+100.*clip"),
    ("negative m2", "reward", Moments(1.0, np.float64(0), np.float64(-1e-9)), "reward.m2: -1e-09"),
    ("negative count", "reward", Moments(-1.0, np.float64(0), np.float64(0)), "reward.count: -1"),
    ("NaN rows", "reward", Moments(np.nan, np.float64(0), np.float64(0)), "reward.count: nan"),
    ("many rows", "reward", Moments(2.0**40 + 1, np.float64(0), np.float64(0)), "at most 2.40"),
]


@pytest.mark.parametrize(
    ("name", "moments", "words"), [c[1:] for c in NOT_ADDED], ids=[c[0] for c in NOT_ADDED]
)
def test_what_does_not_fit_is_refused_where_it_is_made_and_at_the_server(
    connect, backend, name, moments, words
):
    client = connect(backend)
    client.add_statistics("observation", Moments.of(ROWS))
    with pytest.raises(InvalidInputError, match=words):
        client.add_statistics(name, moments)
    # Past the client's own check:
    push = Push(client_id="raw", env_steps=5, statistics={name: moments})
    with pytest.raises(InvalidInputError, match=words):
        client._call_push_pull(push, False, 0)
    assert (backend.version, backend.global_t) == (0, 0)
    assert backend.status().refused == {"bad statistic": 1}
    client.push_pull()
    assert read(backend) == [3, [4, 1], [26, 6]], "what was added before stands"


def test_a_run_without_statistics_says_so(connect):
    with make_backend() as backend, pytest.raises(InvalidInputError, match="has no statistics"):
        connect(backend).add_statistics("observation", Moments.of(ROWS))


def test_statistics_of_images_fit_into_a_push(connect):
    shape = (84, 84, 4)
    rows = np.random.default_rng(0).integers(0, 256, (8, *shape), np.uint8)
    with make_backend((*VARIABLES, *make_statistic("observation", *shape))) as backend:
        client = connect(backend)
        client.add_statistics("observation", Moments.of(rows))
        _, _, count, mean, m2 = client.push_pull(ONES)
    assert count == 8
    np.testing.assert_allclose(mean, rows.mean(axis=0), rtol=1e-14)
    np.testing.assert_allclose(m2, rows.var(axis=0) * 8, rtol=1e-12, atol=1e-9)


def test_the_largest_header_is_taken(connect):
    """Statistics up to 64 MiB are one message; gRPC's limits let it pass."""
    size = 4 * 1024 * 1024 - 1
    with make_backend((*VARIABLES, *make_statistic("s", size))) as backend:
        client = connect(backend)
        client.add_statistics("s", Moments(2.0, np.ones(size), np.full(size, 0.5)))
        client.apply_gradients(ONES)
        count, mean, m2 = backend.manifest.view_statistic(backend.pull().values.flat, "s")
        assert (count, mean.min(), m2.max()) == (2, 1, 0.5)


# Together.


def test_two_clients_at_once_give_the_moments_of_all_their_rows(backend):
    random = np.random.default_rng(0)
    rows = 1e4 + random.normal(0, [1.0, 100.0], (2, 40, 25, 2))  # clients, pushes, rows

    def play(address, batches):
        with BridgeControl().connect(address) as link, link.parameter_server_stub() as client:
            for number, batch in enumerate(batches):
                client.add_statistics("observation", Moments.of(batch))
                client.push_pull(ONES if number % 2 else None)

    with serve(backend) as address:
        threads = [threading.Thread(target=play, args=(address, batches)) for batches in rows]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    flat = rows.reshape(-1, 2)
    count, mean, m2 = read(backend)
    assert (count, backend.version) == (len(flat), 80)
    np.testing.assert_allclose(mean, flat.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(m2, flat.var(axis=0) * len(flat), rtol=1e-9)


def test_a_push_that_finds_no_server_loses_its_rows_and_the_next_ones_count():
    with make_backend(WITH_STATISTICS) as first, serve(first) as address:
        link = BridgeControl().connect(address)
        client = link.parameter_server_stub()
        client.get_values()
    with link, client:
        client.add_statistics("observation", Moments.of(ROWS * 100))
        client.push_pull(ONES)
        assert client.discarded_pushes == 1
        with make_backend(WITH_STATISTICS) as second, serve(second, address):
            assert link.wait(30.0)
            client.get_values()
            client.add_statistics("observation", Moments.of(ROWS))
            client.push_pull(ONES)
            assert read(second) == [3, [4, 1], [26, 6]]


# On the wire.


@pytest.fixture
def channel(backend):
    with serve(backend) as address, grpc.insecure_channel(address) as channel:
        yield channel


def delta(name="observation", count=3.0, mean=(4.0, 1.0), m2=(26.0, 6.0)):
    mean, m2 = (
        ndarray_to_message(np.array(part, np.float64), ndarray_pb2.NdArray) for part in (mean, m2)
    )
    return pb.StatisticDelta(name=name, count=count, mean=mean, m2=m2)


def header(*deltas):
    fields = {"client_id": "raw", "env_steps": 3, "statistics": deltas}
    return pb.PushPullRequest(header=pb.PushHeader(**fields))


def test_a_delta_takes_effect(backend, channel):
    replies = list(pb_grpc.ParameterServerStub(channel).PushPull(iter([header(delta())])))
    assert (replies[0].header.outcome, replies[0].header.version) == (pb.NOTHING, 1)
    assert (backend.global_t, read(backend)) == (3, [3, [4, 1], [26, 6]])


def with_mean(message):
    return pb.StatisticDelta(name="observation", count=1, mean=message, m2=delta().m2)


@pytest.mark.parametrize(
    ("deltas", "words"),
    [
        ([delta(), delta()], "statistic 'observation': twice"),
        ([delta("reward", 1.0, 0.0, 0.0)] + [delta(f"s{i}") for i in range(64)], "65 statistics"),
        ([delta(""), delta()], "unknown statistic"),
        ([delta(), delta("x" * 100_000)], "unknown statistic"),
        ([delta("x" * 100_000)] * 2, "twice"),
        ([delta(), delta("reward")], r"reward\.mean: expected float64 \[\], got float64 \[2\]"),
        ([with_mean(None)], r"observation\.mean: unknown dtype"),
        (
            [with_mean(ndarray_pb2.NdArray(dtype="float64", shape=[2], data=b"1234"))],
            r"observation\.mean: 4 bytes",
        ),
        (
            [with_mean(ndarray_pb2.NdArray(dtype="float32", shape=[2], data=bytes(8)))],
            r"observation\.mean: expected float64 \[2\], got float32",
        ),
        ([delta(m2=(np.nan, 0.0))], r"observation\.m2: nan"),
        ([delta(count=0.0)], r"observation\.count: 0"),
    ],
    ids=[
        "twice",
        "too many",
        "no name",
        "long name",
        "long name twice",
        "other's shape",
        "no mean",
        "too few bytes",
        "float32",
        "NaN",
        "no rows",
    ],
)
def test_a_bad_delta_is_refused_and_nothing_of_its_push_takes_effect(
    backend, channel, deltas, words
):
    with pytest.raises(grpc.RpcError, match=words) as raised:
        list(pb_grpc.ParameterServerStub(channel).PushPull(iter([header(*deltas)]), timeout=10))
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert len(raised.value.details()) < 1000
    assert (backend.version, backend.global_t, read(backend)) == (0, 0, [0, [0, 0], [0, 0]])
    assert sum(backend.status().refused.values()) == 1


def test_a_push_of_a_client_from_before_statistics_still_works(backend, channel):
    # PushPullRequest.header (1): client_id (1) "old", env_steps (6) 3. Written by hand.
    call = channel.stream_stream("/relaax.v1.ParameterServer/PushPull")
    replies = [pb.PushPullReply.FromString(raw) for raw in call(iter([b"\n\7\n\3old\x30\3"]))]
    assert (replies[0].header.outcome, replies[0].header.global_t) == (pb.NOTHING, 3)
    assert backend.version == 0


def test_the_tutorials_calls_give_and_take_the_weights_alone(backend, channel):
    backend.push(Push(client_id="agent", statistics={"observation": Moments.of(ROWS)}))
    stub = bridge_pb2_grpc.ParameterServerStub(channel)
    values = list(stub.GetValues(bridge_pb2.NullMessage()))
    assert [tuple(value.shape) for value in values] == [(2, 3), (3,)]
    stub.ApplyGradients(ndarray_to_message(array, bridge_pb2.NdArray) for array in ONES)
    assert (backend.version, read(backend)) == (2, [3, [4, 1], [26, 6]])
