"""Makes environment slots from a registered name; errors say what to do."""

import contextlib
import difflib
import functools
import importlib
import logging
import os
import sys
import warnings
from collections.abc import Collection
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
from gymnasium.envs.registration import (
    find_highest_version,
    get_env_id,
    load_env_creator,
    parse_env_id,
)

from relaax_like.extras import describe_missing
from relaax_like.wire import ConfigError
from relaax_like.wire.errors import describe_exception
from relaax_like.wire.reports import ENVIRONMENTS_VARIABLE

from . import gym_atari, gym_legal, gym_masked
from .gym_repeat import ActionRepeat
from .gym_slots import (
    FAILURES,
    EnvListSlots,
    FirstReset,
    GymSlots,
    JoinedSlots,
    VectorEnvSlots,
    autoreset_mode,
    find_masked_reset,
    get_generator,
)

if TYPE_CHECKING:
    from .pettingzoo_slots import PettingZooSlots

logger = logging.getLogger(__name__)
gym_masked.register()

MODES = ("auto", "sync", "vector_entry_point")
PETTINGZOO = "pettingzoo:"
_NAME = "the name of a registered environment, or MODULE:NAME if a module registers it"


def find_needs(settings: Any) -> set[str]:
    """Returns the `needs` of `make_slots`.

    Args:
      settings: has `random_steps`, `max_episode_steps` and `seed_resets`.
    """
    needs = {
        "partial_steps": settings.random_steps > 0,
        "slot_resets": settings.max_episode_steps is not None,
        "seed_resets": settings.seed_resets,
    }
    return {need for need, is_on in needs.items() if is_on}


def make_slots(
    name: str,
    slots: int = 1,
    *,
    mode: str = "auto",
    seed: int | None = None,
    needs: Collection[str] = (),
    action_repeat: int = 1,
    env_args: dict[str, Any] | None = None,
    draw: bool = False,
    masks: str = gym_legal.AUTO,
) -> "GymSlots | PettingZooSlots":
    """Makes `slots` environments, given their registered name.

    Args:
      name: as for `gymnasium.make`; "module:Name-v0" imports a module first, which can be in the
        current folder; "pettingzoo:MODULE[:NAME]": see `_make_games`.
      slots: number of environments; of PettingZoo's games, which have a slot for each agent.
      mode: "sync": one environment after the other. "vector_entry_point": the environment's own
        vectorised form, k of one slot if it does not support `needs`. "auto": that form for several
        slots if it exists and supports them, and always for Atari games; else sync.
      seed: of the first reset; slot i gets seed + i if each slot is an environment of its own.
      needs: what must be possible for single slots: "partial_steps", such as random actions after a
        reset; "slot_resets", because of a step limit; "seed_resets", a new seed for each reset,
        which needs mode sync, as does an action repeat.
      action_repeat: steps of the environment per action; above 1 only in mode sync, which "auto"
        then chooses.
      env_args: passed to the environment.
      draw: whether slot 0 will be drawn: it gets render_mode="rgb_array", if it declares that mode
        and `env_args` has no other.
      masks: where single environments say which actions are legal; see `gym_legal.add_masks`.

    Raises:
      ConfigError: there is no such mode or environment, its module cannot be imported, it cannot be
        made, it has no such form, or an action repeat is requested of its vectorised form.
    """
    if mode not in MODES:
        raise ConfigError(f"mode: {mode!r:.60}, expected one of {', '.join(MODES)}")
    with warnings.catch_warnings():
        # The tutorial's CartPole-v0 is deliberately old; all other warnings are shown.
        warnings.filterwarnings("ignore", r".*is out of date\. You should", DeprecationWarning)
        needs = {need for need in needs if need != "partial_steps" or slots > 1}
        wanted = _Wanted(name, slots, mode, seed, needs, action_repeat, env_args or {}, draw, masks)
        try:
            return (_make_games if name.startswith(PETTINGZOO) else _make)(wanted)
        except ConfigError:
            raise
        except FAILURES as error:
            shown = f" with environment.args (--env-arg) {env_args!s:.200}" if env_args else ""
            raise ConfigError(f"environment {name:.100}{shown}: {_describe(error)}") from error


class _Wanted(NamedTuple):
    """The arguments of `make_slots`."""

    name: str
    slots: int
    mode: str
    seed: int | None
    needs: set[str]
    action_repeat: int
    env_args: dict[str, Any]
    draw: bool
    masks: str


def _make_games(wanted: _Wanted) -> "PettingZooSlots":
    """Makes games by a module's function or class NAME, by default parallel_env, or else env."""
    if wanted.mode == "vector_entry_point":
        raise ConfigError(
            f"mode (--vectorization-mode): 'vector_entry_point', but {wanted.name:.100} has no "
            "vectorised form; use auto or sync"
        )
    path, _, chosen = wanted.name.removeprefix(PETTINGZOO).partition(":")
    try:
        from .pettingzoo_slots import make_slots as make_game_slots

        module = _import(path)
        names = [chosen] if chosen else ["parallel_env", "env"]
        make = next((getattr(module, one) for one in names if hasattr(module, one)), None)
        if make is None:
            raise ConfigError(
                f"environment.env (--env): {wanted.name!r:.100}: the module has no "
                f"{' and no '.join(names)}, expected a function or class that makes the "
                f"environment; name it, as {PETTINGZOO}{path}:NAME"
            )
    except ConfigError:
        raise
    except FAILURES as error:
        raise ConfigError(
            f"environment.env (--env): {wanted.name!r:.100}: {_describe(error)}"
        ) from error
    return make_game_slots(
        make,
        wanted.slots,
        seed=wanted.seed,
        seed_resets="seed_resets" in wanted.needs,
        action_repeat=wanted.action_repeat,
        env_args=wanted.env_args,
        draw=wanted.draw,
        masks=wanted.masks,
    )


def _import(module: str) -> ModuleType:
    """Imports a module of environments, which can be in the current folder.

    Raises:
      ConfigError: the slave does not allow it.
      Exception: whatever the import raises.
    """
    allowed = os.environ.get(ENVIRONMENTS_VARIABLE)
    if allowed is not None and f"module-{module}" not in allowed.split(","):
        raise ConfigError(f"this slave does not allow the module {module!r}")
    # A script's own module path has no such entry; with -P it is not wanted.
    if not sys.flags.safe_path and (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    return importlib.import_module(module)


def _make(wanted: _Wanted) -> GymSlots:
    spec = _find_spec(wanted.name)
    name, slots, mode, seed, needs, action_repeat, env_args, draw, _ = wanted
    # Below Gymnasium 1.1 nothing states what such a form does at an episode's end.
    vectorised = spec.vector_entry_point is not None and hasattr(gym.vector, "AutoresetMode")
    if vectorised and spec.entry_point is None and mode != "vector_entry_point":
        _warn_of_vectorised(name)
        mode = "vector_entry_point"
    if mode == "vector_entry_point" and not vectorised:
        raise ConfigError(
            f"mode (--vectorization-mode): 'vector_entry_point', but environment {name:.100} has "
            "no vectorised form of its own, or Gymnasium is below 1.1; use auto or sync"
        )
    single = ""
    if action_repeat > 1:
        single = f"action_repeat (--action-repeat): {action_repeat}"
    elif "seed_resets" in needs:
        single = "seed_resets (--seed-resets): true"
    is_game = gym_atari.is_atari(name)
    if single and (
        mode == "vector_entry_point" or (mode == "auto" and action_repeat == 1 and is_game)
    ):
        raise ConfigError(
            f"{single}, but the vectorised form of environment {name:.100} steps all slots "
            "together, and resets them; use mode sync (--vectorization-mode), or remove the setting"
        )
    if mode == "auto" and action_repeat > 1 and is_game:
        raise ConfigError(
            f"action_repeat (--action-repeat): {action_repeat}, but Atari games skip frames by "
            "themselves; set frameskip in environment.args (--env-arg frameskip=N, by default 4) "
            "instead, or use mode sync (--vectorization-mode), whose frames are not preprocessed"
        )
    # The other form of Atari games returns frames without preprocessing.
    better = vectorised and (slots > 1 or is_game)
    if mode == "vector_entry_point" or (mode == "auto" and better and not single):
        render = _render_args(spec.vector_entry_point) if draw else {}
        made = _make_vectorised(name, slots, mode, seed, needs, render | env_args)
        if made is not None:
            return made
    render = _render_args(spec.entry_point) if draw else {}
    return _make_singles(wanted, render | env_args)


@functools.cache  # once: `relaax train` makes an environment to ask for its spaces, and another
def _warn_of_vectorised(name: str) -> None:
    logger.warning("%s has only a vectorised form, which is used", name)


def _make_singles(wanted: _Wanted, first_args: dict[str, Any]) -> GymSlots:
    """Makes single environments, the first with its own arguments; after an error, closes them.

    Only the first is drawn: LunarLander's sparks, which only `render` removes, make it slow.
    """
    name, seed = wanted.name, wanted.seed
    envs: list[gym.Env] = []
    firsts: list[FirstReset | None] = []
    with contextlib.ExitStack() as made:
        for slot in range(wanted.slots):
            args = wanted.env_args if slot else first_args
            try:
                env = gym.make(name, disable_env_checker=True, **args)
            except FAILURES as error:
                if not slot:
                    raise
                raise ConfigError(
                    f"environment {name:.100}: slot {slot} cannot be made beside slot 0: "
                    f"{_describe(error)}; if a process can have only one, set slots (--num-envs) "
                    "to 1 and start more clients"
                ) from error
            made.callback(env.close)
            if wanted.action_repeat > 1:
                env = ActionRepeat(env, wanted.action_repeat)
            own_seed = None if seed is None else seed + slot
            generator = get_generator(env) if seed is None else None
            env, first = gym_legal.add_masks(env, wanted.masks, own_seed)
            envs.append(env)
            firsts.append(None if first is None else FirstReset(own_seed, generator, first))
        joined = EnvListSlots(envs, seed, "seed_resets" in wanted.needs, firsts)
        made.pop_all()
    return joined


def _make_vectorised(
    name: str,
    slots: int,
    mode: str,
    seed: int | None,
    needs: set[str],
    env_args: dict[str, Any],
) -> GymSlots | None:
    """Makes the vectorised form; returns None if mode auto should use the other one."""
    forced = mode == "vector_entry_point" or gym_atari.is_atari(name)
    if not forced and "partial_steps" in needs:
        return None

    def make(count: int) -> gym.vector.VectorEnv:
        if gym_atari.is_atari(name):
            return gym_atari.make(name, count, env_args)
        return gym.make_vec(
            name, num_envs=count, vectorization_mode="vector_entry_point", **env_args
        )

    with contextlib.ExitStack() as made:
        env = make(slots)
        made.callback(env.close)
        can_reset = find_masked_reset(env) is not None
        same_step = autoreset_mode(env).name == "SAME_STEP" and "slot_resets" not in needs
        if (can_reset or same_step) and "partial_steps" not in needs:
            joined = VectorEnvSlots(env, seed)
            made.pop_all()
            return joined
    if not forced:
        return None
    seeds = [None if seed is None else seed + slot for slot in range(slots)]
    return JoinedSlots([VectorEnvSlots(make(1), one) for one in seeds])


def _find_spec(name: str) -> Any:
    if gym_atari.is_atari(name):
        gym_atari.register()
    try:
        module, colon, env_id = name.rpartition(":")
        if colon:
            _import(module)
        namespace, bare_name, version = parse_env_id(env_id)
        if version is None:
            version = find_highest_version(namespace, bare_name)
        return gym.spec(get_env_id(namespace, bare_name, version))
    except FAILURES as error:
        text = _describe(error)
        # Other errors are those of the module, for which another name is not a cure.
        is_name = isinstance(error, gym.error.Error) and not isinstance(
            error, gym.error.DependencyNotInstalled
        )
        if is_name:
            end = "" if text.endswith((".", "?", "!")) else "."
            matches = ", ".join(_find_matches(name))
            cure = f"Close matches: {matches}" if matches else f"Expected {_NAME}"
            text = f"{text}{end} {cure}."
        raise ConfigError(f"environment.env (--env): {name!r:.100}: {text}") from error


def _find_matches(name: str) -> list[str]:
    """Returns the registered names that are similar to a name, at most three."""
    env_id = name.rpartition(":")[2]
    by_lower = {known.lower(): known for known in gym.registry}
    close = difflib.get_close_matches(env_id.lower(), by_lower, n=3, cutoff=0.6)
    return [by_lower[match] for match in close]


def _render_args(creator: Any) -> dict[str, str]:
    """Returns the argument that requests frames, if what an entry point makes declares them."""
    try:
        creator = load_env_creator(creator) if isinstance(creator, str) else creator
    except FAILURES:  # making the environment reports it
        return {}
    metadata = getattr(creator, "metadata", None) or {}
    return {"render_mode": "rgb_array"} if "rgb_array" in metadata.get("render_modes", ()) else {}


def _describe(error: BaseException) -> str:
    """Returns an error on one line; if a package is missing, says how to install it."""
    if isinstance(error, gym.error.DependencyNotInstalled):
        cause = error.__cause__  # of the import that failed
        if cause is None or isinstance(cause, ModuleNotFoundError):
            missing = describe_missing(getattr(cause, "name", None))
            return missing or f"{_one_line(error)} (Python: {sys.executable})"
        # It can be installed, and fail for another reason, such as a missing system library.
        return f"{describe_exception(cause)} (Python: {sys.executable})"
    if isinstance(error, ModuleNotFoundError):
        return describe_missing(error.name) or (
            f"{_one_line(error)}; install it for {sys.executable}, or start this program in the "
            "folder that contains it"
        )
    # Gymnasium's own errors are sentences; the texts of others are often meaningless alone.
    return _one_line(error) if isinstance(error, gym.error.Error) else describe_exception(error)


def _one_line(error: BaseException) -> str:
    return describe_exception(error).partition(": ")[2]
