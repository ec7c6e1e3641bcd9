"""Names of jobs and slaves, and of the algorithms and environments that jobs can have."""

import re

EXPECTED_NAME = (
    '1 to 100 characters from A-Z, a-z, 0-9, "_", "-" and ".", not beginning with "-" or "."'
)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def is_name(text: str) -> bool:
    """Returns whether a text is a valid name of a job, a slave, an algorithm or an environment."""
    return bool(_NAME.fullmatch(text))
