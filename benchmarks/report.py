"""Results as a table for people and JSON lines for machines."""

import json
import os
import platform
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

# Of the table at most, whatever the terminal: broken lines are easier to paste than broken cells.
_WIDTH = 200


def describe_machine() -> str:
    """Returns cores, architecture and Python version."""
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"


def report(benchmark: str, rows: Sequence[dict[str, Any]]) -> None:
    """Prints rows of the same keys as one table in Markdown, and each row as a JSON line."""
    table = Table(title=f"{benchmark} ({describe_machine()})", box=box.MARKDOWN)
    for key in rows[0]:
        table.add_column(key, justify="right")
    for row in rows:
        table.add_row(*(_format(value) for value in row.values()))
    Console(width=_WIDTH).print(table)
    for row in rows:
        print(json.dumps({"benchmark": benchmark, **row}))


def _format(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
