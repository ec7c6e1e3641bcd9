"""Joins a Ray cluster, or starts one on this machine, with token authentication."""

import contextlib
import logging
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from relaax_like.config.address import Address, parse_address
from relaax_like.wire.errors import ConfigError, RelaaxError
from relaax_like.wire.watched_files import read_bytes

logger = logging.getLogger(__name__)

LOCAL = "local"
_PROBE_SEC = 10.0
_MAX_REASON = 400
_DEFAULT = "~/.ray/auth_token"
_TOKEN_FILE = f"in {_DEFAULT} or in the file that RAY_AUTH_TOKEN_PATH names"
_TOKEN = (
    f"Start Ray on all machines with RAY_AUTH_MODE=token and the same token, {_TOKEN_FILE} "
    "(docs/scaling.md)"
)
_QUIET = {"logging_level": logging.ERROR, "log_to_driver": False}


def join(address: str, cpus: int, insecure: bool) -> Any:
    """Joins a cluster as its driver; returns the module `ray`, connected.

    Args:
      address: HOST:PORT of the cluster's head, or `local`: starts a cluster on this machine.
      cpus: processor cores that the run asks for; `local` offers them even if this machine has
        fewer.
      insecure: accept a cluster that asks for no token.

    Raises:
      ConfigError: the address is not valid, or has no port; the cluster asks for no token, and
        `insecure` is False; or Ray cannot join it, for example because this machine has another
        token, does not belong to the cluster, or has another version of Ray or Python.
      RelaaxError: no cluster answers at the address.
      ModuleNotFoundError: Ray is not installed.
      Exception: Ray's error, if it cannot start the cluster `local`.
    """
    where = None if address == LOCAL else _parse(address)
    # This and RAY_AUTH_MODE are read when Ray is loaded, so nothing of it is imported before.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    asks = where is None or _asks_for_token(where)
    if not asks and not insecure:
        raise ConfigError(
            f"--ray {where}: the cluster asks for no token, so anyone who can reach it can "
            f"run code on its machines. {_TOKEN}; on a fully trusted network, pass --insecure"
        )
    if not asks:
        logger.warning("the Ray cluster at %s asks for no token", where)
    os.environ["RAY_AUTH_MODE"] = "token" if asks else "disabled"
    if asks and "RAY_AUTH_TOKEN" not in os.environ:
        _check_token_file(may_create=where is None)
    import ray

    if where is None:
        _start_local(ray, cpus)
        return ray
    try:
        ray.init(address=str(where), **_QUIET)
    except Exception as error:
        # Of different versions, those of both sides follow in further lines.
        reason = " ".join(str(error).split())[:_MAX_REASON].rstrip(".") or type(error).__name__
        raise ConfigError(
            f"--ray {where}: cannot join: {reason}. This machine must be a node of the cluster "
            f"(`{'RAY_AUTH_MODE=token ' if asks else ''}ray start --address={where}`), with the "
            "cluster's versions of Python and Ray and, if it asks for one, its token, "
            f"{_TOKEN_FILE}"
        ) from error
    return ray


def _start_local(ray: Any, cpus: int) -> None:
    ray.init(
        address=LOCAL,
        num_cpus=max(cpus, os.cpu_count() or 1),
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        **_QUIET,
    )
    token = os.environ.get("RAY_AUTH_TOKEN_PATH", _DEFAULT)
    if "RAY_AUTH_TOKEN" in os.environ:
        token = "the variable RAY_AUTH_TOKEN"
    logger.info("Ray listens at %s; it asks for the token in %s", _describe_listeners(), token)


def _check_token_file(may_create: bool) -> None:
    """Checks that only this user can read or write the token, which lets its holder run code.

    Args:
      may_create: make a new token if there is no file; Ray's own would be readable for a moment.

    Raises:
      ConfigError: the file is another user's, not private, or cannot be read or created.
    """
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", _DEFAULT)).expanduser()
    try:
        if may_create:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                new = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
                with open(new, "w") as file:
                    file.write(secrets.token_hex(32))
        owner = path.stat().st_uid
    except OSError as error:
        raise ConfigError(f"--ray: the token file {path}: {error.strerror}. {_TOKEN}") from None
    read_bytes(path, "--ray: the token file", private=True)
    if owner != os.geteuid():
        raise ConfigError(
            f"--ray: the token file {path}: belongs to user {owner}, who knows the token; remove "
            "it, and make a new one for all machines of the cluster"
        )


def _parse(address: str) -> Address:
    try:
        return parse_address(address)
    except ConfigError as error:
        raise ConfigError(f"--ray: {error}; or {LOCAL}, to start a cluster here") from None


def _asks_for_token(where: Address) -> bool:
    """Returns whether a cluster refuses a caller without a token.

    Raises:
      RelaaxError: no cluster answers at the address.
    """
    import grpc

    # Otherwise an http_proxy in the environment would intercept the call; Ray ignores it, too.
    options = (("grpc.enable_http_proxy", 0),)
    with grpc.insecure_channel(str(where), options) as channel:
        check_alive = channel.unary_unary(
            "/ray.rpc.NodeInfoGcsService/CheckAlive",
            request_serializer=None,
            response_deserializer=None,
        )
        try:
            check_alive(b"", timeout=_PROBE_SEC)  # a request without fields
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                return True
            raise RelaaxError(
                f"--ray {where}: no Ray cluster answers there ({error.code().name}); correct the "
                "address, or start one on that machine with `RAY_AUTH_MODE=token ray start --head "
                f"--port={where.port}` (docs/scaling.md), or use --ray {LOCAL}"
            ) from error
    return False


def _describe_listeners() -> str:
    """Lists the addresses on which Ray's processes, descendants of this process, listen."""
    import psutil

    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            found += [(process.name(), address) for address in _find_listening(process)]
    return ", ".join(f"{address} ({name})" for name, address in sorted(found))


def _find_listening(process: Any) -> Iterator[str]:
    import psutil

    for connection in process.net_connections(kind="tcp"):
        if connection.status == psutil.CONN_LISTEN:
            host = connection.laddr.ip.removeprefix("::ffff:")  # IPv4 on a socket for both
            yield str(Address(host, connection.laddr.port))
