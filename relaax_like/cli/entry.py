"""The installed commands: a missing library prints one line, and an early Ctrl-C no traceback."""

import functools
import gc
import importlib
import signal
import sys
from typing import Any

from relaax_like.extras import naming_missing
from relaax_like.wire.errors import ConfigError


def relaax() -> None:
    """Runs `relaax`; without the servers' libraries, what the base install can do."""
    try:
        module = _load("main")
    except ConfigError as error:
        from relaax_like.cli.base import run_base

        sys.exit(run_base(sys.argv[1:], str(error)))
    module.app()


def _run_server(role: str) -> None:
    try:
        module = _load("servers")
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    module.APPS[role]()


# `relaax-parameter-server`, and the other servers' programs.
parameter_server = functools.partial(_run_server, "parameter_server")
rlx_server = functools.partial(_run_server, "rlx_server")
metrics_server = functools.partial(_run_server, "metrics_server")
learner = functools.partial(_run_server, "learner")


def _load(name: str) -> Any:
    """Returns a module of `cli`.

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
    return module
