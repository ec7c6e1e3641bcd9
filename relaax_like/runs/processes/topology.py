"""Topology: the processes of a run, which of them connect to which, and how each is kept alive."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from relaax_like.wire.backoff import draw_pause_sec
from relaax_like.wire.errors import ConfigError

Role = Literal[
    "parameter server", "learner", "rlx server", "metrics server", "environment", "worker"
]
Protocol = Literal["rlx", "bridge", "metrics"]


@dataclass(frozen=True, kw_only=True)
class Node:
    """One process of a run.

    Attributes:
      name: for messages, and the prefix of the process's output lines.
      argv: the command.
      role: what the process does in the run.
      client_name: for an environment: the name in its hello.
      env: additional environment variables.
      cpus: processor cores that it uses, for an engine that places it.
      folder: working directory, on this machine; None: that of the process that starts it.
      ends_run: whether the run of an essential process can end; it does once all of these have
        exited with status 0.
    """

    name: str
    argv: Sequence[str]
    role: Role
    client_name: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    cpus: int = 1
    folder: Path | None = None
    ends_run: bool = True

    @property
    def is_essential(self) -> bool:
        """Whether this process ends last, and its exit with status 0 is an end of training."""
        return self.role == "parameter server"

    @property
    def is_environment(self) -> bool:
        """Whether this process starts after all that report are ready, and can end before them."""
        return self.role == "environment"

    @property
    def reports(self) -> bool:
        """Whether this process reports its events through a pipe; see `wire.reports`."""
        return self.role in ("parameter server", "learner", "rlx server", "worker")


@dataclass(frozen=True, kw_only=True)
class Edge:
    """One process connects to another.

    Attributes:
      source: name of the node that connects.
      target: name of the node that listens; None: the process that starts the topology.
      protocol: the protocol that the two speak.
      address: address of the target.
    """

    source: str
    target: str | None
    protocol: Protocol
    address: str


@dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    """How a dead process is restarted.

    Attributes:
      first_delay_sec: longest wait before the first restart; doubled each time; see
        `draw_pause_sec`.
      max_delay_sec: longest delay.
      max_restarts: restarts in a row after which one more death of a process other than an
        environment ends the run.
      healthy_sec: the deaths in a row of such a process are counted from 1 again if it ran for
        longer than this; those of any process, if it did useful work.
      environment_deaths: number of deaths without a step in between after which an environment is
        abandoned.
      alone_sec: the run ends if none of its environments is left, and no other client has been
        connected for this long. 0: at once, with status 0 unless one was abandoned.
    """

    first_delay_sec: float = 0.5
    max_delay_sec: float = 10.0
    max_restarts: int = 10
    healthy_sec: float = 30.0
    environment_deaths: int = 3
    alone_sec: float = 60.0

    def delay_sec(self, deaths: int) -> float:
        """Returns how many seconds to wait after `deaths` deaths in a row, 1 or more."""
        return draw_pause_sec(deaths - 1, self.first_delay_sec, self.max_delay_sec)


@dataclass(frozen=True, kw_only=True)
class Topology:
    """The processes of a run; a `Manager` starts them.

    Attributes:
      nodes: in the order of their start.
      edges: connections between the nodes.
      restart: how dead processes are restarted.

    Raises:
      ConfigError: two nodes have the same name, or an edge names a node that does not exist.
    """

    nodes: Sequence[Node]
    edges: Sequence[Edge] = ()
    restart: RestartPolicy = RestartPolicy()

    def __post_init__(self) -> None:
        names = Counter(node.name for node in self.nodes)
        twice = [name for name, count in names.items() if count > 1]
        if twice:
            raise ConfigError(
                f"topology: several nodes are named {twice[0]!r:.100}; expected unique names"
            )
        for edge in self.edges:
            for name in (edge.source, edge.target):
                if name is not None and name not in names:
                    raise ConfigError(
                        f"topology: an edge names {name!r:.100}, but the nodes are "
                        f"{', '.join(names):.200}; add this node, or correct the edge"
                    )

    def to_dict(self) -> dict[str, Any]:
        """Returns the topology in JSON types."""
        return {
            "nodes": [
                {
                    "name": node.name,
                    "role": node.role,
                    "argv": list(node.argv),
                    "env": dict(node.env),
                    "client_name": node.client_name,
                    "cpus": node.cpus,
                }
                for node in self.nodes
            ],
            "edges": [dataclasses.asdict(edge) for edge in self.edges],
            "restart": dataclasses.asdict(self.restart),
        }
