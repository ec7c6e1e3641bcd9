"""RunRecord: the progress of a run in a Ray cluster; the run's folder is on one machine only."""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from relaax_like.wire.errors import RelaaxError

logger = logging.getLogger(__name__)

NAMESPACE = "relaax"
INTERVAL_SEC = 2.0


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """The progress of a run, as stored in a cluster.

    Attributes:
      host: address of the machine that has the run's folder.
      time: local time at which this was written, "YYYY-MM-DD HH:MM:SS".
      global_t: environment steps of the run.
      version: version of its weights.
    """

    host: str
    time: str
    global_t: int
    version: int


class RunRecord:
    """The record of one run in the key-value store of a Ray cluster. Thread-safe.

    The store lives as long as the cluster's head. It holds text only: one JSON object for each run.

        record = RunRecord(ray, experiment.run_dir)
        with record.following(lambda: (server.global_t, server.version)):
            train()

    Attributes:
      host: address of this machine.
      is_written: whether this process has written the record.

    Args:
      ray: the module, connected to the cluster.
      run_dir: the run's folder; its absolute path is the run's name in the cluster.
    """

    def __init__(self, ray: Any, run_dir: Path):
        self.host: str = ray.util.get_node_ip_address()
        self.is_written = False
        self._key = f"run {run_dir.absolute()}".encode()

    def read(self) -> RunProgress | None:
        """Returns the stored progress; None: nothing is stored, as before a run has begun.

        Raises:
          RelaaxError: the store has an invalid record of this run.
          Exception: Ray's error, if the store does not answer.
        """
        from ray.experimental.internal_kv import _internal_kv_get

        found = _internal_kv_get(self._key, namespace=NAMESPACE)
        if found is None:
            return None
        try:
            parts = json.loads(found)
            return RunProgress(
                host=str(parts["host"]),
                time=str(parts["time"]),
                global_t=int(parts["global_t"]),
                version=int(parts["version"]),
            )
        except (ValueError, TypeError, KeyError):
            raise RelaaxError(
                f"--ray: the record {self._key.decode()!r} in the cluster's store is "
                f"{found!r:.100}, expected a JSON object with host, time, global_t and version; "
                "another version of relaax_like might have written it. Choose another run_dir"
            ) from None

    def write(self, global_t: int, version: int) -> None:
        """Replaces the stored progress.

        Args:
          global_t: environment steps of the run.
          version: of its weights.

        Raises:
          Exception: Ray's error, if the store does not answer.
        """
        from ray.experimental.internal_kv import _internal_kv_put

        now = time.strftime("%Y-%m-%d %H:%M:%S")
        progress = RunProgress(host=self.host, time=now, global_t=global_t, version=version)
        text = json.dumps(asdict(progress))
        _internal_kv_put(self._key, text.encode(), overwrite=True, namespace=NAMESPACE)
        self.is_written = True

    @contextlib.contextmanager
    def following(self, read: Callable[[], tuple[int, int]]) -> Iterator[None]:
        """Writes steps and version when they change, in a thread, within the context.

        They are read every `INTERVAL_SEC`. If they cannot be written, a warning is logged, and no
        more are written.

        Args:
          read: returns steps and version; raises RelaaxError if they are not known at the moment.
            Called in the thread.
        """
        ended = threading.Event()

        def follow() -> None:
            written = None
            while True:
                try:
                    newest = read()
                    if newest != written:
                        self.write(*newest)
                        written = newest
                except RelaaxError as error:
                    logger.debug("the run's progress is unknown: %s", error)
                except Exception as error:  # Ray's are of many classes
                    if not ended.is_set():
                        logger.warning(
                            "the Ray cluster no longer stores the run's progress: %s; a later "
                            "start on an empty folder will not know what it lost",
                            error,
                        )
                    return
                if ended.wait(INTERVAL_SEC):
                    return

        thread = threading.Thread(target=follow, name="run record", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(INTERVAL_SEC)
