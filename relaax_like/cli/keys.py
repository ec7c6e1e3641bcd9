"""`relaax keys`, and the keys in the help of the commands that take them as flags."""

from pathlib import Path
from typing import Any

from rich.box import ROUNDED
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from typer.core import TyperCommand

from relaax_like.cli.tables import print_table
from relaax_like.config.base import Settings
from relaax_like.config.keys import FLAG_SECTIONS, find_config_class, get_flag, list_keys
from relaax_like.config.models import ALGORITHM, SECTION_MODELS, TopConfig


def show_keys(config: Path) -> int:
    """Prints all keys of a file: type, default and meaning of each.

    Args:
      config: the file, or the name of a shipped one; it determines the algorithm's keys.

    Raises:
      ConfigError: see `find_config_class`.
    """
    sections: dict[str, type[Settings]] = {
        "": TopConfig,
        **SECTION_MODELS,
        ALGORITHM: find_config_class(config),
    }
    for section, model in sections.items():
        table = Table(title=section or "outside sections", title_justify="left", box=ROUNDED)
        for column in ("key", "type", "default", "meaning"):
            table.add_column(column)
        for key in list_keys(model):
            default = "-" if key.default is None else key.default
            name = f"{section}.{key.name}" if section else key.name
            table.add_row(*map(escape, (name, key.type, default, key.meaning)))
        print_table(table)
    print(
        "Set any of them with --set KEY=VALUE; keys of algorithm, learner and environment, "
        "and those outside sections, also with a flag: --eval-freq 50; keys of wandb with "
        "--wandb-KEY"
    )
    return 0


class KeysCommand(TyperCommand):
    """A command that takes keys of the experiment's file as flags, and lists them in its help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Prints the help, and below it the keys that every file has."""
        super().format_help(ctx, formatter)
        console = Console()
        for section, model in FLAG_SECTIONS.items():
            title = f"Keys of section {section}" if section else "Keys outside sections"
            grid = _make_grid(section, model)
            console.print(Panel(grid, title=title, title_align="left", border_style="dim"))
        console.print("Keys of the file's algorithm: relaax keys CONFIG", highlight=False)


def _make_grid(section: str, model: type[Settings]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="bold cyan")
    grid.add_column(max_width=24)
    grid.add_column()
    for key in list_keys(model):
        default = "" if key.default in (None, "null") else f" [default: {key.default}]"
        grid.add_row(get_flag(section, key.name), escape(key.type), escape(key.meaning + default))
    return grid
