"""Addresses of servers: `host:port`."""

import ipaddress
import re
from dataclasses import dataclass

from relaax_like.wire.errors import ConfigError

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
# Resolving a name with an empty or a longer label would raise another error.
_LABEL = r"[A-Za-z0-9_\-]{1,63}"
_HOST = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(\.{_LABEL})*\.?")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]+(%[A-Za-z0-9_.\-]+)?")
_EXPECTED = (
    "expected host:port, such as localhost:7001 or [::1]:7001 (port 0, only to listen: any free "
    "port)"
)


@dataclass(frozen=True)
class Address:
    """Where a server listens, or where a client connects.

    Attributes:
      host: name or IP address; IPv6 without brackets.
      port: 0 to 65535; 0 means that the system chooses one.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:  # a name: 127.example.org is anywhere
            return self.host.lower() == "localhost"

    def to_connect(self) -> "Address":
        """Returns the address for a client on the same machine.

        The host is the same, but 127.0.0.1 for 0.0.0.0, and ::1 for ::.
        """
        return Address(_WILDCARDS.get(self.host, self.host), self.port)

    def collides_with(self, other: "Address") -> bool:
        """Returns whether two servers on one machine cannot both listen, judged by the text.

        Names are not resolved: a name and its IP address do not collide, unless both are loopback.
        """
        if self.port != other.port or self.port == 0:
            return False
        return (
            self.host == other.host
            or self.host in _WILDCARDS
            or other.host in _WILDCARDS
            or (self.is_loopback and other.is_loopback)
        )


def parse_address(text: str, default_port: int | None = None) -> Address:
    """Parses `host:port`, `[ipv6]:port`, or only `host` if there is a default port.

    Args:
      text: the address; spaces around it are ignored.
      default_port: port if the text has none; None: the text must have one.

    Raises:
      ConfigError: the text is not an address, or has no port although there is no default port.
    """
    host, bracket, rest = _split(text.strip())
    if not (_IPV6.fullmatch(host) and ":" in host if bracket else _HOST.fullmatch(host)):
        raise ConfigError(f"{text[:80]!r} is not an address; {_EXPECTED}")
    if not rest and default_port is not None:
        return Address(host, default_port)
    port = rest[1:]
    if rest in ("", ":"):
        raise ConfigError(f"{text[:80]!r}: port missing; {_EXPECTED}")
    if not (rest.startswith(":") and port.isascii() and port.isdigit() and len(port) <= 5):
        raise ConfigError(
            f"{text[:80]!r}: {rest[:80]!r} after the host is not a colon and a port of at most "
            f"five digits; {_EXPECTED}"
        )
    if int(port) > 65535:
        raise ConfigError(f"{text[:80]!r}: port {port} is above 65535; {_EXPECTED}")
    return Address(host, int(port))


def _split(text: str) -> tuple[str, bool, str]:
    """Returns host, whether it was in brackets, and what follows it (":port" or "")."""
    if text.startswith("["):
        host, closing, rest = text[1:].partition("]")
        return host if closing else "", True, rest
    host, colon, port = text.partition(":")
    return host, False, colon + port
