"""Gradients for some groups and one Algorithm's view, in process and over gRPC. covers F10, R4"""

import grpc
import numpy as np
import pytest
from support.bridge import serve

from relaax_like.bridge import messages
from relaax_like.bridge.client_view import ClientView
from relaax_like.bridge.control import BridgeControl
from relaax_like.bridge.in_process import InProcessClient
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.core.manifest import STATISTIC, Variable, make_manifest
from relaax_like.core.metrics import NullMetrics
from relaax_like.core.moments import Moments
from relaax_like.core.records import Episode, Push
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.store import Store
from relaax_like.v1 import parameter_server_pb2 as pb
from relaax_like.v1 import parameter_server_pb2_grpc as pb_grpc
from relaax_like.wire.errors import InvalidInputError

# As two Algorithms with a layer in common have them.
VARIABLES = (
    Variable("goal/W", np.zeros((2, 3), np.float32), "goal/default"),
    Variable("goal/shared", np.zeros(2, np.float32), "goal+control/default"),
    Variable("control/W", np.zeros(4, np.float32), "control/default"),
    Variable("goal/b", np.zeros(3, np.float32), "goal/default"),
    Variable("control/x.count", np.zeros(()), kind=STATISTIC),
    Variable("control/x.mean", np.zeros(()), kind=STATISTIC),
    Variable("control/x.m2", np.zeros(()), kind=STATISTIC),
)
MANIFEST = make_manifest(VARIABLES)
CONTROL = ["goal/shared", "control/W", "control/x.count", "control/x.mean", "control/x.m2"]


@pytest.fixture
def backend():
    by_name = {variable.name: variable.value for variable in VARIABLES}
    flat = MANIFEST.pack([by_name[segment.name] for segment in MANIFEST.segments])
    optimizers = {"default": OptimizerConfig(name="sgd", learning_rate=1.0)}
    with ParameterServer(Store(MANIFEST, flat, optimizers), metrics=NullMetrics()) as server:
        yield server


def read(backend):
    names = [segment.name for segment in MANIFEST.segments]
    return dict(zip(names, backend.get_values(), strict=True))


def test_only_the_named_group_moves_and_only_its_part_is_given(connect, backend):
    client = connect(backend)
    values = client.push_pull([np.full(4, 2, np.float32)], ["control/default"])
    assert len(values) == len(VARIABLES)
    for name, value in read(backend).items():
        assert (value == (-2 if name == "control/W" else 0)).all(), name
    client.apply_gradients(
        [np.ones((2, 3), np.float32), np.full(3, 2, np.float32), np.full(2, 3, np.float32)],
        ["goal+control/default", "goal/default"],
    )
    moved = read(backend)
    assert [moved[n].flat[0] for n in ("goal/W", "goal/b", "goal/shared")] == [-1, -2, -3]
    assert moved["control/W"][0] == -2
    assert backend.version == 2


@pytest.mark.parametrize(
    ("gradients", "groups", "want"),
    [
        (
            [np.zeros(4, np.float32)],
            ["controls/default"],
            "unknown variable group 'controls/default'",
        ),
        ([np.zeros(4, np.float32)], ["control/default"] * 2, "duplicate name"),
        (
            [np.zeros(4, np.float32)],
            ["goal/default"],
            "gradients: received 1, expected 2, one for each trainable variable: goal/W, goal/b",
        ),
        (
            [np.zeros(3, np.float32)],
            ["control/default"],
            r"control/W: expected float32 \[4\], got float32 \[3\]",
        ),
    ],
    ids=["unknown", "twice", "another group's", "shape"],
)
def test_a_client_refuses_before_it_sends(connect, backend, gradients, groups, want):
    client = connect(backend)
    for push in (client.push_pull, client.apply_gradients):
        with pytest.raises(InvalidInputError, match=want):
            push(gradients, groups)
    assert backend.version == 0


def make_header(**fields):
    push = Push(client_id="c", fingerprint=MANIFEST.fingerprint)
    (message,) = messages.push_to_messages(push, False, 0)
    for name, value in fields.items():
        if name == "groups":
            message.header.groups.extend(value)
        else:
            setattr(message.header, name, value)
    return message


@pytest.mark.parametrize(
    ("fields", "chunk", "want"),
    [
        ({"groups": ["no/such"], "gradient_bytes": 16}, 16, "unknown variable group 'no/such'"),
        ({"groups": ["control/default"] * 2, "gradient_bytes": 32}, 32, "duplicate name"),
        (
            {"groups": ["control/default"], "gradient_bytes": 60},
            60,
            "60 bytes announced, but a gradient of the groups control/default has 16",
        ),
        ({"groups": ["control/default"], "gradient_bytes": 16}, 12, "gradient"),
        ({"groups": ["control/default"], "gradient_bytes": 16}, 20, "gradient"),
        ({"groups": ["control/default"]}, 0, "but there is no gradient"),
    ],
    ids=["unknown", "twice", "announced for all", "too little", "too much", "no gradient"],
)
def test_what_a_foreign_client_gets_wrong_is_refused_and_counted(backend, fields, chunk, want):
    with serve(backend) as address, grpc.insecure_channel(address) as channel:
        stub = pb_grpc.ParameterServerStub(channel)
        parts = [make_header(**fields)]
        if chunk:
            parts.append(pb.PushPullRequest(chunk=bytes(chunk)))
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.PushPull(iter(parts), timeout=10))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert want in caught.value.details()
    assert backend.version == 0
    assert sum(backend.status().refused.values()) == 1


def test_as_many_names_as_fit_a_header_are_refused_at_once(backend):
    with serve(backend) as address, grpc.insecure_channel(address) as channel:
        message = make_header(groups=[f"g{n}" for n in range(60_000)], gradient_bytes=4)
        with pytest.raises(grpc.RpcError) as caught:
            list(pb_grpc.ParameterServerStub(channel).PushPull(iter([message]), timeout=30))
    assert "unknown variable group 'g0'" in caught.value.details()
    assert len(caught.value.details()) < 1000


# One Algorithm's view.


def make_view(client, names=CONTROL):
    return ClientView(client, names, {"x": "control/x"})


def test_an_algorithm_sees_and_moves_its_own_variables_in_its_own_order(connect, backend):
    view = make_view(connect(backend), ["control/W", "goal/shared", *CONTROL[2:]])
    assert [value.shape for value in view.get_values()] == [(4,), (2,), (), (), ()]
    view.add_statistics("x", Moments.of(np.array([1.0, 3.0])))
    view.increment_global_t(5)
    view.add_episodes([Episode(2.0, 5)])
    values = view.push_pull([np.full(4, 2, np.float32), np.ones(2, np.float32)])
    assert [value.flat[0] for value in values] == [-2, -1, 2, 2, 2]
    view.apply_gradients([np.full(4, 2, np.float32), np.ones(2, np.float32)])
    moved = read(backend)
    assert {n: v.flat[0] for n, v in moved.items() if not n.startswith("control/x")} == {
        "goal/W": 0,
        "goal/b": 0,
        "goal/shared": -2,
        "control/W": -4,
    }
    assert (view.version, view.global_t, backend.global_t, backend.version) == (1, 5, 5, 2)
    assert backend.status().mean_return == 2.0
    assert view.push_pull()[0].flat[0] == -4
    assert backend.version == 2


def test_an_algorithm_can_push_some_of_its_groups():
    names = {
        "goal/actor": "goal/actor",
        "goal/both": "goal+control/critic",
        "goal/own": "goal/critic",
    }
    variables = [Variable(name, np.zeros(2, np.float32), group) for name, group in names.items()]
    manifest = make_manifest(
        [*variables, Variable("control/W", np.zeros(2, np.float32), "control/critic")]
    )
    optimizers = dict.fromkeys(("actor", "critic"), OptimizerConfig(name="sgd", learning_rate=1.0))
    flat = np.zeros_like(manifest.pack([np.zeros(2, np.float32)] * 4))
    with ParameterServer(Store(manifest, flat, optimizers), metrics=NullMetrics()) as server:
        view = ClientView(InProcessClient(server), list(names), {})
        ones, twos = np.ones(2, np.float32), np.full(2, 2, np.float32)
        values = view.push_pull([ones, twos], ["critic"])
        assert [value[0] for value in values] == [0, -1, -2]
        view.apply_gradients([ones], ["actor"])
        assert [value[0] for value in view.get_values()] == [-1, -1, -2]
        with pytest.raises(
            InvalidInputError, match=r"received 2, expected 1: .* of the Algorithm in groups"
        ):
            view.push_pull([ones, twos], ["actor"])
        version = view.version
        with pytest.raises(
            InvalidInputError,
            match="group 'actr'; this Algorithm has actor, critic",
        ):
            view.push_pull([ones], ["actor", "actr"])
        assert server.version == version


def test_two_algorithms_both_move_what_they_share(backend):
    with InProcessClient(backend, "one") as one, InProcessClient(backend, "two") as two:
        goal = ClientView(one, ["goal/W", "goal/b", "goal/shared"], {})
        ones = [np.ones((2, 3), np.float32), np.ones(3, np.float32), np.ones(2, np.float32)]
        goal.push_pull(ones)
        make_view(two).push_pull([np.ones(2, np.float32), np.ones(4, np.float32)])
        assert read(backend)["goal/shared"].tolist() == [-2, -2]
        assert goal.get_values()[2].tolist() == [-2, -2]


def test_a_view_over_grpc_sends_its_own_groups_bytes_only(backend):
    sent = []
    with serve(backend) as address, BridgeControl().connect(address) as link:
        with link.parameter_server_stub() as stub:
            make = messages.push_to_messages

            def count(push, *rest):
                sent.append((len(push.gradient), push.groups))
                return make(push, *rest)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(messages, "push_to_messages", count)
                make_view(stub).push_pull([np.ones(2, np.float32), np.ones(4, np.float32)])
    assert sent == [(24, ("goal+control/default", "control/default"))]


@pytest.mark.parametrize(
    ("names", "want"),
    [
        (
            ["goal/W", "goal/c"],
            "goal/c: the run has no such variable; its first variables are goal/W",
        ),
        (["goal/W"], "goal/b: in the same variable group as the Algorithm's goal/W"),
    ],
    ids=["missing", "a stranger in its group"],
)
def test_a_run_of_another_folder_is_refused(backend, names, want):
    with InProcessClient(backend) as client, pytest.raises(InvalidInputError, match=want):
        make_view(client, names)


def test_too_few_gradients_are_refused(backend):
    with InProcessClient(backend) as client:
        with pytest.raises(
            InvalidInputError, match="gradients: received 1, expected 2: one for each"
        ):
            make_view(client).push_pull([np.ones(2, np.float32)])
