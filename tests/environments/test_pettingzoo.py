"""Games of PettingZoo: a slot for each agent, turns, kinds and masks. covers PE20"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mpe2 import simple_spread_v3, simple_tag_v3
from OpenAI_Gym.gym_make import make_slots
from scripted_server import Role, ScriptedServer

from relaax_like.client import Interactor, SlotEpisode, find_versions
from relaax_like.wire.errors import ConfigError, InvalidInputError, RelaaxError
from relaax_like.wire.spaces import Box, Discrete, MultiBinary

Serve = Callable[..., ScriptedServer]
HERE = Path(__file__).parent
MAIN = HERE.parents[1] / "environments" / "OpenAI_Gym" / "main"
FOUR = "pettingzoo:pettingzoo.classic.connect_four_v3"
TAG, SPREAD = "pettingzoo:mpe2.simple_tag_v3", "pettingzoo:mpe2.simple_spread_v3"
PARTY, ELIMINATION = "pettingzoo:toy_games:Party", "pettingzoo:toy_games:Elimination"


def test_connect_four_is_played_turn_by_turn_and_ends_for_both_players() -> None:
    slots: Any = make_slots(FOUR, 2, seed=1)
    assert slots.agents == ["player_0", "player_1"] * 2
    assert (slots.games, slots.kinds) == ([0, 0, 1, 1], None)
    assert slots.observation_space["observation"].shape == (6, 7, 2)
    assert slots.observation_space["mask:action"] == MultiBinary(shape=(7,), dtype="bool")
    assert slots.action_space == Discrete(n=7)
    slots.reset()
    for turn in range(7):
        assert slots.present.tolist() == [turn % 2 == 0, turn % 2 == 1] * 2
        # Game 0: columns 0 and 1, so the first player has four in its column. Game 1: column 6.
        came = slots.step(np.array([0, 1, 6, 6]))
        if turn < 6:
            assert not (came.terminated | came.truncated).any()
            assert came.rewards.tolist() == [0] * 4
        if turn == 5:  # column 6 is full, which only the player whose turn it is sees
            masks = came.observations["mask:action"]
            assert masks.all(axis=1).tolist() == [True, True, False, True]
            assert masks[2].tolist() == [True] * 6 + [False]
        if turn == 5:
            break
    came = slots.step(np.array([0, 1, 5, 5]))
    assert came.rewards.tolist() == [1, -1, 0, 0]
    assert came.terminated.tolist() == [True, True, False, False]
    assert not came.truncated.any()
    last = came.final_observations["observation"]
    assert last[0].sum(axis=(0, 1)).tolist() == [4, 3]  # own chips, and the other's
    assert last[1].sum(axis=(0, 1)).tolist() == [3, 4]
    assert came.observations["observation"][:2].sum() == 0  # the next game
    assert slots.present.tolist() == [True, False, False, True]
    slots.close()


def test_the_step_limit_cuts_off_both_players_with_what_they_see() -> None:
    slots: Any = make_slots(FOUR, 1, seed=1)
    told: list[tuple[Any, ...]] = []

    class Agent:
        def step(self, *outcome: Any, present: Any = None) -> Any:
            told.append((*outcome, present))
            return SimpleNamespace(actions=np.array([0, 1]), finished="")

    episodes: list[SlotEpisode] = []
    run = Interactor(
        slots, Agent(), max_episode_steps=2, max_episodes=1, on_episode=episodes.append
    )
    assert run.run().steps == 3
    assert [(one.agent, one.length, one.truncated) for one in episodes] == [
        ("player_0", 2, True),
        ("player_1", 1, True),
    ]
    observations, _, _, truncated, final, _, present = told[-1]
    assert truncated.tolist() == [True, True]
    assert final["observation"].sum(axis=(1, 2)).tolist() == [[2, 1], [1, 2]]
    assert final["mask:action"].all()
    assert observations["observation"].sum() == 0
    assert present.tolist() == [True, False]
    slots.close()


def test_without_masks_they_are_part_of_the_observation() -> None:
    slots: Any = make_slots(FOUR, 1, masks="off")
    assert slots.observation_space.keys() == {"observation", "action_mask"}
    slots.close()
    wrong: Any = make_slots(FOUR, 1, masks="legal")
    with pytest.raises(InvalidInputError, match=r"legal: .* \(game 0\)$"):
        wrong.reset()
    wrong.close()


def play(slots: Any, env: Any, rng: np.random.Generator, read: Callable[..., Any]) -> None:
    """Compares 30 steps of one game with those of PettingZoo's own environment."""
    slots.reset()
    env.reset(seed=5)
    for _ in range(30):
        choices = {agent: int(rng.integers(5)) for agent in env.agents}
        came = slots.step(read(choices))
        seen, rewards, terminated, truncated, _ = env.step(choices)
        assert came.rewards.tolist() == [rewards[agent] for agent in choices]
        assert came.terminated.tolist() == [terminated[agent] for agent in choices]
        assert came.truncated.tolist() == [truncated[agent] for agent in choices]
        shown = came.observations
        if not env.agents:
            shown = came.final_observations
            following, _ = env.reset()
            for slot, agent in enumerate(choices):
                np.testing.assert_array_equal(
                    find_row(came.observations, slot, agent), following[agent]
                )
        for slot, agent in enumerate(choices):
            np.testing.assert_array_equal(find_row(shown, slot, agent), seen[agent])
        assert slots.present is None
    slots.close()


def find_row(observations: Any, slot: int, agent: str) -> np.ndarray:
    if isinstance(observations, dict):
        observations = observations[agent.partition("_")[0]]
    return observations[slot]


def test_agents_with_equal_spaces_share_their_leaves() -> None:
    slots: Any = make_slots(SPREAD, 1, seed=5)
    assert (slots.agents, slots.kinds) == (["agent_0", "agent_1", "agent_2"], None)
    assert slots.observation_space == Box(dtype="float32", shape=(18,))
    assert {"mpe2", "pettingzoo"} <= find_versions(slots.simulator).keys()
    play(
        slots,
        simple_spread_v3.parallel_env(),
        np.random.default_rng(0),
        lambda choices: np.array([*choices.values()]),
    )


def test_agents_with_other_spaces_are_other_kinds() -> None:
    slots: Any = make_slots(TAG, 1, seed=5)
    assert slots.kinds == ["adversary"] * 3 + ["agent"]
    assert slots.observation_space == {
        "adversary": Box(dtype="float32", shape=(16,)),
        "agent": Box(dtype="float32", shape=(14,)),
    }
    assert slots.action_space == {"adversary": Discrete(n=5), "agent": Discrete(n=5)}
    slots = make_slots(TAG, 1, seed=5)

    def read(choices: dict[str, int]) -> dict[str, np.ndarray]:
        return {
            "adversary": np.array([*[*choices.values()][:3], 4]),
            "agent": np.array([4, 4, 4, choices["agent_0"]]),
        }

    play(slots, simple_tag_v3.parallel_env(), np.random.default_rng(0), read)


def test_agents_come_and_leave() -> None:
    slots: Any = make_slots(PARTY, 2, seed=3)
    assert slots.agents == ["host", "guest", "late"] * 2
    first = slots.reset()
    assert first[[0, 1, 3, 4]].tolist() == [[10]] * 4
    # Nobody's row is a valid value.
    slots.observation_space.validate(first, 6, "observations")
    assert slots.present.tolist() == [True, True, False] * 2
    told = []
    for step in range(1, 6):
        came = slots.step(np.array([0, 1, 2] * 2))
        told.append(
            (came.rewards[3:].tolist(), came.terminated[3:].tolist(), came.truncated[3:].tolist())
        )
        if step == 2:
            assert came.final_observations[3:5].tolist() == [[12], [12]]
            assert came.observations[[3, 5]].tolist() == [[12], [12]]
        if step == 3:
            assert slots.present.tolist() == [True, False, True] * 2
            assert came.observations[[3, 5]].tolist() == [[13], [13]]
        if step == 4:
            assert came.final_observations[[3, 5]].tolist() == [[14], [14]]
    none = [False] * 3
    assert told == [
        ([1, 1, 0], none, none),
        ([1, 1, 0], [False, True, False], none),
        ([1, 0, 1], none, none),
        ([1, 0, 1], none, [True, False, True]),
        ([1, 1, 0], none, none),
    ]
    assert [game.env.seeds for game in slots._games] == [[3, None], [4, None]]
    assert slots._games[0].env.taken[2] == {"host": 0, "late": 2}


def test_each_reset_can_have_a_seed_of_its_own() -> None:
    slots: Any = make_slots(PARTY, 2, seed=3, needs={"seed_resets"})
    for _ in range(3):
        slots.reset()
    slots.reset(np.array([False] * 5 + [True]))
    seeds = [game.env.seeds for game in slots._games]
    assert [len(one) for one in seeds] == [3, 4]
    assert None not in seeds[0] + seeds[1]
    assert len({*seeds[0], *seeds[1]}) == 7


def test_an_action_is_repeated_until_somebody_comes_or_leaves() -> None:
    slots: Any = make_slots(PARTY, 1, action_repeat=3)
    slots.reset()
    came = slots.step(np.zeros(3, np.int64))
    assert came.rewards.tolist() == [2, 2, 0]
    assert came.terminated.tolist() == [False, True, False]
    came = slots.step(np.zeros(3, np.int64))
    assert came.rewards.tolist() == [2, 0, 2]
    assert came.truncated.tolist() == [True, False, True]


def test_a_player_who_is_out_ends_alone_and_the_last_one_with_the_game() -> None:
    slots: Any = make_slots(ELIMINATION, 1, seed=0, masks="action_mask")  # in `info`
    assert slots.observation_space.keys() == {"observation", "mask:action"}
    slots.reset()
    told = []
    for actions in ([0, 1, 1], [0, 1, 0], [0, 0, 0], [1, 0, 0]):
        present = slots.present.tolist()
        came = slots.step(np.array(actions))
        told.append((present, came.rewards.tolist(), came.terminated.tolist()))
    assert told == [
        ([True, False, False], [-1, 1, 1], [True, False, False]),
        ([False, True, False], [0, 0, 1], [False, False, False]),
        ([False, False, True], [0, 1, -1], [False, True, True]),
        ([True, False, False], [0, 1, 1], [False, False, False]),
    ]


@pytest.mark.parametrize(
    ("name", "settings", "error", "field"),
    [
        (ELIMINATION, {"action_repeat": 2}, ConfigError, "^action_repeat "),
        (ELIMINATION, {"draw": True}, ConfigError, "^display "),
        (PARTY, {"mode": "vector_entry_point"}, ConfigError, "^mode "),
        (PARTY, {"env_args": {"size": 3}}, ConfigError, "size"),
        ("pettingzoo:toy_games:Nobody", {}, ConfigError, r"^environment.env .*Nobody"),
        ("pettingzoo:toy_games", {}, ConfigError, r"^environment.env .*parallel_env.*env"),
        ("pettingzoo:no_such_games", {}, ConfigError, r"^environment.env .*no_such_games"),
        ("pettingzoo:toy_games:Nameless", {}, ConfigError, "possible_agents"),
        ("pettingzoo:toy_games:make_nothing", {}, ConfigError, "AECEnv or a ParallelEnv"),
    ],
)
def test_what_cannot_be_played_is_refused_by_name(
    name: str, settings: dict[str, Any], error: type, field: str
) -> None:
    with pytest.raises(error, match=field):
        make_slots(name, **settings)


@pytest.mark.parametrize(
    ("name", "env_args", "error", "text"),
    [
        (PARTY, {"returns": True}, InvalidInputError, r"^agents: .*guest.* \(game 0\)$"),
        (PARTY, {"fails_at": 2}, RelaaxError, "^game 0, step 2: KeyError"),
    ],
)
def test_what_a_game_does_wrong_is_told_with_the_game(
    name: str, env_args: dict[str, Any], error: type, text: str
) -> None:
    slots: Any = make_slots(name, 1, env_args=env_args)
    slots.reset()

    def play_on() -> None:
        for _ in range(4):
            slots.step(np.zeros(3, np.int64))

    with pytest.raises(error, match=text):
        play_on()


def test_a_slave_imports_only_the_modules_that_it_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAAX_ENVIRONMENTS", "module-pettingzoo,module-other")
    with pytest.raises(ConfigError, match="toy_games"):
        make_slots(PARTY)
    monkeypatch.setenv("RELAAX_ENVIRONMENTS", "module-toy_games")
    make_slots(PARTY).close()


def test_the_first_game_is_drawn() -> None:
    slots: Any = make_slots(FOUR, 2, draw=True)
    slots.reset()
    frame = slots.render()
    assert (frame.ndim, frame.shape[2], frame.dtype) == (3, 3, np.uint8)
    assert slots.render_fps == 2
    assert slots._games[1].env.render_mode is None
    slots.close()


def test_the_program_plays_games_over_the_network(serve: Serve) -> None:
    server = serve(Role(more_features=("agents", "masks", "present")))
    argv = f"--rlx-server {server.address} --env {ELIMINATION} --num-envs 2 --episodes 3 --seed 1"
    argv += " --masks action_mask"
    done = subprocess.run(
        [sys.executable, str(MAIN), *argv.split()],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Score = -1 of a, 1 steps" in done.stdout
    assert done.stdout.splitlines()[-1].startswith(f"{ELIMINATION}: done; 3 episodes, ")
    (session,) = server.sessions
    assert list(session.hello.agents) == ["a", "b", "c"] * 2
    assert list(session.hello.games) == [0, 0, 0, 1, 1, 1]
    assert list(session.hello.kinds) == []
    assert {"agents", "masks", "present"} <= {*session.hello.features}
    for step in session.steps:
        assert step.present is not None
        assert step.present.reshape(2, 3).sum(axis=1).tolist() == [1, 1]
        assert step.masks["action"].all()
