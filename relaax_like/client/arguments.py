"""Command-line flags of our Python environment programs: token, TLS, and numbers."""

import argparse
import os
from pathlib import Path

from relaax_like.wire.errors import ConfigError
from relaax_like.wire.security import ClientSecurity

_TOKEN_VARIABLE = "RELAAX_TOKEN"


def add_security_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds `--token-file`, `--token` and the flags of TLS; see `make_security`."""
    add = parser.add_argument
    add(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="file with the token that the server requires; only its owner must have access to it",
    )
    # The variable is read later: a default would appear wherever all arguments are printed.
    add(
        "--token",
        metavar="TOKEN",
        help="the token itself, which other users of this machine can see; default: "
        f"${_TOKEN_VARIABLE}, which they cannot see",
    )
    add("--tls-ca", type=Path, metavar="FILE", help="use TLS; CA certificates to trust (PEM file)")
    add("--tls-cert", type=Path, metavar="FILE", help="client certificate (PEM file)")
    add(
        "--tls-key",
        type=Path,
        metavar="FILE",
        help="private key of the client certificate (PEM file)",
    )


def make_security(args: argparse.Namespace) -> ClientSecurity:
    """Returns the settings from the flags, with the token in $RELAAX_TOKEN if they specify none.

    Raises:
      ConfigError: the flags contradict each other, or the token has a character that no token can
        have.
    """
    token = args.token or ""
    if not token and args.token_file is None:
        token = os.environ.get(_TOKEN_VARIABLE, "")
        if not (token.isascii() and token.isprintable()):
            raise ConfigError(
                f"{_TOKEN_VARIABLE}: contains a line end, or another character that is not "
                "printable ASCII; set it to the token alone, or pass --token-file"
            )
    return ClientSecurity(
        token=token,
        token_file=args.token_file,
        tls_ca=args.tls_ca,
        tls_cert=args.tls_cert,
        tls_key=args.tls_key,
    )


def parse_count(text: str) -> int:
    """Returns a flag's integer of 0 or more.

    Raises:
      argparse.ArgumentTypeError: the text is something else.
    """
    return _read_number(text, 0)


def parse_positive(text: str) -> int:
    """Returns a flag's integer of 1 or more.

    Raises:
      argparse.ArgumentTypeError: the text is something else.
    """
    return _read_number(text, 1)


def _read_number(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"{text!r:.80}, expected an integer of {least} or more")
    return number
