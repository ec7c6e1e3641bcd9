"""A time of day that jumps, for programs that are started with it."""

from pathlib import Path

LIBRARY = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")


class Clock:
    """The time of day of the programs that are started with its `env`."""

    def __init__(self, folder: Path):
        self._file = folder / "clock"
        self.set("+0")
        self.env = {
            "LD_PRELOAD": str(LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            # No clock that is set moves this one.
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, offset: str) -> None:
        """Sets it to so many seconds, "+5" or "-5d", from the true time."""
        temporary = self._file.with_suffix(".new")
        temporary.write_text(offset)
        temporary.replace(self._file)
