"""`kill -9` of the processes with a replay table: no step is lost, and none is there twice.

RELAAX_FAULT_SEEDS says how often it is killed; `make faults` kills it 20 times. covers R24
"""

import os
import random
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.cluster import Cluster, wait_until
from support.disks import fill, mount
from support.standalone import StandaloneCluster
from support.uncompiled import copy_uncompiled

from relaax_like.bridge.control import BridgeControl
from relaax_like.core.records import Experience
from relaax_like.experience.rollout import Rollout
from relaax_like.learn.replay_log import ReplayLog, ReplayRecord
from relaax_like.learn.rollout_messages import rollout_to_bytes
from relaax_like.wire.errors import ProtocolError, ServerUnavailableError

KILLS = max(2, int(os.environ.get("RELAAX_FAULT_SEEDS", "1")))
SETTINGS = (
    *("algorithm.state_size=4", "algorithm.num_actions=2", "algorithm.network={layers: [8]}"),
    *("algorithm.batch_size=8", "algorithm.capacity=1000000", "algorithm.warm_up_steps=64"),
    *("algorithm.updates_per_step=0.1", "algorithm.updates_at_once=4"),
    "algorithm.masks={action: [2]}",
)
MASK = "mask:action"
Key = tuple[int, int, int]


def mask_actions(observations: np.ndarray) -> np.ndarray:
    """Returns the legal actions `[..., 2]` of a sender: the second one if the step is even."""
    numbers = observations[..., :1]
    return np.concatenate([numbers > 0, numbers % 2 == 0], -1)


class Sender:
    """A client that sends steps of its own, and sends again what was not acknowledged.

    Attributes:
      acknowledged: agent, episode and step of what the server said that it has received.
      made: number of steps that were made, acknowledged or under way.
    """

    def __init__(self, address: str, agent: int):
        self.acknowledged: list[Key] = []
        self._address = address
        self._agent = agent
        self._under_way: deque[tuple[Key, Experience]] = deque()
        self.made = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"sender {agent}")
        self._thread.start()

    def stop(self) -> None:
        """Stops after what is under way has been acknowledged."""
        self._stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set() or self._under_way:
            try:
                self._play()
            except (ServerUnavailableError, ProtocolError):
                time.sleep(0.05)

    def _play(self) -> None:
        with BridgeControl().connect(self._address) as link:
            stream = link.collect_stream(f"sender-{self._agent}", 10.0)
            try:
                stream.open(1, 0, 0)
                for _, experience in self._under_way:
                    stream.send(experience)
                for notice in stream:
                    while self._under_way:
                        key, experience = self._under_way[0]
                        if experience.sequence > notice.progress.received:
                            break
                        self.acknowledged.append(key)
                        self._under_way.popleft()
                    if self._stopping.is_set():
                        if not self._under_way:
                            return
                        continue
                    while len(self._under_way) < 8:
                        self._under_way.append(self._make())
                        stream.send(self._under_way[-1][1])
            finally:
                stream.close()

    def _make(self) -> tuple[Key, Experience]:
        """Returns the next step; an episode has five."""
        episode, step = divmod(self.made, 5)
        self.made += 1
        observations = np.full((2, 1, 4), self.made, np.float32)
        masks = mask_actions(observations)
        rollout = Rollout(
            inputs={"observation": observations[:-1], MASK: masks[:-1]},
            next_inputs={"observation": observations[1:], MASK: masks[1:]},
            next_alive=np.array([[0.0 if step == 4 else 1.0]], np.float32),
            rewards=np.ones((1, 1, 1), np.float32),
            actions={"action": np.zeros((1, 1), np.int64)},
            log_prob=np.zeros((1, 1), np.float32),
            states={},
            versions=np.zeros(1, np.int64),
            starts=np.array([[self._agent, episode, step]]),
        )
        experience = Experience(
            client_id=f"sender-{self._agent}",
            incarnation=1,
            sequence=self.made,
            agent="a",
            columns=1,
            rollout=rollout_to_bytes(rollout),
            env_steps=1,
        )
        return (self._agent, episode, step), experience


def read_log(folder: Path) -> list[ReplayRecord]:
    """Returns all records of a log that no server has open."""
    log = ReplayLog(folder, lambda: (0, 0))
    records = list(log.replay())
    log.close({})
    return records


def list_steps(records: list[ReplayRecord]) -> list[Key]:
    """Returns agent, episode and step of each step."""
    steps = []
    for record in records:
        if record.rollout is None:
            continue
        assert record.rollout.starts is not None
        for slot, (agent, episode, step) in enumerate(record.rollout.starts.tolist()):
            for alive in record.rollout.next_alive[:, slot].tolist():
                steps.append((agent, episode, step))
                step += 1
                if alive != 1:
                    episode, step = episode + 1, 0
    return steps


def play(cluster: Cluster, port: int, kill: Callable[[], None], kills: int = KILLS) -> list[Sender]:
    """Plays until everything has been killed often enough, each time after more acknowledged steps.

    Args:
      cluster: with servers; it has a client, too.
      port: where experience is sent.
      kill: kills a process and starts it again.
      kills: how often.
    """
    draw = random.Random(7)
    cluster.wait_steps()  # of the client, whose steps must be in the log, too
    senders = [Sender(f"localhost:{port}", agent) for agent in (1, 2)]
    try:
        for _ in range(kills):
            wait_acknowledged(senders)
            time.sleep(draw.random() / 2)  # a moment that nothing chooses
            kill()
    finally:
        for sender in senders:
            sender.stop()
    return senders


def wait_acknowledged(senders: list[Sender]) -> None:
    before = [len(sender.acknowledged) for sender in senders]
    wait_until(
        lambda: all(
            len(sender.acknowledged) > number + 50
            for sender, number in zip(senders, before, strict=True)
        ),
        "more acknowledged steps",
    )


def check(cluster: Cluster, senders: list[Sender], kills: int = KILLS) -> int:
    """Checks the log of a run that has ended; returns the steps that it counts."""
    records = read_log(cluster.folder / "run" / "checkpoints" / "replay")
    steps = list_steps(records)
    assert len(set(steps)) == len(steps)
    for sender in senders:
        assert set(sender.acknowledged) <= set(steps)
        assert len(sender.acknowledged) > 50 * kills
    assert any(agent not in (1, 2) for agent, _, _ in steps)  # the client's
    for record in records:
        if record.rollout is not None and record.rollout.starts is not None:
            sent = np.isin(record.rollout.starts[:, 0], (1, 2))
            for inputs in (record.rollout.inputs, record.rollout.next_inputs):
                masks = mask_actions(inputs["observation"]) | ~sent[:, None]
                np.testing.assert_array_equal(inputs[MASK], masks)
    return sum(record.env_steps for record in records)


def test_no_step_is_lost_and_none_is_there_twice(tmp_path: Path) -> None:
    with Cluster(tmp_path, copy_uncompiled("dqn", tmp_path), *SETTINGS) as cluster:
        servers = [cluster.start_parameter_server()]
        rlx = cluster.start_rlx_server()
        client = cluster.start_paced_client("four", "--num-envs", 4)

        def kill() -> None:
            assert servers[-1].stop(signal.SIGKILL) == -signal.SIGKILL
            servers.append(cluster.start_parameter_server())

        senders = play(cluster, cluster.ps_port, kill)
        for program in (client, rlx, servers[-1]):
            assert program.stop() == 128 + signal.SIGTERM
        total = check(cluster, senders)
        cluster.start_parameter_server()
        counted = cluster.wait_status(lambda status: status.global_t >= total, "all steps")
        assert counted.global_t == total


@pytest.mark.parametrize("kills", [KILLS])
def test_a_full_disk_loses_only_steps_of_which_the_next_start_tells(
    tmp_path: Path, kills: int
) -> None:
    """The disk is full before each kill; what was acknowledged before that is there."""
    told = "the replay table's journal was given up at step"
    run = tmp_path / "run"
    with (
        mount(run, "size=100m"),
        Cluster(tmp_path, copy_uncompiled("dqn", tmp_path), *SETTINGS) as cluster,
    ):
        server = cluster.start_parameter_server()
        rlx = cluster.start_rlx_server()
        client = cluster.start_paced_client("four", "--num-envs", 4)
        cluster.wait_steps()
        sender = Sender(f"localhost:{cluster.ps_port}", 1)
        kept: set[Key] = set()
        start = 0
        for _ in range(kills):
            wait_acknowledged([sender])
            kept |= set(sender.acknowledged[start:])
            filler = fill(run)
            server.wait_for("the replay table's journal is no longer written")
            wait_acknowledged([sender])
            cluster.wait_status(lambda status: status.given_up_step is not None, "that it is told")
            assert server.stop(signal.SIGKILL) == -signal.SIGKILL
            # What it had received without a journal is lost, even if the next one acknowledges it.
            start = sender.made
            filler.unlink()
            server = cluster.start_parameter_server()
            server.wait_for(told)
        wait_acknowledged([sender])
        kept |= set(sender.acknowledged[start:])
        sender.stop()
        for program in (client, rlx, server):
            assert program.stop() == 128 + signal.SIGTERM
        steps = list_steps(read_log(run / "checkpoints" / "replay"))
        assert len(set(steps)) == len(steps)
        assert kept <= set(steps)
        assert told not in cluster.start_parameter_server().output


@pytest.mark.slow
def test_the_same_holds_for_a_learner_of_its_own_and_its_parameter_server(tmp_path: Path) -> None:
    """Either is killed, in random order; the other one continues."""
    draw = random.Random(8)
    algorithm = copy_uncompiled("dqn", tmp_path)
    with StandaloneCluster(tmp_path, algorithm, *SETTINGS) as cluster:
        alive = {"ps": cluster.start_parameter_server(), "learner": cluster.start_learner()}
        rlx = cluster.start_rlx_server()
        client = cluster.start_paced_client("four", "--num-envs", 4)

        def kill() -> None:
            name = draw.choice(list(alive))
            assert alive[name].stop(signal.SIGKILL) == -signal.SIGKILL
            start = cluster.start_learner if name == "learner" else cluster.start_parameter_server
            alive[name] = start()

        senders = play(cluster, cluster.learner_port, kill)
        for program in (client, rlx, alive["learner"], alive["ps"]):
            assert program.stop() == 128 + signal.SIGTERM
        total = check(cluster, senders)
        cluster.start_parameter_server()
        cluster.start_learner()
        counted = cluster.wait_status(lambda status: status.global_t >= total, "all steps")
        assert counted.global_t == total
