"""The loop: limits, random beginnings, counting and the loss of a server. covers R18, R26, R30"""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scripted_server import Role, ScriptedServer

from relaax_like.client import Interactor, Retry, RlxClient, SlotEpisode, Transition, interactor
from relaax_like.wire.errors import ConfigError, InvalidInputError, ServerUnavailableError
from relaax_like.wire.spaces import Box, Discrete

Serve = Callable[..., ScriptedServer]
NEVER = 1 << 30


class CountingSlots:
    """Slot i's episode e is the numbers 0, 1, 2 ...; it ends at `lengths[i]`. One observation is
    (episode, steps in it, last action)."""

    observation_space = Box(dtype="float32", shape=(3,))
    action_space = Discrete(n=100)

    def __init__(self, lengths: list[int]) -> None:
        self.slots = len(lengths)
        self.lengths = np.array(lengths)
        self.state = np.zeros((self.slots, 3), np.float32)
        self.state[:, 0] = -1
        self.resets = 0

    def reset(self, mask: np.ndarray | None = None) -> np.ndarray:
        mask = np.ones(self.slots, np.bool_) if mask is None else mask
        self.resets += 1
        self.state[mask, 0] += 1
        self.state[mask, 1:] = 0
        return self.state.copy()

    def step(self, actions: np.ndarray) -> Transition:
        return self._step(actions, np.ones(self.slots, np.bool_))

    def _step(self, actions: np.ndarray, mask: np.ndarray) -> Transition:
        self.state[mask, 1] += 1
        self.state[mask, 2] = actions[mask]
        ended = mask & (self.state[:, 1] >= self.lengths)
        final = self.state.copy() if ended.any() else None
        return Transition(
            observations=self.reset(ended) if ended.any() else self.state.copy(),
            rewards=mask * 1.0,
            terminated=ended,
            truncated=np.zeros(self.slots, np.bool_),
            final_observations=final,
        )


class LooseSlots(CountingSlots):
    """The same, stepped one by one too."""

    def partial_step(self, actions: np.ndarray, mask: np.ndarray) -> Transition:
        return self._step(actions, mask)


class ReusingSlots(CountingSlots):
    """The same, always with the same array."""

    def reset(self, mask: np.ndarray | None = None) -> np.ndarray:
        super().reset(mask)
        return self.state

    def step(self, actions: np.ndarray) -> Transition:
        return replace(super().step(actions), observations=self.state)


class ListeningAgent:
    """Answers action 7 and keeps what it received."""

    def __init__(self, slots: int, finish_after: int = NEVER) -> None:
        self.told: list[tuple[Any, ...]] = []
        self._slots = slots
        self._finish_after = finish_after

    def step(self, *told: Any) -> Any:
        self.told.append(told)
        finished = "enough" if len(self.told) >= self._finish_after else ""
        return SimpleNamespace(actions=np.full(self._slots, 7), finished=finished)


def test_limit_truncates_each_slot_with_its_final_observation() -> None:
    slots, agent = CountingSlots([2, 4, NEVER]), ListeningAgent(3)
    Interactor(slots, agent, max_episode_steps=3, max_steps=3 * 4).run()
    ended = [(told[2].tolist(), told[3].tolist()) for told in agent.told[1:]]
    assert ended == [
        ([False] * 3, [False] * 3),
        ([True, False, False], [False] * 3),
        ([False] * 3, [False, True, True]),
        ([True, False, False], [False] * 3),
    ]
    observations, *_, final, success = agent.told[3]
    assert observations.tolist() == [[1, 1, 7], [1, 0, 0], [1, 0, 0]]
    assert final[1:].tolist() == [[0, 3, 7], [0, 3, 7]]
    assert success is None


def test_limit_and_a_natural_end_in_the_same_step_keep_both_final_observations() -> None:
    slots, agent = CountingSlots([3, NEVER]), ListeningAgent(2)
    Interactor(slots, agent, max_episode_steps=3, max_steps=6).run()
    _, _, terminated, truncated, final, _ = agent.told[-1]
    assert (terminated.tolist(), truncated.tolist()) == ([True, False], [False, True])
    assert final.tolist() == [[0, 3, 7], [0, 3, 7]]


@pytest.mark.parametrize(
    ("lengths", "limit", "lines"),
    [
        ([57], None, 1),
        ([58, NEVER], None, 1),
        ([NEVER], 59, 0),  # truncated
        ([9], None, 0),
        ([60, 61, 62], None, 0),
    ],
)
def test_a_limit_that_is_reported_as_a_death_is_suspected_once(
    lengths: list[int], limit: int | None, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    slots: Any = CountingSlots(lengths)
    agent: Any = ListeningAgent(len(lengths))
    Interactor(slots, agent, max_episode_steps=limit, max_steps=60 * 30 * len(lengths)).run()
    assert len(caplog.messages) == lines
    if lines:
        length = lengths[0]
        assert caplog.messages == [
            f"10 of the newest 20 episodes terminated after exactly {length} steps: if {length} is "
            f"a limit, set max_episode_steps: {length - 1}; then it is a truncation with a real "
            "last observation"
        ]


@pytest.mark.parametrize("call", ["reset", "step"])
def test_a_call_that_takes_long_is_reported_again_and_again_with_its_slot(
    call: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, seconds in (("_SLOW_SEC", 0.02), ("_AGAIN_SEC", 0.02), ("_POLL_SEC", 0.01)):
        monkeypatch.setattr(interactor, name, seconds)

    class Slow(CountingSlots):
        where = f"slot 1, {call}"

        def wait(self) -> None:
            deadline = time.monotonic() + 60
            while len(caplog.messages) < 3 and time.monotonic() < deadline:
                threading.Event().wait(0.01)

        def reset(self, mask: np.ndarray | None = None) -> np.ndarray:
            if call == "reset" and mask is None:
                self.wait()
            return super().reset(mask)

        def step(self, actions: np.ndarray) -> Transition:
            if call == "step":
                self.wait()
            return super().step(actions)

    Interactor(Slow([NEVER, NEVER]), ListeningAgent(2), max_steps=2).run()
    assert len(caplog.messages) >= 3
    assert all(
        text.startswith("waiting for the environment for ") and text.endswith(f" s: slot 1, {call}")
        for text in caplog.messages
    )
    assert "watcher" not in [thread.name for thread in threading.enumerate()]


def test_a_truncated_observation_is_not_that_of_the_next_episode_in_the_same_array() -> None:
    agent = ListeningAgent(2)
    Interactor(ReusingSlots([NEVER, NEVER]), agent, max_episode_steps=3, max_steps=6).run()
    assert agent.told[-1][4].tolist() == [[0, 3, 7], [0, 3, 7]]


@pytest.mark.parametrize("kind", [CountingSlots, LooseSlots])
def test_random_actions_come_before_the_agent_and_are_counted_nowhere(kind: type) -> None:
    episodes: list[SlotEpisode] = []
    slots, agent = kind([5]), ListeningAgent(1)
    Interactor(
        slots, agent, random_steps=2, max_episodes=2, on_episode=episodes.append, seed=3
    ).run()
    assert [told[0][0, 1] for told in agent.told] == [2, 3, 4, 2, 3, 4, 2]
    assert [(e.length, e.score) for e in episodes] == [(3, 3.0), (3, 3.0)]
    assert agent.told[3][4].tolist() == [[0, 5, 7]]


def test_random_actions_of_one_slot_leave_the_others_alone() -> None:
    slots, agent = LooseSlots([4, NEVER]), ListeningAgent(2)
    Interactor(slots, agent, random_steps=2, max_steps=2 * 4, seed=1).run()
    assert [told[0][:, 1].tolist() for told in agent.told] == [
        [2, 2], [3, 3], [2, 4], [3, 5], [2, 6],
    ]  # fmt: skip


def test_an_episode_that_ends_in_random_actions_is_never_told() -> None:
    slots, agent = LooseSlots([2]), ListeningAgent(1)
    summary = Interactor(slots, agent, random_steps=3, max_steps=2, seed=1).run()
    assert [told[0].tolist()[0][:2] for told in agent.told] == [[1, 1], [3, 1], [5, 1]]
    assert summary.episodes == 2


def test_random_actions_for_slots_that_only_step_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="can only be stepped together"):
        Interactor(CountingSlots([1, 1]), ListeningAgent(2), random_steps=1)


@pytest.mark.parametrize(
    "option", [{"random_steps": -1}, {"max_episode_steps": 0}, {"max_episodes": 0}]
)
def test_a_bound_out_of_range_is_refused(option: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        Interactor(CountingSlots([1]), ListeningAgent(1), **option)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("rewards", 1.0, r"rewards: shape \[\], expected \[2\] or \[2, r\]"),
        ("rewards", [[1.0], [1.0, 2.0]], "rewards: lists of different lengths"),
        ("rewards", np.zeros(3), r"rewards: shape \[3\]"),
        ("rewards", np.array(["a", "b"]), "rewards: expected numbers of shape"),
        ("rewards", np.zeros((2, 1, 1)), r"rewards: shape \[2, 1, 1\]"),
        ("terminated", np.zeros(3, np.bool_), r"terminated: bool \[3\], expected bool \[2\]"),
        ("truncated", False, r"truncated: bool \[\], expected bool \[2\]"),
    ],
)
def test_an_outcome_of_a_wrong_shape_is_refused(field: str, value: Any, message: str) -> None:
    class OddSlots(CountingSlots):
        def step(self, actions: np.ndarray) -> Transition:
            return replace(super().step(actions), **{field: value})

    agent = ListeningAgent(2)
    with pytest.raises(InvalidInputError, match=message):
        Interactor(OddSlots([5, 5]), agent, max_episode_steps=3).run()
    assert len(agent.told) == 1  # the first observations


def test_an_outcome_of_lists_counts_like_one_of_arrays() -> None:
    class ListSlots(CountingSlots):
        def step(self, actions: np.ndarray) -> Transition:
            came = super().step(actions)
            names = ("rewards", "terminated", "truncated")
            return replace(came, **{name: getattr(came, name).tolist() for name in names})

    agents = [ListeningAgent(2), ListeningAgent(2)]
    for slots, agent in zip((CountingSlots([2, 4]), ListSlots([2, 4])), agents, strict=True):
        Interactor(slots, agent, max_episode_steps=3, max_steps=12).run()
    for told, same in zip(agents[0].told, agents[1].told, strict=True):
        np.testing.assert_equal(same, told)


def test_finish_ends_the_run_and_says_why() -> None:
    agent = ListeningAgent(2, finish_after=5)
    summary = Interactor(CountingSlots([2, NEVER]), agent).run()
    assert (summary.finished, summary.steps, summary.episodes) == ("enough", 8, 2)


def test_stop_ends_the_run_after_the_step() -> None:
    stop = threading.Event()
    interactor = Interactor(
        CountingSlots([3]), ListeningAgent(1), stop=stop, on_episode=lambda episode: stop.set()
    )
    assert interactor.run().steps == 3
    assert interactor.run().steps == 3  # still set: nothing happens


@pytest.mark.parametrize("lengths", [[3], [3, 5], [4, 4, 2]])
def test_the_run_ends_once_each_slot_has_ended_its_episode(lengths: list[int]) -> None:
    """covers D23"""
    episodes: list[SlotEpisode] = []
    loop = Interactor(
        CountingSlots(lengths),
        ListeningAgent(len(lengths)),
        on_episode=episodes.append,
        on_step=lambda: loop.end_episodes() if loop.steps == len(lengths) else None,
    )
    summary = loop.run()
    assert summary.steps == max(lengths) * len(lengths)
    assert {one.slot for one in episodes} == set(range(len(lengths)))


def test_the_last_transition_of_a_run_is_told() -> None:
    agent = ListeningAgent(1)
    Interactor(CountingSlots([3]), agent, max_episodes=1).run()
    assert agent.told[-1][2].tolist() == [True]


def test_an_agent_that_cannot_reconnect_lets_the_loss_through() -> None:
    agent = SimpleNamespace(step=lambda *told: (_ for _ in ()).throw(ServerUnavailableError("x")))
    with pytest.raises(ServerUnavailableError):
        Interactor(CountingSlots([3]), agent).run()


def make_client(server: ScriptedServer, slots: CountingSlots, lines: list[str]) -> RlxClient:
    return RlxClient(
        server.address,
        slots.observation_space,
        slots.action_space,
        slots=slots.slots,
        retry=Retry(min_sleep_sec=0, max_sleep_sec=0.01),
        report=lines.append,
    )


def test_a_server_that_drops_in_an_episode_gets_fresh_episodes(serve: Serve) -> None:
    server = serve(Role(drop_at={0: 3, 1: 4}))
    slots, lines = CountingSlots([5, 10]), list[str]()
    with make_client(server, slots, lines) as client:
        summary = Interactor(slots, client, max_episodes=3).run()
    assert summary.losses == 2
    firsts = [session.steps[0].observations for session in server.sessions]
    # Both slots restart after each loss, whatever they were in.
    assert [first["observation"].tolist() for first in firsts if first] == [
        [[episode, 0, 0]] * 2 for episode in range(3)
    ]
    assert len([line for line in lines if "retrying" in line]) == 2


def test_finish_over_the_network_ends_the_run(serve: Serve) -> None:
    server = serve(Role(finish_after=8))
    slots = CountingSlots([5, 10])
    with make_client(server, slots, []) as client:
        summary = Interactor(slots, client).run()
    assert summary.finished == "max_global_step reached"
    assert summary.steps == 14
    assert summary.agent_sec > 0


def test_stop_while_the_server_is_away_ends_the_run(serve: Serve) -> None:
    server = serve()
    slots, stop, lines = CountingSlots([5]), threading.Event(), list[str]()

    def lose(episode: SlotEpisode) -> None:
        server.close()

    def report(line: str) -> None:
        lines.append(line)
        stop.set()

    with make_client(server, slots, lines) as client:
        client._report = report
        summary = Interactor(slots, client, stop=stop, on_episode=lose).run()
    assert (summary.losses, summary.finished) == (1, "")
