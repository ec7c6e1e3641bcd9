"""XLA-compiled functions: compile times, and an on-disk cache shared by processes.

The cache is opt-in and uses TensorFlow's own flags. TensorFlow reads `TF_XLA_FLAGS` once, when it
is loaded, so they must be set before that. Child processes inherit them.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import platform
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from relaax_like.wire.errors import ConfigError

_FLAGS = "TF_XLA_FLAGS"
_FOLDER = "--tf_xla_persistent_cache_directory"
_DEVICES = "--tf_xla_persistent_cache_device_types"
_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu")
# Errors of the cache do not have their own type. Errors of writing name the folder; a truncated
# file is out of range; a modified one has this text.
_CUT_OFF = "OutOfRangeError"
_CHANGED = re.compile(r"Serialized .* does not match")

_lock = threading.Lock()
_seconds = 0.0


def use_compile_cache(folder: Path | None) -> None:
    """Caches functions compiled for a CPU in a folder; call it before TensorFlow is loaded.

    The user's flags in TF_XLA_FLAGS stay in effect, and a cache that is set there is used instead
    of this one. With the cache, TensorFlow's errors are no longer logged (TF_CPP_MIN_LOG_LEVEL),
    unless the user has set a level other than 2.

    Args:
      folder: created if it does not exist. Each version of TensorFlow, each type of processor and
        each setting of XLA_FLAGS has its own subfolder. None: no effect.

    Raises:
      ConfigError: the folder cannot be created, read or written, or its path contains white space;
        or TF_XLA_FLAGS names a file of flags.
    """
    if folder is None:
        return
    flags = os.environ.get(_FLAGS, "").strip()
    if flags and not flags.startswith("-"):
        raise ConfigError(
            f"compile_cache: {_FLAGS} names a file of flags, {flags}, to which no flag can be "
            f"added; put the flags themselves into {_FLAGS}, or remove compile_cache"
        )
    if _FOLDER in flags:
        return
    own = folder.absolute() / _describe_platform()
    if re.search(r"\s", str(own)):
        raise ConfigError(
            f"compile_cache: {own} contains white space, which {_FLAGS} cannot express; "
            "choose another folder"
        )
    try:
        own.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _explain_folder(own, error.strerror) from None
    if not os.access(own, os.R_OK | os.W_OK | os.X_OK):
        raise _explain_folder(own, "no permission to read and write")
    os.environ[_FLAGS] = " ".join(filter(None, [flags, f"{_FOLDER}={own}", f"{_DEVICES}=CPU"]))
    # Loading a function logs errors, because two preferences of XLA are not processor features.
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2") == "2":
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"


def get_compile_cache() -> Path | None:
    """Returns the folder of the cache that TF_XLA_FLAGS names; None: no cache is used."""
    found = re.search(rf"{_FOLDER}=(\S+)", os.environ.get(_FLAGS, ""))
    return Path(found[1]) if found else None


class CompiledFunction:
    """A function that XLA compiles when it is first called; see `get_compile_seconds`.

    If a file of the cache is damaged, TensorFlow fails instead of compiling the function again;
    then a ConfigError names the folder and the cure.

    Args:
      trace: returns the concrete function.
      explain: returns the error to raise instead of the error of a first call; None: the error of
        the call is raised.
    """

    def __init__(
        self,
        trace: Callable[[], Callable[..., Any]],
        explain: Callable[[Exception], Exception] | None = None,
    ):
        self._explain = explain
        began = time.perf_counter()
        self._function = trace()
        self._called = False
        _add_seconds(time.perf_counter() - began)

    def __call__(self, *arguments: Any) -> Any:
        """Calls the function; the first call includes compiling or loading it.

        Raises:
          ConfigError: a file of the cache is damaged, or cannot be written.
          Exception: an error of the function; for a first call, see `explain`.
        """
        try:
            if self._called:
                return self._function(*arguments)
            began = time.perf_counter()
            results = self._function(*arguments)
        except Exception as error:
            _raise_cache_error(error)
            explained = error
            if self._explain is not None and not self._called:
                explained = self._explain(error)
            if explained is not error:
                raise explained from error
            raise
        self._called = True
        _add_seconds(time.perf_counter() - began)
        return results


def get_compile_seconds() -> float:
    """Returns the seconds that tracing and first calls of `CompiledFunction`s have taken so far.

    Those of all threads of this process are added up.
    """
    return _seconds


def _add_seconds(seconds: float) -> None:
    global _seconds
    with _lock:
        _seconds += seconds


def _raise_cache_error(error: Exception) -> None:
    folder = get_compile_cache()
    if folder is None or not _comes_from_cache(error, folder):
        return
    reason = str(error).partition("\n")[0][:500].removesuffix(".")
    raise ConfigError(
        f"compile_cache: TensorFlow cannot use a file in {folder}: {reason}; free disk space if "
        "the disk is full, or remove this folder, after which functions are compiled again"
    ) from error


def _comes_from_cache(error: Exception, folder: Path) -> bool:
    text = str(error)
    is_cut_off = type(error).__name__ == _CUT_OFF
    return is_cut_off or str(folder) in text or bool(_CHANGED.search(text))


def _describe_platform() -> str:
    """Returns a name that depends on TensorFlow's version, the processor and XLA_FLAGS."""
    version = "unknown"
    for distribution in _DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(distribution)
            break
    features = platform.processor()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        features = next((ln for ln in lines if ln.startswith(("flags", "Features"))), features)
    # TensorFlow would load functions compiled with other settings, which differ in the last bits.
    settings = os.environ.get("XLA_FLAGS", "").split()
    digest = hashlib.sha256("\n".join([features, *settings]).encode()).hexdigest()[:8]
    return f"tensorflow-{version}-{platform.machine()}-{digest}"


def _explain_folder(folder: Path, reason: str | None) -> ConfigError:
    reason = reason or "cannot be created"
    return ConfigError(f"compile_cache: {folder}: {reason}; choose another folder")
