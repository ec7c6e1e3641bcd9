"""Origins of web pages: `scheme://host[:port]`, as a browser sends them."""

import ipaddress
import re
from collections.abc import Collection

from relaax_like.wire.errors import ConfigError

NULL = "null"  # of a page from a file, of a sandbox, and of others that have no origin of their own
_PORTS = {"http": 80, "https": 443}
_ORIGIN = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.\-]{0,30})://"
    r"(?P<host>\[[0-9a-fA-F:.]{2,45}\]|[a-zA-Z0-9_.\-]{1,253})"
    r"(?::(?P<port>[0-9]{1,5}))?"
)


def normalise_origin(text: str) -> str:
    """Returns an origin in one spelling: small letters, no default port.

    Raises:
      ConfigError: it is not `null` or `scheme://host[:port]`.
    """
    found = _ORIGIN.fullmatch(text) if isinstance(text, str) else None
    if text != NULL and (found is None or int(found["port"] or 0) > 65535):
        raise ConfigError(
            f"{text!r:.100} is not an origin; expected scheme://host or scheme://host:port, "
            "without a path, such as https://example.org, or null"
        )
    if found is None:
        return NULL
    port = int(found["port"] or 0)
    shown = f":{port}" if port and port != _PORTS.get(found["scheme"]) else ""
    return f"{found['scheme']}://{found['host'].lower()}{shown}"


def is_allowed(origin: str, allowed: Collection[str]) -> bool:
    """Returns whether a page of this origin can connect.

    Args:
      origin: as a browser sent it.
      allowed: normalised origins; pages of this machine's loopback addresses need no entry.
    """
    try:
        origin = normalise_origin(origin)
    except ConfigError:
        return False
    if origin in allowed:
        return True
    found = _ORIGIN.fullmatch(origin)
    if found is None or found["scheme"] not in _PORTS:
        return False
    host = found["host"].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
