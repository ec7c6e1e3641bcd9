"""`relaax doctor`: what works on this machine, and how to mend what does not."""

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Callable

from rich.console import Console

from relaax_like.config.address import Address
from relaax_like.launch.process import validate_port_free
from relaax_like.wire.errors import RelaaxError

_LIBRARIES = (
    "numpy",
    "protobuf",
    "grpcio",
    "tensorflow",
    "tensorboard",
    "pydantic",
    "numba",
    "gymnasium",
)


def run_checks() -> int:
    """Prints one line per check; returns 0 when nothing that training needs is missing."""
    console = Console()
    checks: list[tuple[str, bool, Callable[[], str]]] = [
        ("python", True, lambda: sys.version.split()[0]),
        *((name, name != "gymnasium", _version_check(name)) for name in _LIBRARIES),
        ("optimizer kernels", True, _check_kernels),
        ("honcho", False, lambda: _check_command("honcho")),
        ("port 7000", False, lambda: _check_port(7000)),
        ("port 7001", False, lambda: _check_port(7001)),
        ("display", False, _check_display),
    ]
    healthy = True
    for name, needed, check in checks:
        try:
            console.print(f"[green]ok[/]    {name}: {check()}")
        except Exception as error:
            healthy = healthy and not needed
            mark = "[red]FAIL[/]" if needed else "[yellow]note[/]"
            console.print(f"{mark}  {name}: {error}")
    return 0 if healthy else 1


def _version_check(name: str) -> Callable[[], str]:
    def check() -> str:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            raise RelaaxError("not installed; pip install 'relaax_like[all]'") from None

    return check


def _check_kernels() -> str:
    from relaax_like.parameter_server.kernels import default_form

    return f"{default_form()} form"


def _check_command(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise RelaaxError("not on the PATH; activate the virtual environment")
    return path


def _check_port(port: int) -> str:
    validate_port_free(Address("localhost", port), "--bind")
    return "free"


def _check_display() -> str:
    display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if not display:
        raise RelaaxError("none; environments train without one, but cannot be watched")
    return display
