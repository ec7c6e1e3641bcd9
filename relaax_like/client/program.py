"""The command line of a program that plays many environments of its own on one connection."""

import argparse
import json
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

from relaax_like.client.arguments import (
    add_security_arguments,
    make_security,
    parse_count,
    parse_positive,
)
from relaax_like.client.client import Retry, RlxClient
from relaax_like.client.exit_status import find_exit_status
from relaax_like.client.interactor import (
    EnvironmentSlots,
    Interactor,
    RunSummary,
    get_agents,
)
from relaax_like.wire.errors import ConfigError, RelaaxError, print_error

# Arguments by name, number of slots, seed or None -> the environments.
MakeSlots = Callable[[Mapping[str, Any], int, int | None], EnvironmentSlots]


def run_program(program: str, description: str, make_slots: MakeSlots, arguments: str) -> int:
    """Reads the command line, plays, and prints how it ended; returns the exit status.

    Args:
      program: name of the folder in environments/.
      description: shown by `--help`.
      make_slots: makes the environments; raises ConfigError for unknown or invalid arguments.
      arguments: describes the keys of `--env-arg`.

    Returns:
      0: done; 130: Ctrl-C; after an error, see `find_exit_status`.
    """
    args = make_program_parser(program, description, arguments).parse_args()
    try:
        summary = _play(args, make_slots)
    except RelaaxError as error:
        print_error(program, error)
        return find_exit_status(error)
    except KeyboardInterrupt:
        return 130
    reason = summary.finished or "done"
    print(f"{program}: {reason}; {summary.episodes} episodes, {summary.steps} steps")
    return 0


def refuse_keys(environment: Any, program: str) -> None:
    """Refuses keys of the section `environment` for which programs of `run_program` have no flag.

    Args:
      environment: the section.
      program: name of the folder in environments/, for the error.

    Raises:
      ConfigError: such a key is set; the error names it.
    """
    for key, default in (
        ("env", None),
        ("action_repeat", 1),
        ("random_steps", 0),
        ("max_episode_steps", None),
        ("seed_resets", False),
        ("versions", "on"),
        ("masks", "auto"),
    ):
        value = getattr(environment, key)
        if value != default:
            raise ConfigError(
                f"environment.{key}: {value!r:.80} is not supported by the program {program}, "
                f"which has no --{key.replace('_', '-')}; remove the key"
            )


def _play(args: argparse.Namespace, make_slots: MakeSlots) -> RunSummary:
    slots = make_slots(dict(args.env_arg), args.num_envs, args.seed)
    with RlxClient(
        args.rlx_server,
        slots.observation_space,
        slots.action_space,
        slots=slots.slots,
        name=args.name,
        exploit=args.exploit,
        security=make_security(args),
        retry=Retry(),
        **get_agents(slots),
    ) as client:
        return run_until_hung_up(Interactor(slots, client, max_episodes=args.episodes))


def run_until_hung_up(interactor: Interactor) -> RunSummary:
    """Runs to the end; after SIGHUP, each slot only ends its episode. See `Interactor.run`."""
    # Windows has none, and nohup ignores it.
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: interactor.end_episodes())
    return interactor.run()


def make_program_parser(
    program: str, description: str, arguments: str, epilog: str | None = None
) -> argparse.ArgumentParser:
    """Makes a parser of the flags that all programs have.

    Args:
      program: name of the folder in environments/.
      description: shown by `--help`, before the flags.
      arguments: describes the keys of `--env-arg`.
      epilog: shown behind the flags.
    """
    # Without allow_abbrev=False, --env would be taken for --env-arg.
    parser = argparse.ArgumentParser(
        f"{program}/main", description=description, epilog=epilog, allow_abbrev=False
    )
    add = parser.add_argument
    add("--rlx-server", default="localhost:7001", metavar="HOST:PORT", help="default: %(default)s")
    add(
        "--num-envs",
        type=parse_positive,
        default=1,
        metavar="K",
        help="slots of the connection; default: 1",
    )
    add(
        "--env-arg",
        type=_parse_env_arg,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help=f"{arguments}; repeatable",
    )
    add("--exploit", action="store_true", help="choose the best actions; learn nothing")
    add("--seed", type=parse_count, metavar="N", help="of the environments; default: random")
    add("--name", default=f"{program}-{os.getpid()}", help="shown in the server's log")
    add(
        "--episodes",
        type=parse_positive,
        metavar="N",
        help="end after this many episodes; default: when the training ends",
    )
    add_security_arguments(parser)
    return parser


def _parse_env_arg(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise argparse.ArgumentTypeError(
            f"{text!r:.100}, expected KEY=VALUE, such as size=4; KEY must be a Python name"
        )
    for word, meaning in (("True", True), ("False", False), ("None", None)):
        if value == word:
            return key, meaning
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value
