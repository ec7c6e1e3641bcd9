"""`relaax status`: the parameter server's numbers, for people."""

import time

from rich.console import Console
from rich.live import Live
from rich.table import Table

from relaax_like.bridge.control import BridgeControl
from relaax_like.bridge.service import Status
from relaax_like.config.address import parse_address


def make_table(address: str, status: Status) -> Table:
    """Lays the numbers out, one per line."""
    mean = "-" if status.mean_return is None else f"{status.mean_return:.2f}"
    snapshot = "none" if status.snapshot_global_t is None else f"step {status.snapshot_global_t:,}"
    rows = {
        "training": status.finished or "going on",
        "steps": f"{status.global_t:,}",
        "steps/s": f"{status.env_steps_per_sec:,.0f}",
        "mean return": f"{mean} (last {status.return_episodes} of {status.episodes} episodes)",
        "version": f"{status.version:,}",
        "parameters": f"{status.parameters:,}",
        "clients": str(status.clients),
        "newest snapshot": f"{snapshot} in {status.checkpoint_dir}",
        "a crash costs": "the updates since the newest snapshot",
        "refused": ", ".join(f"{n} x {why}" for why, n in status.refused.items()) or "nothing",
        "up": f"{status.uptime_sec:,.0f} s, start number {status.epoch}",
    }
    table = Table(title=f"parameter server {address}", show_header=False)
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def show_status(text: str, watch: bool) -> int:
    """Prints the numbers once, or again each second."""
    address = str(parse_address(text, 7000))
    console = Console()
    with BridgeControl().connect(address) as link:
        table = make_table(address, link.status())
        if not watch:
            console.print(table)
            return 0
        with Live(table, console=console) as live:
            while True:
                time.sleep(1.0)
                live.update(make_table(address, link.status()))
