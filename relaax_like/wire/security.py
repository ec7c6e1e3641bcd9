"""Permissions: roles, tokens, and the credentials with which both ends trust each other.

This module does not depend on a transport. A token never appears in an error, a log line or a
`repr`.
"""

import enum
import hashlib
import hmac
from dataclasses import dataclass, field
from pathlib import Path

from relaax_like.wire.errors import ConfigError
from relaax_like.wire.tls import ClientTls, ServerTls
from relaax_like.wire.watched_files import WatchedFiles, read_bytes

MIN_TOKEN_LENGTH = 16
MAX_TOKEN_LENGTH = 512


class Role(enum.IntEnum):
    """Permissions of a token; each role includes the permissions of all lower roles."""

    # Steps through an rlx server: acts, and gives rewards.
    ENVIRONMENT = 1
    # Agents and learners: pull values, push gradients and metrics, request the status.
    AGENT = 2
    # Slaves of a coordinator: run jobs.
    LEARNER = 3
    # Saves and stops a server; submits and cancels jobs.
    OPERATOR = 4

    def __str__(self) -> str:
        return self.name.lower()


# A coordinator has no configuration file.
_TOKENS_FILE = "tokens file (security.tokens_file, or --tokens-file of `relaax jobs serve`)"
_ROLES = {str(role): role for role in Role}
_Digests = tuple[tuple[bytes, Role], ...]


class Tokens:
    """The tokens that a server accepts, from a file that is read again when it changes.

        tokens = Tokens(Path("tokens"))
        role = tokens.find_role(token)  # None: unknown

    The file has a line `ROLE TOKEN` for each; lines that begin with # are comments. Only digests
    are kept in memory. Thread-safe.

    Attributes:
      path: the file.

    Args:
      path: the file.

    Raises:
      ConfigError: the file cannot be used; the error names the file, and a wrong line.
    """

    def __init__(self, path: Path):
        self.path = path
        self._digests = WatchedFiles([path], lambda: _read_tokens(path))

    def find_role(self, token: str) -> Role | None:
        """Returns a token's role; None: unknown. Both take the same time."""
        digest = _compute_digest(token)
        found = None
        for known, role in self._digests.get():
            if hmac.compare_digest(digest, known):
                found = role
        return found


def watch_token(path: Path) -> WatchedFiles[str]:
    """Returns a client's own token, from a file that is read again when it changes.

    Args:
      path: the file; see `read_token`.

    Raises:
      ConfigError: the file cannot be used.
    """
    return WatchedFiles([path], lambda: read_token(path))


@dataclass(frozen=True, kw_only=True)
class ClientSecurity:
    """How a client proves its identity, and which certificates it trusts. The default: neither.

    Attributes:
      token: the secret itself; empty: none. `token_file` is safer.
      token_file: file with only the secret and comments; None: `token` is used.
      tls_ca: CA certificates to trust (PEM file); None: no TLS.
      tls_cert: the client's certificate (PEM file), for servers that require one; None: none.
      tls_key: the certificate's private key (PEM file); None: `tls_cert` is None too.

    Raises:
      ConfigError: the settings contradict each other, or `token` has a character that no token can
        have. The files are read when they are used.
    """

    token: str = field(default="", repr=False)
    token_file: Path | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None

    def __post_init__(self) -> None:
        for name in ("token_file", "tls_ca", "tls_cert", "tls_key"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, Path(value))
        # gRPC refuses such metadata with an error that shows it.
        if not (self.token.isascii() and self.token.isprintable()):
            raise ConfigError(
                "token: contains a line end, or another character that is not printable ASCII; "
                "pass only the token, or set token_file"
            )
        if self.token and self.token_file:
            raise ConfigError(
                f"token and token_file {self.token_file} are both set; set only one of them"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            missing, other = "tls_key", "tls_cert"
            if self.tls_key is not None:
                missing, other = other, missing
            raise ConfigError(
                f"{missing}: missing, but {other} is {getattr(self, other)}; set both, a "
                "certificate and its private key (--tls-cert, --tls-key)"
            )
        if self.tls_cert and not self.tls_ca:
            raise ConfigError(
                f"tls_ca: missing, but tls_cert is {self.tls_cert}; set tls_ca, too (--tls-ca), "
                "because without it the connection is not encrypted"
            )

    @property
    def tls(self) -> ClientTls | None:
        """The client's TLS settings; None: no TLS."""
        if self.tls_ca is None:
            return None
        return ClientTls(ca=self.tls_ca, cert=self.tls_cert, key=self.tls_key)

    def read_token(self) -> str:
        """Returns the token; "" if there is none.

        Raises:
          ConfigError: the file cannot be used.
        """
        return self.token if self.token_file is None else read_token(self.token_file)


@dataclass(frozen=True, kw_only=True)
class ServerSecurity:
    """What a server requires from its clients. The default: nothing.

    Attributes:
      tls: its certificate; None: no TLS.
      tokens: the tokens that it accepts; None: it does not require a token.
    """

    tls: ServerTls | None = None
    tokens: Tokens | None = None


def describe_missing_role(tokens: Tokens, token: str, needed: Role) -> str:
    """Describes why a token is not sufficient, and the cure; "" if it is sufficient.

    Args:
      tokens: of the server.
      token: that was received; "": none.
      needed: role that the client's request requires.
    """
    if not token:
        return (
            f"no token was sent, but one of role {needed} is required; set token_file "
            "(--token-file) to a file with a token of this role, or of a higher one, from the "
            f"server's {_TOKENS_FILE}"
        )
    role = tokens.find_role(token)
    if role is None:
        return (
            "the token is not known to this server; compare the client's token (token_file) with "
            f"the server's {_TOKENS_FILE}"
        )
    if role < needed:
        return (
            f"the token has role {role}, but role {needed} is required; set token_file "
            "(--token-file) to a file with such a token"
        )
    return ""


def read_token(path: Path) -> str:
    """Returns the token in a file; lines that begin with # are comments.

    Raises:
      ConfigError: the file cannot be read, users other than its owner have permissions for it
        (checked on POSIX systems), or it does not contain exactly one valid token.
    """
    found = ""
    for number, line in _read_lines(path, "token file"):
        place = f"{path}:{number}"
        if found:
            raise ConfigError(
                f"{place}: a second token, expected one token in the file; remove one of them"
            )
        if len(line.split()) != 1:
            raise ConfigError(
                f"{place}: {len(line.split())} words, expected only a token; lines of the form "
                f"ROLE TOKEN belong in the servers' {_TOKENS_FILE}"
            )
        _validate_token(line, place)
        found = line
    if not found:
        raise ConfigError(f"token file {path}: contains no token; write one token into it")
    return found


def _read_tokens(path: Path) -> _Digests:
    lines: dict[bytes, tuple[int, Role]] = {}
    for number, line in _read_lines(path, "tokens file"):
        place = f"{path}:{number}"
        # The line is never shown: if a word is missing, any other one might be the token.
        words = line.split()
        if len(words) != 2:
            raise ConfigError(
                f"{place}: {len(words)} word{'s' * (len(words) > 1)}, expected two: ROLE TOKEN "
                "(comments need separate lines that start with #)"
            )
        role = _ROLES.get(words[0])
        if role is None:
            known = ", ".join(_ROLES)
            raise ConfigError(f"{place}: the first word is not a role, expected one of {known}")
        _validate_token(words[1], place)
        digest = _compute_digest(words[1])
        if digest in lines:
            raise ConfigError(
                f"{place}: the same token as in line {lines[digest][0]}, expected unique tokens; "
                "remove one of the two lines"
            )
        lines[digest] = number, role
    if not lines:
        raise ConfigError(f"tokens file {path}: contains no token; expected lines ROLE TOKEN")
    return tuple((digest, role) for digest, (_, role) in lines.items())


def _read_lines(path: Path, what: str) -> list[tuple[int, str]]:
    """Returns (number, text) of the lines that are neither empty nor comments."""
    try:
        text = read_bytes(path, what, private=True).decode("ascii")
    except UnicodeDecodeError:
        raise ConfigError(
            f"{what} {path}: contains bytes that are not ASCII; save it as ASCII, without a byte "
            "order mark and without accented characters (also in comments)"
        ) from None
    lines = enumerate(map(str.strip, text.splitlines()), start=1)
    return [(number, line) for number, line in lines if line and not line.startswith("#")]


def _validate_token(token: str, place: str) -> None:
    if not MIN_TOKEN_LENGTH <= len(token) <= MAX_TOKEN_LENGTH:
        raise ConfigError(
            f"{place}: a token of {len(token)} characters, expected {MIN_TOKEN_LENGTH} to "
            f"{MAX_TOKEN_LENGTH}; make a new token for both ends with: openssl rand -hex 32"
        )
    if not token.isprintable():
        raise ConfigError(
            f"{place}: the token contains an unprintable character; make a new token for both ends "
            "with: openssl rand -hex 32"
        )


def _compute_digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
