"""Binds a TCP port, and finds the process that holds one, for the error of a server."""

import socket
from typing import Any

_WILDCARDS = ("0.0.0.0", "::", "")


def bind_socket(host: str, port: int) -> socket.socket:
    """Returns a new TCP socket that is bound to an address, but does not listen yet.

    Args:
      host: a name or a number; of a name with addresses of both kinds, that of IPv4 is used.
      port: 0: any free port.

    Raises:
      OSError: the port is taken, this user is not allowed to use it, the host has no address, or
        none on this machine.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        if port:  # as servers do; with 0, two sockets must not get the same port
            # On Windows, with SO_REUSEADDR, two servers could have one port.
            option = getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR)
            bound.setsockopt(socket.SOL_SOCKET, option, 1)
        bound.bind(address)
    except BaseException:
        bound.close()
        raise
    return bound


def describe_port_holder(host: str, port: int) -> str:
    """Names the process that listens on a port, to follow "port 7000 is in use by".

    Args:
      host: that could not be bound, a name or a number.
      port: that could not be bound.

    Returns:
      For example "pid 123 (python server.py)"; how to find the process, if the system does not show
      it; "" if no process listens there.
    """
    unknown = f"another process (to find it, run `ss -ltnp 'sport = :{port}'` as root)"
    try:
        import psutil  # Only needed after an error.
    except ImportError:
        return unknown
    try:
        holders = _find_listeners(psutil.net_connections(kind="tcp"), host, port)
        if not holders:
            return ""
        pids = [holder.pid for holder in holders if holder.pid is not None]
        return f"pid {pids[0]} ({_describe_process(psutil.Process(pids[0]))})" if pids else unknown
    except psutil.Error:
        return unknown


def describe_bind_failure(host: str, port: int) -> str:
    """Describes in one sentence the likely reason why a server cannot listen there, and the cure.

    For example "port 7000 is in use by pid 123 (python server.py): stop it or choose another port".
    """
    holder = describe_port_holder(host, port)
    if holder:
        return f"port {port} is in use by {holder}: stop it or choose another port"
    return (
        f"no process listens on port {port}, so probably {host} is not an address of this machine, "
        "this user is not allowed to use the port, or an open connection uses it; choose another "
        "address or port"
    )


def _find_listeners(connections: list[Any], host: str, port: int) -> list[Any]:
    """Returns the listening sockets in psutil's list that occupy `host` and `port`."""
    wanted = _resolve(host)
    listeners = []
    for connection in connections:
        if connection.status == "LISTEN" and connection.laddr.port == port:
            # The address of an IPv6 socket that also serves IPv4.
            held = connection.laddr.ip.removeprefix("::ffff:")
            if held in wanted or held in _WILDCARDS or host in _WILDCARDS:
                listeners.append(connection)
    return listeners


def _resolve(host: str) -> set[str]:
    try:
        return {str(entry[4][0]) for entry in socket.getaddrinfo(host or None, None)}
    except OSError:
        return {host}


def _describe_process(process: Any) -> str:
    command = " ".join(process.cmdline()) or process.name()
    return command if len(command) <= 120 else command[:117] + "..."
