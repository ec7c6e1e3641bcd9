"""Closing: what is closed at the end of a `with` block."""

from typing import Self


class Closing:
    """A context manager whose block ends with `close`."""

    def close(self) -> None:
        """Ends it; subclasses define how."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
