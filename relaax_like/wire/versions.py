"""Versions of the packages of a simulator: claims of a client, by which nothing is decided."""

import contextlib
import re
import sys
from collections.abc import Mapping
from importlib import metadata

from relaax_like.wire.errors import InvalidInputError

MAX_VERSIONS = 32
_TEXT = re.compile(r"[A-Za-z0-9_.+!-]{1,64}")


def validate_versions(versions: Mapping[str, str], field: str = "versions") -> dict[str, str]:
    """Returns package -> version, as received.

    Raises:
      InvalidInputError: it is not a dict, there are too many, or a text has other characters or
        another length.
    """
    if not isinstance(versions, Mapping):
        raise InvalidInputError(f"{field}: {versions!r:.80}, expected a dict package -> version")
    few = len(versions) <= MAX_VERSIONS
    if not few or not _is_short(*versions, *versions.values()):
        raise InvalidInputError(
            f"{field}: {len(versions)} pairs{f' {dict(versions)!s:.100}' if few else ''}, expected "
            f"at most {MAX_VERSIONS} of texts of 1 to 64 characters A-Z a-z 0-9 _ . + ! -"
        )
    return dict(versions)


def find_versions(simulator: type) -> dict[str, str]:
    """Returns package -> version of a class and its base classes, and of what these require.

    Of what is required, only packages that are loaded, as a module of the same name.
    """
    modules = dict.fromkeys(base.__module__.partition(".")[0] for base in simulator.__mro__)
    loaded = {name.lower() for name in sys.modules}
    pending = [name for module in modules for name in _find_packages(module)]
    versions: dict[str, str] = {}
    for name in pending:  # grows
        with contextlib.suppress(metadata.PackageNotFoundError):
            package = metadata.distribution(name)
            if len(versions) < MAX_VERSIONS and package.name.lower() not in versions:
                versions[package.name.lower()] = package.version
                needs = (re.match(r"[\w.-]+", need) for need in package.requires or ())
                names = dict.fromkeys(need[0] for need in needs if need)
                pending += [one for one in names if one.lower().replace("-", "_") in loaded]
    return {name: version for name, version in versions.items() if _is_short(name, version)}


def _find_packages(module: str) -> list[str]:
    """Returns the packages that have installed a module, most quickly if one has its name."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return [metadata.distribution(module).name]
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return metadata.packages_distributions().get(module, []) if "-packages" in file else []


def _is_short(*texts: str) -> bool:
    return all(isinstance(text, str) and _TEXT.fullmatch(text) for text in texts)
