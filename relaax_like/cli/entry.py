"""The installed commands: a missing library prints one line, and an early Ctrl-C no traceback."""

import gc
import importlib
import signal
import sys

from relaax_like.extras import describe_missing


def relaax() -> None:
    """Runs `relaax`."""
    _run("main")


def parameter_server() -> None:
    """Runs `relaax-parameter-server`."""
    _run("parameter_server")


def rlx_server() -> None:
    """Runs `relaax-rlx-server`."""
    _run("rlx_server")


def metrics_server() -> None:
    """Runs `relaax-metrics-server`."""
    _run("metrics_server")


def learner() -> None:
    """Runs `relaax-learner`."""
    _run("learner")


def _run(name: str) -> None:
    # Imported modules stay: garbage collection of them would take a tenth of the startup time.
    gc.disable()
    try:
        module = importlib.import_module(f"relaax_like.cli.{name}")
    except ModuleNotFoundError as error:
        line = describe_missing(error.name)
        if line is None:
            raise
        print(f"error: {line}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:  # while libraries are being loaded
        sys.exit(128 + signal.SIGINT)
    gc.enable()
    module.main()
