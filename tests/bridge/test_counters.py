"""Counters that many processes share, and the end of the training that all of them hear of."""

# covers J6

import subprocess
import sys

from support.bridge import make_backend, serve

from relaax_like.parameter_server.stop_condition import StopCondition

PROCESSES, BUDGET = 3, 1000
# Plays episodes of seven steps until it hears of the end; prints what it has counted.
PROGRAM = """
import sys
from relaax_like.core.records import Episode
from relaax_like.bridge.control import BridgeControl

steps = episodes = 0
with BridgeControl().connect(sys.argv[1]) as link, link.parameter_server_stub() as client:
    while not client.finished:
        client.increment_global_t(7)
        client.add_episodes([Episode(1.0, 7)])
        client.push_pull()
        steps, episodes = steps + 7, episodes + 1
    print(steps, episodes, client.finished, sep="|")
"""


def test_processes_count_together_and_all_hear_of_the_end() -> None:
    with make_backend(stop=StopCondition(BUDGET)) as backend, serve(backend) as address:
        argv = [sys.executable, "-c", PROGRAM, address]
        running = [
            subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(PROCESSES)
        ]
        told = [process.communicate(timeout=60)[0].strip().split("|") for process in running]
        status = backend.status()
    assert [process.returncode for process in running] == [0] * PROCESSES
    steps, episodes = (sum(int(one[place]) for one in told) for place in (0, 1))
    # 143 episodes of seven steps are the first to use the budget up. Each process but the one that
    # did so has played one more before it heard: its steps are counted, its episode is not.
    assert (status.global_t, status.episodes) == (steps, 143)
    assert (steps, episodes) == (1001 + 7 * (PROCESSES - 1), 143 + PROCESSES - 1)
    assert {one[2] for one in told} == {f"budget of {BUDGET} env steps used up"}
