"""The record of a run's processes. covers R17"""

import json
from pathlib import Path

import pytest
from support.cluster import ROOT
from support.here import run_here

from relaax_like.config.loader import load_experiment
from relaax_like.launch.run import make_topology
from relaax_like.runs.processes.topology import Edge, Node, Topology
from relaax_like.wire.errors import ConfigError

A2C = ROOT / "algorithms" / "a2c" / "a2c.yaml"


def make_node(name: str) -> Node:
    return Node(name=name, role="worker", argv=["true"])


def test_a_run_is_servers_and_clients_and_what_connects_them(tmp_path: Path) -> None:
    sets = (
        "environment.clients=2",
        f"run_dir={tmp_path}",
        "relaax-rlx-server.bind=localhost:7101",
        "relaax-metrics-server.bind=localhost:7102",
        "relaax-metrics-server.metrics_dir=metrics",
    )
    topology = make_topology(load_experiment(A2C, sets), sets)
    assert [(node.name, node.role) for node in topology.nodes] == [
        ("metrics", "metrics server"),
        ("ps", "parameter server"),
        ("rlx", "rlx server"),
        ("env1", "environment"),
        ("env2", "environment"),
    ]
    assert [(e.source, e.target, e.protocol, e.address) for e in topology.edges] == [
        ("env1", "rlx", "rlx", "localhost:7101"),
        ("env2", "rlx", "rlx", "localhost:7101"),
        ("rlx", "ps", "bridge", "localhost:7000"),
        ("ps", "metrics", "metrics", "localhost:7102"),
        ("rlx", "metrics", "metrics", "localhost:7102"),
    ]
    record = json.loads(json.dumps(topology.to_dict()))
    assert [node["name"] for node in record["nodes"]] == [node.name for node in topology.nodes]
    assert record["restart"]["max_restarts"] == 10


def test_names_are_unique_and_edges_have_ends() -> None:
    with pytest.raises(ConfigError, match="several nodes are named 'a'"):
        Topology(nodes=[make_node("a"), make_node("a")])
    edge = Edge(source="a", target="b", protocol="rlx", address="localhost:1")
    with pytest.raises(ConfigError, match="an edge names 'b', but the nodes are a"):
        Topology(nodes=[make_node("a")], edges=[edge])
    Topology(nodes=[make_node("a"), make_node("b")], edges=[edge])


def test_the_command_prints_the_record_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, output = run_here("run", A2C, "--topology")
    assert status == 0
    record = json.loads(output)
    assert [node["name"] for node in record["nodes"]] == ["ps", "rlx", "env1", "env2"]
    assert not (tmp_path / "runs").exists()
