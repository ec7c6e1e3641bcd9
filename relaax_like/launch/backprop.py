"""Threads for the updates of a run: a fixed number, or the fastest."""

import contextlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from relaax_like.config.models import Experiment
from relaax_like.config.plan import Offline, Replay, get_plan, name_plan
from relaax_like.config.run_folder import CONFIG_NAME
from relaax_like.nn.threads import set_threads
from relaax_like.wire.errors import ConfigError, RelaaxError

logger = logging.getLogger(__name__)

FILE_NAME = "backprop_workers.json"
_TIMEOUT_SEC = 300.0


def set_backprop_workers(experiment: Experiment) -> None:
    """Sets the number of TensorFlow threads of this process; call it before TensorFlow is loaded.

    With `learner.backprop_workers: -1`, 1, 2, 4 ... threads are measured, each in its own process,
    which takes ten seconds or more; the result is stored in the run's folder, for a resumed run.

    Args:
      experiment: its config.yaml is in the run's folder.

    Raises:
      ConfigError: it is -1, but a plan of the algorithm has no rollouts to measure an update with.
      RelaaxError: a measurement failed.
    """
    threads = experiment.learner.backprop_workers
    if threads < 0:
        _validate_measurable(experiment)
        threads = _choose(experiment.run_dir)
    set_threads(threads)


def _validate_measurable(experiment: Experiment) -> None:
    found = get_plan(experiment.algorithm)
    for plan in found.values() if isinstance(found, Mapping) else [found]:
        if isinstance(plan, Replay | Offline):
            raise ConfigError(
                "learner.backprop_workers: -1 measures updates of rollouts, but a plan of this "
                f"algorithm is {name_plan(plan)}; set a number of threads, such as 1"
            )


def _choose(run_dir: Path) -> int:
    path, counts = run_dir / FILE_NAME, _list_counts()
    seconds = {}
    with contextlib.suppress(OSError, ValueError):  # never measured, or damaged
        seconds = json.loads(path.read_text())
    if not (
        isinstance(seconds, dict)
        and list(seconds) == [str(count) for count in counts]  # else from another machine
        and all(isinstance(sec, float) for sec in seconds.values())
    ):
        seconds = {str(count): _measure(run_dir, count) for count in counts}
        try:
            path.write_text(json.dumps(seconds))
        except OSError as error:
            logger.warning(
                "%s cannot be written: %s; the next start measures again", path, error.strerror
            )
    best = min(seconds, key=seconds.__getitem__)
    shown = ", ".join(f"{count}: {1000 * sec:.3g} ms" for count, sec in seconds.items())
    logger.info("learner.backprop_workers: %s (threads: time per minibatch; %s)", best, shown)
    return int(best)


def _list_counts() -> list[int]:
    """Returns 1, 2, 4 ... up to the number of processors, and that number itself."""
    processors = os.cpu_count() or 1
    return sorted({*(1 << i for i in range(processors.bit_length())), processors})


def _measure(run_dir: Path, count: int) -> float:
    argv = [sys.executable, "-m", "relaax_like.launch.backprop_main"]
    argv += [str(run_dir / CONFIG_NAME), str(count)]
    logger.info("measuring the update with %d thread(s)", count)
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_SEC,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise _explain(count, f"it took longer than {_TIMEOUT_SEC:.0f} s") from None
    except OSError as error:
        raise _explain(count, f"its process cannot be started: {error}") from error
    if done.returncode:
        why = " ".join(done.stderr.split())[-500:]
        raise _explain(count, why or f"its process ended with status {done.returncode}")
    return float(done.stdout.splitlines()[-1])


def _explain(count: int, why: str) -> RelaaxError:
    return RelaaxError(
        f"learner.backprop_workers: -1, but the update with {count} thread(s) could not be "
        f"measured: {why.rstrip('.')}; set a number of threads, such as 1"
    )
