"""A slave as a process, whose jobs `job_program` runs: ADDRESS NAME WORK."""

import sys
from pathlib import Path

from relaax_like.addons.coordinator.job_learner import JobLearner
from relaax_like.runs.processes.process import Shutdown, setup_logging
from support.jobs import PROGRAM


def main() -> None:
    setup_logging("INFO")
    shutdown = Shutdown()
    address, name, work = sys.argv[1:]
    with JobLearner(Path(work), PROGRAM) as learner:
        slave = learner.connect(address, name)
        while not slave.ended.wait(0.05) and not shutdown.requested.is_set():
            continue
    sys.exit(str(slave.error) if slave.error else shutdown.exit_status)


if __name__ == "__main__":
    main()
