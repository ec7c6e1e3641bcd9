"""Prints tables: as wide as the terminal, or at full width if there is no terminal."""

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table


def print_table(table: Table) -> None:
    """Prints a table; in a pipe or a file it is not truncated."""
    console = Console()
    if not console.is_terminal:
        wide = console.options.update(max_width=10_000)
        console.width = max(console.width, Measurement.get(console, wide, table).maximum)
    console.print(table)
