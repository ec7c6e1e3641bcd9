"""The coordinator's process."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relaax_like.addons.coordinator.coordinator import Coordinator
from relaax_like.addons.coordinator.servicer import create_coordinator_server
from relaax_like.config.address import Address, parse_address
from relaax_like.config.models import COORDINATOR_PORT, SecurityConfig
from relaax_like.launch.security import to_server_security, validate_exposure
from relaax_like.runs.processes.process import Shutdown, raise_descriptor_limit, validate_port_free
from relaax_like.wire import failpoints
from relaax_like.wire.errors import ConfigError

logger = logging.getLogger(__name__)
_TLS = ("tls_cert", "tls_key", "tls_ca")


def run_coordinator(folder: Path, bind: str, security: Mapping[str, Any], **limits: Any) -> int:
    """Serves a queue until a signal arrives; returns the exit status.

    Args:
      folder: of the queue and the runs.
      bind: HOST:PORT to listen on.
      security: keys of `SecurityConfig`.
      limits: of `Coordinator`.

    Raises:
      ConfigError: the settings are wrong, other machines could connect without TLS or without
        tokens, or the folder is not that of a coordinator.
      RelaaxError: see `validate_port_free` and `Coordinator`.
    """
    address = parse_address(bind, COORDINATOR_PORT)
    settings = SecurityConfig(**security)
    given = [key for key in _TLS if getattr(settings, key) is not None]
    if given and len(given) < len(_TLS):
        missing = next(key for key in _TLS if key not in given)
        raise ConfigError(
            f"--{missing.replace('_', '-')}: missing, but --{given[0].replace('_', '-')} is set; "
            "TLS needs --tls-cert, --tls-key and --tls-ca"
        )
    flags = [] if given else ["with --tls-cert, --tls-key and --tls-ca"]
    flags += ["with --tokens-file"] if settings.tokens_file is None else []
    validate_exposure(address, settings, ", and ".join(flags), key="--bind")
    credentials = to_server_security(settings)
    validate_port_free(address, "--bind")
    raise_descriptor_limit()
    failpoints.arm_from_environment()
    shutdown = Shutdown()
    with Coordinator(folder, **limits) as coordinator:
        server, port = create_coordinator_server(address, coordinator, credentials)
        server.start()
        where = Address(address.host, port)
        logger.info("coordinator on %s; its folder is %s", where, folder)
        shutdown.requested.wait()
        coordinator.close()
        server.stop(grace=1.0).wait()
    return shutdown.exit_status
