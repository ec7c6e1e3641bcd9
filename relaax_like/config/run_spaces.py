"""RUN/spaces.json: the spaces of the first environment that a run was trained in."""

import contextlib
from pathlib import Path

from google.protobuf import json_format

from relaax_like.config.models import Experiment
from relaax_like.v1 import spaces_pb2
from relaax_like.wire.errors import ConfigError, InvalidInputError
from relaax_like.wire.spaces import RunSpaces, message_to_run_spaces, run_spaces_to_message
from relaax_like.wire.syncing import replace_file

SPACES_NAME = "spaces.json"
_CURE = (
    "restore the file from a backup, or use another run_dir; if nothing has been trained in this "
    "run_dir, remove the file"
)


def read_run_spaces(run_dir: Path) -> RunSpaces | None:
    """Returns the spaces of a run; None: they are not known yet.

    Raises:
      ConfigError: the file cannot be used.
    """
    path = run_dir / SPACES_NAME
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}; make it readable, or use another run_dir"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text; {_CURE}") from None
    try:
        return message_to_run_spaces(json_format.Parse(text, spaces_pb2.Spaces()))
    except (json_format.ParseError, InvalidInputError) as error:
        raise ConfigError(f"{path}: {error}; {_CURE}") from None


def write_run_spaces(run_dir: Path, spaces: RunSpaces) -> None:
    """Writes the spaces of a run atomically, and syncs them to disk.

    Raises:
      ConfigError: the file cannot be written.
    """
    path = run_dir / SPACES_NAME
    text = json_format.MessageToJson(
        run_spaces_to_message(spaces), preserving_proto_field_name=True, sort_keys=True
    )
    try:
        replace_file(path, f"{text}\n".encode())
    except OSError as error:
        raise ConfigError(
            f"run_dir: {path}: cannot be written: {error.strerror}; remove the cause, or choose "
            "another run_dir"
        ) from None


def keep_run_spaces(run_dir: Path, spaces: RunSpaces) -> None:
    """Writes the spaces of a run, unless there are some already, or they are too large for that.

    Raises:
      ConfigError: the file cannot be written.
    """
    if not (run_dir / SPACES_NAME).exists():
        with contextlib.suppress(InvalidInputError):
            message_to_run_spaces(run_spaces_to_message(spaces))
            write_run_spaces(run_dir, spaces)


def find_run_spaces(experiment: Experiment) -> RunSpaces:
    """Returns the spaces of a run: those of the file, or else those of the settings.

    Those of the settings are flat, count from 0, and are empty if the settings do not define them.

    Raises:
      ConfigError: the file cannot be used.
    """
    algorithm = experiment.algorithm
    found = read_run_spaces(experiment.run_dir)
    return found or RunSpaces(algorithm.observation_spaces, algorithm.action_spaces)


def forget_run_spaces(run_dir: Path) -> None:
    """Removes the spaces of a run in which nothing has been trained.

    Raises:
      ConfigError: the file cannot be removed.
    """
    path = run_dir / SPACES_NAME
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(
            f"run_dir: {path}: cannot be removed: {error.strerror}; remove the cause, or choose "
            "another run_dir"
        ) from None
