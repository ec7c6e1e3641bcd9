"""RUN/versions.json: what clients have said about the versions of their simulator's packages."""

import contextlib
import json
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path

logger = logging.getLogger(__name__)
VERSIONS_NAME = "versions.json"
_MAX_VERSIONS = 300
_lock = threading.Lock()  # guards the files


def read_versions(run_dir: Path) -> dict[str, list[str]]:
    """Returns package -> its versions, in the order in which they came; {} if there are none."""
    with contextlib.suppress(OSError, TypeError, ValueError):
        found = json.loads((run_dir / VERSIONS_NAME).read_text("utf-8"))
        return {name: list(map(str, versions)) for name, versions in dict(found).items()}
    return {}


def keep_versions(run_dir: Path, client: str, versions: Mapping[str, str]) -> None:
    """Adds a client's versions; a second version of a package is a warning, once.

    Nothing is added if the file cannot be written.

    Args:
      run_dir: folder of the run.
      client: its name, for the warning.
      versions: package -> version.
    """
    with _lock, contextlib.suppress(OSError):
        kept = read_versions(run_dir)
        news = [package for package in versions if versions[package] not in kept.get(package, ())]
        if not news or sum(map(len, kept.values())) > _MAX_VERSIONS:
            return
        for package in news:
            kept.setdefault(package, []).append(versions[package])
        temporary = run_dir / f".tmp-{os.getpid()}-{VERSIONS_NAME}"
        temporary.write_text(json.dumps(kept, indent=2) + "\n", "utf-8")
        temporary.replace(run_dir / VERSIONS_NAME)
        for package in news:  # once they are in the file: each report brings them again
            if len(kept[package]) == 2:
                logger.warning(
                    "%s has %s %s, but another client of this run %s: the same environment can "
                    "behave differently; install one version",
                    *(client, package, *reversed(kept[package])),
                )
