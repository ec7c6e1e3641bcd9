"""Libraries that the base install does not include, and the extra that installs each."""

import contextlib
import importlib.util
import sys
from collections.abc import Iterator

from relaax_like.wire.errors import ConfigError

# Extra of pyproject.toml -> modules that it installs.
_MODULES = {
    "server": "grpc grpc_health honcho msgspec numba prometheus_client psutil pydantic yaml rich "
    "tensorboard tensorflow threadpoolctl typer uvloop websockets",
    "envs": "ale_py gymnasium Box2D mujoco pygame",
    "agents": "mpe2 pettingzoo",
    "mirror": "fsspec s3fs",
    "plot": "imageio imageio_ffmpeg matplotlib",
    "wandb": "wandb",
    "export": "onnx onnxruntime tf2onnx",
    "offline": "minari PIL",
    "ray": "ray",
}


def describe_cure(extra: str) -> str:
    """Returns how to install an extra, for the end of an error."""
    return f"install it: pip install 'relaax_like[{extra}]'"


def describe_missing(module: str | None) -> str | None:
    """Returns one line that says how to install a module.

    None: it is in none of the extras, or its package is installed, so that only a part is missing.

    Args:
      module: its dotted name, such as the `name` of a `ModuleNotFoundError`.
    """
    library, dot, _ = (module or "").partition(".")
    if dot and importlib.util.find_spec(library):
        return None
    for extra, modules in _MODULES.items():
        if library in modules.split():
            return f"{library} is not installed for {sys.executable}; {describe_cure(extra)}"
    return None


@contextlib.contextmanager
def naming_missing() -> Iterator[None]:
    """Replaces the error of a library that only an extra installs by one line that says how.

    Raises:
      ConfigError: a library of an extra is missing. The ModuleNotFoundError of any other module
        passes unchanged.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        line = describe_missing(error.name)
        if line is None:
            raise
        raise ConfigError(line) from None
