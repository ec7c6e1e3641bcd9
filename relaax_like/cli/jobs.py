"""`relaax jobs`: a queue of jobs, and the slaves that run them."""

import os
import socket
from pathlib import Path
from typing import Annotated

import typer

from relaax_like.cli.options import (
    InsecureOption,
    SetOption,
    command,
    make_app,
)
from relaax_like.supervision.process import setup_logging
from relaax_like.wire.security import ClientSecurity

app = make_app("Queue experiments, and run them on any number of machines.")

_PORT = 7004
COORDINATOR = f"localhost:{_PORT}"
CoordinatorOption = Annotated[
    str, typer.Option("--coordinator", metavar="HOST:PORT", help="Address of the coordinator.")
]


@command(app)
def serve(
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
    tokens_file: Annotated[
        Path | None,
        typer.Option(help="Tokens to accept, lines ROLE TOKEN: operator, and learner for slaves."),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate (PEM file).")] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="Private key of the certificate (PEM file).")
    ] = None,
    tls_ca: Annotated[
        Path | None, typer.Option(help="CA certificate that signed --tls-cert (PEM file).")
    ] = None,
    tls_client_cert_required: Annotated[
        bool,
        typer.Option(
            "--tls-client-cert-required", help="Require certificates of clients, signed by the CA."
        ),
    ] = False,
    insecure: InsecureOption = False,
) -> int:
    """Serve a queue of jobs until Ctrl-C; everything is kept in FOLDER.

    Slaves (`relaax jobs work`) connect to it, so none of them needs an open port.
    """
    setup_logging("INFO")
    from relaax_like.launch.coordinator import run_coordinator

    return run_coordinator(
        folder,
        bind,
        {
            "tls_cert": tls_cert,
            "tls_key": tls_key,
            "tls_ca": tls_ca,
            "tls_client_cert_required": tls_client_cert_required,
            "tokens_file": tokens_file,
            "insecure": insecure,
        },
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
) -> int:
    """Run jobs of a coordinator, one after another, until Ctrl-C.

    A job that is interrupted by Ctrl-C continues on the next slave that is free.
    """
    setup_logging("INFO")
    from relaax_like.config.job_keys import name_module
    from relaax_like.launch.slave import run_slave

    own = name or f"{socket.gethostname().split('.')[0]}-{os.getpid()}"
    modules = [name_module(module, False) for module in environment_modules]
    modules += [name_module(module, True) for module in environment_modules * environment_args]
    return run_slave(coordinator, own, folder or Path(f"work-{own}"), security, modules)


@command(app, token_role="operator")
def submit(
    security: ClientSecurity,
    config: Annotated[
        Path,
        typer.Argument(
            metavar="CONFIG",
            help="The experiment's YAML file, or a name listed by `relaax examples`.",
        ),
    ],
    coordinator: CoordinatorOption = COORDINATOR,
    name: Annotated[
        str | None, typer.Option(help="Name to be shown; default: that of the file.")
    ] = None,
    sets: SetOption = [],  # noqa: B006 - typer wants a list
) -> int:
    """Add an experiment to the queue, and print the number of its job.

    Algorithm and environment must be names that the slaves have. Keys that are paths, addresses or
    secrets are refused; the run's folder is the coordinator's.
    """
    from relaax_like.cli.jobs_commands import submit_job

    return submit_job(coordinator, config, sets, name, security)


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
    from relaax_like.cli.jobs_commands import list_jobs

    return list_jobs(coordinator, job or 0, as_json, security)


@command(app, token_role="operator")
def cancel(
    security: ClientSecurity,
    job: Annotated[int, typer.Argument(metavar="JOB", min=1, help="Number of the job.")],
    coordinator: CoordinatorOption = COORDINATOR,
) -> int:
    """Cancel a job that waits or runs."""
    from relaax_like.cli.jobs_commands import cancel_job

    return cancel_job(coordinator, job, security)
