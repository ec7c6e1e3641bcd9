"""Section `network`: what it can say, what is refused and with which words, and dumping."""

# covers F7, P26

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from relaax_like.config.loader import dump_experiment, load_experiment
from relaax_like.config.network import (
    ConvConfig,
    ConvStackConfig,
    DenseConfig,
    NetworkConfig,
    RecurrentConfig,
)
from relaax_like.wire.errors import ConfigError

_CONFIG = """
from relaax_like.config.algorithm import AlgorithmConfig
from relaax_like.config.network import NetworkConfig


class Config(AlgorithmConfig):
    network: NetworkConfig = NetworkConfig()
"""


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Writes an experiment whose algorithm has a section `network`, on line 3."""
    folder = tmp_path / "my_algorithm"
    folder.mkdir()
    (folder / "config.py").write_text(_CONFIG)

    def write_file(network: str) -> Path:
        path = tmp_path / "cartpole.yaml"
        path.write_text(f"algorithm:\n  path: my_algorithm\n  network: {network}\n")
        return path

    return write_file


def load_network(path: Path) -> NetworkConfig:
    algorithm: Any = load_experiment(path).algorithm
    return algorithm.network


def test_defaults() -> None:
    assert NetworkConfig().layers == (DenseConfig(64), DenseConfig(64))
    assert NetworkConfig().activation == "tanh"


_GOOD = {
    "none": ("[]", ()),
    "numbers of units": ("[64, 1e2]", (DenseConfig(64), DenseConfig(100))),
    "dense": ("[{dense: 32}]", (DenseConfig(32),)),
    "stack": ("[a3c]", (ConvStackConfig("a3c"),)),
    "all kinds": (
        "[{conv: {filters: 8, kernel: 3, stride: 2}}, impala, 512, {lstm: 256}, 64]",
        (
            ConvConfig(8, 3, 2),
            ConvStackConfig("impala"),
            DenseConfig(512),
            RecurrentConfig("lstm", 256),
            DenseConfig(64),
        ),
    ),
    "recurrent alone": ("[{gru: 5}]", (RecurrentConfig("gru", 5),)),
    "several recurrent": (
        "[{lstm: 64}, 8, {lstm: 64}, {gru: 3}]",
        (
            RecurrentConfig("lstm", 64),
            DenseConfig(8),
            RecurrentConfig("lstm", 64),
            RecurrentConfig("gru", 3),
        ),
    ),
}


@pytest.mark.parametrize(("layers", "want"), _GOOD.values(), ids=_GOOD.keys())
def test_layers_are_read_and_survive_dumping(
    write: Any, tmp_path: Path, layers: str, want: tuple[Any, ...]
) -> None:
    experiment = load_experiment(write(f"{{layers: {layers}, activation: relu}}"))
    algorithm: Any = experiment.algorithm
    assert algorithm.network.layers == want
    assert algorithm.network.activation == "relu"
    saved = tmp_path / "config.yaml"
    saved.write_text(dump_experiment(experiment))
    assert load_network(saved) == algorithm.network


def test_it_is_dumped_as_it_is_written() -> None:
    layers = ({"conv": {"filters": 8, "kernel": 3, "stride": 2}}, "nature", 512, {"lstm": 256})
    network = NetworkConfig.model_validate({"layers": layers})
    assert network.model_dump(mode="json") == {"layers": list(layers), "activation": "tanh"}
    assert NetworkConfig(layers=network.layers) == network


_A_LAYER = (
    "expected a number of units (an integer), a3c, nature, impala, or one of {dense: UNITS}, "
    "{conv: {filters: F, kernel: K, stride: S}}, {lstm: UNITS}, {gru: UNITS}"
)
# name: (value of `network`, what is said behind "algorithm.network.")
_BAD = {
    "text": ("{layers: [64, natur]}", f"layers.1: {_A_LAYER}, got 'natur'"),
    "half a unit": ("{layers: [1.5]}", f"layers.0: {_A_LAYER}, got 1.5"),
    "true": ("{layers: [true]}", f"layers.0: {_A_LAYER}, got true"),
    "null": ("{layers: [null]}", f"layers.0: {_A_LAYER}, got null"),
    "list": ("{layers: [[64]]}", f"layers.0: {_A_LAYER}, got a list"),
    "no units": ("{layers: [0]}", "layers.0: units: expected an integer, 1 or more, got 0"),
    "no key": ("{layers: [{}]}", f"layers.0: {_A_LAYER}, got a section with no keys"),
    "other key": (
        "{layers: [{rnn: 3}]}",
        f"layers.0: {_A_LAYER}, got a section with the keys rnn",
    ),
    "two keys": (
        "{layers: [{lstm: 3, dense: 3}]}",
        f"layers.0: {_A_LAYER}, got a section with the keys lstm, dense",
    ),
    "units as text": (
        "{layers: [{lstm: many}]}",
        "layers.0: lstm: expected an integer, 1 or more, got 'many'",
    ),
    "conv without keys": (
        "{layers: [{conv: 32}]}",
        "layers.0: conv: expected the keys filters, kernel, stride, got 32",
    ),
    "conv with a key too few": (
        "{layers: [{conv: {filters: 8, kernel: 3}}]}",
        "layers.0: conv: expected the keys filters, kernel, stride, got filters, kernel",
    ),
    "conv with a stride of zero": (
        "{layers: [{conv: {filters: 8, kernel: 3, stride: 0}}]}",
        "layers.0: conv.stride: expected an integer, 1 or more, got 0",
    ),
    "convolution after dense": (
        "{layers: [64, {conv: {filters: 8, kernel: 3, stride: 1}}]}",
        "layers: layer 1 (conv) is a convolution after layer 0 (64), whose output is not an "
        "image; put convolutions first, with at most one of a3c, nature and impala, as the last "
        "of them",
    ),
    "convolution after a stack": (
        "{layers: [a3c, nature]}",
        "layers: layer 1 (nature) is a convolution after layer 0 (a3c), whose output is not an "
        "image; put convolutions first, with at most one of a3c, nature and impala, as the last "
        "of them",
    ),
    "convolution after recurrent": (
        "{layers: [{gru: 4}, a3c]}",
        "layers: layer 1 (a3c) is a convolution after layer 0 (gru), whose output is not an "
        "image; put convolutions first, with at most one of a3c, nature and impala, as the last "
        "of them",
    ),
    "number for a list": ("{layers: 64}", "layers: expected a list, got 64"),
    "unknown activation": (
        "{activation: sigmoit}",
        "activation: expected 'tanh', 'relu', 'leaky_relu', 'elu', 'selu', 'gelu', 'silu', "
        "'swish', 'sigmoid', 'softplus' or 'linear', got 'sigmoit'",
    ),
    "misspelt key": (
        "{layer: [64]}",
        "layer: unknown key; did you mean layers? (known: layers, activation)",
    ),
}


@pytest.mark.parametrize(("network", "want"), _BAD.values(), ids=_BAD.keys())
def test_bad_form_names_the_layer_what_came_and_what_was_expected(
    write: Any, network: str, want: str
) -> None:
    path = write(network)
    with pytest.raises(ConfigError) as caught:
        load_experiment(path)
    assert str(caught.value) == f"{path}:3: algorithm.network.{want}"


def test_in_python_the_index_is_told_too() -> None:
    with pytest.raises(ValidationError) as caught:
        NetworkConfig.model_validate({"layers": (64, "natur")})
    assert caught.value.errors()[0]["loc"] == ("layers", 1)


def test_no_tensorflow_is_needed() -> None:
    code = "import sys, relaax_like.config.network; print('tensorflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n"
