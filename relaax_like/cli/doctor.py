"""`relaax doctor`: checks what works on this machine, and how to repair what does not."""

import importlib.metadata
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping

from relaax_like.extras import describe_cure, describe_missing
from relaax_like.wire.errors import RelaaxError

# Name of the distribution -> module.
_BASE = {"numpy": "numpy", "protobuf": "google.protobuf"}
_SERVER = {
    "grpcio": "grpc",
    "tensorflow": "tensorflow",
    "tensorboard": "tensorboard",
    "pydantic": "pydantic",
    "numba": "numba",
}
# An installation without any of them is one for environments.
_ONLY_OF_SERVERS = ("grpc", "numba", "tensorflow")
_IMPORT_SEC = 300.0

Check = tuple[str, bool, Callable[[], str]]


def run_checks() -> int:
    """Prints one line per check; returns 1 if something is missing that is needed, else 0.

    Training needs the servers' libraries; where none of them is installed, only environments run.
    """
    is_client = all(importlib.util.find_spec(module) is None for module in _ONLY_OF_SERVERS)
    checks: list[Check] = [
        ("python", True, lambda: sys.version.split()[0]),
        *_check_imports(_BASE, True),
        *([("servers", False, _refuse_servers)] if is_client else _check_servers()),
        *_check_imports({"gymnasium": "gymnasium"}, False),
        ("display", False, _check_display),
    ]
    healthy = True
    for name, is_needed, check in checks:
        try:
            print(f"ok    {name}: {check()}")
        except Exception as error:
            healthy = healthy and not is_needed
            print(f"{'FAIL' if is_needed else 'note'}  {name}: {error}")
    return 0 if healthy else 1


def _check_servers() -> list[Check]:
    return [
        *_check_imports(_SERVER, True),
        ("optimizer kernels", True, _check_kernels),
        ("honcho", False, lambda: _check_command("honcho")),
        ("port 7000", False, lambda: _check_port(7000, "relaax-parameter-server")),
        ("port 7001", False, lambda: _check_port(7001, "relaax-rlx-server")),
    ]


def _refuse_servers() -> str:
    raise RelaaxError(f"this installation is for environments; to train, {describe_cure('server')}")


def _check_imports(modules: Mapping[str, str], is_needed: bool) -> list[Check]:
    return [(name, is_needed, _import_check(name, of)) for name, of in modules.items()]


def _import_check(name: str, module: str) -> Callable[[], str]:
    """Returns a check that imports a library, in its own process: native code can crash it."""

    def check() -> str:
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            raise RelaaxError(describe_missing(module) or f"{name} is not installed; install it")
        done = subprocess.run(
            [sys.executable, "-c", f"import {module}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=_IMPORT_SEC,
        )
        if done.returncode:
            raise RelaaxError(f"cannot be imported: {_describe_failure(done)}; reinstall it")
        return _find_version(name, module)

    return check


def _find_version(name: str, module: str) -> str:
    """Returns the version of a library, and the distribution's name if it has another one."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        # Such as tensorflow-cpu, or a module that belongs to no distribution.
        others = importlib.metadata.packages_distributions().get(module, [])
        found = [f"{other} {importlib.metadata.version(other)}" for other in sorted(set(others))]
        return ", ".join(found) or "unknown version"


def _describe_failure(done: "subprocess.CompletedProcess[str]") -> str:
    if done.returncode < 0:
        return f"its process was killed by {signal.Signals(-done.returncode).name}"
    return (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]


def _check_kernels() -> str:
    from relaax_like.parameter_server.kernels import default_form

    return f"{default_form()} form"


def _check_command(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise RelaaxError(
            f"not on the PATH; activate the virtual environment, or {describe_cure('server')}"
        )
    return path


def _check_port(port: int, section: str) -> str:
    from relaax_like.config.address import Address
    from relaax_like.runs.processes.process import validate_port_free

    validate_port_free(Address("localhost", port), f"--set {section}.bind=HOST:PORT")
    return "free"


def _check_display() -> str:
    display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if not display:
        raise RelaaxError(
            "DISPLAY and WAYLAND_DISPLAY are not set, so environments can train, but not be "
            "watched; to watch them, set one of the two"
        )
    return display
