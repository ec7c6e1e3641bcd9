"""The process of a resident slave. It imports TensorFlow neither now nor later."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from relaax_like.addons.coordinator.job import validate_name
from relaax_like.addons.coordinator.job_learner import JobLearner
from relaax_like.config.address import parse_address
from relaax_like.config.models import COORDINATOR_PORT
from relaax_like.runs.processes.process import Shutdown
from relaax_like.wire.reports import ENVIRONMENTS_VARIABLE
from relaax_like.wire.security import ClientSecurity

logger = logging.getLogger(__name__)


def run_slave(
    address: str,
    name: str,
    folder: Path,
    security: ClientSecurity,
    modules: Sequence[str] = (),
) -> int:
    """Runs jobs until a signal arrives; returns the exit status.

    Args:
      address: HOST:PORT of the coordinator.
      name: of the slave.
      folder: for the run of the job at hand.
      security: token and certificates.
      modules: see `JobLearner`.

    Raises:
      ConfigError: the settings are wrong, or the folder cannot be used.
      SnapshotError: another slave uses the folder, or its lock file cannot be locked.
      NotAllowedError: the coordinator does not accept the token or certificate.
      InvalidInputError: the name is not valid, or the coordinator refuses the slave.
      ProtocolError: something else listens at the address.
      RelaaxError: the guardian process cannot be started.
    """
    place = str(parse_address(address, COORDINATOR_PORT))
    validate_name(name, "--name")  # before there is a folder
    shutdown = Shutdown()
    with JobLearner(folder, modules=modules) as learner:
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
