"""Topology: the processes of a run, which of them connect to which, and how each is kept alive."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from relaax_like.wire.backoff import draw_pause_sec
from relaax_like.wire.errors import ConfigError

Role = Literal["parameter server", "rlx server", "metrics server", "environment", "worker"]
Protocol = Literal["rlx", "bridge", "metrics"]


@dataclass(frozen=True, kw_only=True)
class Node:
    """One process of a run.

    Attributes:
      name: for messages and as the prefix of its lines.
      argv: the command.
      role: what it is.
      client_name: of an environment: what it calls itself in its hello.
      env: added to the environment.
    """

    name: str
    argv: Sequence[str]
    role: Role
    client_name: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_essential(self) -> bool:
        """Whether its end with status 0 ends the run."""
        return self.role == "parameter server"

    @property
    def is_environment(self) -> bool:
        """Whether it is started when all that report are ready, and its end leaves the others."""
        return self.role == "environment"

    @property
    def reports(self) -> bool:
        """Whether it says what it does through a pipe; see `wire.reports`."""
        return self.role in ("parameter server", "rlx server", "worker")


@dataclass(frozen=True, kw_only=True)
class Edge:
    """One process connects to another.

    Attributes:
      source: name of the node that connects.
      target: name of the node that listens; None: the process that starts the topology.
      protocol: that they speak.
      address: where the target listens.
    """

    source: str
    target: str | None
    protocol: Protocol
    address: str


@dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    """How a dead process is brought back.

    Attributes:
      first_delay_sec: longest wait before the first restart; doubled each time; see
        `draw_pause_sec`.
      max_delay_sec: longest delay.
      max_restarts: restarts in a row after which one more death of a server ends the run.
      healthy_sec: a server that ran for so long resets its count, as any process does that has done
        useful work since its start.
      environment_deaths: deaths without a step between them after which an environment is given up.
      alone_sec: the run ends when no environment of its own is left, and for so long no other
        client has been connected.
    """

    first_delay_sec: float = 0.5
    max_delay_sec: float = 10.0
    max_restarts: int = 10
    healthy_sec: float = 30.0
    environment_deaths: int = 3
    alone_sec: float = 60.0

    def delay_sec(self, deaths: int) -> float:
        """Returns how long to wait after the n-th death in a row, `deaths >= 1`."""
        return draw_pause_sec(deaths - 1, self.first_delay_sec, self.max_delay_sec)


@dataclass(frozen=True, kw_only=True)
class Topology:
    """What a run consists of; a `Manager` starts it.

    Attributes:
      nodes: in the order of their start.
      edges: between them.
      restart: how dead ones are brought back.

    Raises:
      ConfigError: two nodes have one name, or an edge names a node that is not there.
    """

    nodes: Sequence[Node]
    edges: Sequence[Edge] = ()
    restart: RestartPolicy = RestartPolicy()

    def __post_init__(self) -> None:
        names = Counter(node.name for node in self.nodes)
        twice = [name for name, count in names.items() if count > 1]
        if twice:
            raise ConfigError(f"topology: several nodes are named {twice[0]!r}; names are unique")
        for edge in self.edges:
            for name in (edge.source, edge.target):
                if name is not None and name not in names:
                    raise ConfigError(
                        f"topology: an edge names {name!r}, but the nodes are {', '.join(names)}"
                    )

    def to_dict(self) -> dict[str, Any]:
        """Returns the record as JSON types."""
        return {
            "nodes": [
                {
                    "name": node.name,
                    "role": node.role,
                    "argv": list(node.argv),
                    "env": dict(node.env),
                    "client_name": node.client_name,
                }
                for node in self.nodes
            ],
            "edges": [dataclasses.asdict(edge) for edge in self.edges],
            "restart": dataclasses.asdict(self.restart),
        }
