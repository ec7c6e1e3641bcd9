"""A time of day that jumps; who reads it at all, tests/test_time_of_day.py says."""

import os
import signal

import pytest
from support.cluster import TRACE, Cluster, wait_until
from support.history import History
from support.time_of_day import LIBRARY, Clock

from relaax_like.parameter_server.snapshots import list_names

PARAMETERS = 100

if not LIBRARY.is_file() and not os.environ.get("RELAAX_REQUIRE_FAKETIME"):
    pytest.skip("there is no libfaketime (Debian: faketime)", allow_module_level=True)


@pytest.fixture
def clock(cluster: Cluster) -> Clock:
    return Clock(cluster.folder)


def test_pushes_are_kept_whatever_the_time_of_day(cluster: Cluster, clock: Clock) -> None:
    """The history's own clock stands still beside it; that is what another machine's would do."""
    history = History(f"localhost:{cluster.ps_port}", pause_sec=0.005, parameters=PARAMETERS)
    history.start()
    often = "relaax-parameter-server.checkpoint_time_interval=0.2"
    server = cluster.start_parameter_server(often, **clock.env)
    epoch = cluster.wait_status(lambda s: s.global_t > 0, "pushes").epoch
    for offset in ("+3d", "-400d", "+4000d", "-1"):
        clock.set(offset)
        history.wait(40)
        before = get_newest(cluster)
        wait_until(lambda before=before: get_newest(cluster) > before, "a newer snapshot")
    assert server.alive
    assert TRACE not in server.output
    # It resumes from its newest snapshot, and its epoch grows, though the clock is set back.
    server.stop(signal.SIGKILL)
    clock.set("-4000d")
    cluster.start_parameter_server(often, **clock.env)
    history.wait(40)
    assert cluster.wait_status(lambda s: s.global_t > 0, "pushes").epoch == epoch + 1
    history.stop()
    history.check()


def get_newest(cluster: Cluster) -> list[str]:
    return list_names(cluster.folder / "run" / "checkpoints")[-1:]
