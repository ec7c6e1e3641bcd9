"""A client made from the four-call proto alone, in a process of its own."""

# covers R2, R5, R6, R7, R13, R15, R28, R32

import subprocess
import sys
from pathlib import Path

import grpc
import numpy as np
import pytest
from support.bridge import make_backend, serve
from support.event_files import read_scalars

from relaax_like.bridge import bridge_pb2, bridge_pb2_grpc
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.core.manifest import Variable, make_manifest
from relaax_like.metrics.recorder import TensorBoardRecorder
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.store import Store

ROOT = Path(__file__).parents[2]


def make_cartpole_server(metrics):
    random = np.random.default_rng(0)
    shapes = {"W1": (4, 10), "W2": (10, 1)}
    variables = [
        Variable(name, random.uniform(-1, 1, shape).astype(np.float32) * (6 / sum(shape)) ** 0.5)
        for name, shape in shapes.items()
    ]
    manifest = make_manifest(variables)
    flat = manifest.pack([variable.value for variable in variables])
    store = Store(manifest, flat, {"default": OptimizerConfig(learning_rate=3e-2)})
    return ParameterServer(store, metrics=metrics)


def test_it_trains_the_tutorials_network_against_our_parameter_server(tmp_path):
    curves, generated = tmp_path / "curves", tmp_path / "generated"
    generated.mkdir()
    with TensorBoardRecorder(curves) as recorder, make_cartpole_server(recorder) as backend:
        with serve(backend) as address:
            program = Path(__file__).with_name("tutorial_client.py")
            arguments = [ROOT / "protos" / "bridge.proto", address, generated]
            client = subprocess.run(
                [sys.executable, program, *map(str, arguments)],
                capture_output=True,
                text=True,
                timeout=110,
                check=False,
            )
        assert client.returncode == 0, client.stderr
        assert float(client.stdout.split()[-1]) >= 120.0, client.stdout
        recorder.flush()
        rewards = read_scalars(curves)["episode reward"]
        assert backend.version == len(rewards) > 20
        assert backend.global_t == sum(y for _, y in rewards)
        assert rewards[0][0] == 1
        assert rewards[-1][0] > 1000, "without x a point stands at the newest global_t"


@pytest.fixture
def stub(address):
    with grpc.insecure_channel(address) as channel:
        yield bridge_pb2_grpc.ParameterServerStub(channel)


def to_message(array):
    array = np.asarray(array)
    return bridge_pb2.NdArray(dtype=array.dtype.name, shape=array.shape, data=array.tobytes())


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "W1"),
        ([to_message(np.ones((2, 3), np.float32))], "expected 2"),
        ([to_message(np.ones((2, 3), np.float32))] * 3, "b1"),
        ([to_message(np.ones((3, 2), np.float32)), to_message(np.ones(3, np.float32))], "W1"),
        ([bridge_pb2.NdArray(dtype="float32", shape=[-2, 3], data=b"")], "W1"),
        ([bridge_pb2.NdArray(dtype="object", shape=[2, 3], data=b"")], "dtype"),
        ([bridge_pb2.NdArray(dtype="float32", shape=[2, 3], data=b"1")], "W1"),
    ],
    ids=["none", "one missing", "one too many", "shape", "negative axis", "dtype", "size"],
)
def test_bad_gradients_are_invalid_arguments_and_change_nothing(stub, backend, messages, words):
    with pytest.raises(grpc.RpcError) as raised:
        stub.ApplyGradients(iter(messages), timeout=10)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert words in raised.value.details()
    assert backend.version == 0


def test_a_metric_that_is_not_finite_is_an_invalid_argument(tmp_path):
    with TensorBoardRecorder(tmp_path) as recorder, make_backend(metrics=recorder) as backend:
        with serve(backend) as address, grpc.insecure_channel(address) as channel:
            stub = bridge_pb2_grpc.ParameterServerStub(channel)
            metric = bridge_pb2.ScalarMetric(name="reward", y=float("nan"))
            with pytest.raises(grpc.RpcError) as raised:
                stub.StoreScalarMetric(metric, timeout=10)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
