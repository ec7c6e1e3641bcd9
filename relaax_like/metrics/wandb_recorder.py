"""Event files whose curves are also sent to Weights & Biases, by a separate process.

Not by this process, because wandb changes how a process exits, opens files in other folders, and
can hang for as long as its server does.
"""

import importlib.metadata
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relaax_like.metrics.recorder import TensorBoardRecorder
from relaax_like.wire.errors import ConfigError

_PACKAGE = "wandb"
_PROGRAM = (sys.executable, "-m", "relaax_like.metrics.wandb_main")
# How long the end of a run waits for curves that have not been sent yet.
_END_SEC = 10.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class WandbRun:
    """A run as shown by W&B.

    Attributes:
      folder: absolute path of the run's folder; wandb only writes to its subfolder `wandb`.
      project: project to which the run belongs.
      group: group of runs that are shown together; None: no group.
      name: name of the run in W&B.
      config: settings of the run, nested JSON types.
    """

    folder: Path
    project: str
    group: str | None
    name: str
    config: Mapping[str, Any]


class WandbRecorder(TensorBoardRecorder):
    """Records points in an event file, which a child process forwards to W&B.

        with WandbRecorder(metrics_dir, run, global_t=lambda: store.global_t) as metrics:
            metrics.scalar("episode reward", 17.0)

    If the child fails or cannot be started, recording neither blocks nor fails: one warning is
    logged, and the event file is complete. If this process is killed, the child sends what is in
    the file, and exits.
    """

    def __init__(
        self,
        directory: str | Path,
        run: WandbRun,
        global_t: Callable[[], float] | None = None,
        program: Sequence[str] = _PROGRAM,
    ):
        """Opens a new event file, and starts the child.

        Args:
          directory: see `TensorBoardRecorder`.
          run: the run, as W&B shows it.
          global_t: see `TensorBoardRecorder`.
          program: command of the child.

        Raises:
          ConfigError: the directory cannot be written to, or wandb is not installed.
        """
        _validate_installed()
        super().__init__(directory, global_t)
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False
        paths = {"events": str(self.path.absolute()), "folder": str(run.folder)}
        order = {**vars(run), **paths}
        try:
            self._child = _start(program, run.folder / "wandb")
        except OSError as error:
            _warn(f"it cannot be started: {error.strerror}")
            return
        threading.Thread(
            target=self._listen, args=(self._child,), name="wandb output", daemon=True
        ).start()
        self._tell(json.dumps(order).encode() + b"\n")

    def close(self, timeout_sec: float = 5.0) -> None:
        """Writes queued points, and waits up to ten seconds for the upload to W&B. Idempotent.

        Args:
          timeout_sec: longest wait for the writing.
        """
        super().close(timeout_sec)
        child = self._child
        if child is None or self._closed:
            return
        self._closed = True
        self._tell(None)
        try:
            child.wait(_END_SEC)
        except subprocess.TimeoutExpired:
            _log.warning("wandb is still uploading; process %d ends when it is done", child.pid)

    def _tell(self, data: bytes | None) -> None:
        """Writes to the child; None: notifies it that the file is complete."""
        assert self._child is not None
        assert self._child.stdin is not None
        try:
            if data is None:
                self._child.stdin.close()
            else:
                self._child.stdin.write(data)
                self._child.stdin.flush()
        except OSError:  # it has ended, which `_listen` reports
            pass

    def _listen(self, child: "subprocess.Popen[bytes]") -> None:
        """Logs the child's output, and warns if it fails."""
        assert child.stdout is not None
        said = ""
        with child.stdout as lines:
            for line in lines:
                said = line.decode(errors="replace").strip()
                _log.info("wandb: %s", said)
        status = child.wait()
        if status:
            _warn(said or f"its process ended with status {status}")


def _warn(reason: str) -> None:
    _log.warning(
        "wandb receives no more curves (%s); training continues, and TensorBoard's files have "
        "all curves",
        reason,
    )


def _start(program: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    folder.mkdir(parents=True, exist_ok=True)  # otherwise wandb would write elsewhere
    return subprocess.Popen(
        program,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # Otherwise it would write outside of the run's folder, and send error reports.
        env={
            **os.environ,
            "WANDB_SILENT": "true",
            "WANDB_ERROR_REPORTING": "false",
            "WANDB_CACHE_DIR": str(folder / "cache"),
            "WANDB_DATA_DIR": str(folder / "cache"),
        },
        start_new_session=True,  # a Ctrl-C must only reach this process
    )


def _validate_installed() -> None:
    try:
        importlib.metadata.version(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(
            "wandb: the package is not installed; pip install 'relaax_like[wandb]', or remove "
            "the `wandb` section from the file"
        ) from None
