"""The clients in other languages: their programs, played against real servers.

`RELAAX_REQUIRE_LUA=1`, and so on, turns a missing tool from a skip into a failure.
"""

# covers PE8, R18, R19, R26

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from support.bridge import make_backend
from support.certificates import ENVIRONMENT, write_private, write_tokens
from support.cluster import BARE, ROOT, find_free_port, wait_until
from support.rlx import ServerThread, serve_rlx

from relaax_like.bridge.in_process import InProcessClient
from relaax_like.config.loader import load_experiment
from relaax_like.core.metrics import NullMetrics
from relaax_like.launch.agents import make_agent_host
from relaax_like.launch.initial_values_main import make_initial_values
from relaax_like.launch.parameter_server import make_parameter_server
from relaax_like.launch.rlx_server import make_rlx_server
from relaax_like.launch.run import make_client_argv
from relaax_like.wire.security import Tokens

FOLDER = ROOT / "environments"


@dataclass(frozen=True)
class Language:
    """A program of `environments/`, and what it needs; its name is the folder's, with flags.

    Attributes:
      tools: commands.
      install: how to install them.
      require: part of the name of the variable that makes a missing tool a failure.
      target: mean return of 100 episodes that shows that it is learned.
      plays_cartpole: or a task of its own.
      quick: flags that shorten the pause before it connects again.
      slots: flags of one process that plays four times at once; none: four processes do.
    """

    tools: tuple[str, ...]
    install: str
    require: str
    target: float = 100.0
    plays_cartpole: bool = True
    quick: tuple[str, ...] = ()
    slots: tuple[str, ...] = ()


_SOON = ("--retry-sleep", "0", "0.1")
_CC = (("cc", "c++"), "g++ libc6-dev", "CC")
LANGUAGES = {
    "c": Language(*_CC, quick=_SOON, slots=("--num-envs", "4")),
    "c --cpp": Language(*_CC, quick=_SOON),
    "javascript": Language(
        ("node",),
        "nodejs",
        "NODE",
        quick=("--retry-sleep", "0.1", "0.3", "--seed", "1"),
        slots=("--num-envs", "4"),
    ),
    "lua": Language(("lua5.4",), "lua5.4 lua-socket lua-cjson", "LUA"),
    "shell": Language(("bash",), "bash", "BASH", target=4.0, plays_cartpole=False),
    "csharp": Language(
        ("mcs", "mono"),
        "mono-mcs mono-runtime",
        "MONO",
        quick=_SOON,
        slots=("--num-envs", "4"),
    ),
    "godot3": Language(("godot3-server",), "godot3-server", "GODOT", quick=_SOON),
}


@pytest.fixture(params=LANGUAGES)
def name(request: pytest.FixtureRequest) -> str:
    """The folder of a language whose tools are here."""
    require_tools(request.param)
    return request.param


def require_tools(name: str) -> None:
    language = LANGUAGES[name]
    missing = [tool for tool in language.tools if shutil.which(tool) is None]
    if missing:
        message = f"no {', '.join(missing)} (apt-get install {language.install})"
        if os.environ.get(f"RELAAX_REQUIRE_{language.require}"):
            pytest.fail(message)
        pytest.skip(message)


Start = Callable[..., subprocess.Popen[str]]
# What Godot prints at each start.
BANNER = re.compile(r"^Godot Engine .*\n *\n")


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts the program of a language; kills what is left at the end."""
    processes: list[subprocess.Popen[str]] = []

    def run(name: str, *args: object) -> subprocess.Popen[str]:
        folder, *flags = name.split()
        argv = [str(FOLDER / folder / "main"), *flags, *map(str, args)]
        process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        processes.append(process)
        return process

    yield run
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=30)


def finish(process: subprocess.Popen[str], timeout_sec: float = 60) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=timeout_sec)
    return process.returncode, BANNER.sub("", out), err


Policy = Callable[[int, list[float]], int]


@dataclass
class Game:
    """What a server's agents saw, and how they act.

    Attributes:
      policy: number of the episode, observation -> action.
      steps: number of answers with an action, after which the training has finished.
      episodes: of each: its observations, actions and rewards, and how it ended.
    """

    policy: Policy
    steps: int
    episodes: list["Episode"] = field(default_factory=list)


@dataclass
class Episode:
    observations: list[list[float]]
    actions: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    truncated: bool | None = None
    success: bool | None = None
    final: list[float] | None = None


class Agent:
    """The agent of one session; has the attribute `game` in a class of its own."""

    game: ClassVar[Game]

    def __init__(self, config: Any, parameter_server: Any):
        self.exploit = False

    def act(self, state: np.ndarray) -> int | None:
        self.game.episodes.append(Episode([state.tolist()]))
        return self._choose()

    def reward_and_act(self, reward: float, state: np.ndarray) -> int | None:
        episode = self.game.episodes[-1]
        episode.rewards.append(reward)
        episode.observations.append(state.tolist())
        return self._choose()

    def reward_and_reset(
        self, reward: float, state: Any = None, truncated: bool = False, success: Any = None
    ) -> float:
        episode = self.game.episodes[-1]
        episode.rewards.append(reward)
        episode.truncated, episode.success = truncated, success
        episode.final = None if state is None else state.tolist()
        return reward

    def close(self) -> None:
        pass

    def _choose(self) -> int | None:
        game = self.game
        episode = game.episodes[-1]
        game.steps -= 1
        if game.steps < 0:
            return None
        episode.actions.append(game.policy(len(game.episodes) - 1, episode.observations[-1]))
        return episode.actions[-1]


@contextlib.contextmanager
def serve(game: Game, **options: Any) -> Iterator[int]:
    agent = type("Agent", (Agent,), {"game": game})
    with make_backend() as backend, serve_rlx(backend, agent, **options) as port:
        yield port


RNG = np.random.default_rng(0)


def balance_each_second_pole(episode: int, observation: list[float]) -> int:
    """Keeps the pole of odd episodes up for as long as one likes; else plays at random."""
    if episode % 2 == 0:
        return int(RNG.integers(2))
    x, x_dot, theta, theta_dot = observation
    return int(0.1 * x + 0.2 * x_dot + 3 * theta + theta_dot > 0)


def check_cartpole(episode: Episode) -> None:
    """Compares each step with Gymnasium's."""
    env: Any = gymnasium.make("CartPole-v1").unwrapped
    env.reset()
    assert np.abs(episode.observations[0]).max() <= 0.05
    seen = [*episode.observations, episode.final]
    for i, (action, reward) in enumerate(zip(episode.actions, episode.rewards, strict=True)):
        env.state = np.array(seen[i], np.float64)
        observation, _, terminated, _, _ = env.step(action)
        np.testing.assert_allclose(seen[i + 1], observation, rtol=1e-5, atol=1e-6)
        assert reward == 1
        last = i == len(episode.actions) - 1
        assert terminated == (last and not episode.truncated)
    assert episode.truncated == (len(episode.actions) == 500)


def check_walk(episode: Episode) -> None:
    """Compares each step with the rules of the walk on a line."""
    (here,) = episode.observations[0]
    assert abs(here) <= 1
    for i, (action, reward) in enumerate(zip(episode.actions, episode.rewards, strict=True)):
        here += 2 * action - 1
        assert reward == (9 if here == 5 else -1)
        if i + 1 < len(episode.observations):
            assert episode.observations[i + 1] == [here]
            assert abs(here) < 5
    assert episode.truncated == (len(episode.actions) == 50 and abs(here) < 5)
    if episode.truncated:
        assert (episode.final, episode.success) == ([here], None)
    else:
        assert episode.success == (here == 5)


def stay(episode: int, observation: list[float]) -> int:
    """Stays in the middle of the line in odd episodes; else plays at random."""
    return int(observation[0] < 0) if episode % 2 else int(RNG.integers(2))


# C sends a final observation only where an episode was cut off: test_c looks at its steps.
_OTHERS = [one for one in LANGUAGES if one.split()[0] != "c"]


@pytest.mark.parametrize("name", _OTHERS, indirect=True)
def test_each_step_and_end_is_what_the_server_saw(name: str, start: Start) -> None:
    is_cartpole = LANGUAGES[name].plays_cartpole
    game = Game(balance_each_second_pole if is_cartpole else stay, 1000)
    with serve(game) as port:
        code, out, err = finish(start(name, "--rlx-server", f"localhost:{port}", "--name", "x"))
    assert (code, err) == (0, "")
    assert "budget is used up" in out.splitlines()[-1]
    whole = [episode for episode in game.episodes if episode.truncated is not None]
    assert len(whole) >= len(game.episodes) - 1
    for episode in whole:
        (check_cartpole if is_cartpole else check_walk)(episode)
    assert {episode.truncated for episode in whole} == {True, False}


def test_a_token_is_sent_and_a_wrong_one_ends_it(name: str, start: Start, tmp_path: Path) -> None:
    game = Game(lambda episode, observation: 0, 5)
    tokens = Tokens(write_tokens(tmp_path / "tokens"))
    right = write_private(tmp_path / "right", f"{ENVIRONMENT}\n")
    wrong = write_private(tmp_path / "wrong", 'no "token\\')
    with serve(game, tokens=tokens) as port:
        address = f"localhost:{port}"
        for flags in ((), ("--token-file", wrong)):
            code, out, err = finish(start(name, "--rlx-server", address, *flags))
            assert (code, out, len(err.splitlines())) == (2, "", 1)
            assert "token" in err
        assert not game.episodes
        code, _, err = finish(start(name, "--rlx-server", address, "--token-file", right))
        assert (code, err) == (0, "")


def wait_retry(process: subprocess.Popen[str]) -> None:
    """Reads lines until one says that the program tries again."""
    assert process.stdout is not None
    assert any("retrying" in line for line in process.stdout)


def test_a_server_that_goes_away_is_found_again(name: str, start: Start) -> None:
    game = Game(lambda episode, observation: 0, 1 << 30)
    port = find_free_port()
    process = start(name, "--rlx-server", f"localhost:{port}", *LANGUAGES[name].quick)
    wait_retry(process)  # nobody is there
    with serve(game, port=port):
        wait_until(lambda: len(game.episodes) > 1, process)
    played = len(game.episodes)
    wait_retry(process)
    game.steps = 20
    with serve(game, port=port):
        assert finish(process)[0] == 0
    assert len(game.episodes) > played


@pytest.mark.parametrize(
    ("flags", "match"),
    [("--env Pong", "--env"), ("--name", "--name"), ("--token-file /no/file", "/no/file")],
)
def test_wrong_flags_end_it(name: str, start: Start, flags: str, match: str) -> None:
    code, out, err = finish(start(name, "--rlx-server", "localhost:1", *flags.split()))
    assert (code, out) == (2, "")
    assert match in err


def test_its_name_is_enough_in_an_experiment(name: str, tmp_path: Path) -> None:
    path = tmp_path / "experiment.yaml"
    folder = name.split()[0]
    path.write_text(f"algorithm: {{name: ppo}}\nenvironment: {{program: {folder}}}\n")
    experiment = load_experiment(path)
    assert experiment.environment is not None
    program, *_ = make_client_argv(experiment, experiment.environment)
    assert Path(program) == FOLDER / folder / "main"
    assert os.access(program, os.X_OK)


LUA_GAME = """
local places = {}
local function my_reset() places = {0, 0, 0, 0} return places end
local function my_step(action) places[1] = places[1] + action return places, 0.5, places[1] == 3 end
"""


def test_the_example_of_the_lua_readme_plays(tmp_path: Path) -> None:
    require_tools("lua")
    game = Game(lambda episode, observation: 1, 9)
    (example,) = re.findall(r"```lua\n(.*?)```", (FOLDER / "lua/README.md").read_text(), re.DOTALL)
    with serve(game) as port:
        program = tmp_path / "game.lua"
        program.write_text(LUA_GAME + example.replace(":7001", f":{port}"))
        env = {**os.environ, "LUA_PATH": f"{FOLDER}/lua/?.lua;;"}
        done = subprocess.run(
            ["lua5.4", program], env=env, capture_output=True, text=True, timeout=60
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert "budget is used up" in done.stdout
    assert [episode.rewards for episode in game.episodes] == [[0.5] * 3] * 3 + [[]]


CARTPOLE = f"algorithm: {{path: {BARE}, learning_rate: 0.1}}\n"  # NumPy: no TensorFlow
WALK = """
algorithm:
  name: ppo
  state_size: 1
  num_actions: 2
  num_steps: 512
  batch_size: 128
  learning_rate: 2e-3
  critic_learning_rate: 2e-3
  lr_schedule: constant
  network: {layers: [32]}
"""


@contextlib.contextmanager
def serve_learner(folder: Path, target: float, algorithm: str = CARTPOLE) -> Iterator[int]:
    """Serves agents that learn in this process; gives the port."""
    path = folder / "experiment.yaml"
    path.write_text(f"run_dir: {folder}/run\nlearner: {{target_return: {target}}}\n{algorithm}")
    overrides = ["learner.placement=agent", "algorithm.max_global_step=60000"]
    experiment = load_experiment(path, overrides)
    with contextlib.ExitStack() as stack:
        metrics = NullMetrics()
        server = make_parameter_server(
            experiment, overrides, metrics, lambda: make_initial_values(experiment)
        )
        stack.enter_context(server)
        host = make_agent_host(experiment, lambda client: InProcessClient(server, client))
        stack.callback(host.close)
        rlx = make_rlx_server(experiment.rlx_server, host, metrics)
        yield stack.enter_context(ServerThread(rlx, "127.0.0.1", 0)).port


def test_it_is_learned_from(name: str, start: Start, tmp_path: Path) -> None:
    language = LANGUAGES[name]
    target, slots = language.target, language.slots
    with serve_learner(tmp_path, target, CARTPOLE if language.plays_cartpole else WALK) as port:
        flags = ("--rlx-server", f"localhost:{port}", *slots)
        processes = [start(name, *flags) for _ in range(1 if slots else 4)]
        ended = [finish(process, 100) for process in processes]
    for code, out, err in ended:
        assert (code, err) == (0, "")
        assert f"of the last 100 episodes reached the target {target:g}" in out
