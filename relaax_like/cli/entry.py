"""The installed commands: a missing library prints one line, and an early Ctrl-C no traceback."""

import gc
import importlib
import signal
import sys

from relaax_like.extras import naming_missing
from relaax_like.wire.errors import ConfigError


def relaax() -> None:
    """Runs `relaax`; without the servers' libraries, what the base install can do."""
    try:
        _run("main")
    except ConfigError as error:
        from relaax_like.cli.base import run_base

        sys.exit(run_base(sys.argv[1:], str(error)))


def parameter_server() -> None:
    """Runs `relaax-parameter-server`."""
    _run_server("parameter_server")


def rlx_server() -> None:
    """Runs `relaax-rlx-server`."""
    _run_server("rlx_server")


def metrics_server() -> None:
    """Runs `relaax-metrics-server`."""
    _run_server("metrics_server")


def learner() -> None:
    """Runs `relaax-learner`."""
    _run_server("learner")


def _run_server(name: str) -> None:
    try:
        _run(name)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def _run(name: str) -> None:
    """Runs a module of `cli`.

    Raises:
      ConfigError: a library that the module imports is not installed.
    """
    # Imported modules stay: garbage collection of them would take a tenth of the startup time.
    gc.disable()
    try:
        with naming_missing():
            module = importlib.import_module(f"relaax_like.cli.{name}")
    except KeyboardInterrupt:  # while libraries are being loaded
        sys.exit(128 + signal.SIGINT)
    gc.enable()
    module.app()
