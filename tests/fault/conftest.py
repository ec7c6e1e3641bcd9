"""A parameter server with a small model, and no traces of it afterwards."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster import BARE, Cluster, wait_until
from support.history import write_initial_values

PARAMETERS = 100


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    before = set(threading.enumerate())
    with Cluster(tmp_path, BARE, *write_initial_values(tmp_path, PARAMETERS)) as cluster:
        yield cluster
        for program in cluster.started:  # in order: a kill can leave half a snapshot, until a start
            if program.alive:
                program.stop()
    cluster.assert_nothing_left()

    def find_ours() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread not in before]

    # The one that watches over streams is the process's, and stays.
    wait_until(
        lambda: all(t.name == "deadlines" for t in find_ours()), "the end of our threads", 10
    )
    leftovers = [path.name for path in (tmp_path / "run").rglob("*") if "tmp" in path.name]
    assert not leftovers
