"""RayLauncher: places the nodes of a topology on the machines of a Ray cluster."""

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relaax_like.config.address import Address, parse_address
from relaax_like.runs.processes.launcher import ReadOutput, TakeReport
from relaax_like.runs.processes.node_actor import END, REPORT, NodeActor
from relaax_like.runs.processes.process import EXIT_ERROR, EXIT_USAGE
from relaax_like.runs.processes.topology import Node, Role, Topology
from relaax_like.wire.errors import ConfigError, RelaaxError

logger = logging.getLogger(__name__)

# How long a cluster has to provide what the run, or a node that has lost its machine, asks for.
PLACEMENT_SEC = 30.0
# Their files are where the user looks for them.
_AT_DRIVER: Sequence[Role] = ("parameter server", "metrics server")
_READ_SEC = 2.0
# An answer that is later than this after the time that was asked for.
_CALL_SEC = 60.0
_MAX_NODES_SHOWN = 10
# A bundle that needs the driver's machine takes a little of the resource that each machine has.
_HERE = 0.001

# Returns overrides that tell all nodes the addresses of those that listen.
MakeOverrides = Callable[[Mapping[str, Address]], Sequence[str]]
# Raises ConfigError if a node must not be started. Called before each of its starts, in any thread.
ValidateStart = Callable[[Node], None]


@dataclass(frozen=True)
class _Place:
    """Where a node runs."""

    actor: Any
    address: Address


class RayLauncher:
    """Starts processes on the machines of a Ray cluster. A context manager.

    Each node gets a `NodeActor`, which runs its command and remains for its restarts. A node whose
    machine is lost gets a place on another machine, and the nodes that connect to it are started
    again with its new address. Ray restarts nothing (`max_restarts=0`): the `Manager` does, because
    it recognizes mistakes in the settings and environments that make no steps, and knows which node
    waits for which.

        ray = join("local", cpus, insecure=False)
        with RayLauncher(ray, topology, config, make_overrides, term_sec=6.0) as launcher:
            status = Manager(topology, launcher=launcher).run()

    Args:
      ray: the module, connected to a cluster.
      topology: what to place. Parameter server and metrics server stay on the driver's machine.
      config: the YAML file, as commands name it; each machine gets its text.
      make_overrides: see `MakeOverrides`.
      term_sec: a child has this long from the end of its actor until it is killed.
      placement_sec: how long to wait for a place.
      validate_start: see `ValidateStart`.

    Attributes:
      ray: as the argument, as are `config`, `placement_sec` and `validate_start`.

    Raises:
      RelaaxError: on entering: the cluster does not have what the topology asks for, or a node's
        actor cannot be started.
    """

    def __init__(
        self,
        ray: Any,
        topology: Topology,
        config: Path,
        make_overrides: MakeOverrides,
        term_sec: float,
        placement_sec: float = PLACEMENT_SEC,
        validate_start: ValidateStart = lambda node: None,
    ):
        self.ray = ray
        self._topology = topology
        self.config = config
        self._make_overrides = make_overrides
        self._term_sec = term_sec
        self.placement_sec = placement_sec
        self.validate_start = validate_start
        self._numbers = {node.name: number for number, node in enumerate(topology.nodes)}
        self._changed = threading.Condition()
        self._places: dict[str, _Place] = {}  # guarded by _changed
        self._addresses: dict[str, Address] = {}  # guarded by _changed; also of lost nodes
        self._running: dict[str, _RayProcess] = {}  # guarded by _changed
        self._group: Any = None

    def __enter__(self) -> "RayLauncher":
        util = self.ray.util
        here = f"node:{util.get_node_ip_address()}"
        bundles = [
            {"CPU": node.cpus, **({here: _HERE} if node.role in _AT_DRIVER else {})}
            for node in self._topology.nodes
        ]
        try:
            self._group = util.placement_group(bundles, strategy="SPREAD")
            if not self._group.wait(self.placement_sec):
                raise RelaaxError(self._describe_shortage(self._topology.nodes))
            actors = [self._make_actor(node) for node in self._topology.nodes]
            for node, actor in zip(self._topology.nodes, actors, strict=True):
                self._place(node, actor)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        with self._changed:
            places = list(self._places.values())
        for place in places:
            self.ray.kill(place.actor)
        if self._group is not None:
            self.ray.util.remove_placement_group(self._group)
        self.ray.shutdown()

    @property
    def addresses(self) -> dict[str, Address]:
        """Name of each node -> the address of its server, even if its machine is lost."""
        with self._changed:
            return dict(self._addresses)

    def start(self, node: Node, read_output: ReadOutput, take_report: TakeReport) -> "_RayProcess":
        """See `Launcher`. Does not wait: if the start fails, the last line says why."""
        process = _RayProcess(self, node, read_output, take_report)
        with self._changed:
            self._running[node.name] = process
        process.begin()
        return process

    def place(self, node: Node) -> _Place:
        """Returns where a node runs; if it has no place, waits for a new one.

        Raises:
          RelaaxError: the cluster does not provide a place in time, or the node's actor cannot be
            started there.
        """
        with self._changed:
            place = self._places.get(node.name)
        return place or self._place(node, self._make_actor(node))

    def _make_actor(self, node: Node) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return (
            self.ray.remote(NodeActor)
            .options(
                num_cpus=node.cpus,
                max_restarts=0,
                max_concurrency=4,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self._group, self._numbers[node.name]
                ),
            )
            .remote(self._term_sec)
        )

    def _place(self, node: Node, actor: Any) -> _Place:
        """Waits until an actor runs, and notes where."""
        try:
            address = parse_address(
                self.ray.get(actor.find_address.remote(), timeout=self.placement_sec)
            )
        except self.ray.exceptions.GetTimeoutError:
            self.ray.kill(actor)
            raise RelaaxError(self._describe_shortage([node])) from None
        except self.ray.exceptions.RayError as error:
            cure = "; check that all machines of the cluster run, with this version of relaax_like"
            if isinstance(getattr(error, "cause", None), RelaaxError):  # its text has a cure
                cure = ""
            reason = shorten(error).rstrip(".")
            raise RelaaxError(f"{node.name}: cannot be placed: {reason}{cure}") from error
        place = _Place(actor, address)
        with self._changed:
            before = self._addresses.get(node.name)
            self._places[node.name] = place
            self._addresses[node.name] = address
        logger.info("%s is on %s", node.name, address.host)
        if before is not None and before != address:
            self._recall_clients(node)
        return place

    def lose(self, node: Node, place: _Place) -> None:
        """Notes that a node's actor is lost: its next start gets a new place."""
        with self._changed:
            if self._places.get(node.name) is place:
                del self._places[node.name]

    def resolve(self, node: Node) -> list[str]:
        """Returns the node's command, with the current addresses of other nodes.

        The first element is empty if it is this machine's Python: other machines use their own.
        """
        addresses = self.addresses
        new = {
            edge.address: str(addresses[edge.target])
            for edge in self._topology.edges
            if edge.source == node.name and edge.target is not None
        }
        argv = [new.get(part, part) for part in node.argv]
        if node.role != "environment":
            for override in self._make_overrides(addresses):
                argv += ["--set", override]
        return ["" if argv[0] == sys.executable else argv[0], *argv[1:]]

    def _recall_clients(self, moved: Node) -> None:
        """Ends the processes that know the former address of a node."""
        clients = {edge.source for edge in self._topology.edges if edge.target == moved.name}
        with self._changed:
            recalled = [self._running[name] for name in clients if name in self._running]
        for process in recalled:
            process.recall()

    def _describe_shortage(self, nodes: Sequence[Node]) -> str:
        shown = [f"{node.name} {node.cpus}" for node in nodes[:_MAX_NODES_SHOWN]]
        asked = ", ".join([*shown, "..."] if len(nodes) > len(shown) else shown)
        total, free = self.ray.cluster_resources(), self.ray.available_resources()
        alive = sum(machine["Alive"] for machine in self.ray.nodes())
        machines = "1 machine" if alive == 1 else f"{alive} machines"
        here = [node.name for node in nodes if node.role in _AT_DRIVER]
        local = f" ({', '.join(here)} must fit on this machine)" if here else ""
        has_workers = any(node.role == "worker" for node in self._topology.nodes)
        fewer = "workers (--workers)" if has_workers else "environments (environment.clients)"
        cures = ["add machines or processors", f"start fewer {fewer}"]
        # Of the roles that can ask for several cores, an rlx server always asks for two.
        if any(node.cpus > 1 and node.role != "rlx server" for node in nodes):
            cures.append("lower learner.backprop_workers")
        return (
            f"--ray: no place within {self.placement_sec:g} s for {sum(n.cpus for n in nodes)} "
            f"CPU ({asked}): the cluster has {total.get('CPU', 0):g} CPU on {machines}, "
            f"{free.get('CPU', 0):g} free{local}; {', '.join(cures[:-1])}, or {cures[-1]}"
        )


class _RayProcess:
    """A process on a machine of the cluster. A thread starts it and passes its lines on."""

    def __init__(
        self, launcher: RayLauncher, node: Node, read_output: ReadOutput, take_report: TakeReport
    ):
        self._launcher = launcher
        self._node = node
        self._read_output = read_output
        self._take_report = take_report
        # Reentrant: a signal handler can call `kill` while its thread holds the lock.
        self._lock = threading.RLock()
        self._place: _Place | None = None  # guarded by _lock, as is what follows
        self._asked_to_end = False
        self._status: int | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.pid = 0
        self.is_recalled = False

    def begin(self) -> None:
        """Starts the process, in a thread."""
        self._thread.start()

    def recall(self) -> None:
        """Ends the process, so that the `Manager` restarts it with other addresses."""
        if self._status is None:
            self.is_recalled = True
            self.terminate()

    def poll(self) -> int | None:
        return self._status

    def terminate(self) -> None:
        self._ask("terminate")

    def kill(self) -> None:
        self._ask("kill")

    def wait(self, timeout_sec: float) -> bool:
        return self._ended.wait(timeout_sec)

    def finish(self, timeout_sec: float) -> None:
        self._thread.join(timeout_sec)  # the actor has killed its descendants

    def _ask(self, what: str) -> None:
        with self._lock:
            self._asked_to_end = True
            place = self._place
        if place is not None and self._status is None:
            getattr(place.actor, what).remote()

    def _run(self) -> None:
        try:
            self._read_output(self._read_lines())
        finally:
            if self._status is None:
                self._status = EXIT_ERROR
            self._ended.set()

    def _read_lines(self) -> Iterator[bytes]:
        """Runs the process; yields its lines, and a last one if it cannot be run."""
        ray = self._launcher.ray
        place = None
        try:
            self._launcher.validate_start(self._node)
            place = self._launcher.place(self._node)
            with self._lock:
                self._place = place
            command = {
                "name": self._node.name,
                "role": self._node.role,
                "argv": self._launcher.resolve(self._node),
                "env": dict(self._node.env),
                "folder": os.getcwd(),
                "config": str(self._launcher.config),
                "text": self._read_config(),
            }
            pid = ray.get(place.actor.start.remote(json.dumps(command)), timeout=_CALL_SEC)
            if isinstance(pid, str):
                raise RelaaxError(pid)
            self.pid = pid
            if self._asked_to_end:  # before there was something to end
                self.terminate()
            yield from self._follow(place)
        except ray.exceptions.RayError as error:  # first: some of Ray's are OSErrors, too
            reason = shorten(error)
            if place is None:
                text = f"Ray cannot start it: {reason}; check that the cluster's head is up"
                yield f"{self._node.name}: {text}".encode()
                self._status = EXIT_ERROR
                return
            if isinstance(error, ray.exceptions.GetTimeoutError):
                ray.kill(place.actor)  # it hangs, and occupies the cores of the next one
                reason = f"no answer within {_CALL_SEC:g} s; if this repeats, check that machine"
            self._launcher.lose(self._node, place)
            host = place.address.host
            yield f"Ray no longer runs {self._node.name} on {host}: {reason}".encode()
            self._status = -signal.SIGKILL
        except (RelaaxError, OSError) as error:  # OSError: this process's folder is gone
            yield str(error).encode()
            self._status = EXIT_USAGE if isinstance(error, ConfigError) else EXIT_ERROR

    def _read_config(self) -> str:
        config = self._launcher.config
        try:
            return config.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a text file in UTF-8"
            raise RelaaxError(
                f"{self._node.name}: {config} cannot be read: {reason}; restore the file"
            ) from error

    def _follow(self, place: _Place) -> Iterator[bytes]:
        """Yields the lines of a started process until its end."""
        while self._status is None:
            answer = self._launcher.ray.get(
                place.actor.read.remote(_READ_SEC), timeout=_READ_SEC + _CALL_SEC
            )
            for kind, text in json.loads(answer):
                if kind == END:
                    self._status = int(text)
                elif kind == REPORT:
                    self._take_report(text.encode())
                else:
                    yield text.encode()


def shorten(error: Exception) -> str:
    """Returns the first line of an error of Ray, at most 200 characters.

    An error that a method of an actor has raised is wrapped in one of Ray, as its `cause`.
    """
    cause = getattr(error, "cause", None) or error
    return (str(cause).strip() or type(cause).__name__).splitlines()[0][:200]
