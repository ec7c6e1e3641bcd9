"""`relaax jobs run`: a job with its coordinator, learner and collectors on this machine."""

import contextlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relaax_like.addons.coordinator.client import JobsClient
from relaax_like.addons.coordinator.coordinator import Coordinator
from relaax_like.addons.coordinator.job_learner import JobLearner
from relaax_like.addons.coordinator.servicer import create_coordinator_server
from relaax_like.config.address import Address
from relaax_like.config.job_keys import name_environment
from relaax_like.runs.processes.process import EXIT_ERROR, Shutdown
from relaax_like.v1 import coordinator_pb2 as pb
from relaax_like.wire.reports import ENVIRONMENTS_VARIABLE

logger = logging.getLogger(__name__)
_OPEN = (pb.JobInfo.QUEUED, pb.JobInfo.RUNNING)
_LOOK_SEC = 0.5


def run_job(
    name: str, config: Mapping[str, Any], collectors: int, folder: Path, own_policy: bool = False
) -> int:
    """Runs a job to its end, or until a signal arrives; returns the exit status.

    If the folder has the same job, and that has not ended, it continues.

    Args:
      name: of the job, for display.
      config: settings as `make_job_config` returns them.
      collectors: number of slaves that play, besides the one that learns.
      folder: of the queue and the runs; slaves work in `slave-N` in it.
      own_policy: see `JobLearner`.

    Raises:
      RelaaxError: see `Coordinator`, `JobLearner` and `JobsClient.submit`.
    """
    shutdown = Shutdown()
    with contextlib.ExitStack() as ends:
        coordinator = ends.enter_context(Coordinator(folder))
        server, port = create_coordinator_server(Address("localhost", 0), coordinator)
        server.start()
        ends.callback(lambda: server.stop(grace=1.0).wait())
        ends.callback(coordinator.close)
        jobs = ends.enter_context(JobsClient(f"localhost:{port}"))
        number = _find_open(jobs, config) or jobs.submit(name, config, collectors)
        if collectors:
            jobs.set_collectors(number, collectors)
        environment = name_environment(config)
        os.environ[ENVIRONMENTS_VARIABLE] = environment
        # They leave one after another, the learner last: what was played before is learned from.
        for slave in range(collectors + 1):
            learner = JobLearner(
                folder / f"slave-{slave}", modules=[environment], own_policy=own_policy
            )
            ends.enter_context(learner).connect(f"localhost:{port}", f"slave-{slave}")
        shown = ""
        while not shutdown.requested.wait(_LOOK_SEC):
            (job,), _ = jobs.list(number)
            if job.state not in _OPEN:
                state = pb.JobInfo.State.Name(job.state).lower()
                logger.info(
                    "job %d: %s: %s; its folder is %s", number, state, job.reason, job.folder
                )
                return 0 if job.state == pb.JobInfo.DONE else EXIT_ERROR
            if job.progress != shown:
                shown = job.progress
                _show(job)
    return shutdown.exit_status


def _find_open(jobs: JobsClient, config: Mapping[str, Any]) -> int:
    """Returns the newest job with these settings that has not ended; 0: there is none."""
    for job in reversed(jobs.list()[0]):
        if job.state in _OPEN and json.loads(jobs.list(job.job)[0][0].config) == config:
            return int(job.job)
    return 0


def _show(job: pb.JobInfo) -> None:
    progress = json.loads(job.progress or "{}")
    mean = progress.get("mean_return")
    logger.info(
        "step %s%s | %d of %d collectors",
        f"{progress.get('step') or 0:,}",
        "" if mean is None else f" | mean return {mean:.1f}",
        job.collecting,
        job.collectors,
    )
