"""VersionCopies: copies of weights and optimizers in RUN/ckpt, for runs that learn by pushes."""

import contextlib
import logging
import threading
from pathlib import Path
from typing import Self

import numpy as np

from relaax_like.config.models import Experiment
from relaax_like.learn.checkpoint import Checkpoint, checkpoint_path, save_checkpoint
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.snapshot_format import State
from relaax_like.wire.closing import Closing
from relaax_like.wire.errors import SnapshotError

logger = logging.getLogger(__name__)

_POLL_SEC = 0.2


class VersionCopies(Closing):
    """Writes `RUN/ckpt/version_N.npz` every `every` versions, and at the end if one is due.

        with VersionCopies(server, run_dir, every=1000):
            ...  # serve until the end

    A thread checks the version periodically, so N can be slightly larger than a multiple. If
    versions are due faster than files are written, some are skipped. If a copy cannot be written,
    an error is logged, and training continues.

    Args:
      server: provides the values.
      run_dir: of the run.
      every: versions between two copies, 1 or more.
    """

    def __init__(self, server: ParameterServer, run_dir: Path, every: int):
        self._server = server
        self._run_dir = run_dir
        self._every = every
        self._due = self._find_due()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="copies", daemon=True)

    def close(self) -> None:
        """Writes a copy if one is due, and ends the thread. Idempotent."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._closing.wait(_POLL_SEC)
            if self._server.version >= self._due:
                self._due = self._find_due()
                self._write(self._server.export_state())

    def _find_due(self) -> int:
        return (self._server.version // self._every + 1) * self._every

    def _write(self, state: State) -> None:
        path = checkpoint_path(self._run_dir, f"version_{state.version}")
        try:
            path.parent.mkdir(exist_ok=True)
            save_checkpoint(path, _make_copy(state))
        except (OSError, SnapshotError) as error:
            logger.error("no copy of version %d: %s; training continues", state.version, error)


def open_version_copies(
    experiment: Experiment, server: ParameterServer
) -> contextlib.AbstractContextManager[object]:
    """Returns a context manager that copies the server's values if the settings request it.

    If the run's learner publishes (placement server or standalone), the context manager does
    nothing: the learner itself writes a copy after each iteration for which one is due.
    """
    learner = experiment.learner
    if learner.save_freq <= 0 or learner.publishes:
        return contextlib.nullcontext()
    return VersionCopies(server, experiment.run_dir, learner.save_freq)


def _make_copy(state: State) -> Checkpoint:
    names = [segment.name for segment in state.manifest.segments]
    values = zip(names, state.manifest.unpack(state.values), strict=True)
    return Checkpoint(
        policy={
            **{f"value/{name}": value for name, value in values},
            **{f"slots/{group}": slots for group, slots in state.slots.items()},
            **{f"steps/{group}": np.array(steps) for group, steps in state.steps.items()},
            "global_t": np.array(state.global_t),
        },
        last_iter=state.version,
        last_step=state.global_t,
    )
