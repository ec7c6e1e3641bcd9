"""Several agents on one connection: the hello, absent slots, and games. covers R2, R18, R24"""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scripted_server import Role, ScriptedServer

from relaax_like.client import Interactor, RlxClient, SlotEpisode, Transition, get_agents
from relaax_like.wire.errors import ConfigError, InvalidInputError, ProtocolError
from relaax_like.wire.spaces import Box, Discrete, MultiBinary, Space

Serve = Callable[..., ScriptedServer]
NEVER = 1 << 30
TAG: dict[str, Any] = {
    "agents": ["adversary_0", "adversary_1", "agent_0"],
    "games": [4, 4, 4],
    "kinds": ["adversary", "adversary", "good"],
}
SPACES: tuple[dict[str, Space], dict[str, Space]] = (
    {
        "adversary": Box(dtype="float32", shape=(4,)),
        "mask:adversary": MultiBinary(shape=(5,), dtype="bool"),
        "good/eyes": Box(dtype="float32", shape=(2,)),
        "good/ears": Box(dtype="float32", shape=(1,)),
    },
    {"adversary": Discrete(n=5), "good": Box(dtype="float32", shape=(2,))},
)
PLAIN = Box(dtype="float32", shape=(1,)), Discrete(n=2)


def test_the_hello_says_who_plays_where_and_rows_of_other_kinds_are_only_valid_values(
    serve: Serve,
) -> None:
    server = serve(Role(more_features=("agents", "masks", "present")))
    masks = np.array([[True, False, True, True, True]] * 3)
    first = {
        "adversary": np.ones((3, 4), np.float32),
        "mask:adversary": masks,
        "good/eyes": np.zeros((3, 2), np.float32),
        "good/ears": np.zeros((3, 1), np.float32),
    }
    with RlxClient(server.address, *SPACES, slots=3, **TAG) as client:
        result = client.step(first, present=[True, False, True])
    (session,) = server.sessions
    assert {name: list(getattr(session.hello, name)) for name in TAG} == TAG
    assert "agents" in session.hello.features
    assert session.hello.features == sorted(session.hello.features)
    assert isinstance(result.actions, dict)
    assert {name: leaf.shape for name, leaf in result.actions.items()} == {
        "adversary": (3,),
        "good": (3, 2),
    }
    (step,) = session.steps
    assert step.present is not None
    assert step.present.tolist() == [True, False, True]
    assert step.masks.keys() == {"adversary"}
    np.testing.assert_array_equal(step.masks["adversary"], masks)


def test_a_server_without_agents_takes_games_as_slots_but_not_other_spaces(serve: Serve) -> None:
    server = serve(Role(more_features=("masks",)))
    given = {"agents": ["left", "right"], "games": [0, 0]}
    with RlxClient(server.address, *PLAIN, slots=2, **given) as client:
        assert client.step(np.zeros((2, 1), np.float32)).actions is not None
        assert "agents" not in client.features
    with pytest.raises(ProtocolError, match=r"^kinds: .*adversary, good.*policies"):
        RlxClient(server.address, *SPACES, slots=3, **TAG)


def test_without_agents_the_hello_lists_no_feature_of_theirs(serve: Serve) -> None:
    server = serve()
    RlxClient(server.address, *PLAIN).close()
    assert "agents" not in server.sessions[0].hello.features


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("agents", {"agents": None, "kinds": None, "games": None}),
        ("agents", {"agents": None, "kinds": None}),
        ("agents", {"agents": None}),
        ("agents", {"agents": ["a", "b"]}),
        ("agents", {"agents": "abc"}),
        ("agents", {"agents": ["a", "b", 3]}),
        ("agents", {"agents": ["a", "b", ""]}),
        ("agents", {"agents": ["a", "b", "c" * 101]}),
        ("agents", {"agents": ["a", "b", "c\n"]}),
        ("games", {"games": [0, 0]}),
        ("games", {"games": [0, 0, -1]}),
        ("games", {"games": [0, 0, 1 << 32]}),
        ("games", {"games": [0, 0, True]}),
        ("games", {"games": [0, 0, 0.5]}),
        ("kinds", {"kinds": ["adversary", "good"]}),
        ("kinds", {"kinds": ["adversary", "good", "a/b"]}),
        ("kinds", {"kinds": ["adversary", "good", "x" * 61]}),
        ("observation_spaces", {"kinds": ["adversary", "good", "third"]}),  # without leaves
        ("observation_spaces", {"kinds": ["adversary"] * 3}),  # leaves of no kind
        ("observation_spaces", {"kinds": ["goo", "adversary", "adversary"]}),
    ],
)
def test_what_does_not_name_the_slots_is_refused_by_its_argument(
    name: str, changed: dict[str, Any]
) -> None:
    given = {**TAG, **changed}
    if name == "agents" and given["agents"] is None:
        given = {"agents": []}
    with pytest.raises(InvalidInputError, match=f"^{name}: ") as error:
        RlxClient("localhost:1", *SPACES, slots=3, **given)
    assert error.value.field == name


@pytest.mark.parametrize(
    "changed",
    [
        ({"good/observation": PLAIN[0], "good": PLAIN[0]}, {}),
        ({"good/": PLAIN[0]}, {}),
        ({}, {"good/action": PLAIN[1]}),
    ],
    ids=["an observation twice", "a leaf without a name", "an action twice"],
)
def test_leaves_that_a_kind_cannot_name_are_refused(changed: Any) -> None:
    spaces = [{**space, **more} for space, more in zip(SPACES, changed, strict=True)]
    with pytest.raises(InvalidInputError) as error:
        RlxClient("localhost:1", *spaces, slots=3, **TAG)
    assert error.value.field == ("action_spaces" if changed[1] else "observation_spaces")


class TurnSlots:
    """Two games of two players, who alternate; game g ends after `lengths[g]` turns. A reward of
    1 for both at each turn; the observation is the number of turns so far."""

    observation_space = Box(dtype="float32", shape=(1,))
    action_space = Discrete(n=100)
    slots = 4
    agents = ("white", "black") * 2
    games = (7, 7, 3, 3)
    kinds = None

    def __init__(self, *lengths: int) -> None:
        self.lengths = np.repeat(lengths, 2)
        self.turns = np.zeros(4, int)
        self.resets: list[list[int]] = []

    @property
    def present(self) -> np.ndarray:
        return np.arange(4) % 2 == self.turns % 2

    def reset(self, mask: np.ndarray | None = None) -> np.ndarray:
        mask = np.ones(4, np.bool_) if mask is None else mask
        self.resets.append(np.flatnonzero(mask).tolist())
        self.turns[mask] = 0
        return self.see()

    def see(self) -> np.ndarray:
        return self.turns[:, None].astype(np.float32)

    def step(self, actions: np.ndarray) -> Transition:
        self.turns += 1
        ended = self.turns >= self.lengths
        final = self.see()
        self.turns[ended] = 0
        return Transition(
            observations=self.see(),
            rewards=np.ones(4),
            terminated=ended,
            truncated=np.zeros(4, np.bool_),
            final_observations=final,
        )


class PartingSlots(TurnSlots):
    """All play at once; black has ended after two steps, and its partner plays on."""

    def __init__(self, *lengths: int) -> None:
        super().__init__(*lengths)
        self.gone = np.zeros(4, np.bool_)

    @property
    def present(self) -> np.ndarray:
        return ~self.gone

    def step(self, actions: np.ndarray) -> Transition:
        transition = super().step(actions)
        parted = (np.arange(4) % 2 == 1) & (self.turns == 2)
        ended = transition.terminated & ~self.gone | parted
        self.gone = (self.gone | parted) & ~transition.terminated
        return replace(transition, terminated=ended)


class Listener:
    """Answers 7, and keeps what it received."""

    def __init__(self) -> None:
        self.told: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def step(self, *told: Any, **more: Any) -> Any:
        self.told.append((told, more))
        return SimpleNamespace(actions=np.full(4, 7), finished="")


def test_players_who_alternate_step_alone_and_a_game_is_one_episode_of_the_run() -> None:
    episodes: list[SlotEpisode] = []
    agent = Listener()
    run = Interactor(TurnSlots(3, NEVER), agent, max_episodes=2, on_episode=episodes.append)
    summary = run.run()
    assert [more["present"].tolist() for _, more in agent.told] == [
        [True, False] * 2,
        [False, True] * 2,
        [True, False] * 2,
        [True, False, False, True],
        [False, True, True, False],
        [True, False, False, True],
        [True, False, True, False],
    ]
    assert (summary.episodes, summary.steps) == (2, 12)
    assert [(one.slot, one.agent, one.score, one.length) for one in episodes] == [
        (0, "white", 3.0, 2),
        (1, "black", 3.0, 1),
    ] * 2


def test_a_player_who_ends_early_waits_for_the_game_to_end() -> None:
    episodes: list[SlotEpisode] = []
    run = Interactor(PartingSlots(4, NEVER), Listener(), max_episodes=1, on_episode=episodes.append)
    summary = run.run()
    assert [(one.slot, one.length) for one in episodes] == [(1, 2), (3, 2), (0, 4)]
    assert (summary.episodes, summary.steps) == (1, 4 * 4 - 2 * 2)


def test_what_ends_without_a_step_is_not_an_episode() -> None:
    class Idle(TurnSlots):
        """Black never takes part, and ends with white."""

        @property
        def present(self) -> np.ndarray:
            return np.arange(4) % 2 == 0

    episodes: list[SlotEpisode] = []
    slots, lone = Idle(2, NEVER), Idle(2, NEVER)
    lone.games = None  # type: ignore[assignment]
    for one in (slots, lone):
        summary = Interactor(one, Listener(), max_episodes=2, on_episode=episodes.append).run()
        assert (summary.episodes, summary.steps) == (2, 8)
    assert [(one.slot, one.score, one.length) for one in episodes] == [(0, 2.0, 2)] * 4


def test_the_step_limit_of_one_player_cuts_off_its_whole_game() -> None:
    episodes: list[SlotEpisode] = []
    slots, agent = PartingSlots(NEVER, 4), Listener()
    run = Interactor(slots, agent, max_episode_steps=3, max_episodes=1, on_episode=episodes.append)
    run.run()
    # Black had ended before: it is not cut off.
    assert slots.resets[1:] == [[0, 2]]
    assert [(one.slot, one.length, one.truncated) for one in episodes] == [
        (1, 2, False),
        (3, 2, False),
        (0, 3, True),
        (2, 3, True),
    ]
    turns = TurnSlots(NEVER, NEVER)
    Interactor(turns, Listener(), max_episode_steps=2, max_episodes=1).run()
    assert turns.resets[1:] == [[0, 1, 2, 3]]  # when white has made its second step


def test_end_episodes_waits_for_each_game() -> None:
    slots = PartingSlots(3, 5)
    agent = Listener()
    run = Interactor(slots, agent)
    run.end_episodes()
    summary = run.run()
    assert len(agent.told) == 1 + 5
    assert summary.episodes == 2


def test_slots_that_all_take_part_are_told_as_ever() -> None:
    slots = TurnSlots(3, 3)
    agent = Listener()
    plain = SimpleNamespace(
        slots=4,
        observation_space=slots.observation_space,
        action_space=slots.action_space,
        reset=slots.reset,
        step=slots.step,
        present=None,
    )
    summary = Interactor(plain, agent, max_steps=8).run()
    assert [more for _, more in agent.told] == [{}] * 3
    assert summary.steps == 8


def test_games_do_not_begin_with_random_steps() -> None:
    with pytest.raises(ConfigError, match=r"^random_steps: "):
        Interactor(TurnSlots(1, 1), Listener(), random_steps=1)


def test_what_environments_say_of_their_agents_is_what_the_client_takes() -> None:
    assert get_agents(TurnSlots(1, 1)) == {
        "agents": ("white", "black") * 2,
        "games": (7, 7, 3, 3),
        "kinds": None,
    }
    assert get_agents(SimpleNamespace()) == dict.fromkeys(TAG)  # type: ignore[arg-type]
