"""`relaax jobs submit`, `list` and `cancel`: what operators do with a coordinator."""

import json
from collections.abc import Sequence
from pathlib import Path

from relaax_like.config.address import parse_address
from relaax_like.config.job_keys import make_job_config
from relaax_like.config.models import COORDINATOR_PORT
from relaax_like.coordinator.client import JobsClient
from relaax_like.coordinator.job import validate_name
from relaax_like.v1 import coordinator_pb2 as pb
from relaax_like.wire.security import ClientSecurity


def submit_job(
    address: str, config: Path, sets: Sequence[str], name: str | None, security: ClientSecurity
) -> int:
    """Submits an experiment; prints the number of the job.

    Args:
      address: HOST:PORT or HOST of the coordinator.
      config: the experiment's file, or the name of a shipped one.
      sets: overrides of its keys.
      name: of the job, for display; None: that of the file.
      security: token and certificates.

    Raises:
      ConfigError: `address` is not an address, a file that `security` names cannot be used, or see
        `make_job_config`.
      InvalidInputError: the name is not valid.
      RelaaxError: see `JobsClient.submit` and `CoordinatorLink.call`.
    """
    shown = validate_name(name or config.stem, "--name" if name else "--name (default: the file's)")
    job_config = make_job_config(config, sets)
    with _connect(address, security) as jobs:
        number = jobs.submit(shown, job_config)
    print(f"job {number}")
    return 0


def list_jobs(address: str, job: int, as_json: bool, security: ClientSecurity) -> int:
    """Prints jobs and slaves, or one job in full; `job` is its number, 0: all jobs.

    Raises:
      ConfigError: `address` is not an address, or a file that `security` names cannot be used.
      RelaaxError: see `JobsClient.list` and `CoordinatorLink.call`.
    """
    with _connect(address, security) as client:
        jobs, slaves = client.list(job)
    if as_json:
        found = {
            "jobs": [_to_dict(one) for one in jobs],
            "slaves": [
                {
                    "name": slave.name,
                    "job": slave.running.job or None,
                    "silent_sec": round(slave.silent_sec, 3),
                }
                for slave in slaves
            ],
        }
        print(json.dumps(found, indent=2))
    elif job:
        _print_job(jobs[0])
    else:
        _print_table(jobs, slaves)
    return 0


def cancel_job(address: str, job: int, security: ClientSecurity) -> int:
    """Cancels the job with the number `job`.

    Raises:
      ConfigError: `address` is not an address, or a file that `security` names cannot be used.
      RelaaxError: see `JobsClient.cancel` and `CoordinatorLink.call`.
    """
    with _connect(address, security) as jobs:
        jobs.cancel(job)
    print(f"job {job} is cancelled")
    return 0


def _connect(address: str, security: ClientSecurity) -> JobsClient:
    return JobsClient(str(parse_address(address, COORDINATOR_PORT)), security)


def _name_state(job: pb.JobInfo) -> str:
    return pb.JobInfo.State.Name(job.state).lower()


def _to_dict(job: pb.JobInfo) -> dict[str, object]:
    return {
        "job": job.job,
        "name": job.name,
        "state": _name_state(job),
        "attempts": job.attempts,
        "slave": job.slave or None,
        "version": job.version or None,
        "step": job.step,
        "folder": job.folder or None,
        "reason": job.reason,
        "progress": json.loads(job.progress or "null"),
        **({"tail": job.tail} if job.tail else {}),
        **({"config": json.loads(job.config)} if job.config else {}),
    }


def _describe_step(job: pb.JobInfo) -> str:
    progress = json.loads(job.progress or "{}")
    step = max(job.step, int(progress.get("step") or 0))
    score = progress.get("mean_return")
    return f"{step:,}" if score is None else f"{step:,} ({score:.1f})"


def _print_job(job: pb.JobInfo) -> None:
    rows = {
        "job": job.job,
        "name": job.name,
        "state": _name_state(job),
        "attempts": job.attempts,
        "slave": job.slave,
        "step": _describe_step(job),
        "folder": job.folder,
        "reason": job.reason,
    }
    for name, value in rows.items():
        if value != "":
            print(f"{name:9} {value}")
    if job.tail:
        print("output    of the newest attempt that ended:")
        print("\n".join(f"    {line}" for line in job.tail.splitlines()))


def _print_table(jobs: Sequence[pb.JobInfo], slaves: Sequence[pb.SlaveInfo]) -> None:
    if not jobs:
        print("no jobs; add one with: relaax jobs submit CONFIG")
    else:
        print(
            f"{'job':>5}  {'name':20} {'state':10} {'attempts':>8}  {'step (mean return)':22} why"
        )
    for job in jobs:
        print(
            f"{job.job:5}  {job.name:20} {_name_state(job):10} {job.attempts:8}  "
            f"{_describe_step(job):22} {job.reason or job.slave}"
        )
    for slave in slaves:
        runs = f"job {slave.running.job}" if slave.running.job else "free"
        print(f"slave {slave.name}: {runs}")
