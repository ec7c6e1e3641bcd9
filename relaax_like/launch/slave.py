"""The process of a resident slave. It imports TensorFlow neither now nor later."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from relaax_like.addons.coordinator.job import validate_name
from relaax_like.addons.coordinator.job_learner import RELAAX, JobLearner
from relaax_like.config.address import parse_address
from relaax_like.config.models import COORDINATOR_PORT, SecurityConfig
from relaax_like.launch.security import to_server_security
from relaax_like.runs.processes.process import Shutdown
from relaax_like.wire.errors import ConfigError
from relaax_like.wire.reports import ENVIRONMENTS_VARIABLE
from relaax_like.wire.security import ClientSecurity

logger = logging.getLogger(__name__)
_OF_SERVERS = frozenset({"token_file", "tls_ca", "tls_cert", "tls_key", "tokens_file"})


def run_slave(
    address: str,
    name: str,
    folder: Path,
    security: ClientSecurity,
    modules: Sequence[str] = (),
    host: str = "",
    tokens_file: Path | None = None,
    own_policy: bool = False,
) -> int:
    """Runs jobs until a signal arrives; returns the exit status.

    Args:
      address: HOST:PORT of the coordinator.
      name: of the slave.
      folder: for the run of the job at hand.
      security: token and certificates.
      modules: see `JobLearner`.
      host: see `JobLearner`; it is used with TLS and tokens only.
      tokens_file: tokens that servers of jobs accept; None: they have none.
      own_policy: see `JobLearner`.

    Raises:
      ConfigError: the settings are wrong, other machines could connect to servers of jobs without
        TLS or without tokens, or the folder cannot be used.
      SnapshotError: another slave uses the folder, or its lock file cannot be locked.
      NotAllowedError: the coordinator does not accept the token or certificate.
      InvalidInputError: the name is not valid, or the coordinator refuses the slave.
      ProtocolError: something else listens at the address.
      RelaaxError: the guardian process cannot be started.
    """
    place = str(parse_address(address, COORDINATOR_PORT))
    validate_name(name, "--name")  # before there is a folder
    of_runs = _make_run_security(security, tokens_file, host)
    shutdown = Shutdown()
    learner = JobLearner(folder, RELAAX, modules, host, of_runs, own_policy)
    with learner:
        # For the processes of jobs, whose folder comes from others: nothing in it is imported.
        os.environ[ENVIRONMENTS_VARIABLE] = ",".join(learner.environments)
        paths = filter(os.path.isabs, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        slave = learner.connect(place, name, security)
        logger.info("slave %s works for the coordinator at %s", name, place)
        while not slave.ended.wait(0.2) and not shutdown.requested.is_set():
            continue
        if shutdown.requested.is_set():
            logger.info("leaving")
    if slave.error is not None:
        raise slave.error
    return shutdown.exit_status


def _make_run_security(
    security: ClientSecurity, tokens_file: Path | None, host: str
) -> dict[str, Any]:
    """Returns the keys of the section `security` of jobs that have collectors.

    Raises:
      ConfigError: other machines could connect to `host` without TLS or without tokens, or a file
        cannot be used.
    """
    keys: dict[str, Any] = {
        key: path.absolute()
        for key in ("token_file", "tls_ca", "tls_cert", "tls_key")
        if (path := getattr(security, key)) is not None
    }
    if tokens_file is not None:
        keys["tokens_file"] = tokens_file.absolute()
    if host:
        address = parse_address(host, 0)
        if address.port or address.to_connect() != address:
            raise ConfigError(
                f"--advertise: {host}: expected one name or address of this machine, without a port"
            )
        if missing := sorted(_OF_SERVERS - keys.keys()):
            flags = ", ".join(f"--{key.replace('_', '-')}" for key in missing)
            raise ConfigError(
                f"--advertise: {host}: servers that other machines can reach need TLS and tokens, "
                f"but {flags} {'is' if len(missing) == 1 else 'are'} missing (docs/jobs.md)"
            )
        to_server_security(SecurityConfig(**keys))  # before a job needs it
    return keys
