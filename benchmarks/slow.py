"""Pendulum-v1 on two machines, one of them slow: how few steps do xqc and droq need?

    for name in xqc/xqc sac/droq; do
        PYTHONPATH=. python -m benchmarks.learning algorithms/$name.yaml --steps 4000 \\
            --seeds 0 1 2 3 4 --set environment.clients=2 \\
            --set environment.env=benchmarks.slow:SlowPendulum-v1
    done

Of the clients of one run, all but the first sleep for 50 ms in each step. Learning starts at step
500 in both files. `relaax eval` has one client, which does not sleep. An empty file in the
temporary folder names the run that has its first client.
"""

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium

_PERIOD_SEC = 0.05


class Slow(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Sleeps in each step."""

    def step(self, action: Any) -> Any:
        """Makes a step."""
        time.sleep(_PERIOD_SEC)
        return super().step(action)


def make() -> gymnasium.Env[Any, Any]:
    """Makes the environment, slow unless the parent process has no other client."""
    first = Path(tempfile.gettempdir()) / f"first-client-of-{os.getppid()}"
    try:
        first.touch(exist_ok=False)
    except FileExistsError:
        return Slow(gymnasium.make("Pendulum-v1"))
    return gymnasium.make("Pendulum-v1")


gymnasium.register("SlowPendulum-v1", entry_point=make)
