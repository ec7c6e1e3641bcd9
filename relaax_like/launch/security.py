"""Applies an experiment's `security` section to its servers and its own clients."""

import logging

from relaax_like.config.address import Address
from relaax_like.config.models import Experiment, SecurityConfig
from relaax_like.wire.errors import ConfigError
from relaax_like.wire.security import ClientSecurity, ServerSecurity, Tokens, read_token
from relaax_like.wire.tls import ServerTls

logger = logging.getLogger(__name__)

_IN_FILE = "in the `security` section of the YAML file"


def make_server_security(experiment: Experiment) -> ServerSecurity:
    """Reads the credentials that the experiment's servers require from their clients.

    Raises:
      ConfigError: a file cannot be used.
    """
    return to_server_security(experiment.security)


def to_server_security(settings: SecurityConfig) -> ServerSecurity:
    """Reads the credentials that a server with these settings requires.

    Raises:
      ConfigError: a file cannot be used.
    """
    tls = None
    if settings.tls_cert and settings.tls_key and settings.tls_ca:
        tls = ServerTls(
            cert=settings.tls_cert,
            key=settings.tls_key,
            ca=settings.tls_ca,
            client_cert_required=settings.tls_client_cert_required,
        )
    tokens = None if settings.tokens_file is None else Tokens(settings.tokens_file)
    return ServerSecurity(tls=tls, tokens=tokens)


def make_client_security(experiment: Experiment) -> ClientSecurity:
    """Returns the credentials that the run's own clients present to its servers.

    Raises:
      ConfigError: the servers require a token, but `security.token_file` is not set, or the file
        cannot be used.
    """
    settings = experiment.security
    if settings.tokens_file is not None and settings.token_file is None:
        raise ConfigError(
            f"{experiment.file}: security.token_file is missing, but the servers require a "
            "token (security.tokens_file); set it to a file with a token of role agent"
        )
    if settings.token_file is not None:
        read_token(settings.token_file)
    shown = settings.tls_client_cert_required
    return ClientSecurity(
        token_file=settings.token_file,
        tls_ca=settings.tls_ca,
        tls_cert=settings.tls_cert if shown else None,
        tls_key=settings.tls_key if shown else None,
    )


def validate_exposure(
    address: Address,
    settings: SecurityConfig,
    place: str = _IN_FILE,
    on_ray: bool = False,
    key: str = "",
) -> None:
    """Refuses an address that other machines can reach, unless TLS and tokens are configured.

    Args:
      address: to listen on.
      settings: of the server.
      place: where the user configures TLS and tokens, for the error.
      on_ray: whether other machines of a Ray cluster must reach it, for the error.
      key: key or flag of the address, for the error; "": the error names none.

    Raises:
      ConfigError: other machines can reach it, TLS or tokens are missing, and `insecure` is not
        set; if it is set, a warning is logged instead.
    """
    if address.is_loopback:
        return
    missing = [
        name
        for name, given in (("TLS", settings.tls_cert), ("tokens", settings.tokens_file))
        if given is None
    ]
    if not missing:
        return
    if not settings.insecure:
        or_key = " or --set security.insecure=true" if place == _IN_FILE else ""
        start = f"{key}: " if key else ""
        raise ConfigError(
            f"{start}{address.host if on_ray else address} can be reached from other machines, but "
            f"has no {' and no '.join(missing)}. Configure {' and '.join(missing)} {place} "
            f"(docs/security.md){'' if on_ray else ', or bind to localhost'}; on a fully trusted "
            f"network, pass --insecure{or_key}"
        )
    logger.warning(
        "%s can be reached from other machines, without %s; use this on a fully trusted "
        "network only",
        address,
        " and ".join(missing),
    )


def validate_unprotected(address: Address, settings: SecurityConfig, key: str) -> None:
    """Refuses to show other machines a page that neither TLS nor a token protects.

    Args:
      address: to listen on.
      settings: of the server.
      key: of the address in the file, for the error.

    Raises:
      ConfigError: the address is not local to this machine, and `insecure` is not set.
    """
    if not address.is_loopback and not settings.insecure:
        raise ConfigError(
            f"{key}: {address} can be reached from other machines, and the page there has no "
            "access control. Bind to localhost; on a fully trusted network, pass --insecure or "
            "--set security.insecure=true"
        )
