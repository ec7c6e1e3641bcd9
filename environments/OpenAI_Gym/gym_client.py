"""The program: command line, signals, and the life cycle of one client."""

import argparse
import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from relaax_like.client import (
    Interactor,
    Retry,
    RlxClient,
    RunSummary,
    SlotEpisode,
    find_exit_status,
    find_versions,
    get_agents,
    make_security,
    parse_count,
    parse_positive,
    reset_first,
)
from relaax_like.client.program import make_program_parser, run_until_hung_up
from relaax_like.extras import naming_missing
from relaax_like.wire import RelaaxError
from relaax_like.wire.errors import VERBOSE, print_error

from .gym_display import Display

if TYPE_CHECKING:
    from .gym_slots import GymSlots
    from .pettingzoo_slots import PettingZooSlots

_QUIET = "RELAAX_QUIET"
_EPILOG = """\
After a start with --display or --env-arg render_mode=rgb_array, kill -USR1 PID hides slot 0's
window, or shows it again. If the connection is lost, the client reconnects. Exit code: 0 at the end
of training or after --episodes, 2 for a usage or configuration error, 130 after Ctrl-C, 143 after
SIGTERM, 1 for any other error. After SIGHUP, each slot ends its episode, and the code is 0."""


class _Terminated(BaseException):
    """SIGTERM was received. Like KeyboardInterrupt, `except Exception` does not catch it."""


def make_parser() -> argparse.ArgumentParser:
    """Makes the command line's parser."""
    parser = make_program_parser(
        "OpenAI_Gym",
        "Run a Gymnasium environment as a client of an rlx server.",
        "argument of the environment's constructor; VALUE is JSON, or else text",
        _EPILOG,
    )
    parser.set_defaults(name=None)  # environment and process id
    _add_environment_flags(parser)
    add = parser.add_argument
    add("--display", action="store_true", help="show slot 0 in a window from the start")
    add("-v", "--verbose", action="store_true", help="print the traceback of an error")
    add(
        "--timeout",
        type=float,
        default=60.0,
        metavar="SEC",
        help="seconds to wait for a reply; default: 60",
    )
    add(
        "--retry-sleep",
        type=float,
        nargs=2,
        default=(1.0, 10.0),
        metavar=("MIN", "MAX"),
        help="seconds before reconnecting, drawn uniformly between the two; default: 1 10",
    )
    add("--no-versions", action="store_true", help="do not tell the versions of its packages")
    add(
        "--quiet",
        action="store_true",
        default=bool(os.environ.get(_QUIET)),
        help=f"do not print each episode; on by default if {_QUIET} is set, as relaax run does",
    )
    return parser


def _add_environment_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--env",
        default="CartPole-v1",
        metavar="NAME",
        help="name of the environment, module:NAME, or pettingzoo:MODULE for games of several "
        "agents; default: %(default)s",
    )
    add(
        "--random-steps",
        "--rnd",
        type=parse_count,
        default=0,
        metavar="N",
        help="random actions after each reset, before the agent acts; default: 0",
    )
    add(
        "--max-episode-steps",
        "--limit",
        type=parse_positive,
        metavar="N",
        help="agent steps after which an episode is truncated; default: only the environment's own "
        "limit",
    )
    add(
        "--action-repeat",
        "--actrep",
        type=parse_positive,
        default=1,
        metavar="N",
        help="times each action is repeated in the environment, with rewards summed; default: 1",
    )
    add(
        "--vectorization-mode",
        choices=("auto", "sync", "vector_entry_point"),
        default="auto",
        help="step environments one after the other (sync) or with the environment's own "
        "vectorised form (vector_entry_point), or use that form where possible (auto, the "
        "default)",
    )
    add(
        "--masks",
        default="auto",
        metavar="NAME",
        help="leaf of the observation, or entry of info, that says which actions are legal; "
        "default: auto, which is action_mask if there is one; off: none",
    )
    add("--seed-resets", action="store_true", help="pass a new seed to every reset of a slot")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program; returns its exit code."""
    args = make_parser().parse_args(argv)
    if args.verbose:
        os.environ[VERBOSE] = "1"
    try:
        with _signals():
            summary = run(args)
    except RelaaxError as error:
        print_error(args.env, error)
        return find_exit_status(error)
    except KeyboardInterrupt:
        return 130
    except _Terminated:
        return 143
    reason = summary.finished or "done"
    print(f"{args.env}: {reason}; {summary.episodes} episodes, {summary.steps} steps", flush=True)
    return 0


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Makes the first SIGTERM raise `_Terminated`; a second one ends the program immediately."""

    def terminate(*unused: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise _Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run(args: argparse.Namespace) -> RunSummary:
    """Runs environments against the server until the end.

    Raises:
      ConfigError: the environment or a flag is wrong.
      NotAllowedError: client or server does not trust the other.
      ProtocolError: the server refused the client, or is not an rlx server.
      InvalidInputError: the environment returned a wrong value, or a message is too long.
    """
    security = make_security(args)
    retry = Retry(min_sleep_sec=args.retry_sleep[0], max_sleep_sec=args.retry_sleep[1])
    with contextlib.ExitStack() as stack:
        # First, because SIGUSR1 ends a process that has no handler for it.
        name = args.name or f"{args.env}-{os.getpid()}"
        display = _make_display(args, name)
        stack.callback(display.close)
        # Before the connection, which might have to wait for its server.
        slots = _make_slots(args)
        stack.callback(slots.close)
        first = reset_first(slots)
        display.attach(slots.render, slots.render_fps)
        client = stack.enter_context(
            RlxClient(
                args.rlx_server,
                slots.observation_space,
                slots.action_space,
                slots=slots.slots,
                name=name[:100],
                exploit=args.exploit,
                security=security,
                timeout_sec=args.timeout,
                versions=None if args.no_versions else find_versions(slots.simulator),
                retry=retry,
                **get_agents(slots),
            )
        )
        interactor = Interactor(
            slots,
            client,
            random_steps=args.random_steps,
            max_episode_steps=args.max_episode_steps,
            max_episodes=args.episodes,
            on_episode=None if args.quiet else _print_episode,
            on_step=display.update,
            seed=args.seed,
            first=first,
        )
        return run_until_hung_up(interactor)


def _make_slots(args: argparse.Namespace) -> "GymSlots | PettingZooSlots":
    with naming_missing():
        from .gym_make import find_needs, make_slots
    return make_slots(
        args.env,
        args.num_envs,
        mode=args.vectorization_mode,
        seed=args.seed,
        needs=find_needs(args),
        action_repeat=args.action_repeat,
        env_args=dict(args.env_arg),
        draw=args.display,
        masks=args.masks,
    )


def _make_display(args: argparse.Namespace, name: str) -> Display:
    display = Display(f"{args.env} - {name}")
    if args.display:
        display.toggle()
    if hasattr(signal, "SIGUSR1"):
        signal.signal(signal.SIGUSR1, display.toggle)
    return display


def _print_episode(episode: SlotEpisode) -> None:
    ending = " (truncated)" if episode.truncated else ""
    agent = f" of {episode.agent}" if episode.agent else ""
    print(f"Score = {episode.score:g}{agent}, {episode.length} steps{ending}", flush=True)
