"""Learner, coordinator and parameter server under `kill -9`, in random order.

RELAAX_FAULT_KILLS says how often; `make faults` kills 50 times. covers D23, R24
"""

import os
import random
import signal
from pathlib import Path

import pytest
from fault.test_jobs import Site
from fault.test_replay import SETTINGS, check, play
from support.standalone import StandaloneCluster
from support.uncompiled import copy_uncompiled

KILLS = int(os.environ.get("RELAAX_FAULT_KILLS", "3"))


@pytest.mark.slow
def test_each_continues_whichever_is_killed(tmp_path: Path) -> None:
    """Every acknowledged step is counted once, and every acknowledged job is done once."""
    draw = random.Random(9)
    run, jobs = tmp_path / "run", tmp_path / "jobs"
    run.mkdir()
    jobs.mkdir()
    algorithm = copy_uncompiled("dqn", tmp_path)
    with StandaloneCluster(run, algorithm, *SETTINGS) as cluster, Site(jobs) as site:
        alive = {
            "parameter server": cluster.start_parameter_server(),
            "learner": cluster.start_learner(),
            "coordinator": site.start_coordinator(),
        }
        starts = {
            "parameter server": cluster.start_parameter_server,
            "learner": cluster.start_learner,
            "coordinator": site.start_coordinator,
        }
        rlx = cluster.start_rlx_server()
        client = cluster.start_paced_client("four", "--num-envs", 4)
        slave = site.start_slave("slave-1")
        site.most_jobs = 3
        site.start_operator()

        def kill() -> None:
            site.most_jobs = len(site.acknowledged) + 3  # the slave is never without a job
            site.wait_progress()
            name = draw.choice(sorted(alive))
            assert alive[name].stop(signal.SIGKILL) == -signal.SIGKILL
            alive[name] = starts[name]()

        senders = play(cluster, cluster.learner_port, kill, KILLS)
        site.stop_operator()
        site.submit(3)
        site.wait_all_done()
        site.check()
        for program in (slave, alive["coordinator"]):
            program.stop()
        for program in (client, rlx, alive["learner"], alive["parameter server"]):
            assert program.stop() == 128 + signal.SIGTERM
        total = check(cluster, senders, KILLS)
        cluster.start_parameter_server()
        cluster.start_learner()
        counted = cluster.wait_status(lambda status: status.global_t >= total, "all steps")
        assert counted.global_t == total
        site.jobs.close()
