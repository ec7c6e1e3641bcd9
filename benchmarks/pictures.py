"""Draws README's pictures: the live table of a training in a terminal, and a learning curve.

    python -m benchmarks.pictures

trains CartPole-v1 with `relaax train ppo`, seeds 0 to 4, each in a terminal of its own, and writes
docs/live_table.svg and docs/learning_curve.png.
"""

import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

DOCS = Path(__file__).parents[1] / "docs"
SEEDS = range(5)
_RELAAX = [sys.executable, "-m", "relaax_like.cli.main"]
_COLUMNS = 100


def main() -> None:
    """Trains, and writes the pictures."""
    with tempfile.TemporaryDirectory() as folder:
        runs = [Path(folder) / f"ppo-{seed}" for seed in SEEDS]
        for seed, run in zip(SEEDS, runs, strict=True):
            output = _run_in_terminal(
                ["train", "ppo", "--seed", str(seed), "--run-dir", run.name], folder
            )
            if seed == 0:
                _draw_table(output, DOCS / "live_table.svg")
        curve = DOCS / "learning_curve.png"
        subprocess.run([*_RELAAX, "plot", *map(str, runs), "--out", str(curve)], check=True)


def _run_in_terminal(arguments: list[str], folder: str) -> str:
    """Runs a command of relaax in a terminal; returns all that it wrote there."""
    leader, follower = pty.openpty()
    terminal = {"TERM": "xterm-256color", "COLUMNS": str(_COLUMNS), "LINES": "40"}
    written = b""
    with subprocess.Popen(
        [*_RELAAX, *arguments],
        cwd=folder,
        env={**os.environ, **terminal},
        stdin=follower,
        stdout=follower,
        stderr=follower,
    ) as process:
        os.close(follower)
        while True:
            try:
                part = os.read(leader, 65536)
            except OSError:  # the other end has been closed
                break
            written += part
    os.close(leader)
    if process.returncode:
        raise RuntimeError(f"relaax {' '.join(arguments)} failed:\n{written.decode()}")
    return written.decode()


def _draw_table(output: str, file: Path) -> None:
    """Draws the last table that stood in the terminal while it learned."""
    tables = re.findall(r"╭.*?╯", output.replace("\r", ""), re.DOTALL)
    learning = [table for table in tables if "reached the target" not in table]
    console = Console(record=True, width=_COLUMNS, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(Text.from_ansi(learning[-1]))
    file.write_text(console.export_svg(title="relaax train ppo"), "utf-8")


if __name__ == "__main__":
    main()
