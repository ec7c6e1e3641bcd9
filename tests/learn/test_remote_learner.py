"""RemoteLearner: what agents see of a learner elsewhere, and of its absence. covers R26, J8"""

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from support.cluster import find_free_port
from support.learning import (
    COLUMNS,
    ENV_STEPS,
    STEPS,
    PlainPolicy,
    assert_equal,
    make_experience,
    make_experiment,
    make_plain_server,
    make_plain_service,
    make_rewarded,
    make_server,
    serve,
    unpack,
)
from support.rollouts import make_rollout
from support.threads import wait_until

from relaax_like.bridge.collecting import CollectStream, ReleaseNotice
from relaax_like.bridge.control import BridgeControl
from relaax_like.core.records import (
    MAX_EPISODES,
    Episode,
    Experience,
    LearnerUpdate,
    LearnRequest,
    Playing,
    Reply,
    StreamProgress,
)
from relaax_like.experience.rollout import Rollout
from relaax_like.launch.learners import make_iteration_learner
from relaax_like.learn import experience_service, remote_learner, rollout_barrier
from relaax_like.learn.experience_service import ExperienceService
from relaax_like.learn.remote_learner import RemoteLearner, _UnderWay
from relaax_like.learn.serial_learner import SerialLearner
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.published_state import NAMES
from relaax_like.parameter_server.snapshots import Snapshots
from relaax_like.parameter_server.stop_condition import StopCondition
from relaax_like.wire.errors import LeasedError, RelaaxError, ServerUnavailableError


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experience_service, "_POLL_SEC", 0.05)
    for name in ("_MIN_SILENCE_SEC", "_MAX_SILENCE_SEC"):  # nobody falls silent by being slow
        monkeypatch.setattr(rollout_barrier, name, 600.0)
    monkeypatch.setattr(remote_learner, "_MIN_PAUSE_SEC", 0.02)
    monkeypatch.setattr(remote_learner, "_MAX_PAUSE_SEC", 0.1)


class Far:
    """A parameter server on a port of its own, which stops and starts again.

    Attributes:
      folder: of its snapshots.
      policy: of the newest learner.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._address = f"127.0.0.1:{find_free_port()}"
        self.link = BridgeControl().connect(self._address)
        self._stack = contextlib.ExitStack()
        self.server: ParameterServer | None = None

    def start(self, again: bool = False, **options: Any) -> None:
        """Starts it.

        Args:
          again: the process is the same, and only the network was away.
          options: of the parameter server.
        """
        if not again:
            snapshots = Snapshots(self.folder, 3, 0)
            self.server = make_plain_server(snapshots=snapshots, **options)
            self.server.restore_latest_checkpoint()
            self.policy = PlainPolicy()
            self.service = make_plain_service(self.server, self.policy)
            self.service.start()
            self._stack.callback(self.policy.gate.set)
            self._stack.callback(self.server.close)
        assert self.server is not None
        self._network = contextlib.ExitStack()
        sink = _NeverStarted(self.service)
        self._network.enter_context(serve(self.server, sink, self._address))

    def cut(self) -> None:
        """Takes the network away."""
        self._network.close()

    def kill(self) -> None:
        """Ends it as `kill -9` does."""
        assert self.server is not None
        self.cut()
        self.policy.gate.set()
        self.service.stop()
        self.server.close(save=False)

    def learned(self) -> list[list[float]]:
        return [rewards[0].tolist() for rewards in self.policy.rewards]

    def close(self) -> None:
        if self.server is not None:
            self.kill()
        self.link.close()
        self._stack.close()


class _NeverStarted:
    """A service that the network neither starts nor stops."""

    def __init__(self, service: ExperienceService):
        self.max_rollout_bytes = service.max_rollout_bytes
        self.add, self.wait, self.wake = service.add, service.wait, service.wake


class Agents:
    """Submits work and hears of it.

    Attributes:
      learner: whose agents they are.
      done: numbers of the works that were answered.
      answers: all of them.
    """

    def __init__(self, learner: Any):
        self.learner = learner
        self.done: list[int] = []
        self.answers: list[LearnerUpdate] = []
        self.values: Sequence[np.ndarray] = ()
        self.values_version = -1
        # The version in force when a work was answered.
        self.version_of: dict[int, int] = {}
        self._count = 0

    def start(self) -> None:
        self.learner.start(self._hear)

    def submit(self, rollout: Rollout | None, *episodes: Episode, agent: str = "agent") -> int:
        self._count += 1
        env_steps = 0 if rollout is None else rollout.env_steps
        self.learner.submit(LearnRequest(self._count, rollout, episodes, env_steps, agent))
        return self._count

    def wait(self, number: int) -> None:
        wait_until(lambda: number in self.done, f"work {number} of {self.done}")

    def wait_version(self, version: int) -> None:
        wait_until(lambda: self.values_version >= version, f"version {version}")

    def _hear(self, learned: LearnerUpdate) -> None:
        if learned.values is not None:
            self.values, self.values_version = learned.values, learned.version
        self.answers.append(learned)
        self.done += learned.numbers
        self.version_of.update(dict.fromkeys(learned.numbers, self.values_version))


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Far]:
    with contextlib.closing(Far(tmp_path)) as far:
        yield far


@pytest.fixture
def learner(far: Far) -> Iterator[RemoteLearner]:
    learner = RemoteLearner(lambda: far.link.collect_stream("rlx", 0.2), "rlx")
    learner.connect()
    yield learner
    learner.close()


@pytest.fixture
def agents(far: Far, learner: RemoteLearner) -> Agents:
    """Agents of a server that is up."""
    far.start()
    agents = Agents(learner)
    agents.start()
    return agents


# While the server is there.


def test_a_work_is_answered_when_the_values_that_it_led_to_are_in_force(
    far: Far, agents: Agents
) -> None:
    assert far.server is not None
    assert agents.values_version == 0
    first = agents.submit(make_rewarded(2, 1.0), Episode(3.0, 5))
    agents.wait(first)
    second = agents.submit(make_rewarded(2, 2.0), Episode(5.0, 5))
    agents.wait(second)
    assert agents.version_of == {first: 0, second: 1}
    assert_equal(agents.values, unpack(far.server))
    assert far.learned() == [[1.0, 1.0, 2.0, 2.0]]
    assert (far.server.status().episodes, far.server.status().mean_return) == (2, 4.0)
    assert agents.done == [first, second]  # each once


def test_episodes_beyond_those_of_one_message_go_ahead_of_it(far: Far, agents: Agents) -> None:
    assert far.server is not None
    ended = [Episode(float(score), 1) for score in range(2 * MAX_EPISODES + 500)]
    agents.wait(agents.submit(make_rewarded(2, 1.0), *ended))
    agents.wait(agents.submit(make_rewarded(2, 2.0)))
    assert far.server.status().episodes == len(ended)
    # The last 100 are the newest.
    assert far.server.status().mean_return == len(ended) - 50.5


def test_the_newest_step_is_known_to_the_process(far: Far) -> None:
    steps: list[int] = []
    far.start()
    learner = RemoteLearner(
        lambda: far.link.collect_stream("rlx", 5.0), "rlx", on_global_t=steps.append
    )
    learner.connect()
    agents = Agents(learner)
    agents.start()
    agents.wait(agents.submit(make_rewarded(COLUMNS, 1.0)))
    wait_until(lambda: steps[-1] == ENV_STEPS, "the steps")
    learner.close()


def test_who_only_plays_hears_of_newer_values(far: Far, agents: Agents) -> None:
    other = RemoteLearner(lambda: far.link.collect_stream("other", 5.0), "other")
    other.connect()
    players = Agents(other)
    players.start()
    agents.submit(make_rewarded(COLUMNS, 1.0))
    players.wait_version(1)
    players.wait(players.submit(None))
    other.close()


def test_nobody_waits_for_an_agent_that_left(far: Far, agents: Agents) -> None:
    agents.wait(agents.submit(make_rewarded(2, 1.0), agent="one"))
    agents.wait(agents.submit(make_rewarded(2, 2.0), agent="two"))
    number = agents.submit(make_rewarded(2, 3.0), agent="one")
    wait_until(lambda: far.service._holding._held, "the rollout")
    assert number not in agents.done  # the other one is to come
    agents.learner.leave("two")
    agents.wait(number)


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        (float("nan"), "nan at [0, 0, 0], expected finite numbers"),
        (1e18, "1e+18 at step 0 of slot 0; expected finite"),
    ],
)
def test_a_rollout_that_is_refused_costs_itself_alone(
    far: Far, agents: Agents, caplog: pytest.LogCaptureFixture, reward: float, words: str
) -> None:
    bad = make_rewarded(2, reward)
    agents.wait(agents.submit(bad, Playing("a", 2, 2 * STEPS), Episode(1.0, 1, 0, "a")))
    assert f"experience was refused, or a reply cannot be read: rewards: {words}" in caplog.text
    assert agents.learner.lost_rollouts == 1
    wait_until(lambda: agents.learner._stream is not None, "the next stream")
    agents.wait(agents.submit(make_rewarded(COLUMNS, 1.0)))
    agents.wait_version(1)
    assert far.learned() == [[1.0] * COLUMNS]
    assert far.server is not None
    # Its steps do not count, and are reported as not learned from.
    wait_until(lambda: far.server.status().unlearned_steps == 2 * STEPS, "the report")
    assert (far.server.global_t, far.server.status().episodes) == (ENV_STEPS, 0)


def test_a_rollout_that_cannot_be_sent_costs_itself_alone(
    agents: Agents, caplog: pytest.LogCaptureFixture
) -> None:
    rollout = make_rewarded(2, 1.0)
    bad = dataclasses.replace(rollout, rewards=rollout.rewards.astype(np.complex64))
    agents.wait(agents.submit(bad))
    assert "could not send a rollout" in caplog.text
    assert agents.learner.lost_rollouts == 1
    agents.wait(agents.submit(make_rewarded(COLUMNS, 1.0)))
    agents.wait_version(1)


def test_the_end_stays_known(tmp_path: Path, far: Far, learner: RemoteLearner) -> None:
    far.start(stop=StopCondition(ENV_STEPS))
    agents = Agents(learner)
    agents.start()
    agents.wait(agents.submit(make_rewarded(COLUMNS, 1.0)))
    wait_until(lambda: "budget" in agents.answers[-1].finished, "the end")
    assert far.server is not None
    far.cut()
    agents.wait(agents.submit(make_rewarded(COLUMNS, 1.0)))
    assert "budget" in agents.answers[-1].finished
    assert agents.answers[-1].global_t == ENV_STEPS


# While it is away.


def test_agents_that_start_without_a_server_are_told_to_come_back(
    learner: RemoteLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_learner, "_START_WAIT_SEC", 0.05)
    with pytest.raises(ServerUnavailableError, match="retry later"):
        Agents(learner).start()


def test_a_learner_that_was_stopped_has_no_values(learner: RemoteLearner) -> None:
    learner.close()
    assert not learner.wait_loaded(30.0)
    with pytest.raises(ServerUnavailableError, match="shutting down; reconnect later"):
        Agents(learner).start()


def test_who_shares_it_may_give_up_and_come_back(
    far: Far, learner: RemoteLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = learner
    with monkeypatch.context() as patch:
        patch.setattr(remote_learner, "_START_WAIT_SEC", 0.05)
        with pytest.raises(ServerUnavailableError, match="retry later"):
            Agents(shared).start()
        shared.stop()
    far.start()
    monkeypatch.setattr(remote_learner, "_START_WAIT_SEC", 20.0)
    agents = Agents(shared)
    agents.start()
    agents.wait(agents.submit(make_rewarded(COLUMNS, 1.0)))
    agents.wait_version(1)


def test_agents_that_start_before_the_server_wait_for_it(far: Far, learner: RemoteLearner) -> None:
    threading.Timer(0.3, far.start).start()
    agents = Agents(learner)
    agents.start()
    assert agents.values_version == 0


def test_while_the_server_is_away_agents_wait_and_nothing_is_lost(
    far: Far, agents: Agents, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(remote_learner, "_WAITING_LINE_SEC", 0.3)
    far.policy.gate.clear()
    waiting = [agents.submit(make_rewarded(COLUMNS, 1.0))]
    assert far.policy.begun.wait(20)
    far.cut()
    waiting += [agents.submit(make_rewarded(COLUMNS, 2.0), Episode(1.0, 1)) for _ in range(2)]
    line = "3 rollout(s) wait for the learner; none was acknowledged for "
    wait_until(lambda: caplog.text.count(line) >= 2, "two lines")
    assert not {*waiting} & {*agents.done}
    assert agents.learner.lost_rollouts == 0
    far.policy.gate.set()
    far.start(again=True)
    for number in waiting:
        agents.wait(number)
    agents.wait_version(3)
    assert far.learned() == [[1.0] * COLUMNS, [2.0] * COLUMNS, [2.0] * COLUMNS]
    assert far.server is not None
    assert far.server.global_t == 3 * ENV_STEPS
    said = [r.getMessage() for r in caplog.records if r.name == remote_learner.__name__]
    assert "agents wait with their rollouts until it is back" in said[0]
    assert "the parameter server is back; 0 rollout(s) were lost" in said


def test_what_a_server_had_not_received_is_sent_again_once(far: Far, agents: Agents) -> None:
    far.policy.gate.clear()
    numbers = [agents.submit(make_rewarded(COLUMNS, float(n))) for n in range(1, 9)]
    # The server holds five of them and has no room for more.
    wait_until(lambda: _count_received(agents) == 5, "a full server")
    far.cut()
    far.policy.gate.set()
    far.start(again=True)
    for number in numbers:
        agents.wait(number)
    agents.wait_version(8)
    assert [rewards[0] for rewards in far.learned()] == [float(n) for n in range(1, 9)]
    assert agents.learner.lost_rollouts == 0
    wait_until(lambda: not agents.learner._under_way, "the end of all that was under way")


def test_what_a_restarted_server_had_not_learned_from_is_sent_again(
    far: Far, agents: Agents, caplog: pytest.LogCaptureFixture
) -> None:
    far.policy.gate.clear()
    numbers = [agents.submit(make_rewarded(COLUMNS, float(n))) for n in (1, 2)]
    wait_until(lambda: _count_received(agents) == 2, "the server to have both")
    caplog.set_level(logging.INFO)
    far.policy.error = ServerUnavailableError("killed")  # the iteration leads to nothing
    far.kill()
    assert not {*numbers} & {*agents.done}
    far.start()
    for number in numbers:
        agents.wait(number)
    agents.wait_version(2)
    assert far.learned() == [[1.0] * COLUMNS, [2.0] * COLUMNS]
    assert far.server is not None
    assert far.server.global_t == 2 * ENV_STEPS
    wait_until(lambda: not agents.learner._under_way, "the end of all that was under way")
    assert "the parameter server is back; 0 rollout(s) were lost" in caplog.text


def test_only_what_a_server_has_not_received_is_sent_again() -> None:
    stream = RecordingStream()
    learner = RemoteLearner(lambda: cast(CollectStream, stream), "rlx-1")
    learner._open()
    for sequence in (5, 6, 7):
        learner._under_way[sequence] = _UnderWay(sequence, make_experience(sequence))
    learner._take(ReleaseNotice(StreamProgress(received=6, released=5), Reply(version=7, epoch=2)))
    assert stream.sent == [7]
    assert list(learner._under_way) == [6, 7]


class RecordingStream:
    """A stream that notes the sequence numbers of what it is given."""

    def __init__(self) -> None:
        self.sent: list[int] = []

    def open(self, *header: object) -> None:
        pass

    def send(self, experience: Experience) -> None:
        self.sent.append(experience.sequence)


def _count_received(agents: Agents) -> int:
    """Counts works that the server has and has not answered."""
    return sum(work.received for work in list(agents.learner._under_way.values()))


def test_values_of_the_same_number_after_a_restart_are_taken_anew(far: Far, agents: Agents) -> None:
    agents.wait(agents.submit(make_rewarded(COLUMNS, 1.0)))
    agents.wait_version(1)
    np.testing.assert_array_equal(agents.values[0], ENV_STEPS * 1.0)
    far.kill()
    for name in NAMES:  # it has forgotten what it had published
        (far.folder / name).unlink(missing_ok=True)
    far.start()
    assert far.server is not None
    far.service.add(make_experience(1, make_rewarded(COLUMNS, 2.0), client_id="another"))
    wait_until(lambda: far.server is not None and far.server.version == 1, "version 1 again")
    wait_until(lambda: float(agents.values[0][0, 0]) == ENV_STEPS * 2.0, "its values")
    assert agents.values_version == 1


# No use in trying.


def test_a_run_that_learns_beside_its_agents_ends_the_process(far: Far) -> None:
    failures: list[RelaaxError] = []
    with make_plain_server() as server, serve(server, None) as address:
        with BridgeControl().connect(address) as link:
            learner = RemoteLearner(
                lambda: link.collect_stream("rlx", 5.0), "rlx", on_failure=failures.append
            )
            learner.connect()
            wait_until(lambda: bool(failures), "the failure")
            learner.close()
    assert isinstance(failures[0], LeasedError)
    assert "does not learn in its parameter server" in str(failures[0])


# Its own end.


def test_what_waits_is_sent_before_the_end(far: Far, agents: Agents) -> None:
    for n in range(1, 9):
        agents.submit(make_rewarded(COLUMNS, float(n)))
    agents.learner.leave("agent")
    agents.learner.close()
    agents.learner.close()
    wait_until(lambda: len(far.learned()) == 8, "all eight")
    assert not agents.learner._receiver.is_alive()
    assert not agents.learner._sender.is_alive()


@pytest.mark.parametrize("away", ["from the start", "cut", "killed"])
def test_without_a_server_it_ends_in_silence(
    far: Far, learner: RemoteLearner, away: str, caplog: pytest.LogCaptureFixture
) -> None:
    if away != "from the start":
        far.start()
        Agents(learner).start()
        far.cut() if away == "cut" else far.kill()
    learner.submit(LearnRequest(1, make_rewarded(2, 1.0)))
    learner.close()
    far.link.close()
    wait_until(lambda: not learner._receiver.is_alive(), "the end")
    assert not [r for r in caplog.records if r.exc_info or r.levelno >= logging.ERROR]


def test_a_learner_that_never_connected_can_be_stopped(far: Far) -> None:
    RemoteLearner(lambda: far.link.collect_stream("rlx", 1.0), "rlx").close()


# The same updates as in one process.


def test_over_the_network_the_same_rollouts_lead_to_the_same_values(tmp_path: Path) -> None:
    experiment = make_experiment(tmp_path)
    rollouts = [make_rollout(slots, seed, STEPS) for seed, slots in enumerate((4, 3, 2, 3, 8))]

    with make_server(experiment) as server:
        serial = Agents(SerialLearner(make_iteration_learner(experiment, server)))
        serial.start()
        for rollout in rollouts:
            serial.submit(rollout)
        want = server.lease()
        serial.learner.stop()

    with make_server(experiment) as server:
        service = ExperienceService(
            lambda: make_iteration_learner(experiment, server), COLUMNS, 1 << 20
        )
        with serve(server, service) as address, BridgeControl().connect(address) as link:
            learner = RemoteLearner(lambda: link.collect_stream("rlx", 5.0), "rlx")
            learner.connect()
            remote = Agents(learner)
            remote.start()
            for rollout in rollouts:
                remote.submit(rollout)
            remote.wait(len(rollouts))
            remote.wait_version(5)
            learner.close()
        came = server.lease()

    assert (came.number, came.global_t, came.steps) == (want.number, want.global_t, want.steps)
    assert (came.number, came.global_t) == (5, 5 * ENV_STEPS)
    np.testing.assert_array_equal(came.values, want.values)
    for group, slots in want.slots.items():
        np.testing.assert_array_equal(came.slots[group], slots)
    assert_equal(remote.values, serial.values)
