"""An experiment without sizes: the first client decides, whichever process is killed."""

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster import BARE, TRACE, Cluster, wait_until

from relaax_like.config.run_spaces import SPACES_NAME
from relaax_like.wire.failpoints import ENVIRONMENT_VARIABLE

CONFIG = """
from relaax_like.config import ActorCriticConfig


class Config(ActorCriticConfig):
    learning_rate: float = 0.05
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Agents without TensorFlow, whose settings leave everything open."""
    algorithm = tmp_path / "bare"
    shutil.copytree(BARE, algorithm)
    (algorithm / "config.py").write_text(CONFIG)
    with Cluster(tmp_path, algorithm) as cluster:
        yield cluster


@pytest.mark.slow
def test_killed_in_each_state_the_run_goes_on_with_the_same_spaces(cluster: Cluster) -> None:
    spaces = cluster.folder / "run" / SPACES_NAME
    waiting = cluster.start_parameter_server()
    rlx = cluster.start_rlx_server()
    waiting.wait_for("waiting for spaces")
    waiting.stop(signal.SIGKILL)
    assert not spaces.exists()

    point = {ENVIRONMENT_VARIABLE: "ps.after_spaces_before_reply=kill@1"}
    deciding = cluster.start_parameter_server(**point)
    deciding.wait_for("waiting for spaces")
    spectator = cluster.start_paced_client("spectator", "--exploit")
    spectator.wait_for("no environment has connected for training yet")
    assert not spaces.exists()
    client = cluster.start_paced_client("client")
    assert deciding.wait() == -signal.SIGKILL
    decided = spaces.read_text()

    building = cluster.start_parameter_server(**{ENVIRONMENT_VARIABLE: "ps.in_snapshot=kill@1"})
    assert building.wait() == -signal.SIGKILL

    serving = cluster.start_parameter_server()
    cluster.wait_steps(64)
    serving.stop(signal.SIGKILL)
    last = cluster.start_parameter_server()
    cluster.wait_steps(64)

    other = cluster.start_paced_client("other", "--env", "Acrobot-v1")
    other.wait_for(r"\(6 numbers\), but algorithm\.state_size is 4")
    assert other.wait() != 0
    wait_until(lambda: "Score = " in spectator.output, spectator)
    assert spaces.read_text() == decided
    for program in (client, spectator, rlx, last):
        assert program.alive, program
        assert TRACE not in program.output, program


def test_agents_that_cannot_be_made_end_their_rlx_server_with_a_line(cluster: Cluster) -> None:
    agent = cluster.folder / "bare" / "agent.py"
    code = agent.read_text()
    agent.write_text(code.replace("def reward_and_reset(", "def reward_and_rest("))
    server, rlx = cluster.start_both_servers()
    client = cluster.start_paced_client()
    assert rlx.wait() == 2
    rlx.wait_for("class Agent is abstract")
    assert TRACE not in rlx.output

    agent.write_text(code)  # the others survive
    cluster.start_rlx_server()
    cluster.wait_steps(20)
    assert server.alive
    assert client.alive
