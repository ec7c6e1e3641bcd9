"""`relaax status`, `save` and `stop`: what operators do with a parameter server."""

import socket
import time
from collections.abc import Iterator
from typing import NoReturn

from rich.console import Console
from rich.constrain import Constrain
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from relaax_like.bridge.control import BridgeControl, Link
from relaax_like.bridge.errors import NoAnswerError
from relaax_like.config.address import Address, parse_address
from relaax_like.config.models import PARAMETER_SERVER_PORT
from relaax_like.core.records import Status
from relaax_like.runs.folders.modes import SPARE_COLUMNS
from relaax_like.wire.errors import ProtocolError
from relaax_like.wire.security import ClientSecurity

_INTERVAL_SEC = 1.0
_CONNECT_SEC = 2.0
_MAX_CLIENTS = 12


def make_table(address: str, status: Status) -> Table:
    """Makes a table of the status, one value per line."""
    mean = "-" if status.mean_return is None else f"{status.mean_return:.2f}"
    snapshot = "none" if status.snapshot_global_t is None else f"step {status.snapshot_global_t:,}"
    rows = {
        "training": status.finished or "running",
        "steps": f"{status.global_t:,}",
        "steps/s": f"{status.env_steps_per_sec:,.0f}",
        "not learned from": f"{status.unlearned_steps:,} more steps" * (status.unlearned_steps > 0),
        "mean return": f"{mean} (last {status.return_episodes} of {status.episodes} episodes)",
        "version": f"{status.version:,}",
        "parameters": f"{status.parameters:,}",
        "clients": str(status.clients),
        "newest snapshot": f"{snapshot}{_describe_age(status)} in {status.checkpoint_dir}",
        "mirror": _describe_mirror(status),
        "a crash loses": _describe_durability(status),
        "given up": _describe_given_up(status),
        "journal": f"{status.journal_bytes / 1e6:,.1f} MB, of which "
        f"{status.unsynced_bytes / 1e6:,.1f} MB not yet synced",
        "learner": f"{status.learner_address}, term {status.learner_term}, "
        f"silent for {status.learner_silent_sec:,.0f} s",
        "learners": f"{status.joint_learners} make each update together",
        "overdue": f"{status.overdue_updates or 0:,.0f} updates from the replay table",
        "drawn from": f"{status.table_steps or 0:,} steps of the run, {status.prior_steps or 0:,} "
        "of the prior",
        "held back": f"{status.held_back} gradients",
        "refused": ", ".join(f"{n} x {why}" for why, n in status.refused.items()) or "nothing",
        "memory": f"{status.resident_bytes / 1e6:,.0f} MB",
        "up": f"{status.uptime_sec:,.0f} s, epoch {status.epoch}",
    }
    is_shown = {
        "learner": status.learner_address,
        "learners": status.joint_learners,
        "overdue": status.overdue_updates is not None,
        "drawn from": status.prior_steps is not None,
        "held back": status.held_back,
        "journal": status.journal_bytes,
    }
    table = Table(title=f"parameter server {address}", show_header=False)
    for name, value in (*rows.items(), *_describe_clients(status), *_describe_served(status)):
        if value and is_shown.get(name, True):
            table.add_row(name, escape(value))
    return table


def _describe_age(status: Status) -> str:
    age = (
        ""
        if status.snapshot_age_sec is None
        else f", verified {status.snapshot_age_sec:,.0f} s ago"
    )
    failures = f", {status.snapshot_failures} failed" if status.snapshot_failures else ""
    return age + failures


def _describe_mirror(status: Status) -> str:
    newest = status.mirrored_global_t
    parts = [] if newest is None else [f"step {newest:,}"]
    return ", ".join(parts + ([status.mirror_error] if status.mirror_error else []))


def _describe_clients(status: Status) -> Iterator[tuple[str, str]]:
    for index, client in enumerate(status.client_list[:_MAX_CLIENTS]):
        stale = "-" if client.staleness is None else f"{client.staleness} versions behind"
        row = f"{client.client_id}: {client.gradients:,} gradients, the newest {stale}"
        yield ("" if index else "client"), row
    if len(status.client_list) > _MAX_CLIENTS:
        yield "", f"and {status.clients - _MAX_CLIENTS} more"


def _describe_served(status: Status) -> Iterator[tuple[str, str]]:
    """Yields a row for each environment: its answers, their times, late ones, discarded steps."""
    shown = status.served[:_MAX_CLIENTS]
    for index, client in enumerate(shown):
        parts = [f"{client.name}: {client.answers:,} answers"]
        if client.games:
            parts.append(f"{client.games:,} games")
        if client.p50_ms is not None and client.p99_ms is not None:
            parts.append(f"p50 {client.p50_ms:.2g} ms, p99 {client.p99_ms:.2g} ms")
        if client.max_wait_ms:
            parts.append(f"{client.late:,} later than {client.max_wait_ms} ms")
        if client.discarded_steps:
            parts.append(f"{client.discarded_steps:,} steps discarded")
        if client.stall:
            parts.append(client.stall)
        yield ("" if index else "environment"), "; ".join(parts)
    if status.served_clients > len(shown):
        yield "", f"and {status.served_clients - len(shown)} more"


def _describe_durability(status: Status) -> str:
    if status.journal_error:
        lost = f"up to {status.unsynced_records} acknowledged pushes"
        return f"{lost}; no push is acknowledged until a restart: {status.journal_error}"
    if status.durability == "journal":
        return f"nothing acknowledged; a power failure: {status.unsynced_records} pushes"
    if status.durability == "publication":
        return "what was learned since the newest publication that was written"
    return "the pushes since the newest snapshot"


def _describe_given_up(status: Status) -> str:
    version, step = status.given_up_version, status.given_up_step
    parts = [] if version is None else [f"the journal, at version {version:,}"]
    parts += [] if step is None else [f"the replay table's journal, at step {step:,}"]
    return "; ".join(parts) + ": a crash loses what was acknowledged later" if parts else ""


def show_status(text: str, watch: bool, security: ClientSecurity | None = None) -> int:
    """Prints the status once, or every second: in place in a terminal, else one table each time.

    Args:
      text: HOST:PORT or HOST of the parameter server.
      watch: print every second, until an error or a signal.
      security: token and certificates; None: neither.

    Raises:
      ConfigError: `text` is not an address, or a file that `security` names cannot be used.
      ProtocolError: another kind of server listens there; or see `Link.status`.
      RelaaxError: see `Link.status`.
    """
    address = str(parse_address(text, PARAMETER_SERVER_PORT))
    console = Console()
    with BridgeControl().connect(address, security) as link:
        try:
            table = make_table(address, link.status())
        except NoAnswerError:
            if _is_listening(parse_address(address)):
                raise ProtocolError(
                    f"{address}: a process listens there, but it does not answer as a parameter "
                    "server; is this the address of an rlx server? Pass that of the parameter "
                    "server (relaax-parameter-server.bind, by default port 7000)"
                ) from None
            raise
        if not watch:
            console.print(table)
            return 0
        if not console.is_terminal:
            return _print_for_ever(console, link, address, table)
        width = console.width - SPARE_COLUMNS
        with Live(Constrain(table, width), console=console) as live:
            while True:
                time.sleep(_INTERVAL_SEC)
                live.update(Constrain(make_table(address, link.status()), width))


def _is_listening(address: Address) -> bool:
    """Returns whether a TCP connection can be opened."""
    try:
        socket.create_connection((address.host, address.port), _CONNECT_SEC).close()
    except OSError:
        return False
    return True


def _print_for_ever(console: Console, link: Link, address: str, table: Table) -> NoReturn:
    """Prints a new table each time: in a pipe, one drawn in place appears only at the end."""
    while True:
        console.print(table)
        time.sleep(_INTERVAL_SEC)
        table = make_table(address, link.status())


def save_snapshot(text: str, security: ClientSecurity) -> int:
    """Makes the parameter server write a snapshot; prints its path.

    Returns 1 if the server does not keep snapshots, else 0.

    Args:
      text: HOST:PORT or HOST of the parameter server.
      security: token and certificates.

    Raises:
      ConfigError: `text` is not an address, or a file that `security` names cannot be used.
      RelaaxError: see `Link.request_save`.
    """
    address = str(parse_address(text, PARAMETER_SERVER_PORT))
    with BridgeControl().connect(address, security) as link:
        path = link.request_save()
    print(path or f"the parameter server at {address} does not keep snapshots")
    return 0 if path else 1


def stop_server(text: str, security: ClientSecurity) -> int:
    """Tells the parameter server to save and exit.

    Args:
      text: HOST:PORT or HOST of the parameter server.
      security: token and certificates.

    Raises:
      ConfigError: `text` is not an address, or a file that `security` names cannot be used.
      RelaaxError: see `Link.request_stop`.
    """
    address = str(parse_address(text, PARAMETER_SERVER_PORT))
    with BridgeControl().connect(address, security) as link:
        link.request_stop()
    print(f"the parameter server at {address} is saving and will then exit")
    return 0
