"""One stream of transitions, whatever the environment's kind and autoreset mode. covers R18, J18"""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from OpenAI_Gym.gym_display import Display
from OpenAI_Gym.gym_make import make_slots
from OpenAI_Gym.gym_repeat import ActionRepeat
from OpenAI_Gym.gym_slots import EnvListSlots, JoinedSlots, VectorEnvSlots
from toy_envs import NESTED, Nested, Reusing, ReusingVector, Toy, ToyVector

from relaax_like.client.interactor import Interactor, Transition
from relaax_like.client.values import SpaceValues
from relaax_like.wire.errors import ConfigError

K = 3
TOYS = [lambda name=name: Toy(name) for name in range(K)]


def sync(mode: AutoresetMode) -> VectorEnvSlots:
    return VectorEnvSlots(SyncVectorEnv(TOYS, autoreset_mode=mode))


def in_processes(mode: AutoresetMode, shared_memory: bool = True) -> VectorEnvSlots:
    return VectorEnvSlots(
        AsyncVectorEnv(TOYS, autoreset_mode=mode, shared_memory=shared_memory, context="forkserver")
    )


def joined(mode: str) -> JoinedSlots:
    return JoinedSlots([VectorEnvSlots(ToyVector(1, mode, first_name=i)) for i in range(K)])


KINDS: dict[str, Callable[[], Any]] = {
    "list": lambda: EnvListSlots([Toy(name) for name in range(K)]),
    "list, the same array and dict": lambda: EnvListSlots([Reusing(name) for name in range(K)]),
    "list, an array each": lambda: EnvListSlots(
        [Reusing(name, buffer=np.zeros(4)) for name in range(K)]
    ),
    "list, repeats": lambda: EnvListSlots([ActionRepeat(Reusing(n), 1) for n in range(K)]),
    "own same step, same arrays": lambda: VectorEnvSlots(ReusingVector(K, "SameStep")),
    "own disabled, same arrays": lambda: VectorEnvSlots(ReusingVector(K, "Disabled")),
    "sync next step": lambda: sync(AutoresetMode.NEXT_STEP),
    "sync same step": lambda: sync(AutoresetMode.SAME_STEP),
    "sync disabled": lambda: sync(AutoresetMode.DISABLED),
    "own same step": lambda: VectorEnvSlots(ToyVector(K, "SameStep")),
    "own disabled": lambda: VectorEnvSlots(ToyVector(K, "Disabled")),
    "own next step, one by one": lambda: joined("NextStep"),
    "own same step, one by one": lambda: joined("SameStep"),
    "made by name": lambda: make_slots("ToyVector-v0", K, mode="vector_entry_point"),
}
# Made by name, each part begins with toy 0.
NAMELESS = {"made by name"}


def record(slots: Any, steps: int) -> list[Any]:
    """All that a run of fixed actions gives; rows that mean nothing are blanked."""
    stream = [slots.reset().tolist()]
    for step in range(steps):
        t: Transition = slots.step((np.arange(K) + step) % 3)
        ended = t.terminated | t.truncated
        final = None
        if ended.any():
            assert isinstance(t.final_observations, np.ndarray)
            final = t.final_observations[ended].tolist()
        success = None if t.success is None else t.success.tolist()
        stream.append(
            (
                np.asarray(t.observations).tolist(),
                t.rewards.tolist(),
                t.terminated.tolist(),
                t.truncated.tolist(),
                final,
                success,
            )
        )
    slots.close()
    return stream


def expected(steps: int, names: list[int]) -> list[Any]:
    """Straight from the toy's rule, one slot after the other."""
    episode, count = [0] * K, [0] * K
    stream: list[Any] = [[[n, 0, 0, -1] for n in names]]
    for step in range(steps):
        now, rewards, terminated, truncated, final, success = [], [], [], [], [], [-1] * K
        for slot, name in enumerate(names):
            action = (slot + step) % 3
            count[slot] += 1
            e = episode[slot]
            over = count[slot] >= 2 + (name + e) % 3
            rewards.append(10.0 * e + count[slot])
            terminated.append(over and e % 2 == 0)
            truncated.append(over and e % 2 == 1)
            if over:
                final.append([name, e, count[slot], action])
                if e % 2 == 0:
                    success[slot] = int(name == 1)
                episode[slot], count[slot], action = e + 1, 0, -1
            now.append([name, episode[slot], count[slot], action])
        said = success if any(s >= 0 for s in success) else None
        stream.append((now, rewards, terminated, truncated, final or None, said))
    return stream


@pytest.mark.parametrize("kind", KINDS)
def test_every_autoreset_mode_gives_the_same_stream(kind: str) -> None:
    names = [0] * K if kind in NAMELESS else list(range(K))
    assert record(KINDS[kind](), 40) == expected(40, names)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_environments_in_processes_give_the_same_stream(mode: AutoresetMode) -> None:
    assert record(in_processes(mode), 12) == expected(12, list(range(K)))


def test_a_masked_reset_touches_no_other_slot() -> None:
    for kind in ("list", "sync disabled", "sync same step", "own next step, one by one"):
        slots = KINDS[kind]()
        slots.reset()
        before = slots.step(np.array([1, 1, 1])).observations
        after = slots.reset(np.array([False, True, False]))
        assert after[[0, 2]].tolist() == before[[0, 2]].tolist(), kind
        assert after[1].tolist() == [1, 1, 0, -1], kind
        slots.close()


@pytest.mark.parametrize("kind", ["list", "own next step, one by one"])
def test_a_partial_step_touches_no_other_slot(kind: str) -> None:
    slots = KINDS[kind]()
    before = slots.reset()
    t = slots.partial_step(np.array([2, 2, 2]), np.array([True, False, False]))
    assert t.observations[1:].tolist() == before[1:].tolist()
    assert t.observations[0].tolist() == [0, 0, 1, 2]
    assert t.rewards.tolist() == [1, 0, 0]


def test_a_vector_that_resets_late_and_not_alone_is_refused() -> None:
    with pytest.raises(ConfigError, match="SAME_STEP or DISABLED"):
        VectorEnvSlots(ToyVector(2, "NextStep"))


def test_processes_without_shared_memory_that_forget_a_reset_are_refused() -> None:
    envs = AsyncVectorEnv(TOYS, shared_memory=False, context="forkserver")
    with pytest.raises(ConfigError, match="SAME_STEP or DISABLED"):
        VectorEnvSlots(envs)
    envs.close()


def test_a_step_limit_on_slots_that_cannot_be_reset_alone_says_so() -> None:
    slots = VectorEnvSlots(ToyVector(2, "SameStep"))
    slots.reset()
    with pytest.raises(ConfigError, match="cannot reset single slots, which max_episode_steps"):
        slots.reset(np.array([True, False]))


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 1)])
def test_a_frame_of_another_shape_is_named(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    lines: list[str] = []
    display = Display("toy", lines.append)
    display.attach(lambda: np.zeros(shape, np.uint8), 30)
    display.toggle()
    display.update()
    assert len(lines) == 1
    assert f"a frame has shape {list(shape)}, expected [height, width, 3]" in lines[0]
    assert not display.wanted


def test_returned_arrays_are_the_callers_to_keep() -> None:
    for kind in ("list", "sync same step", "own next step, one by one"):
        slots = KINDS[kind]()
        first = slots.reset()
        kept = first.copy()
        for step in range(4):
            slots.step(np.full(K, step % 3))
        assert first.tolist() == kept.tolist(), kind
        slots.close()


def test_seeds_are_used_once_so_that_episodes_differ() -> None:
    toys = [Toy(0), Toy(1)]
    slots = EnvListSlots(toys, seed=5)
    slots.reset()
    slots.reset()
    assert [toy.seeds for toy in toys] == [[5, None], [6, None]]


@pytest.mark.parametrize("mode", ["sync", "vector_entry_point"])
@pytest.mark.parametrize("count", [1, 4])
def test_cart_poles_begin_episodes_that_differ_and_runs_that_repeat(mode: str, count: int) -> None:
    def starts() -> np.ndarray:
        slots = make_slots("CartPole-v1", count, mode=mode, seed=3)
        seen = [slots.reset()]
        for _ in range(100):
            t = slots.step(np.ones(count, np.int64))
            ended = t.terminated | t.truncated
            seen.append(np.asarray(t.observations)[ended])
        slots.close()
        return np.concatenate(seen)

    one = starts()
    assert len(one) >= 5 * count
    assert len(np.unique(one, axis=0)) == len(one)
    np.testing.assert_array_equal(one, starts())


def test_vectorised_cart_poles_equal_the_class_own_next_step_resets() -> None:
    """Our reset at once must give what the class gives one step later, in the same order."""
    ours = make_slots("CartPole-v1", 1, mode="vector_entry_point", seed=7)
    theirs = CartPoleVectorEnv(1)
    assert np.array_equal(ours.reset(), theirs.reset(seed=7)[0])
    for _ in range(40):
        t = ours.step(np.array([1]))
        now, reward, terminated, *_ = theirs.step(np.array([1]))
        assert t.rewards.tolist() == reward.tolist() == [1.0]
        assert t.terminated.tolist() == terminated.tolist()
        if terminated[0]:
            assert np.array_equal(np.asarray(t.final_observations), now)
            break
    else:
        pytest.fail("no episode ended")

    four = VectorEnvSlots(CartPoleVectorEnv(4), seed=7)
    four.reset()
    rng = np.random.default_rng(0)
    for _ in range(200):
        t = four.step(rng.integers(2, size=4))
        if t.terminated.any():
            assert isinstance(t.final_observations, np.ndarray)
            kept = ~t.terminated
            assert np.array_equal(t.final_observations[kept], np.asarray(t.observations)[kept])
            assert (np.abs(np.asarray(t.observations)[t.terminated]) <= 0.05).all()
    assert four.reset(np.array([True, False, False, False])).shape == (4, 4)


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({}, VectorEnvSlots),
        ({"mode": "sync"}, EnvListSlots),
        ({"needs": {"partial_steps"}}, EnvListSlots),
        ({"needs": {"slot_resets"}}, VectorEnvSlots),
        ({"mode": "vector_entry_point", "needs": {"partial_steps"}}, JoinedSlots),
    ],
)
def test_make_slots_chooses_the_form_that_fits(options: dict[str, Any], want: type) -> None:
    slots = make_slots("CartPole-v1", 2, **options)
    assert type(slots) is want
    slots.close()


def test_make_slots_auto_avoids_a_vector_that_resets_late() -> None:
    assert type(make_slots("ToyVector-v0", 2)) is EnvListSlots
    same = make_slots("ToyVector-v0", 2, env_args={"mode": "SameStep"}, mode="vector_entry_point")
    assert type(same) is VectorEnvSlots


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("CartPoel-v1", {}, "Close matches: CartPole-v1"),
        ("cartpole-v1", {}, "CartPole-v1"),
        ("CartPole-v99", {}, "v99"),
        ("no_such_module:CartPole-v1", {}, "no_such_module"),
        ("CartPole-v1", {"env_args": {"wheels": 4}}, "wheels"),
        ("Toy-v0", {"mode": "vector_entry_point"}, "has no vectorised form of its own"),
        ("Unsendable-v0", {}, "Text is not supported"),
        ("", {}, r"environment\.env \(--env\): ''"),
        ("Nothing-like-it-v0", {}, "Expected the name of a registered environment, or MODULE:NAME"),
    ],
)
def test_a_wrong_environment_is_one_line(name: str, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match) as raised:
        make_slots(name, **options)
    assert "\n" not in str(raised.value)


def test_close_matches_are_for_a_wrong_name_only() -> None:
    with pytest.raises(ConfigError) as raised:
        make_slots("no_such_module:CartPole-v1")
    assert "Close matches" not in str(raised.value)
    with pytest.raises(ConfigError, match=r"\)\. Close matches: CartPole-v1"):
        make_slots("Cart Pole-v1")


def test_a_module_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "failing_envs.py").write_text("nobody\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="failing_envs:Mine-v0': NameError: name 'nobody'"):
        make_slots("failing_envs:Mine-v0")


def test_cart_pole_v0_gives_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    make_slots("CartPole-v0").close()
    make_slots("CartPole-v0", 2).close()
    assert [str(w.message) for w in recwarn if "out of date" in str(w.message)] == []


def test_an_unversioned_name_means_the_newest() -> None:
    with pytest.warns(UserWarning, match="latest versioned"):
        make_slots("CartPole").close()


@pytest.mark.parametrize("kind", ["list", "sync same step", "sync next step", "sync disabled"])
def test_nested_spaces_run_in_every_mode(kind: str) -> None:
    if kind == "list":
        slots: Any = EnvListSlots([Nested() for _ in range(2)], seed=1)
    else:
        mode = {
            "sync same step": AutoresetMode.SAME_STEP,
            "sync next step": AutoresetMode.NEXT_STEP,
            "sync disabled": AutoresetMode.DISABLED,
        }[kind]
        slots = VectorEnvSlots(SyncVectorEnv([Nested] * 2, autoreset_mode=mode), seed=1)
    assert set(slots.observation_space) == {
        "camera", "arm/joints", "tools/0", "tools/1", "dials"
    }  # fmt: skip
    told: list[Any] = []

    class Agent:
        def step(self, *outcome: Any) -> Any:
            told.append(outcome)
            values = SpaceValues(slots.observation_space, "observation")
            values.to_leaves(outcome[0], 2, "observations")
            if len(outcome) > 1 and outcome[4] is not None:
                values.to_leaves(outcome[4], 2, "final_observations")
            actions = SpaceValues(slots.action_space, "action").sample(2, np.random.default_rng())
            return SimpleNamespace(actions=actions, finished="")

    summary = Interactor(slots, Agent(), max_episode_steps=3, max_episodes=4).run()
    assert summary.episodes == 4
    assert NESTED.contains(slots._observations.unpack_rows(told[-1][0])[0])


def make_mirrored(wrap: Any = lambda env: env) -> gym.Env:
    return wrap(gym.make("support.mirrored_envs:MirroredCartPole-v0"))


# covers P14
@pytest.mark.parametrize(
    "make",
    [
        lambda: EnvListSlots([make_mirrored()]),
        lambda: EnvListSlots([make_mirrored(lambda env: gym.wrappers.TimeLimit(env, 5))]),
        lambda: VectorEnvSlots(
            SyncVectorEnv([make_mirrored], autoreset_mode=AutoresetMode.SAME_STEP)
        ),
    ],
    ids=["alone", "wrapped", "vector"],
)
def test_an_environment_offers_its_mirror_images(make: Any) -> None:
    slots = make()
    assert slots.observation_space.mirror == (-0.1, -1, -2, -3)
    assert slots.action_space.mirror == (1, 0.1)
    assert slots.observation_space.shape == (4,)


def test_a_mirror_that_is_no_list_of_numbers_is_refused_by_the_name_of_its_method() -> None:
    env = make_mirrored()
    env.unwrapped.get_action_mirror_indices = lambda: 3
    with pytest.raises(ConfigError, match=r"get_action_mirror_indices\(\) returned 3"):
        EnvListSlots([env])


def test_render_draws_slot_zero_where_it_can() -> None:
    for slots in (
        make_slots("Toy-v0", draw=True),
        make_slots("Toy-v0", env_args={"render_mode": "rgb_array"}),
        make_slots("CartPole-v1", 2, draw=True),
        make_slots("CartPole-v1", 2, mode="vector_entry_point", needs={"partial_steps"}, draw=True),
    ):
        slots.reset()
        frame = slots.render()
        assert frame is not None
        assert frame.ndim == 3
        assert frame.dtype == np.uint8
        slots.close()
    assert make_slots("Nested-v0", draw=True).render() is None
    assert make_slots("Toy-v0").render() is None


def test_time_limit_of_gymnasium_is_a_truncation() -> None:
    slots = make_slots("Pendulum-v1")
    slots.reset()
    for _ in range(199):
        t = slots.step(np.array([[0.5]], np.float32))
        assert not (t.terminated | t.truncated).any()
    t = slots.step(np.array([[9.0]], np.float32))
    assert (t.terminated.tolist(), t.truncated.tolist()) == ([False], [True])
    assert t.final_observations is not None


def test_single_environment_list_is_needed() -> None:
    with pytest.raises(ConfigError, match="expected at least one"):
        EnvListSlots([])
    with pytest.raises(ConfigError, match="each with one slot"):
        JoinedSlots([])


def test_each_reset_gets_a_new_seed_of_the_slots_own_stream() -> None:
    def play(seed: int | None) -> list[list[int]]:
        slots = EnvListSlots([Toy(0) for _ in range(3)], seed, seed_resets=True)
        slots.reset()
        for _ in range(6):
            slots.step(np.zeros(3, np.int64))
        slots.reset(np.array([True, False, False]))
        return [env.seeds for env in slots._envs]

    seeds = play(7)
    assert seeds == play(7)
    assert [own[0] for own in seeds] == [7, 8, 9]
    assert [len(own) for own in seeds] == [4, 3, 3]
    every = [seed for own in (*seeds, *play(8), *play(None)) for seed in own]
    assert all(isinstance(seed, int) and 0 <= seed < 1 << 31 for seed in every)
    # Slots 1 and 2 with seed 7 are slots 0 and 1 with seed 8.
    assert len(set(every)) == 4 + 3 + 3 + 3 + 1 + 4 + 3 + 3


@pytest.mark.parametrize(
    ("name", "options", "want"),
    [
        ("CartPole-v1", {}, None),
        ("CartPole-v1", {"mode": "sync"}, None),
        ("CartPole-v1", {"mode": "vector_entry_point"}, "seed_resets .*: true, but .* mode sync"),
        ("VectorOnly-v0", {}, "seed_resets"),
        ("ALE/Pong-v5", {}, "seed_resets"),
    ],
)
def test_seeds_of_resets_need_single_environments(
    name: str, options: dict[str, Any], want: str | None
) -> None:
    if want is None:
        slots = make_slots(name, 2, needs={"seed_resets"}, **options)
        assert type(slots) is EnvListSlots
        slots.close()
    else:
        with pytest.raises(ConfigError, match=want):
            make_slots(name, 2, needs={"seed_resets"}, **options)
