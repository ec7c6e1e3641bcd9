"""Options that several commands share."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from relaax_like.runs.processes.process import run_main
from relaax_like.wire.security import ClientSecurity

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
OwnPolicyOption = Annotated[
    bool,
    typer.Option(
        "--own-policy",
        help="Collectors act here, with a policy of their own, and send rollouts or gradients, "
        "instead of asking the run's rlx server at each step: for slow or distant connections.",
    ),
]

InsecureOption = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Listen on addresses that other machines can reach, even without TLS and tokens.",
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

    The function can have arguments that are made from several options, which come last:

    - `overrides: list[str]`: from --set, and --insecure, which stands for an override;
    - `security: ClientSecurity`: from --token-file, --tls-ca, --tls-cert and --tls-key;
    - `server_security: dict[str, Any]`: keys of `SecurityConfig`, for a server without a file.

    Args:
      app: gets the command.
      token_role: role of the token in `security`.
      settings: of `Typer.command`.
    """
    makers: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
        "overrides": (_allow_insecure, {"insecure": InsecureOption, "sets": SetOption}),
        "security": (ClientSecurity, _list_security_options(token_role)),
        "server_security": (dict, _SERVER_SECURITY),
    }

    def register(function: Callable[..., int]) -> Callable[..., None]:
        signature = inspect.signature(function)
        made = {name: makers[name] for name in signature.parameters if name in makers}
        parameters = [one for name, one in signature.parameters.items() if name not in made]
        for name, annotation in [pair for _, kinds in made.values() for pair in kinds.items()]:
            kind, empty = inspect.Parameter.KEYWORD_ONLY, _EMPTY.get(name)
            parameters.append(inspect.Parameter(name, kind, default=empty, annotation=annotation))

        @functools.wraps(function)
        def run(**given: Any) -> None:
            def start() -> int:
                for name, (make, kinds) in made.items():
                    given[name] = make(**{part: given.pop(part) for part in kinds})
                return function(**given)

            run_main(start)

        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        app.command(**settings)(run)
        return run

    return register


# Option -> what it is if it is not given, unless that is None.
_EMPTY: Mapping[str, Any] = {"insecure": False, "sets": [], "tls_client_cert_required": False}
_SERVER_SECURITY: dict[str, Any] = {
    "tokens_file": Annotated[
        Path | None,
        typer.Option(help="Tokens to accept, lines ROLE TOKEN: operator, and learner for slaves."),
    ],
    "tls_cert": Annotated[Path | None, typer.Option(help="Certificate (PEM file).")],
    "tls_key": Annotated[
        Path | None, typer.Option(help="Private key of the certificate (PEM file).")
    ],
    "tls_ca": Annotated[
        Path | None, typer.Option(help="CA certificate that signed --tls-cert (PEM file).")
    ],
    "tls_client_cert_required": Annotated[
        bool,
        typer.Option(
            "--tls-client-cert-required", help="Require certificates of clients, signed by the CA."
        ),
    ],
    "insecure": InsecureOption,
}


def _allow_insecure(insecure: bool, sets: Sequence[str]) -> list[str]:
    """Adds the override that the flag `--insecure` stands for."""
    return [*sets, *(["security.insecure=true"] if insecure else [])]


def _list_security_options(token_role: str) -> dict[str, Any]:
    helps = {
        "token_file": f"File with a token of role {token_role}.",
        "tls_ca": "Use TLS; CA certificates to trust (PEM file).",
        "tls_cert": "Client certificate, if the server requires one (PEM file).",
        "tls_key": "Private key of the client certificate (PEM file).",
    }
    return {name: Annotated[Path | None, typer.Option(help=text)] for name, text in helps.items()}
