"""`kill -9` of the parameter server: nothing acknowledged is lost, nothing is applied twice.

RELAAX_FAULT_SEEDS and RELAAX_FAULT_KILLS say how much of it is run; `make faults` runs 20 and 50.
covers R24
"""

import os
import random
import signal
import statistics
import sys
import time

import psutil
import pytest
from support.cluster import Cluster, Program, wait_until
from support.history import History

from relaax_like.wire.failpoints import ENVIRONMENT_VARIABLE

SEEDS = int(os.environ.get("RELAAX_FAULT_SEEDS", "1"))
KILLS = int(os.environ.get("RELAAX_FAULT_KILLS", "5"))
# Point -> a number of times after which it is still reached in these runs.
POINTS = {
    "ps.before_journal": 60,
    "ps.after_journal_before_apply": 60,
    "ps.after_apply_before_reply": 60,
    "ps.in_snapshot": 3,
    "ps.after_snapshot_before_drop": 3,
}
OFTEN = "relaax-parameter-server.checkpoint_time_interval=0.1"


def start_server(cluster: Cluster, *sets: str, failpoint: str = "") -> Program:
    env = {ENVIRONMENT_VARIABLE: failpoint} if failpoint else {}
    return cluster.start_parameter_server(OFTEN, *sets, **env)


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_failpoint(cluster: Cluster, point: str, seed: int) -> None:
    at = random.Random(f"{point} {seed}").randint(1, POINTS[point])
    server = start_server(cluster, failpoint=f"{point}=kill@{at}")
    history = History(f"localhost:{cluster.ps_port}", seed=seed, pause_sec=0.005)
    history.start()
    try:
        assert server.wait() == -signal.SIGKILL
        before = len(history.acknowledged)
        start_server(cluster)
        history.wait(20)
        history.stop()
    finally:
        history.abandon()
    history.check()
    assert len(history.acknowledged) >= before + 20


def test_killed_while_it_replays(cluster: Cluster) -> None:
    server = cluster.start_parameter_server("relaax-parameter-server.checkpoint_time_interval=1e6")
    history = History(f"localhost:{cluster.ps_port}")
    history.start()
    try:
        history.wait(30)
        server.stop(signal.SIGKILL)
        again = start_server(cluster, failpoint="ps.in_replay=kill@15")
        assert again.wait() == -signal.SIGKILL
        start_server(cluster)
        history.wait(20)
        history.stop()
    finally:
        history.abandon()
    history.check()


@pytest.mark.slow
def test_killed_again_and_again_under_sixteen_clients(cluster: Cluster) -> None:
    draw = random.Random(7)
    ready_sec, resident_mb = [], []
    history = History(f"localhost:{cluster.ps_port}", clients=16, pause_sec=0.01)
    history.start()
    try:
        for _ in range(KILLS + 1):
            start = time.monotonic()
            server = start_server(cluster)
            history.wait(1)
            ready_sec.append(time.monotonic() - start)
            time.sleep(draw.uniform(0.0, 0.4))
            resident_mb.append(psutil.Process(server.pid).memory_info().rss / 1e6)
            if len(ready_sec) <= KILLS:
                server.stop(signal.SIGKILL)
        history.stop()
    finally:
        history.abandon()
    history.check()
    if KILLS >= 20:
        p95 = statistics.quantiles(ready_sec, n=20)[-1]
        print(
            f"{KILLS} kills, {len(history.acknowledged)} pushes acknowledged; ready after "
            f"{statistics.median(ready_sec):.2f} s (median), {p95:.2f} s (p95), "
            f"{max(resident_mb):.0f} MB resident at most",
            file=sys.__stdout__,
        )


def test_killed_under_relaax_run(cluster: Cluster) -> None:
    """The Manager brings it back, each time."""
    idle = cluster.folder / "idle.py"  # an environment that never acts: only ours push
    idle.write_text("import time\ntime.sleep(1e6)\n")
    sets = (*cluster.sets, OFTEN, "environment.program=null", f"environment.path={idle}")
    flags = [part for text in sets for part in ("--set", text)]
    command = [sys.executable, "-m", "relaax_like.cli.main", "run", cluster.config, *flags]
    runner = cluster.start("run", command)
    history = History(f"localhost:{cluster.ps_port}", clients=4, pause_sec=0.01)
    history.start()
    try:
        for _ in range(3):
            history.wait(20)
            find_server(runner).send_signal(signal.SIGKILL)
            history.wait(4)
        history.wait(20)
        history.stop()
        history.check()
        assert runner.stop(signal.SIGINT) == 128 + signal.SIGINT
    finally:
        history.abandon()


def find_server(runner: Program) -> psutil.Process:
    def find() -> psutil.Process | None:
        for child in psutil.Process(runner.pid).children():
            if any("parameter_server" in part for part in child.cmdline()):
                return child
        return None

    found = wait_until(find, runner)
    assert found is not None
    return found
