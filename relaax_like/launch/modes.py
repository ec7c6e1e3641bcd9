"""What commands let the user choose from; apart, so that `--help` loads little."""

from enum import StrEnum


class LogMode(StrEnum):
    """What `relaax train` prints while it trains. auto: a table in a terminal, else lines."""

    AUTO = "auto"
    PLAIN = "plain"
    JSON = "json"


class XAxis(StrEnum):
    """What a curve is drawn against: environment steps, or seconds since the run began."""

    STEPS = "steps"
    TIME = "time"
