"""Sources of recordings: folders of trajectory files, and Minari data sets."""

import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

# First part of a source that is a Minari data set.
MINARI = "minari:"
# File in the folder of checkpoints that says what `algorithm.prior` had when the run began.
PRIOR_NAME = "prior.json"


def _make_list(value: Any) -> Any:
    if isinstance(value, str | Path):
        return (str(value),)
    return tuple(value) if isinstance(value, list) else value


def _make_absolute(source: str) -> str:
    """Returns a source that is valid in any working directory."""
    prefix = MINARI if source.startswith(MINARI) else ""
    path = Path(source.removeprefix(prefix))
    # An id of a data set is not a path.
    return source if prefix and not os.path.isdir(path) else f"{prefix}{path.absolute()}"


def _make_all_absolute(sources: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(_make_absolute, sources))


# One source, or a list of several.
Sources = Annotated[
    tuple[str, ...],
    Field(min_length=1),
    BeforeValidator(_make_list),
    AfterValidator(_make_all_absolute),
]
