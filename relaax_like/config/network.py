"""Settings of a network: its layers, as the YAML file lists them.

    network:
      layers: [nature, 512, {lstm: 256}, {lstm: 256}]
      activation: tanh

| layer | what it is |
|---|---|
| `512` or `{dense: 512}` | dense, with this number of units |
| `{conv: {filters: 32, kernel: 8, stride: 4}}` | convolution, square kernel, no padding |
| `a3c` | 16 8x8/4, 32 4x4/2, dense 256: Mnih et al. 2016, section 8 |
| `nature` | 32 8x8/4, 64 4x4/2, 64 3x3/1, dense 512: Mnih et al. 2015, Methods |
| `impala` | residual, 16, 32, 32 channels, dense 256: Espeholt et al. 2018, figure 3 |
| `{lstm: 256}`, `{gru: 256}` | recurrent, with this number of units; there can be several |

| activation | y |
|---|---|
| `tanh`, `relu`, `sigmoid`, `linear` | tanh(x), max(x, 0), 1 / (1 + exp(-x)), x |
| `leaky_relu` | x, and 0.01 x below 0: Maas et al. 2013 |
| `elu` | x, and exp(x) - 1 below 0: Clevert et al. 2016 |
| `selu` | 1.0507 x, and 1.7581 (exp(x) - 1) below 0: Klambauer et al. 2017 |
| `gelu` | x (1 + tanh(0.7979 (x + 0.044715 x^3))) / 2: Hendrycks & Gimpel 2016, section 2 |
| `silu`, also `swish` | x / (1 + exp(-x)): Elfwing et al. 2018; Ramachandran et al. 2017 |
| `softplus` | log(1 + exp(x)) |

If `observations` names several inputs (`config/leaves.py`), each first goes through its own
layers, and these layers receive the joined outputs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainSerializer, PlainValidator

from relaax_like.config.base import Settings
from relaax_like.config.problems import describe_value

_EXPECTED = (
    "expected a number of units (an integer), a3c, nature, impala, or one of {dense: UNITS}, "
    "{conv: {filters: F, kernel: K, stride: S}}, {lstm: UNITS}, {gru: UNITS}"
)


@dataclass(frozen=True)
class DenseConfig:
    """A dense layer with the network's activation."""

    units: int


@dataclass(frozen=True)
class ConvConfig:
    """A convolution with the network's activation: a square kernel, no padding."""

    filters: int
    kernel: int
    stride: int


@dataclass(frozen=True)
class ConvStackConfig:
    """The convolutions and the dense layer of a paper, with relu."""

    name: Literal["a3c", "nature", "impala"]


@dataclass(frozen=True)
class RecurrentConfig:
    """A recurrent layer."""

    cell: Literal["lstm", "gru"]
    units: int


Activation = Literal[
    "tanh",
    "relu",
    "leaky_relu",
    "elu",
    "selu",
    "gelu",
    "silu",
    "swish",
    "sigmoid",
    "softplus",
    "linear",
]
LayerConfig = DenseConfig | ConvConfig | ConvStackConfig | RecurrentConfig


def _parse_layer(value: Any) -> LayerConfig:
    if isinstance(value, LayerConfig):
        return value
    if value in ("a3c", "nature", "impala"):
        return ConvStackConfig(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return DenseConfig(_parse_size(value, "units"))
    match value:
        case {"conv": sizes} if len(value) == 1:
            return _parse_conv(sizes)
        case {"dense": units} if len(value) == 1:
            return DenseConfig(_parse_size(units, "dense"))
        case {"lstm": units} | {"gru": units} if len(value) == 1:
            (cell,) = value
            return RecurrentConfig(cell, _parse_size(units, cell))
    got = describe_value(value)
    if isinstance(value, Mapping):
        got = f"a section with {'the keys ' + ', '.join(map(str, value)) if value else 'no keys'}"
    raise ValueError(f"{_EXPECTED}, got {got}")


def _parse_conv(sizes: Any) -> ConvConfig:
    keys = ("filters", "kernel", "stride")
    if not isinstance(sizes, Mapping) or set(sizes) != set(keys):
        came = describe_value(sizes)
        if isinstance(sizes, Mapping):
            came = ", ".join(map(str, sizes)) or "none"
        raise ValueError(f"conv: expected the keys {', '.join(keys)}, got {came}")
    return ConvConfig(**{key: _parse_size(sizes[key], f"conv.{key}") for key in keys})


def _parse_size(value: Any, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}: expected an integer, 1 or more, got {describe_value(value)}")
    return value


def _layer_to_yaml(layer: LayerConfig) -> Any:
    match layer:
        case DenseConfig(units):
            return units
        case ConvConfig():
            return {"conv": asdict(layer)}
        case ConvStackConfig(name):
            return name
        case RecurrentConfig(cell, units):
            return {cell: units}


def _describe_layer(layer: LayerConfig) -> str:
    text = _layer_to_yaml(layer)
    return next(iter(text)) if isinstance(text, dict) else str(text)


def _validate_order(layers: tuple[LayerConfig, ...]) -> tuple[LayerConfig, ...]:
    flat: str | None = None
    for index, layer in enumerate(layers):
        here = f"layer {index} ({_describe_layer(layer)})"
        if flat is not None and isinstance(layer, ConvConfig | ConvStackConfig):
            raise ValueError(
                f"{here} is a convolution after {flat}, whose output is not an image; put "
                "convolutions first, with at most one of a3c, nature and impala, as the last of "
                "them"
            )
        if not isinstance(layer, ConvConfig):
            flat = here
    return layers


# From input to output; convolutions come first.
Layers = Annotated[
    tuple[
        Annotated[LayerConfig, PlainValidator(_parse_layer), PlainSerializer(_layer_to_yaml)], ...
    ],
    AfterValidator(_validate_order),
]


def is_recurrent(layers: Sequence[LayerConfig]) -> bool:
    """Returns whether any layer is recurrent."""
    return any(isinstance(layer, RecurrentConfig) for layer in layers)


def begins_with_convolution(layers: Sequence[LayerConfig]) -> bool:
    """Returns whether the input must be an image, `[height, width, channels]`."""
    # Convolutions come first or not at all.
    return bool(layers) and isinstance(layers[0], ConvConfig | ConvStackConfig)


class NetworkConfig(Settings):
    """Section `network` of an algorithm's settings."""

    layers: Layers = Field(default=(DenseConfig(64), DenseConfig(64)))
    """Layers from input to output: UNITS of a dense layer, a3c, nature, impala, {conv: {filters: F,
    kernel: K, stride: S}}, {lstm: UNITS} or {gru: UNITS}."""
    activation: Activation = "tanh"
    """Activation of dense and conv layers; a3c, nature and impala use relu, lstm and gru their
    own."""

    @property
    def is_recurrent(self) -> bool:
        """Whether any layer is recurrent."""
        return is_recurrent(self.layers)

    @property
    def begins_with_convolution(self) -> bool:
        """Whether the input must be an image, `[height, width, channels]`."""
        return begins_with_convolution(self.layers)
