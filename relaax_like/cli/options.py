"""Options that several commands share."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from relaax_like.supervision.process import run_main
from relaax_like.wire.security import ClientSecurity

ConfigOption = Annotated[
    Path,
    typer.Option(
        "--config",
        "-c",
        help="The experiment's YAML file, or a name listed by `relaax examples`.",
        show_default=False,
    ),
]
SetOption = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override one key of the file, such as algorithm.learning_rate=3e-4; repeatable.",
    ),
]
TraceOption = Annotated[
    bool,
    typer.Option(
        "--trace", help="Record where the time goes to RUN_DIR/trace; see `relaax trace`."
    ),
]

AddressArgument = Annotated[str, typer.Argument(help="HOST:PORT of the parameter server.")]
# Options of commands that call a server, besides --token-file.
_TLS_OPTIONS = {
    "tls_ca": "Use TLS; CA certificates to trust (PEM file).",
    "tls_cert": "Client certificate, if the server requires one (PEM file).",
    "tls_key": "Private key of the client certificate (PEM file).",
}

InsecureOption = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Listen on addresses that other machines can reach, even without TLS and tokens.",
    ),
]

RayOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT|local",
        help="Place the processes on the machines of this Ray cluster; local: start Ray here.",
    ),
]

WorkersRayOption = Annotated[
    str | None,
    typer.Option(
        "--ray",
        "--redis",
        metavar="HOST:PORT|local",
        help="Run the workers (--workers) on the machines of this Ray cluster; local: start Ray "
        "here. --redis is OSU PPO's name for it.",
    ),
]

AcceptLossOption = Annotated[
    bool,
    typer.Option(
        "--accept-loss",
        help="Start a run that had begun, although its folder of checkpoints is empty: from its "
        "newest copy in mirror_url, or else from scratch.",
    ),
]


def to_overrides(section: str, flags: Mapping[str, Any], sets: Sequence[str]) -> list[str]:
    """Converts the given flags to overrides of a section; explicit `--set`s come last."""
    given = [
        f"{section}.{key}={_to_yaml(value)}" for key, value in flags.items() if value is not None
    ]
    return [*given, *sets]


def _to_yaml(value: Any) -> str:
    """Returns a flag's value as YAML; text stays text, such as [::1]:7000, or a path with ": "."""
    if isinstance(value, int | float):
        return f"{value}"
    from relaax_like.config.yaml_document import quote_text  # not needed for --help

    return quote_text(f"{value}")


def allow_insecure(insecure: bool, sets: Sequence[str]) -> list[str]:
    """Adds the override that the flag `--insecure` stands for."""
    return [*sets, *(["security.insecure=true"] if insecure else [])]


def make_app(help_text: str) -> typer.Typer:
    """Returns an app with the flags -h and --help, without completion and formatted tracebacks."""
    return typer.Typer(
        help=help_text,
        add_completion=False,
        no_args_is_help=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def command(
    app: typer.Typer, token_role: str = "", **settings: Any
) -> Callable[[Callable[..., int]], Any]:
    """Makes a function a command of an app, whose exit status it returns; see `run_main`.

    Args:
      app: gets the command.
      token_role: role of the token that the command presents to a server; "": it calls none.
        Otherwise the function's argument `security` is made from the options --token-file,
        --tls-ca, --tls-cert and --tls-key, which the command has instead.
      settings: of `Typer.command`.
    """

    def register(function: Callable[..., int]) -> Callable[..., None]:
        signature = inspect.signature(function)
        options = _list_security_options(token_role)
        own = [one for name, one in signature.parameters.items() if name != "security"]

        @functools.wraps(function)
        def run(**given: Any) -> None:
            def start() -> int:
                if options:
                    parts = {option.name: given.pop(option.name) for option in options}
                    given["security"] = ClientSecurity(**parts)
                return function(**given)

            run_main(start)

        run.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in (*own, *options)}
        app.command(**settings)(run)
        return run

    return register


def _list_security_options(token_role: str) -> list[inspect.Parameter]:
    if not token_role:
        return []
    helps = {"token_file": f"File with a token of role {token_role}.", **_TLS_OPTIONS}
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[Path | None, typer.Option(help=text)],
        )
        for name, text in helps.items()
    ]
