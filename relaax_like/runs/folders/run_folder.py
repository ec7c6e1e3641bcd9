"""A run's folder: its files, and the checks that keep a new run from overwriting an older one.

RUN/config.yaml        the resolved settings, of the newest start
RUN/experiment.info    settings, command lines, versions, machine, times; for people
RUN/experiment.yaml    the same, for programs
RUN/spaces.json        the spaces of the first environment that it was trained in
RUN/results.json       how the newest start ended
RUN/begun              empty: the run has had a snapshot; see `validate_not_emptied`
RUN/log.txt            the output of all starts; see runs/processes/log_file.py
"""

import contextlib
import importlib.metadata
import json
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from relaax_like.config.loader import export_experiment
from relaax_like.config.models import Experiment
from relaax_like.config.run_folder import CONFIG_NAME
from relaax_like.config.run_spaces import forget_run_spaces
from relaax_like.config.sources import PRIOR_NAME
from relaax_like.config.yaml_document import read_yaml, write_yaml
from relaax_like.core.journal.files import HEADER_BYTES, get_size, list_segments
from relaax_like.core.journal.head import path_of_head
from relaax_like.core.records import Status
from relaax_like.parameter_server.folder import lock_folder
from relaax_like.parameter_server.mirror_remote import hide_password
from relaax_like.parameter_server.published_state import NAMES
from relaax_like.parameter_server.rehearsal import rehearse
from relaax_like.parameter_server.snapshots import list_names
from relaax_like.runs.folders.previous import read_previous
from relaax_like.wire.errors import ConfigError, RelaaxError, SnapshotError

EXPERIMENT_NAME = "experiment.yaml"
INFO_NAME = "experiment.info"
RESULTS_NAME = "results.json"
BEGUN_NAME = "begun"
# How a run is started: in one process, as several processes, or as individual servers.
TRAIN, RUN, SERVERS = "train", "run", "servers"
# JSON: section -> keys of config.yaml. On a Ray cluster, the addresses that processes get are those
# of one start, and of no use to the next one.
ADDRESSES = "RELAAX_CONFIG_ADDRESSES"
_TENSORFLOW = ("tensorflow", "tensorflow-cpu", "tf-nightly")
_GIT_SEC = 5.0
_SMALL_BYTES = 1 << 20
_FORCE = "start again with --force (in Python: force=True)"
_TIME = "%Y-%m-%d %H:%M:%S %z"
logger = logging.getLogger(__name__)


def begin_run(experiment: Experiment, force: bool) -> None:
    """Ensures that a new run starts in folders in which no run has been trained.

    Args:
      experiment: defines the folders.
      force: rename the folders of an older run to NAME.old-N.

    Raises:
      ConfigError: there is an older run, and `force` is False; or `force` is True, but a folder of
        the older run cannot be renamed or contains the working directory, the YAML file or the run
        of `learner.previous`, or that run cannot be read, or the settings name a mirror; or the
        spaces.json of a start without progress cannot be removed.
      SnapshotError: see `validate_not_held` and `find_progress`; or the snapshots or journals of a
        start without progress cannot be removed.
      JournalError: see `find_progress`.
    """
    steps = {
        run.parameter_server.checkpoint_dir: step
        for run in experiment.runs
        if (step := find_progress(run.parameter_server.checkpoint_dir)) is not None
    }
    if not steps:
        for run in experiment.runs:
            _forget_empty_start(run)
            forget_run_spaces(run.run_dir)
            with contextlib.suppress(OSError):  # a learner would name it
                (run.parameter_server.checkpoint_dir / PRIOR_NAME).unlink(missing_ok=True)
        return
    if force:
        validate_not_held(experiment)
        places = _find_movable(experiment)
        for run in experiment.runs:
            if run.learner.previous is not None:
                read_previous(run.learner.previous)
        _move_aside(places)
        return
    raise _describe_older(experiment, steps)


def _describe_older(experiment: Experiment, steps: Mapping[Path, int]) -> ConfigError:
    """Returns the error of a run that is there already: folder of checkpoints -> its step."""
    checkpoints, newest = next(iter(steps.items()))
    run_dir, found = experiment.run_dir, _find_step(checkpoints, newest)
    has_mirror = experiment.parameter_server.mirror_url is not None
    try:
        _find_movable(experiment)
        offers_force = True
    except ConfigError:
        offers_force = False
    is_inside = checkpoints.absolute().is_relative_to(run_dir.absolute())
    if not (is_inside or (run_dir / CONFIG_NAME).is_file()):
        cure = f", or {_FORCE}, which keeps it as {_find_free_name(checkpoints)}"
        return ConfigError(
            f"relaax-parameter-server.checkpoint_dir: {checkpoints} already contains a run, at "
            f"step {found:,}. Choose another checkpoint_dir"
            f"{' and another mirror_url' if has_mirror else ''}{cure if offers_force else ''}"
        )
    cure = f"{_FORCE}, which keeps it as {_find_free_name(run_dir)}, or "
    return ConfigError(
        f"run_dir: {run_dir} already contains a run, at step {found:,}. Continue it with "
        f"`relaax resume {shlex.quote(str(run_dir))}`, or {cure if offers_force else ''}choose "
        f"another run_dir{' and another mirror_url' if has_mirror else ''}"
    )


def _find_step(checkpoints: Path, found: int) -> int:
    """Returns the step from which a run would continue; `found` if that is not known."""
    with contextlib.suppress(RelaaxError, OSError):  # it might be running
        return max(found, rehearse(checkpoints).end.global_t)
    return found


def validate_not_emptied(experiment: Experiment, accept_loss: bool = False) -> None:
    """Refuses to start a run whose folder of checkpoints has been emptied.

    Args:
      experiment: defines the folders.
      accept_loss: start it from the mirror, or from scratch, also in the processes of this start.

    Raises:
      ConfigError: a run had begun, but there are no checkpoints, and `accept_loss` is False.
      SnapshotError, JournalError: see `find_progress`.
    """
    marker = experiment.run_dir / BEGUN_NAME
    checkpoints = experiment.parameter_server.checkpoint_dir
    if accept_loss:
        marker.unlink(missing_ok=True)
    is_emptied = not list_names(checkpoints) and find_progress(checkpoints) is None
    if is_emptied and marker.exists():
        raise ConfigError(
            f"relaax-parameter-server.checkpoint_dir: {checkpoints} has no checkpoints, but this "
            f"run had begun ({marker}), and a start here would lose it. Restore the folder, or "
            "choose another run_dir; or start with --accept-loss, from the copy in mirror_url if "
            f"there is one, or else from scratch (a single server: remove {marker})"
        )


def note_begun(experiment: Experiment) -> None:
    """Notes that the run has had a snapshot, for `validate_not_emptied`; errors are ignored."""
    with contextlib.suppress(OSError):
        (experiment.run_dir / BEGUN_NAME).touch()


def _forget_empty_start(experiment: Experiment) -> None:
    """Removes snapshots and journals of a start without any progress: the model might have changed.

    Raises:
      SnapshotError: a file cannot be removed; for others, see `validate_not_held`.
    """
    checkpoints = experiment.parameter_server.checkpoint_dir
    if not list_names(checkpoints):
        return
    validate_not_held(experiment)
    try:
        (experiment.run_dir / BEGUN_NAME).unlink(missing_ok=True)
        for name in list_names(checkpoints):
            shutil.rmtree(checkpoints / name)
        for journal in list_journals(checkpoints):
            shutil.rmtree(journal, ignore_errors=True)
            # Left behind, it would claim records that are missing.
            path_of_head(journal).unlink(missing_ok=True)
    except OSError as error:
        raise SnapshotError(
            f"relaax-parameter-server.checkpoint_dir: {checkpoints}: the files of a start without "
            f"any progress cannot be removed: {error}; correct the folder's permissions, or choose "
            "another checkpoint_dir"
        ) from None


def validate_not_held(experiment: Experiment) -> None:
    """Checks that no process is using the run's checkpoint folder.

    Raises:
      SnapshotError: a parameter server, `relaax train` or `relaax fsck` is using it (the error
        names the pid, if known); or the folder's lock file cannot be locked.
    """
    for run in experiment.runs:
        checkpoints = run.parameter_server.checkpoint_dir
        if checkpoints.is_dir():
            with contextlib.closing(lock_folder(checkpoints)):
                pass


def find_progress(checkpoints: Path) -> int | None:
    """Returns the step of a run's newest snapshot; None if nothing has been trained.

    A start without any progress leaves a snapshot of step 0, which does not count. Pushes in the
    journal, publications and received experience count as training; the step can then be 0.

    Raises:
      SnapshotError: the folder of checkpoints cannot be read.
      JournalError: the folder of a journal, or a file in it, cannot be read.
    """
    newest = max(
        ((int(steps), int(version)) for _, steps, version in _split_names(checkpoints)),
        default=(0, 0),
    )
    published = any((checkpoints / name).exists() for name in NAMES)
    received = any(
        get_size(segment) > HEADER_BYTES
        for journal in list_journals(checkpoints)
        for segment in list_segments(journal)
    )
    return newest[0] if newest > (0, 0) or published or received else None


def list_journals(checkpoints: Path) -> list[Path]:
    """Returns the existing folders of journals: that of pushes, and those of replay tables."""
    found = sorted(checkpoints.glob("replay*")) if checkpoints.is_dir() else []
    journals = [checkpoints / "journal", *found]
    return [journal for journal in journals if journal.is_dir()]


def write_config(experiment: Experiment) -> None:
    """Writes config.yaml atomically: other processes of the run might be reading it.

    Addresses are those of the environment variable that `ADDRESSES` names, if it is set.

    Raises:
      ConfigError: the file cannot be written.
    """
    data = export_experiment(experiment)
    for section, keys in json.loads(os.environ.get(ADDRESSES, "{}")).items():
        data[section].update(keys)
    _replace(experiment.run_dir / CONFIG_NAME, write_yaml(data))


def describe_start(experiment: Experiment, command: str) -> None:
    """Adds a start to experiment.yaml and experiment.info.

    Of a run with several policies, this also writes config.yaml.

    Args:
      experiment: the experiment that was started; its folder exists.
      command: TRAIN, RUN or SERVERS.

    Raises:
      ConfigError: a file cannot be written.
    """
    if experiment.policies:  # otherwise the parameter server does
        write_config(experiment)
    start = {
        "command": command,
        "argv": list(sys.argv),
        "folder": str(Path.cwd()),
        "time": time.strftime(_TIME),
        "machine": {
            "host": platform.node(),
            "system": platform.platform(),
            "cpus": os.cpu_count(),
        },
        "versions": {
            "python": platform.python_version(),
            "numpy": _find_version("numpy"),
            "tensorflow": _find_version(*_TENSORFLOW),
            "relaax_like": _find_version("relaax_like"),
        },
        "git_commit": _find_commit(experiment.file.parent),
    }
    path = experiment.run_dir / EXPERIMENT_NAME
    starts = [*_read_starts(path), start]
    settings = export_experiment(experiment)
    _replace(path, write_yaml({"starts": starts, "settings": settings}))
    info = "\n".join([*map(_format_start, starts), "settings of the most recent start\n"])
    _replace(experiment.run_dir / INFO_NAME, info + _indent(write_yaml(settings)))


def remember(experiment: Experiment) -> Callable[[], None]:
    """Remembers the files of a run, in case that a start is refused.

    Returns:
      A function that restores them: settings, logs, curves, and what a start adds to the folder of
      checkpoints. It does nothing if anything was trained, or if another process uses the run.
    """
    checkpoints = experiment.parameter_server.checkpoint_dir
    before = {path: _read_start(path) for path in _list_files(experiment)}
    trained = _describe_trained(checkpoints)

    def restore() -> None:
        errors = (SnapshotError, OSError)
        with contextlib.suppress(*errors), contextlib.closing(lock_folder(checkpoints)):
            if _describe_trained(checkpoints) != trained:
                return
            now = {path: _read_start(path) for path in _list_files(experiment)}
            for path in now.keys() - before.keys():
                path.unlink()
            for path, (size, content) in before.items():
                if now.get(path) == (size, content):
                    continue
                if len(content) == size:
                    path.write_bytes(content)
                else:
                    os.truncate(path, size)

    return restore


def _read_start(path: Path) -> tuple[int, bytes]:
    """Returns a file's size, and its beginning; larger files are only appended to, or replaced."""
    with path.open("rb") as file:
        return path.stat().st_size, file.read(_SMALL_BYTES)


def _list_files(experiment: Experiment) -> list[Path]:
    settings = experiment.parameter_server
    folders = {experiment.run_dir, settings.checkpoint_dir, settings.metrics_dir}
    found = [path for folder in folders for path in folder.glob("*") if path.is_file()]
    return [path for path in found if path.name != "lock"]


def _describe_trained(checkpoints: Path) -> object:
    """Returns what differs once anything was trained."""
    published = [path.stat().st_mtime_ns for name in NAMES for path in checkpoints.glob(name)]
    journals = [list_segments(journal) for journal in list_journals(checkpoints)]
    records = [sum(max(get_size(s) - HEADER_BYTES, 0) for s in segments) for segments in journals]
    return list_names(checkpoints), published, records


def forget_results(experiment: Experiment) -> None:
    """Removes the results.json of an earlier start; errors are ignored."""
    with contextlib.suppress(OSError):
        (experiment.run_dir / RESULTS_NAME).unlink()


def write_results(experiment: Experiment, status: Status) -> None:
    """Writes results.json; logs a warning if it cannot be written."""
    results = {
        "finished": status.finished,
        "global_t": status.global_t,
        "version": status.version,
        "episodes": status.episodes,
        "mean_return": status.mean_return,
        "return_episodes": status.return_episodes,
        "time": time.strftime(_TIME),
    }
    try:
        _replace(experiment.run_dir / RESULTS_NAME, json.dumps(results, indent=2) + "\n")
    except ConfigError as error:
        logger.warning("%s", error)


def is_described(experiment: Experiment) -> bool:
    """Returns whether experiment.yaml already describes a start of the run."""
    return bool(_read_starts(experiment.run_dir / EXPERIMENT_NAME))


def read_command(folder: Path) -> str:
    """Returns how the newest recorded start was made: TRAIN, RUN, or SERVERS.

    Logs a warning and returns SERVERS if that is not known.
    """
    path = folder / EXPERIMENT_NAME
    starts = _read_starts(path)
    if not starts:
        logger.warning(
            "%s: missing or damaged, so it is not known whether relaax train or relaax run started "
            "the run; it is resumed as by relaax run",
            path,
        )
    return str(starts[-1].get("command", SERVERS)) if starts else SERVERS


def _split_names(checkpoints: Path) -> Iterator[list[str]]:
    """Returns ["cp", global_t, version] of each snapshot."""
    return (name.split("-") for name in list_names(checkpoints))


def _move_aside(places: Mapping[Path, str]) -> None:
    """Renames the folders that `_find_movable` returned.

    Raises:
      ConfigError: a folder cannot be renamed.
    """
    for place in places:
        try:
            place.rename(_find_free_name(place))
        except OSError as error:
            raise ConfigError(
                f"--force: {place} cannot be renamed: {error.strerror}; correct the permissions of "
                f"{place.parent}, or choose another {places[place]}"
            ) from None


def _find_movable(experiment: Experiment) -> dict[Path, str]:
    """Returns the folders that --force renames, with the names of their settings.

    Raises:
      ConfigError: a folder contains the working directory, the YAML file or the run of
        `learner.previous`; or the settings name a mirror.
    """
    settings = experiment.parameter_server
    if settings.mirror_url is not None:
        raise ConfigError(
            f"relaax-parameter-server.mirror_url: {hide_password(settings.mirror_url)} can contain "
            "snapshots of the older run, from which the new run would continue, and --force moves "
            "only local folders; choose another mirror_url, run_dir and, if it is set, "
            "checkpoint_dir, and omit --force"
        )
    places = {_make_absolute(experiment.run_dir): "run_dir"}
    metrics = experiment.metrics_server
    for key, place in (
        ("relaax-parameter-server.checkpoint_dir", settings.checkpoint_dir),
        ("relaax-parameter-server.metrics_dir", settings.metrics_dir),
        *([] if metrics is None else [("relaax-metrics-server.metrics_dir", metrics.metrics_dir)]),
    ):
        absolute = _make_absolute(place)
        if not any(absolute.is_relative_to(other) for other in places):
            places[absolute] = key
    places = {place: key for place, key in places.items() if place.exists()}
    previous = experiment.learner.previous
    for place, key in places.items():
        for what, kept in (
            ("current directory", Path.cwd()),
            ("experiment file", _make_absolute(experiment.file)),
            *([] if previous is None else [("run of learner.previous,", _make_absolute(previous))]),
        ):
            if kept.is_relative_to(place):
                raise ConfigError(
                    f"--force cannot move {place}: it contains the {what} {kept}; set {key} to "
                    "another folder"
                )
    return places


def _make_absolute(path: Path) -> Path:
    # A path that ends with ".." cannot be renamed, and one that contains it cannot be compared.
    return path.resolve() if ".." in path.parts else path.absolute()


def _find_free_name(path: Path) -> Path:
    if path.name in ("", ".."):
        path = path.resolve()
    number = 1
    while (found := path.with_name(f"{path.name}.old-{number}")).exists():
        number += 1
    return found


def _read_starts(path: Path) -> list[dict[str, Any]]:
    try:
        starts = read_yaml(path).data.get("starts")
    except ConfigError:  # there is no such file, or it has other content
        return []
    return [start for start in starts if isinstance(start, dict)] if starts else []


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    try:
        # Arguments of a command line can contain bytes that are not UTF-8.
        temporary.write_text(text, "utf-8", "backslashreplace")
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise ConfigError(
            f"run_dir: {path} cannot be written: {error.strerror}; free disk space, make the "
            "folder writable, or choose another run_dir"
        ) from None


def _format_start(start: dict[str, Any]) -> str:
    versions = start.get("versions", {})
    machine = start.get("machine", {})
    lines = {
        "command": shlex.join(map(str, start.get("argv", ()))),
        "folder": start.get("folder"),
        "time": start.get("time"),
        "machine": f"{machine.get('host')}, {machine.get('system')}, {machine.get('cpus')} CPUs",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "git commit": start.get("git_commit") or "none",
    }
    return "".join(f"{name:12}{text}\n" for name, text in lines.items())


def _indent(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


def _find_version(*names: str) -> str | None:
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None


def _find_commit(folder: Path) -> str | None:
    """Returns the commit of the repository that contains a folder; None: git reports no commit.

    "-dirty" follows if a tracked file of the repository has changed.
    """
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_GIT_SEC, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
