"""Versions of the simulator: from the client to the run's folder and the table of results."""

import json
from pathlib import Path

import gymnasium
from support.cluster import Cluster, wait_until
from support.here import run_here

from relaax_like.client import RlxClient
from relaax_like.wire.spaces import Box, Discrete

STATE = Box(dtype="float32", shape=(4,))


def read(cluster: Cluster) -> dict[str, list[str]]:
    path = cluster.folder / "run" / "versions.json"
    return json.loads(path.read_text()) if path.exists() else {}


def test_clients_say_them_and_others_need_not(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        ps, _ = cluster.start_both_servers()
        cluster.start_paced_client("silent", "--no-versions").wait_for("Score = ")
        address = f"localhost:{cluster.rlx_port}"
        with RlxClient(address, STATE, Discrete(n=2), name="old", versions={"mine": "1"}) as client:
            assert "versions" in client.features
            wait_until(lambda: read(cluster) == {"mine": ["1"]}, ps)
        cluster.start_paced_client("new").wait_for("Score = ")
        wait_until(lambda: read(cluster).get("gymnasium") == [gymnasium.__version__], ps)
        with RlxClient(
            address, STATE, Discrete(n=2), name="odd", versions={"gymnasium": "0.1"}
        ) as client:
            ps.wait_for(
                f"odd has gymnasium 0.1, but another client of this run {gymnasium.__version__}"
            )
        status, compared = run_here("compare", cluster.folder / "run")
        assert status == 0
        assert f"gymnasium {gymnasium.__version__}, 0.1" in compared
