"""Choices of command-line options, in a separate module so that `--help` loads little."""

from enum import StrEnum

# Columns left free to the right of a table that is drawn in place: the terminal writes ^C after the
# table, and a line break there would damage the table.
SPARE_COLUMNS = 4


class LogMode(StrEnum):
    """What `relaax train` prints while it trains. auto: a table in a terminal, otherwise lines."""

    AUTO = "auto"
    PLAIN = "plain"
    JSON = "json"


class XAxis(StrEnum):
    """The x axis of a curve: environment steps, or seconds since the run began."""

    STEPS = "steps"
    TIME = "time"
