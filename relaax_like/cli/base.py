"""`relaax` without the servers' libraries, as beside a simulator: gym, examples, doctor."""

import argparse
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from relaax_like import __version__
from relaax_like.shipped import ENVIRONMENTS, get_shipped_folder
from relaax_like.wire.errors import ConfigError

COMMANDS = {
    "gym": "Run a Gymnasium environment as a client of an rlx server; see `relaax gym --help`.",
    "examples": "List the experiments, algorithms and environments that come with this package.",
    "doctor": "Check this installation.",
}


def run_base(arguments: Sequence[str], missing: str) -> int:
    """Runs a command that needs the base install only; returns its exit status.

    Args:
      arguments: of the command line.
      missing: which library the other commands lack, and how to install it.
    """
    command = next(iter(arguments), "")
    if command == "gym":
        run_gym(arguments[1:])
    if command not in COMMANDS and not command.startswith("-"):
        print(f"error: {f'relaax {command}'.strip()}: {missing}", file=sys.stderr)
        return 2
    options = _make_parser(missing).parse_args(arguments)
    try:
        return _run(options)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def run_gym(arguments: Sequence[str]) -> NoReturn:
    """Runs the client for Gymnasium environments, in place of this program."""
    program = str(get_shipped_folder(ENVIRONMENTS) / "OpenAI_Gym" / "main")
    if os.name == "nt":  # where exec does not wait: the shell would continue meanwhile
        sys.argv = [program, *arguments]
        runpy.run_path(program, run_name="__main__")
        sys.exit()
    os.execv(sys.executable, [sys.executable, program, *arguments])


def _make_parser(missing: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="relaax",
        description="Train agents over the network, on environments that cannot be imported.",
        epilog=f"Training and servers: {missing}",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        if name == "examples":
            command.add_argument("--copy", type=Path, metavar="DIR", help="copy all of them to DIR")
    return parser


def _run(options: argparse.Namespace) -> int:
    from relaax_like.cli.doctor import run_checks
    from relaax_like.cli.examples import copy_examples, list_examples

    if options.command == "doctor":
        return run_checks()
    return list_examples() if options.copy is None else copy_examples(options.copy)
