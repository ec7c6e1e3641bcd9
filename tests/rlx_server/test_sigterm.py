"""An rlx server that is attacked, as users start it: SIGTERM ends it all the same."""

import signal
import threading
from collections.abc import Iterator

import pytest
from support.attacks import ATTACKS, Attack, flood
from support.cluster import TRACE, Cluster, wait_until
from support.rlx import RawClient

FILES = {
    "config.py": """
from relaax_like.config.algorithm import AlgorithmConfig


class Config(AlgorithmConfig):
    learning_rate: float = 0.1
""",
    "model.py": """
import numpy as np

from relaax_like.core.manifest import Variable


def make_initial_values(config, seed):
    return [Variable("W", np.zeros(2, np.float32))]
""",
    "agent.py": """
class Agent:
    def __init__(self, config, parameter_server):
        self.exploit = False

    def act(self, state):
        return 0

    def reward_and_act(self, reward, state):
        return 0

    def reward_and_reset(self, reward, state=None, truncated=False, success=None):
        return reward

    def close(self):
        pass
""",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """With agents that take any spaces, and learn nothing."""
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "mine").mkdir()
    for name, text in FILES.items():
        (folder / "mine" / name).write_text(text)
    with Cluster(folder, folder / "mine") as cluster:
        cluster.start_parameter_server().wait_for("parameter server on")
        yield cluster


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
def test_sigterm_during_an_attack_ends_the_server_in_order(
    cluster: Cluster, attack: Attack
) -> None:
    server = cluster.start_rlx_server()
    server.wait_for("rlx server on")
    with RawClient(cluster.rlx_port) as client:
        client.greet()  # the attackers' hellos are right ones
    stop, rounds = threading.Event(), list[None]()
    arguments = (cluster.rlx_port, stop, attack, rounds)
    attackers = [threading.Thread(target=flood, args=arguments) for _ in range(2)]
    for attacker in attackers:
        attacker.start()
    try:
        wait_until(lambda: len(rounds) >= 3, "three attacks")
        assert server.stop() == 128 + signal.SIGTERM
    finally:
        stop.set()
        for attacker in attackers:
            attacker.join()
    assert TRACE not in server.output
