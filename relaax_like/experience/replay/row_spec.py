"""RowSpec: columns of the replay table, and whether a table of them fits into memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from relaax_like.experience.rollout import Rollout
from relaax_like.wire.errors import ConfigError, InvalidInputError

_MEMORY_FILE = Path("/proc/meminfo")
_CGROUPS = Path("/sys/fs/cgroup")
# Files with a container's limit, with what it uses, and with the part that is a cache of files;
# and the cache's name there. Version 2, then version 1.
_CGROUP_FILES = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        *("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
        *("memory/memory.stat", "total_inactive_file"),
    ),
)
# Of each row beside its columns: links, ids of agent, episode and step, version.
_LINK_BYTES = 8 * 8
_GIB = 1 << 30


# Name -> type of one row, with its shape: `np.dtype((dtype, shape))`. Nothing is converted.
Columns = Mapping[str, np.dtype]


@dataclass(frozen=True, kw_only=True)
class RowSpec:
    """The columns of a replay table.

        spec = RowSpec.from_rollout(rollout)

    Attributes:
      observations: by name, without earlier observations.
      actions: by name.
      num_rewards: number of rewards of each step (r).
      extras: by name, see `Rollout.extras`; {} with the plan `Replay`.
    """

    observations: Columns
    actions: Columns
    num_rewards: int = 1
    extras: Columns = field(default_factory=dict)

    @classmethod
    def from_rollout(cls, rollout: Rollout) -> "RowSpec":
        """Returns the columns that rollouts like this one fill."""

        def read(arrays: Mapping[str, np.ndarray]) -> dict[str, np.dtype]:
            return {name: np.dtype((a.dtype, a.shape[2:])) for name, a in arrays.items()}

        return cls(
            observations=read(rollout.inputs),
            actions=read(rollout.actions),
            num_rewards=rollout.rewards.shape[2],
            extras=read(rollout.extras),
        )

    @property
    def observation_bytes(self) -> int:
        """Bytes of the observations of one row."""
        return sum(column.itemsize for column in self.observations.values())

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, including its links."""
        columns = [*self.actions.values(), *self.extras.values()]
        numbers = 4 * self.num_rewards + 4  # and log_prob
        return self.observation_bytes + sum(c.itemsize for c in columns) + numbers + _LINK_BYTES

    def validate(self, rollout: Rollout) -> None:
        """Checks that a table with these columns can store a segment.

        Raises:
          InvalidInputError: an array is missing, is not part of this spec, or has another shape or
            dtype, and the error names the first one; or the segment has no steps or slots.
        """
        if rollout.next_alive.ndim != 2 or not rollout.next_alive.size:
            raise InvalidInputError(
                f"next_alive has shape {list(rollout.next_alive.shape)}, expected [T, k], both 1 "
                "or more; a segment must have at least one step of one slot, even after a data "
                "handler has changed it",
                "next_alive",
            )
        leading = rollout.next_alive.shape
        for label, arrays, columns in (
            ("inputs", rollout.inputs, self.observations),
            ("next_inputs", rollout.next_inputs, self.observations),
            ("actions", rollout.actions, self.actions),
            ("extras", rollout.extras, self.extras),
        ):
            if arrays.keys() != columns.keys():
                _refuse_names(label, arrays, columns)
            for name, array in arrays.items():
                column = columns[name]
                if array.shape != (*leading, *column.shape) or array.dtype != column.base:
                    _refuse(f"{label}[{name!r}]", array, (*leading, *column.shape), column.base)
        rewards = rollout.rewards
        if rewards.shape != (*leading, self.num_rewards) or rewards.dtype != np.float32:
            _refuse("rewards", rewards, (*leading, self.num_rewards), np.dtype(np.float32))
        if rollout.log_prob.shape != leading:
            _refuse("log_prob", rollout.log_prob, leading, np.dtype(np.float32))
        if rollout.versions.shape != leading[:1]:
            _refuse("versions", rollout.versions, leading[:1], np.dtype(np.int64))
        if rollout.valid is not None and rollout.valid.shape != leading:
            _refuse("valid", rollout.valid, leading, np.dtype(np.bool_))
        if rollout.starts is not None and rollout.starts.shape != (leading[1], 3):
            _refuse("starts", rollout.starts, (leading[1], 3), np.dtype(np.int64))


def _refuse_names(
    label: str, arrays: Mapping[str, np.ndarray], columns: Mapping[str, Any]
) -> NoReturn:
    cure = (
        "a segment must have the arrays that the replay table was made for, even after a data "
        "handler has changed it"
    )
    if label == "extras" and not columns:
        cure = (
            "the replay table was made without columns for extras: if a data handler adds them, "
            "return no extras"
        )
    wrong = min(arrays.keys() ^ columns.keys())
    what = "is unknown" if wrong in arrays else "is missing"
    known = ", ".join(map(repr, sorted(columns))) or "no arrays"
    raise InvalidInputError(f"{label}[{wrong!r:.80}] {what}, expected {known:.200}; {cure}", label)


def _refuse(label: str, array: np.ndarray, shape: tuple[Any, ...], dtype: np.dtype) -> None:
    raise InvalidInputError(
        f"{label} is {array.dtype} of shape {list(array.shape)}, expected {dtype} of shape "
        f"{list(shape)}; a segment must have the shapes and dtypes that the replay table was made "
        "for, even after a data handler has changed it",
        label,
    )


def read_available_bytes(memory: Path = _MEMORY_FILE, cgroups: Path = _CGROUPS) -> int | None:
    """Returns how much memory is available on this machine, within the limit of this container.

    Args:
      memory: the kernel's file about the machine.
      cgroups: the kernel's folder about the container.

    Returns:
      Bytes; None: unknown, because there are no such files (not Linux).
    """
    known = [_read_number(memory, "MemAvailable:", 1024)]
    for limit_file, used_file, stat_file, cache_name in _CGROUP_FILES:
        limit, used = (_read_number(cgroups / name) for name in (limit_file, used_file))
        if limit is not None and used is not None:
            cache = _read_number(cgroups / stat_file, cache_name)
            known.append(max(limit - used + (cache or 0), 0))
    return min((number for number in known if number is not None), default=None)


def _read_number(file: Path, name: str = "", unit: int = 1) -> int | None:
    """Returns the number after a name in a file, or the file's only one; None: there is none."""
    try:
        lines = [line.split() for line in file.read_text(encoding="ascii").splitlines()]
    except OSError:
        return None
    numbers = [line[1:] if name else line for line in lines if not name or line[:1] == [name]]
    text = "".join(numbers[0][:1]) if numbers else ""
    return int(text) * unit if text.isdigit() else None


def validate_memory(
    spec: RowSpec, capacity: int, needed: int, fixed: int, available: int | None
) -> None:
    """Checks that a table fits into memory.

    Args:
      spec: columns of its rows.
      capacity: number of rows.
      needed: bytes of all arrays.
      fixed: number of these bytes that do not depend on the capacity.
      available: bytes; None: unknown, and nothing is refused.

    Raises:
      ConfigError: the table does not fit; the error names the needed and the available memory, and
        the approximate capacity that fits, if there is one.
    """
    if available is None or needed <= available:
        return
    fitting = int(capacity * ((available - fixed) / (needed - fixed)))
    # At least 2 rows; see `Storage`.
    cure = f"set capacity to less than about {fitting:,}" if fitting > 2 else "free memory"
    raise ConfigError(
        f"replay: capacity {capacity:,} needs {needed / _GIB:,.2f} GiB ({spec.row_bytes:,} bytes "
        f"per row for its columns), but only {available / _GIB:,.2f} GiB of memory is available; "
        f"{cure}, or make observations smaller"
    )
