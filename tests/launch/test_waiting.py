"""A parameter server waits for spaces: who can provide them, and what all others are answered."""

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.cluster import Cluster, find_free_port, wait_until

from relaax_like.bridge.control import BridgeControl, Link
from relaax_like.client import Retry, RlxClient
from relaax_like.config.loader import load_experiment
from relaax_like.config.models import Experiment
from relaax_like.config.run_spaces import SPACES_NAME, read_run_spaces
from relaax_like.launch.waiting import make_proposer, wait_for_spaces
from relaax_like.rlx_server.hosting import AgentHost
from relaax_like.rlx_server.late_host import LateHost
from relaax_like.rlx_server.slots import SlotSpec
from relaax_like.wire.errors import (
    ConfigError,
    InvalidInputError,
    ProtocolError,
    ServerUnavailableError,
)
from relaax_like.wire.security import ServerSecurity
from relaax_like.wire.spaces import Box, Discrete, RunSpaces

TWO = {"action": Discrete(n=2)}
CARTPOLE = RunSpaces({"observation": Box(dtype="float32", shape=(4,))}, TWO)
PENDULUM = RunSpaces(
    {"observation": Box(dtype="float32", shape=(3,))},
    {"action": Box(dtype="float32", shape=(1,), low=-2, high=2)},
)
# name: (what is proposed, what is said)
HOSTILE = {
    "no actions": (RunSpaces(CARTPOLE.observations, {}), "action_spaces: 0 leaves"),
    "too many leaves": (
        RunSpaces({f"{i}": Discrete(n=2) for i in range(256)}, TWO),
        "257 leaves",
    ),
    "too many elements": (
        RunSpaces({"observation": Box(dtype="uint8", shape=(4096, 4097))}, TWO),
        "expected at most 256 leaves and 16777216",
    ),
    "a bad name": (RunSpaces({"../a": Discrete(n=2), " ": Discrete(n=2)}, TWO), "leaf name ' '"),
    "not for this algorithm": (
        RunSpaces({"observation": Discrete(n=5000)}, TWO),
        "at most 4096 can become a one-hot vector",
    ),
}


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    file = tmp_path / "experiment.yaml"
    file.write_text(
        f"run_dir: {tmp_path / 'run'}\n"
        f"relaax-parameter-server: {{bind: 'localhost:{find_free_port()}'}}\n"
        "algorithm: {name: ppo}\n"
    )
    (tmp_path / "run").mkdir()
    return load_experiment(file)


class Waiting:
    """A server that waits in a thread.

    Attributes:
      link: to it.
      found: what it has returned with, once it has.
    """

    def __init__(self, experiment: Experiment):
        ready, self._shutdown = threading.Event(), SimpleNamespace(requested=threading.Event())
        self.found: list[RunSpaces | None] = []

        def wait() -> None:
            security = ServerSecurity()
            self.found.append(wait_for_spaces(experiment, security, self._shutdown, ready.set))

        self._thread = threading.Thread(target=wait)
        self._thread.start()
        assert ready.wait(10)
        self.address = str(experiment.parameter_server.bind)
        self.link = BridgeControl().connect(self.address)

    def join(self) -> RunSpaces | None:
        """Waits for its end; returns what it has found."""
        self._thread.join(10)
        return self.found[0]

    def close(self) -> None:
        """Ends it."""
        self.link.close()
        self._shutdown.requested.set()
        self._thread.join(10)


@pytest.fixture
def waiting(experiment: Experiment) -> Iterator[Waiting]:
    server = Waiting(experiment)
    yield server
    server.close()


def test_the_first_proposal_decides_and_is_kept_before_it_is_answered(
    experiment: Experiment, waiting: Waiting
) -> None:
    assert waiting.link.propose_spaces(None) is None
    assert not (experiment.run_dir / SPACES_NAME).exists()

    assert waiting.link.propose_spaces(CARTPOLE) == CARTPOLE

    assert read_run_spaces(experiment.run_dir) == CARTPOLE
    assert waiting.join() == CARTPOLE
    again = load_experiment(experiment.file)
    assert again.algorithm.state_size == 4
    propose = make_proposer(again)  # of the server that follows
    assert propose(None) == propose(PENDULUM) == CARTPOLE


def test_a_run_whose_settings_define_spaces_keeps_those_of_the_first_client(
    tmp_path: Path,
) -> None:
    first, other = (Box(dtype="float32", shape=(4,), low=-bound, high=bound) for bound in (1, 2))
    with Cluster(tmp_path) as cluster:
        cluster.start_both_servers()
        for observation in (first, other):
            with RlxClient(
                f"localhost:{cluster.rlx_port}", observation, TWO["action"], retry=Retry()
            ) as client:
                client.act(np.zeros(4))
                wait_until(lambda: read_run_spaces(tmp_path / "run"), "spaces.json")
        assert read_run_spaces(tmp_path / "run") == RunSpaces({"observation": first}, TWO)


# covers P14
def test_the_first_client_also_defines_the_mirror_images(experiment: Experiment) -> None:
    experiment = load_experiment(experiment.file, ["algorithm.mirror=1"])
    mirrored = RunSpaces(
        {"observation": Box(dtype="float32", shape=(4,), mirror=(-0.1, -1, -2, -3))},
        {"action": Discrete(n=2, mirror=(1, 0.1))},
    )
    waiting = Waiting(experiment)
    try:
        with pytest.raises(InvalidInputError, match="get_observation_mirror_indices"):
            waiting.link.propose_spaces(CARTPOLE)
        waiting.link.propose_spaces(mirrored)
        assert waiting.join() == CARTPOLE
        again = load_experiment(experiment.file, ["algorithm.mirror=1"]).algorithm
        assert again.mirror_action == (1, 0.1)  # type: ignore[attr-defined]
    finally:
        waiting.close()


@pytest.mark.parametrize(("proposal", "said"), HOSTILE.values(), ids=HOSTILE)
def test_what_cannot_be_used_decides_nothing(
    experiment: Experiment, waiting: Waiting, proposal: RunSpaces, said: str
) -> None:
    with pytest.raises(InvalidInputError) as raised:
        waiting.link.propose_spaces(proposal)
    assert said in str(raised.value)
    assert waiting.link.propose_spaces(None) is None
    assert not (experiment.run_dir / SPACES_NAME).exists()
    assert waiting.link.propose_spaces(PENDULUM) == PENDULUM


def test_all_other_calls_are_told_what_is_waited_for(waiting: Waiting) -> None:
    link: Link = waiting.link
    for ask in (lambda: link.wait(0.0), link.status, link.request_save):
        with pytest.raises(ServerUnavailableError, match="waiting for spaces: the first env"):
            ask()
    with grpc.insecure_channel(waiting.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=5)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_a_full_disk_decides_nothing(experiment: Experiment, waiting: Waiting) -> None:
    (experiment.run_dir / SPACES_NAME).mkdir()  # cannot be replaced by a file

    with pytest.raises(ServerUnavailableError, match="cannot be written"):
        waiting.link.propose_spaces(CARTPOLE)
    assert waiting.link.propose_spaces(None) is None


def test_a_signal_ends_the_wait(experiment: Experiment) -> None:
    server = Waiting(experiment)
    server.close()
    assert server.join() is None


def test_a_damaged_file_is_refused_by_name(experiment: Experiment) -> None:
    for text in ("{", '{"observation_spaces": {"observation": {"kind": "BOX"}}}', "[]"):
        (experiment.run_dir / SPACES_NAME).write_text(text)
        with pytest.raises(ConfigError, match=SPACES_NAME):
            load_experiment(experiment.file)


class Told(AgentHost):
    """A host that says which spaces its agents were made for."""

    def make_slot_agents(self, spec: SlotSpec) -> Any:
        return spec.observation_spaces, spec.exploit


def make_host(agreed: RunSpaces | None, asked: list[RunSpaces | None]) -> LateHost:
    def propose(proposal: RunSpaces | None) -> RunSpaces | None:
        asked.append(proposal)
        if proposal == PENDULUM:
            raise InvalidInputError("not these")
        return agreed or proposal

    return LateHost(propose, lambda spaces: Told(), lambda host, timeout_sec: True)


@pytest.mark.parametrize(("wants_pings", "longest"), [(True, 600), (False, 45)])
def test_a_hello_waits_longer_if_its_client_is_pinged(wants_pings: bool, longest: int) -> None:
    waits: list[float] = []

    def wait_loaded(host: AgentHost, timeout_sec: float) -> bool:
        waits.append(timeout_sec)
        return True

    greeting: Any = SimpleNamespace(
        client_name="a",
        slots=1,
        inputs=CARTPOLE.observations,
        action_spaces=CARTPOLE.actions,
        exploit=False,
        max_wait_sec=None,
        wants_pings=wants_pings,
        agents=(),
        kinds=(),
    )
    LateHost(lambda proposal: proposal, lambda spaces: Told(), wait_loaded).make_agents(greeting)
    assert longest - 5 < waits[0] <= longest


def test_a_client_that_exploits_proposes_nothing() -> None:
    asked: list[RunSpaces | None] = []
    host = make_host(None, asked)

    with pytest.raises(ServerUnavailableError, match="no environment has connected"):
        host.make_slot_agents(SlotSpec(*CARTPOLE, 1, client_id="a", exploit=True))
    with pytest.raises(ProtocolError, match="not these") as raised:
        host.make_slot_agents(SlotSpec(*PENDULUM, 1, client_id="b"))
    assert raised.value.code == "SPACE_MISMATCH"
    host.make_slot_agents(SlotSpec(*CARTPOLE, 1, client_id="c"))
    host.make_slot_agents(SlotSpec(*PENDULUM, 1, client_id="d"))  # that host refuses it

    assert asked == [None, PENDULUM, CARTPOLE]
