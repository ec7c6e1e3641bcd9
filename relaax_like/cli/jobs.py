"""`relaax jobs`: a queue of jobs, and the slaves that run them."""

import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relaax_like.cli.options import OwnPolicyOption, SetOption, command, make_app
from relaax_like.config.address import parse_address
from relaax_like.config.models import COORDINATOR_PORT
from relaax_like.runs.processes.process import setup_logging
from relaax_like.v1 import coordinator_pb2 as pb
from relaax_like.wire.security import ClientSecurity

if TYPE_CHECKING:
    from relaax_like.addons.coordinator.client import JobsClient

app = make_app("Queue experiments, and run them on any number of machines.")

COORDINATOR = f"localhost:{COORDINATOR_PORT}"
CoordinatorOption = Annotated[
    str, typer.Option("--coordinator", metavar="HOST:PORT", help="Address of the coordinator.")
]
ConfigArgument = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG", help="The experiment's YAML file, or a name listed by `relaax examples`."
    ),
]
CollectorsOption = Annotated[
    int,
    typer.Option(
        min=0, help="Number of other slaves that play for it; 0: it plays in its own process."
    ),
]
TokensFileOption = Annotated[
    Path | None,
    typer.Option(help="Tokens that jobs here accept of collectors, lines ROLE TOKEN."),
]
AdvertiseOption = Annotated[
    str,
    typer.Option(
        metavar="HOST",
        help="Name or address of this machine under which collectors on others connect to jobs "
        "here. It needs TLS and tokens; default: this machine's collectors only.",
    ),
]


@command(app)
def serve(
    server_security: dict[str, Any],
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of the queue and of the runs.")
    ],
    bind: Annotated[str, typer.Option(help="HOST:PORT to listen on.")] = COORDINATOR,
    max_jobs: Annotated[
        int, typer.Option(min=1, max=100_000, help="Maximum number of jobs that wait or run.")
    ] = 10_000,
    max_version_mb: Annotated[
        int, typer.Option(min=1, help="Largest run's folder that a slave can send, in MB.")
    ] = 1024,
    silence_sec: Annotated[
        float,
        typer.Option(min=1, help="Seconds of silence after which a slave counts as lost."),
    ] = 30.0,
    stall_sec: Annotated[
        float,
        typer.Option(min=1, help="Seconds without progress after which an attempt has failed."),
    ] = 600.0,
) -> int:
    """Serve a queue of jobs until Ctrl-C; everything is kept in FOLDER.

    Slaves (`relaax jobs work`) connect to it, so none of them needs an open port.
    """
    setup_logging("INFO")
    from relaax_like.launch.coordinator import run_coordinator

    return run_coordinator(
        folder,
        bind,
        server_security,
        max_jobs=max_jobs,
        max_version_bytes=max_version_mb * 1_000_000,
        silence_sec=silence_sec,
        stall_sec=stall_sec,
    )


@command(app, token_role="learner")
def work(
    security: ClientSecurity,
    coordinator: Annotated[
        str, typer.Argument(metavar="HOST:PORT", help="Address of the coordinator.")
    ] = COORDINATOR,
    name: Annotated[
        str | None,
        typer.Option(help="Unique name; default: the machine's name and the process id."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--work", metavar="FOLDER", help="Folder for the current job; default: work-NAME."
        ),
    ] = None,
    environment_modules: Annotated[
        list[str],
        typer.Option(
            "--environment-module",
            metavar="MODULE",
            help="Run jobs with the environment MODULE:NAME, too, which runs the module's code. "
            "Repeatable.",
        ),
    ] = [],  # noqa: B006 - typer wants a list
    environment_args: Annotated[
        bool, typer.Option("--environment-args", help="Also if they have environment.args.")
    ] = False,
    advertise: AdvertiseOption = "",
    tokens_file: TokensFileOption = None,
    own_policy: OwnPolicyOption = False,
) -> int:
    """Run jobs and collectors of a coordinator, one after another, until Ctrl-C.

    A job that is interrupted by Ctrl-C continues on the next slave that is free.
    """
    setup_logging("INFO")
    from relaax_like.config.job_keys import name_module
    from relaax_like.launch.slave import run_slave

    own = name or f"{socket.gethostname().split('.')[0]}-{os.getpid()}"
    modules = [name_module(module, False) for module in environment_modules]
    modules += [name_module(module, True) for module in environment_modules * environment_args]
    work = folder or Path(f"work-{own}")
    return run_slave(coordinator, own, work, security, modules, advertise, tokens_file, own_policy)


@command(app, token_role="operator")
def submit(
    security: ClientSecurity,
    config: ConfigArgument,
    coordinator: CoordinatorOption = COORDINATOR,
    name: Annotated[
        str | None, typer.Option(help="Name to be shown; default: that of the file.")
    ] = None,
    collectors: CollectorsOption = 0,
    sets: SetOption = [],  # noqa: B006 - typer wants a list
) -> int:
    """Add an experiment to the queue, and print the number of its job.

    Algorithm and environment must be names that the slaves have. Keys that are paths, addresses or
    secrets are refused; the run's folder is the coordinator's.
    """
    from relaax_like.addons.coordinator.job import validate_name
    from relaax_like.config.job_keys import make_job_config

    shown = validate_name(name or config.stem, "--name" if name else "--name (default: the file's)")
    job_config = make_job_config(config, sets)
    with _connect(coordinator, security) as jobs:
        number = jobs.submit(shown, job_config, collectors)
    print(f"job {number}")
    return 0


@command(app, token_role="operator", name="list")
def list_(
    security: ClientSecurity,
    job: Annotated[
        int | None, typer.Argument(metavar="JOB", min=1, help="Show this job in full.")
    ] = None,
    coordinator: CoordinatorOption = COORDINATOR,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """List jobs and slaves; with a number, show one job and the end of its output."""
    with _connect(coordinator, security) as client:
        jobs, slaves = client.list(job or 0)
    if as_json:
        found = {
            "jobs": [_to_dict(one) for one in jobs],
            "slaves": [
                {
                    "name": slave.name,
                    "job": slave.running.job or None,
                    **({"collector": slave.running.collector} if slave.running.collector else {}),
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


@command(app, token_role="operator")
def cancel(
    security: ClientSecurity,
    job: Annotated[int, typer.Argument(metavar="JOB", min=1, help="Number of the job.")],
    coordinator: CoordinatorOption = COORDINATOR,
) -> int:
    """Cancel a job that waits or runs."""
    with _connect(coordinator, security) as jobs:
        jobs.cancel(job)
    print(f"job {job} is cancelled")
    return 0


@command(app, token_role="operator")
def collectors(
    security: ClientSecurity,
    job: Annotated[int, typer.Argument(metavar="JOB", min=1, help="Number of the job.")],
    number: Annotated[
        int, typer.Argument(metavar="N", min=1, help="Number of collectors that it is to have.")
    ],
    coordinator: CoordinatorOption = COORDINATOR,
) -> int:
    """Add collectors to a job that was submitted with some, or remove some.

    Those that are removed play to the end of their episodes, for at most 10 s.
    """
    with _connect(coordinator, security) as jobs:
        jobs.set_collectors(job, number)
    print(f"job {job} is to have {number} collectors")
    return 0


@command(app)
def run(
    config: ConfigArgument,
    collectors: CollectorsOption = 1,
    folder: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder of the queue and of the runs.")
    ] = Path("queue"),
    own_policy: OwnPolicyOption = False,
    sets: SetOption = [],  # noqa: B006 - typer wants a list
) -> int:
    """Run one job with its coordinator, its learner and its collectors on this machine.

    After Ctrl-C, the same command continues it.
    """
    setup_logging("INFO")
    from relaax_like.config.job_keys import make_job_config
    from relaax_like.launch.jobs import run_job

    return run_job(config.stem, make_job_config(config, sets), collectors, folder, own_policy)


def _connect(address: str, security: ClientSecurity) -> "JobsClient":
    from relaax_like.addons.coordinator.client import JobsClient

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
        **({"collectors": job.collectors} if job.collectors else {}),
        **({"collecting": job.collecting} if job.collectors else {}),
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


def _describe_collectors(job: pb.JobInfo) -> str:
    return f"{job.collecting} of {job.collectors} collectors"


def _print_job(job: pb.JobInfo) -> None:
    rows = {
        "job": job.job,
        "name": job.name,
        "state": _name_state(job),
        "attempts": job.attempts,
        "slave": job.slave,
        **({"playing": _describe_collectors(job)} if job.collectors else {}),
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


def _describe_place(job: pb.JobInfo) -> str:
    if not (job.collectors and job.state == pb.JobInfo.RUNNING):
        return job.slave
    return f"{job.slave}, {_describe_collectors(job)}"


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
            f"{_describe_step(job):22} {job.reason or _describe_place(job)}"
        )
    for slave in slaves:
        runs = f"job {slave.running.job}" if slave.running.job else "free"
        runs += f", collector {slave.running.collector}" if slave.running.collector else ""
        print(f"slave {slave.name}: {runs}")
