"""XLA-compiled functions: compile times, and an on-disk cache shared by processes.

The cache uses TensorFlow's own flags. TensorFlow reads `TF_XLA_FLAGS` once, when it is loaded, so
they must be set before that. Child processes inherit them. `nn.compiled_files` looks after the
files.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import logging
import os
import platform
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from relaax_like.nn.compiled_files import OURS, make_private_folder, seal_files
from relaax_like.wire.errors import ConfigError

logger = logging.getLogger(__name__)

# Setting that stands for a folder in the user's own folder for caches.
AUTO = "auto"
_FLAGS = "TF_XLA_FLAGS"
_FOLDER = "--tf_xla_persistent_cache_directory"
_DEVICES = "--tf_xla_persistent_cache_device_types"
_PRODUCT = "relaax_like"
_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu")
# Errors of the cache do not have their own type. Errors of writing name the folder; a truncated
# file is out of range; a modified one has this text.
_CUT_OFF = "OutOfRangeError"
_CHANGED = re.compile(r"Serialized .* does not match")
# Lines of /proc/cpuinfo: what a processor can execute, and for which one the code was arranged.
_FEATURES = ("flags", "Features", "model name")
# A call that takes longer could have compiled the function for another shape.
_COMPILES_SEC = 0.005

_lock = threading.Lock()
_seconds = 0.0


def use_compile_cache(folder: Path | str | None) -> None:
    """Caches functions compiled for a CPU in a folder; call it before TensorFlow is loaded.

    The user's flags in TF_XLA_FLAGS stay in effect, and a cache that is set there is used instead
    of this one. With the cache, TensorFlow's errors are no longer logged (TF_CPP_MIN_LOG_LEVEL),
    unless the user has set a level other than 2.

    Args:
      folder: created if it does not exist. Each version of this product and of TensorFlow, each
        type of processor and each setting of XLA_FLAGS has its own subfolder. `AUTO`: a folder
        that belongs to the user; if it cannot be used, one line says why, and nothing is cached.
        None: no effect.

    Raises:
      ConfigError: a folder that was named cannot be created, read or written, other users have
        access to its subfolder, or its path contains white space; or TF_XLA_FLAGS names a file of
        flags.
    """
    flags = os.environ.get(_FLAGS, "").strip()
    if folder is None or _FOLDER in flags:
        return
    try:
        own = str(_make_folder(folder, flags))
    except ConfigError as error:
        if folder != AUTO:
            raise
        logger.warning("compiled functions are not kept: %s", error)
        own = ""  # TensorFlow keeps nothing, and child processes need not find out why
        if flags and not flags.startswith("-"):
            return
    os.environ[_FLAGS] = " ".join(filter(None, [flags, f"{_FOLDER}={own}", f"{_DEVICES}=CPU"]))
    # Loading a function logs errors, because two preferences of XLA are not processor features.
    if own and os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2") == "2":
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"


def get_compile_cache() -> Path | None:
    """Returns the folder of the cache that TF_XLA_FLAGS names; None: no cache is used."""
    found = re.search(rf"{_FOLDER}=(\S+)", os.environ.get(_FLAGS, ""))
    return Path(found[1]) if found else None


class CompiledFunction:
    """A function that XLA compiles when it is first called; see `get_compile_seconds`.

    If a file of the cache is damaged after `compiled_files.clean`, TensorFlow fails instead of
    compiling the function again; then a ConfigError names the folder and the cure.

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
        function = trace()
        self._function = call_directly(function)
        inputs = getattr(function, "inputs", None)
        self._has_shapes = inputs is None or not all(x.shape.is_fully_defined() for x in inputs)
        self._called = False
        _add_seconds(time.perf_counter() - began)

    def __call__(self, *arguments: Any) -> Any:
        """Calls the function; the first call includes compiling or loading it.

        Raises:
          ConfigError: a file of the cache is damaged, or cannot be written.
          Exception: an error of the function; for a first call, see `explain`.
        """
        began = time.perf_counter()
        try:
            results = self._function(*arguments)
        except Exception as error:
            _raise_cache_error(error)
            explained = error
            if self._explain is not None and not self._called:
                explained = self._explain(error)
            if explained is not error:
                raise explained from error
            raise
        took = time.perf_counter() - began
        if took > _COMPILES_SEC and (self._has_shapes or not self._called):
            tend_compile_cache(seal_files)
        if not self._called:
            self._called = True
            _add_seconds(took)
        return results


def call_directly(function: Any) -> Callable[..., Any]:
    """Returns a call of a concrete function that does not bind and check its arguments in Python.

    They are tensors that have been checked. TensorFlow's own call takes 0.1 to 0.2 ms more, as long
    as the update of a small network; this one skips what it does before its last line. It has no
    gradient.
    """
    direct: Any = getattr(function, "_inference_function", None)
    if not hasattr(direct, "call_preflattened"):  # of another version of TensorFlow
        return cast(Callable[..., Any], function)
    captured = function.captured_inputs
    return lambda *tensors: direct.call_preflattened([*tensors, *captured])


def get_compile_seconds() -> float:
    """Returns the seconds that tracing and first calls of `CompiledFunction`s have taken so far.

    Those of all threads of this process are added up.
    """
    return _seconds


def _add_seconds(seconds: float) -> None:
    global _seconds
    with _lock:
        _seconds += seconds


def tend_compile_cache(work: Callable[[Path], None]) -> None:
    """Calls `compiled_files.clean` before TensorFlow is loaded, `seal_files` after it compiled.

    A cache that the user has set in TF_XLA_FLAGS stays as it is.
    """
    folder = get_compile_cache()
    if folder is not None and folder.name.startswith(OURS):
        with contextlib.suppress(OSError):  # such as another process's work, or a full disk
            work(folder)


def _raise_cache_error(error: Exception) -> None:
    folder, text = get_compile_cache(), str(error)
    is_cut_off = type(error).__name__ == _CUT_OFF
    if folder is None or not (is_cut_off or str(folder) in text or _CHANGED.search(text)):
        return
    reason = text.partition("\n")[0][:500].removesuffix(".")
    raise ConfigError(
        f"compile_cache: TensorFlow cannot use a file in {folder}: {reason}; free disk space if "
        "the disk is full, or remove this folder, after which functions are compiled again, or "
        "set compile_cache to null"
    ) from error


def _describe_platform() -> str:
    """Returns a name that depends on our and TensorFlow's version, the processor and XLA_FLAGS."""
    features = [platform.processor()]
    with contextlib.suppress(OSError):
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
        features = [line for line in first if line.startswith(_FEATURES)]
    # TensorFlow would load functions compiled with other settings, which differ in the last bits.
    settings = os.environ.get("XLA_FLAGS", "").split()
    digest = hashlib.sha256("\n".join([*features, *settings]).encode()).hexdigest()[:8]
    versions = f"{_find_version(_PRODUCT)}-tensorflow-{_find_version(*_DISTRIBUTIONS)}"
    return f"{OURS}{versions}-{platform.machine()}-{digest}"


def _find_version(*distributions: str) -> str:
    for distribution in distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(distribution)
    return "unknown"


def _make_folder(folder: Path | str, flags: str) -> Path:
    if flags and not flags.startswith("-"):
        raise ConfigError(
            f"compile_cache: {_FLAGS} names a file of flags, {flags}, to which no flag can be "
            f"added; put the flags themselves into {_FLAGS}, or set compile_cache to null"
        )
    parts = [_describe_platform()]
    if folder == AUTO:
        # No name of a package: Python looks for these in the working directory.
        parent, parts = _find_user_cache(), ["relaax-like", "compiled", *parts]
    else:
        parent = Path(folder).absolute()
    own = parent.joinpath(*parts)
    try:
        if re.search(r"\s", str(own)):
            raise OSError(0, f"{_FLAGS} cannot express white space")
        parent.mkdir(mode=0o700, parents=folder != AUTO, exist_ok=True)
        make_private_folder(parent, parts)
    except OSError as error:
        reason = error.strerror or "cannot be created"
        raise ConfigError(
            f"compile_cache: {own}: {reason}; correct this, or choose another folder"
        ) from None
    return own


def _find_user_cache() -> Path:
    """Returns the folder in which programs of this user keep what they can make again."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(named):
        return Path(named)
    return Path(os.path.expanduser("~/Library/Caches" if sys.platform == "darwin" else "~/.cache"))
