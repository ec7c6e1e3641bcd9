"""What commands let the user choose from; apart, so that `--help` loads little."""

from enum import StrEnum

# Free at the right of a table that is drawn in place: the terminal writes ^C behind the table, and
# in the next line it would tear the table apart.
SPARE_COLUMNS = 4


class LogMode(StrEnum):
    """What `relaax train` prints while it trains. auto: a table in a terminal, else lines."""

    AUTO = "auto"
    PLAIN = "plain"
    JSON = "json"


class XAxis(StrEnum):
    """What a curve is drawn against: environment steps, or seconds since the run began."""

    STEPS = "steps"
    TIME = "time"
