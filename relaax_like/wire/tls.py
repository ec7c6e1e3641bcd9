"""TLS: certificates from files, and descriptions of failed handshakes.

Versions are TLS 1.2 and newer, Python's and gRPC's default.
"""

import base64
import datetime
import logging
import re
import socket
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from relaax_like.wire.errors import ConfigError
from relaax_like.wire.watched_files import WatchedFiles, read_bytes

logger = logging.getLogger(__name__)

# First two bytes of a TLS handshake. A frame of the rlx protocol with these would have 369 MB.
HANDSHAKE = b"\x16\x03"

# A certificate that expires within this time is a warning.
_SOON = datetime.timedelta(days=14)
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.DOTALL)
# The validity of a certificate in DER: two times, YYMMDDHHMMSSZ before 2050, else with YYYY.
_VALIDITY = re.compile(
    rb"\x30[\x1e-\x22](?:\x17\x0d\d{12}Z|\x18\x0f\d{14}Z)(?:\x17\x0d|\x18\x0f)(\d{12,14})Z"
)

# OpenSSL's number of a fault of the certificate -> cure.
_VERIFY_CURES = {
    9: "it is not valid yet; check the clocks of both machines",
    10: "renew it; the new one is read without a restart",
    18: "tls_ca must contain the certificate that signed it",
    19: "tls_ca must contain the certificate that signed it",
    20: "tls_ca must contain the certificate that signed it",
    21: "tls_ca must contain the certificate that signed it",
    62: "issue it for this name, or connect with a name that it contains",
    64: "issue it for this address, or connect with a name that it contains",
}
# Parts of OpenSSL's names of the errors for a peer that does not use TLS, and for a peer's alerts
# about our certificate.
_PLAIN = ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")
_CLIENT_CERT_CURE = (
    "set tls_cert and tls_key to a certificate that is valid and signed by the server's tls_ca"
)
_CLIENT_CERT = ("CERTIFICATE", "UNKNOWN_CA", "HANDSHAKE_FAILURE", "DECRYPT_ERROR", "ACCESS_DENIED")


class Pem(NamedTuple):
    """The contents of PEM files: CA certificates, own certificate, its key; b"" if not set."""

    ca: bytes
    cert: bytes
    key: bytes


@dataclass(frozen=True, kw_only=True)
class ClientTls:
    """The PEM files with which a client uses TLS.

    Attributes:
      ca: CA certificates that the client trusts.
      cert: the client's certificate, for servers that require one; None: no certificate.
      key: private key of that certificate; None: no certificate.
    """

    ca: Path
    cert: Path | None
    key: Path | None

    def make_context(self) -> ssl.SSLContext:
        """Returns the context for connections, which checks the server's name.

        Raises:
          ConfigError: a file cannot be used.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _load_ca(context, self.ca)
        if self.cert is not None and self.key is not None:
            _load_chain(context, self.cert, self.key)
        return context

    def watch(self) -> WatchedFiles[Pem]:
        """Returns the files' checked contents, which are updated when the files are replaced.

        Raises:
          ConfigError: a file cannot be used.
        """
        paths = [path for path in (self.ca, self.cert, self.key) if path is not None]
        return WatchedFiles(paths, self._read)

    def _read(self) -> Pem:
        self.make_context()
        return _read_pem(self.ca, self.cert, self.key)


class ServerTls:
    """The PEM files with which a server uses TLS; changed files apply to new connections.

    Thread-safe, except `refresh`.

    Args:
      cert: its certificate, with the chain to the CA.
      key: private key of the certificate.
      ca: CA certificates, one of which must have signed a client's certificate.
      client_cert_required: refuse clients without a certificate that the CA has signed (mTLS).

    Raises:
      ConfigError: a file cannot be used.
    """

    def __init__(self, *, cert: Path, key: Path, ca: Path, client_cert_required: bool = False):
        self.client_cert_required = client_cert_required
        self._cert, self._key, self._ca = cert, key, ca
        self._pem = WatchedFiles([cert, key, ca], self._read)
        self._told = ""  # why they could not be loaded

    def get(self) -> Pem:
        """Returns the files' newest contents that can be used."""
        return self._pem.get()

    def make_context(self) -> ssl.SSLContext:
        """Returns a context for `refresh`.

        Raises:
          ConfigError: a file cannot be used.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        _load_chain(context, self._cert, self._key)
        _load_ca(context, self._ca)
        if self.client_cert_required:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def refresh(self, context: ssl.SSLContext, loaded: Pem) -> Pem:
        """Loads the newest files into a context, if they have changed.

        A new CA is added; a CA that was removed from the file is trusted until the restart.

        Args:
          context: from `make_context`.
          loaded: contents that are loaded in it.

        Returns:
          The contents that are loaded now.
        """
        newest = self.get()
        if newest is not loaded:
            try:
                _load_chain(context, self._cert, self._key)
                _load_ca(context, self._ca)
            except ConfigError as error:  # changed again after they were checked, ...
                if str(error) != self._told:
                    self._told = str(error)
                    logger.warning("%s; retrying", error)
                return loaded
            self._told = ""
        return newest

    def _read(self) -> Pem:
        # OpenSSL reports a key that does not match; gRPC would fail in each handshake.
        self.make_context()
        pem = _read_pem(self._ca, self._cert, self._key)
        _warn_of_expiry(pem.cert, f"tls_cert {self._cert}", min)
        _warn_of_expiry(pem.ca, f"tls_ca {self._ca}", max)  # of a bundle, others can be used
        return pem


def _read_pem(ca: Path, cert: Path | None, key: Path | None) -> Pem:
    return Pem(
        ca=read_bytes(ca, "tls_ca"),
        cert=read_bytes(cert, "tls_cert") if cert else b"",
        key=read_bytes(key, "tls_key", private=True) if key else b"",
    )


def _warn_of_expiry(pem: bytes, what: str, choose: Callable[[Iterable[Any]], Any]) -> None:
    """Warns if the certificate that `choose` takes, by its end, has expired or soon will."""
    ends = []
    for body in _CERTIFICATE.findall(pem):
        if found := _VALIDITY.search(base64.b64decode(body)):
            text = found[1].decode()
            year = "" if len(text) == 14 else "20" if text < "5" else "19"
            ends.append(datetime.datetime.strptime(f"{year}{text}+0000", "%Y%m%d%H%M%S%z"))
    now = datetime.datetime.now(datetime.UTC)
    if ends and (end := choose(ends)) < now + _SOON:
        verb = "has expired" if end < now else "will expire"
        logger.warning("%s: the certificate %s, at %s; renew it", what, verb, end)


def _load_ca(context: ssl.SSLContext, path: Path) -> None:
    read_bytes(path, "tls_ca")  # reports errors of the file itself
    try:
        context.load_verify_locations(cafile=path)
    except OSError as error:
        raise ConfigError(
            f"tls_ca {path}: cannot be loaded ({_describe_reason(error)}), expected certificates "
            "in PEM format"
        ) from None


def _load_chain(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    read_bytes(cert, "tls_cert")
    read_bytes(key, "tls_key", private=True)
    try:
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(cert, key, password=lambda: "")
    except OSError as error:
        raise ConfigError(
            f"tls_cert {cert} and tls_key {key}: cannot be loaded ({_describe_reason(error)}), "
            "expected a certificate and its unencrypted private key in PEM format"
        ) from None


def _describe_reason(error: OSError) -> str:
    return getattr(error, "reason", None) or str(error)


def describe_tls_error(error: OSError) -> str:
    """Returns why TLS failed permanently, and the cure; "" if it might be a lost connection."""
    if isinstance(error, ssl.SSLCertVerificationError):
        cure = _VERIFY_CURES.get(error.verify_code, "check tls_ca")
        return f"its certificate was rejected ({error.verify_message}): {cure}"
    reason = getattr(error, "reason", None) or ""
    if not isinstance(error, ssl.SSLError) or not reason:
        return ""
    if any(part in reason for part in _PLAIN):
        return "it does not use TLS on this port: remove tls_ca, or set up TLS on the server"
    if any(part in reason for part in _CLIENT_CERT):
        return (
            "it requires a client certificate, or rejected our certificate "
            f"({reason.lower().replace('_', ' ')}): {_CLIENT_CERT_CURE}"
        )
    return ""


def find_tls_mistake(host: str, port: int, tls: ClientTls | None, timeout_sec: float = 2.0) -> str:
    """Probes a server that does not answer, and returns what is wrong with the two ends' TLS.

    gRPC reports an absent server and a refused certificate with the same code, and retries both
    indefinitely.

    Args:
      host: of the server.
      port: of the server; with `tls`, it must send first after the handshake, as gRPC servers do.
      tls: of the client; None: no TLS.
      timeout_sec: longest wait for each part of the probe.

    Returns:
      The mistake; "" if there is none, or if it cannot be determined, such as while one of the
      client's files is being replaced.
    """
    try:
        if tls is None:
            return _find_unexpected_tls(host, port, timeout_sec)
        # Twice, because a server that has just exited looks the same.
        if _is_heard(host, port, tls, timeout_sec) or _is_heard(host, port, tls, timeout_sec):
            return ""
    except ConfigError:  # the connection still uses the files' previous contents
        return ""
    except OSError as error:
        return describe_tls_error(error)
    return (
        "it closes the connection after the handshake, as servers do when a client "
        f"certificate is missing or rejected: {_CLIENT_CERT_CURE}"
    )


def _find_unexpected_tls(host: str, port: int, timeout_sec: float) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with _connect(host, port, context, timeout_sec):
            return "it uses TLS: set tls_ca to the certificate that signed its own"
    except ssl.SSLError as error:
        # In TLS 1.2 it arrives before the end of the handshake.
        asks = any(part in (error.reason or "") for part in _CLIENT_CERT)
        return (
            "it uses TLS and requires a client certificate: set tls_ca, tls_cert and tls_key" * asks
        )


def _is_heard(host: str, port: int, tls: ClientTls, timeout_sec: float) -> bool:
    """Returns whether the server stays connected: it refuses a client only after the handshake."""
    with _connect(host, port, tls.make_context(), timeout_sec) as secured:
        try:
            return bool(secured.recv(1))
        except TimeoutError:
            return True
        except ConnectionError:
            return False


def _connect(host: str, port: int, context: ssl.SSLContext, timeout_sec: float) -> ssl.SSLSocket:
    context.set_alpn_protocols(["h2"])  # without it gRPC refuses us
    plain = socket.create_connection((host, port), timeout_sec)
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise
