"""Certificates and token files, made for a test."""

import datetime
from pathlib import Path

import trustme

from relaax_like.wire.security import ClientSecurity, ServerSecurity, Tokens
from relaax_like.wire.tls import ServerTls

ENVIRONMENT = "environment-token-0000000001"
AGENT = "agent-token-0000000000000002"
OPERATOR = "operator-token-0000000000003"
ALL_TOKENS = (ENVIRONMENT, AGENT, OPERATOR)


def write_private(path: Path, text: str | bytes) -> Path:
    """Writes a file atomically; only its owner can read it."""
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_bytes(text.encode() if isinstance(text, str) else text)
    temporary.chmod(0o600)
    return temporary.rename(path)


def write_tokens(path: Path) -> Path:
    """Writes a tokens file with one token of each role."""
    return write_private(
        path, f"# of a test\nenvironment {ENVIRONMENT}\nagent {AGENT}\n\noperator {OPERATOR}\n"
    )


class Authority:
    """A CA with a certificate for a server on this machine, and one for a client.

    Attributes:
      ca, cert, key, client_cert, client_key: PEM files.

    Args:
      folder: to write them to.
      name: beginning of their names.
      rsa: make keys of RSA, not of elliptic curves.
    """

    def __init__(self, folder: Path, name: str = "own", rsa: bool = False):
        folder.mkdir(exist_ok=True)
        self._key_type = trustme.KeyType.RSA if rsa else trustme.KeyType.ECDSA
        self._authority = trustme.CA(key_type=self._key_type)
        paths = (folder / f"{name}-{what}.pem" for what in ("ca", "cert", "key", "cc", "ck"))
        self.ca, self.cert, self.key, self.client_cert, self.client_key = paths
        write_private(self.ca, self._authority.cert_pem.bytes())
        self.issue()
        self._write(self._authority.issue_cert("client"), self.client_cert, self.client_key)

    def issue(self, *names: str, expired: bool = False, days: int = 30) -> None:
        """Writes a new certificate for the server, which is valid for so many days."""
        now = datetime.datetime.now(datetime.UTC)
        day = datetime.timedelta(days=1)
        leaf = self._authority.issue_cert(
            *(names or ("localhost", "127.0.0.1")),
            not_before=now - 2 * day,
            not_after=now - day if expired else now + days * day,
            key_type=self._key_type,
        )
        self._write(leaf, self.cert, self.key)

    def replace(self, other: "Authority") -> None:
        """Overwrites the server's files with those of another."""
        for ours, theirs in ((self.cert, other.cert), (self.key, other.key), (self.ca, other.ca)):
            write_private(ours, theirs.read_bytes())

    def server_tls(self, client_cert_required: bool = False) -> ServerTls:
        """Returns what a server needs."""
        return ServerTls(
            cert=self.cert,
            key=self.key,
            ca=self.ca,
            client_cert_required=client_cert_required,
        )

    def client(self, token: str = "", certificate: bool = False) -> ClientSecurity:
        """Returns what a client needs."""
        return ClientSecurity(
            token=token,
            tls_ca=self.ca,
            tls_cert=self.client_cert if certificate else None,
            tls_key=self.client_key if certificate else None,
        )

    def _write(self, leaf: trustme.LeafCert, cert: Path, key: Path) -> None:
        write_private(cert, b"".join(part.bytes() for part in leaf.cert_chain_pems))
        write_private(key, leaf.private_key_pem.bytes())


def make_security(folder: Path, tls: ServerTls | None = None) -> ServerSecurity:
    """Returns a server's security with one token of each role."""
    return ServerSecurity(tls=tls, tokens=Tokens(write_tokens(folder / "tokens")))
