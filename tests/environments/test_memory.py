"""Recall: rules, the bound of agents without memory, serial and as a process. covers R18, R30"""

import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from memory.recall import RecallSlots, make_recall
from scripted_server import Role, ScriptedServer
from support.bridge import make_backend
from support.rlx import serve_rlx

from relaax_like.client import Interactor
from relaax_like.client.values import SpaceValues
from relaax_like.config.algorithm_folder import load_folder_module
from relaax_like.config.models import EnvironmentConfig
from relaax_like.v1 import rlx_pb2
from relaax_like.wire.errors import ConfigError

ENVIRONMENTS = Path(__file__).parents[2] / "environments"
MAIN = ENVIRONMENTS / "memory" / "main"
Serve = Callable[..., ScriptedServer]


def run_main(*args: object, program: Path = MAIN) -> tuple[int, str, str]:
    argv = [sys.executable, str(program), *map(str, args)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


class Remembering:
    """Answers the go signal with the cue that each slot has shown."""

    def __init__(self, slots: int) -> None:
        self._cue = np.zeros(slots, np.int64)

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        shown = observations[:, :-1].any(axis=1)
        self._cue[shown] = observations[shown, :-1].argmax(axis=1)
        return self._cue.copy()


def test_an_episode_by_hand() -> None:
    """Two blank steps, three cues; slot 0 answers its cue, slot 1 another one."""
    slots = RecallSlots(2, delay=2, cues=3, seed=0)
    first = slots.reset()
    assert first.dtype == np.float32
    cues = first.argmax(axis=1)
    np.testing.assert_array_equal(first, np.eye(4)[cues])
    assert (cues < 3).all()
    wrong = (cues + 1) % 3

    blank, go = [[0, 0, 0, 0]] * 2, [[0, 0, 0, 1]] * 2
    # The right action before the go signal does nothing: rewards stay 0.
    for want in (blank, blank, go):
        t = slots.step(cues)
        assert isinstance(t.observations, np.ndarray)
        assert t.observations.tolist() == want
        assert t.rewards.tolist() == [0, 0]
        assert not (t.terminated | t.truncated).any()
        assert (t.final_observations, t.success) == (None, None)

    t = slots.step(np.array([cues[0], wrong[1]]))
    assert t.rewards.tolist() == [1, 0]
    assert (t.terminated.tolist(), t.truncated.tolist()) == ([True, True], [False, False])
    assert t.success is not None
    assert (t.success.dtype, t.success.tolist()) == (np.int8, [1, 0])
    assert isinstance(t.final_observations, np.ndarray)
    assert t.final_observations.tolist() == blank
    # Already the next episode's cue.
    assert isinstance(t.observations, np.ndarray)
    assert t.observations[:, :3].sum(axis=1).tolist() == [1, 1]


def test_slots_that_were_reset_apart_end_apart() -> None:
    slots = RecallSlots(2, delay=1, seed=0)
    slots.reset()
    slots.step(np.zeros(2))
    kept = slots.reset(np.array([True, False]))
    assert kept[1].tolist() == [0, 0, 0]
    cue = int(kept[0].argmax())
    assert cue < 2
    slots.step(np.zeros(2))
    t = slots.step(np.zeros(2))
    assert t.terminated.tolist() == [False, True]
    assert t.success is not None
    assert t.success[0] == -1
    assert np.asarray(t.observations)[0].tolist() == [0, 0, 1]
    assert slots.step(np.array([cue, 0])).rewards.tolist() == [1, 0]


def test_with_no_delay_the_go_signal_follows_the_cue() -> None:
    slots = RecallSlots(delay=0, seed=0)
    cue = slots.reset().argmax(axis=1)
    assert np.asarray(slots.step(cue).observations).tolist() == [[0, 0, 1]]
    assert slots.step(cue).rewards.tolist() == [1]


@pytest.mark.parametrize(("cues", "delay"), [(2, 0), (2, 3), (3, 2)])
def test_no_policy_without_memory_beats_chance(cues: int, delay: int) -> None:
    """All deterministic functions of the observation; a random one is a mixture of them."""
    k = 64
    seen = cues + 2  # the cues, go, blank
    for table in itertools.product(range(cues), repeat=seen):
        policy = np.array(table)
        slots = RecallSlots(k, delay=delay, cues=cues, seed=1)
        observations: Any = slots.reset()
        shown = observations.argmax(axis=1)
        returns = np.zeros(k)
        for _ in range(delay + 2):
            kind = np.where(observations.any(axis=1), observations.argmax(axis=1), cues + 1)
            t = slots.step(policy[kind])
            returns += t.rewards
            observations = t.observations
        assert t.terminated.all()
        # Exact: the mean over slots of one cue, then over the cues, which are equally likely.
        of_cue = [returns[shown == cue].mean() for cue in range(cues)]
        assert np.mean(of_cue) == pytest.approx(1 / cues)


def test_a_policy_with_memory_is_always_right() -> None:
    slots = RecallSlots(5, delay=8, cues=4, seed=2)
    policy = Remembering(5)

    def step(observations: Any, *outcome: Any) -> Any:
        return SimpleNamespace(actions=policy(observations), finished="")

    episodes: list[Any] = []
    agent = SimpleNamespace(step=step)
    Interactor(slots, agent, max_episodes=50, on_episode=episodes.append).run()
    assert {(e.score, e.length, e.success, e.truncated) for e in episodes} == {(1, 10, 1, False)}


def test_cues_are_uniform_independent_and_repeat_with_the_seed() -> None:
    def draw(seed: int) -> np.ndarray:
        slots = RecallSlots(50, delay=0, cues=3, seed=seed)
        return np.array([slots.reset().argmax(axis=1) for _ in range(200)])  # [200, 50]

    drawn = draw(3)
    np.testing.assert_array_equal(drawn, draw(3))
    assert (drawn != draw(4)).any()
    # 10,000 draws, 9 pairs of successive cues of a slot: 1/9 within 4 standard deviations.
    pairs = np.bincount((3 * drawn[:-1] + drawn[1:]).ravel(), minlength=9) / drawn[1:].size
    np.testing.assert_allclose(pairs, 1 / 9, atol=4 * np.sqrt(8 / 81 / drawn[1:].size))


def test_returned_arrays_are_the_callers_to_keep_and_fit_the_space() -> None:
    slots = RecallSlots(3, delay=1, cues=2, seed=0)
    space = SpaceValues(slots.observation_space, "observation")
    seen: list[Any] = [slots.reset()]
    for _ in range(7):
        seen.append(slots.step(np.zeros(3, np.int64)).observations)
    copies = [array.copy() for array in seen]
    for array in seen:
        space.to_leaves(array, 3, "observations")
        array[:] = 7
    slots.reset()
    # Writing into them has changed nothing either: the games look as they always do.
    assert {row.sum() for array in copies for row in array} == {0.0, 1.0}
    assert set(np.unique(slots.step(np.zeros(3)).observations)) == {0.0}


@pytest.mark.parametrize(
    ("args", "match"),
    [
        ({"delay": -1}, r"args\.delay \(--env-arg\): expected an integer of 0 or more, got -1"),
        ({"cues": 1}, r"args\.cues \(--env-arg\): expected an integer of 2 or more, got 1"),
        ({"cues": 2.5}, r"args\.cues .*: expected an integer of 2 or more, got 2\.5"),
        ({"delay": True}, r"args\.delay .*: expected an integer of 0 or more, got True"),
        ({"cues": 10**30}, "cues times slots is 10* x 1, expected at most 16,777,216"),
        (
            {"dealy": 3},
            r"environment\.args\.dealy \(--env-arg\): no such argument, expected delay or cues",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_refused(args: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make_recall(args, 1, 0)


# As `relaax train` opens them: the folder's slots.py, loaded by path.


def make_slots(**keys: Any) -> Any:
    module = load_folder_module(ENVIRONMENTS / "memory", "slots")
    return module.make_slots(EnvironmentConfig(program="memory", **keys), 5)


def test_the_section_environment_makes_the_slots() -> None:
    slots = make_slots(slots=4, args={"delay": 1, "cues": 3})
    assert slots.reset().shape == (4, 4)
    ends = [slots.step(np.zeros(4)).terminated.all() for _ in range(3)]
    assert ends == [False, False, True]
    slots.close()


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        (
            {"action_repeat": 2},
            r"environment\.action_repeat: 2 is not supported by .* which has no --action-repeat",
        ),
        ({"random_steps": 1}, r"environment\.random_steps: 1"),
        ({"max_episode_steps": 5}, r"environment\.max_episode_steps: 5"),
        ({"env": "Recall"}, r"environment\.env: 'Recall'"),
    ],
)
def test_keys_that_the_program_has_no_flag_for_are_refused(
    keys: dict[str, Any], match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        make_slots(**keys)


# As a process.


def test_the_program_plays_and_reports_success(serve: Serve) -> None:
    policy = Remembering(3)
    server = serve(Role(policy=lambda o: {"action": policy(o["observation"])}))
    options = "--num-envs 3 --env-arg delay=2 --env-arg cues=4 --episodes 6 --name recaller"
    code, out, err = run_main("--rlx-server", server.address, *options.split())
    assert (code, err) == (0, "")
    assert out == "memory: done; 6 episodes, 24 steps\n"
    session = server.sessions[0]
    hello = session.hello
    assert (hello.slots, hello.client_name, hello.mode) == (3, "recaller", rlx_pb2.TRAIN)
    ends = [step for step in session.steps if step.success is not None]
    assert [(s.success.tolist(), s.rewards.tolist()) for s in ends] == [([1] * 3, [1] * 3)] * 2
    assert all(s.terminated.all() and not s.truncated.any() for s in ends)


def test_the_program_runs_until_training_has_finished_and_exploits(serve: Serve) -> None:
    server = serve(Role(finish_after=40))
    code, out, _ = run_main("--rlx-server", server.address, "--exploit", "--seed", 3)
    assert code == 0
    assert out.startswith("memory: max_global_step reached; 3 episodes, ")
    assert server.sessions[0].hello.mode == rlx_pb2.EXPLOIT


class RecallAgent:
    """A plain agent with memory; writes down what its episodes gave."""

    ends: tuple[Any, ...] = ()

    def __init__(self, config: Any, parameter_server: Any) -> None:
        self.exploit = False

    def act(self, state: np.ndarray) -> int:
        self._cue = int(state.argmax())
        return self._cue

    def reward_and_act(self, reward: float, state: np.ndarray) -> int:
        assert reward == 0
        return self._cue

    def reward_and_reset(
        self, reward: float, state: Any = None, truncated: bool = False, success: Any = None
    ) -> float:
        RecallAgent.ends += ((reward, success, truncated),)
        return reward

    def close(self) -> None:
        pass


def test_a_real_server_is_told_the_success() -> None:
    RecallAgent.ends = ()
    with make_backend() as backend, serve_rlx(backend, RecallAgent) as port:
        options = ("--num-envs", 2, "--episodes", 8, "--env-arg", "delay=3")
        code, out, err = run_main("--rlx-server", f"localhost:{port}", *options)
    assert (code, err) == (0, "")
    assert out == "memory: done; 8 episodes, 40 steps\n"
    assert RecallAgent.ends == ((1.0, True, False),) * 8


@pytest.mark.parametrize(
    ("args", "match"),
    [
        (["--env-arg", "cues=1"], "args.cues (--env-arg): expected an integer of 2 or more, got 1"),
        (["--env-arg", "delay"], "'delay', expected KEY=VALUE, such as size=4; KEY must be a Pyth"),
        (["--env-arg", "wheels=4"], "args.wheels (--env-arg): no such argument"),
        (["--num-envs", "0"], "--num-envs: '0', expected an integer of 1 or more"),
        (["--env", "Recall"], "unrecognized arguments: --env Recall"),
        (["--random-steps", "1"], "unrecognized arguments: --random-steps 1"),
    ],
)
def test_a_mistake_is_one_clear_line_and_code_2(args: list[str], match: str) -> None:
    code, _, err = run_main(*args)
    assert code == 2
    assert match in err.splitlines()[-1]


@pytest.mark.parametrize("folder", ["memory", "bandit"])
def test_a_program_without_action_repeat_refuses_it(folder: str) -> None:  # covers F15
    code, _, err = run_main("--action-repeat", 2, program=ENVIRONMENTS / folder / "main")
    assert code == 2
    assert "unrecognized arguments: --action-repeat 2" in err.splitlines()[-1]


def test_a_refused_hello_is_code_2_so_that_a_manager_does_not_try_again(serve: Serve) -> None:
    server = serve(Role(refuse=(rlx_pb2.SPACE_MISMATCH, "this algorithm needs 4 numbers")))
    code, _, err = run_main("--rlx-server", server.address)
    assert (code, err) == (2, "memory: this algorithm needs 4 numbers\n")
