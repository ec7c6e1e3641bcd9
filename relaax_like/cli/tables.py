"""Prints tables: as wide as the terminal, or as wide as they are where there is none."""

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table


def print_table(table: Table) -> None:
    """Prints a table; into a pipe or a file nothing of it is cut off."""
    console = Console()
    if not console.is_terminal:
        wide = console.options.update(max_width=10_000)
        console.width = max(console.width, Measurement.get(console, wide, table).maximum)
    console.print(table)
