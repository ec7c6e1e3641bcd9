"""A newcomer's first day, from a wheel: `make newcomer [PYTHON=python3.13]`.

Builds the wheel, makes a fresh environment with it and its extra `all`, and runs in an empty folder
what README.md tells under "Installed", as it stands there. Then trains and evaluates an environment
of your own, whose observations are a Dict; and plays for servers from an environment with only the
base install and Gymnasium. Says what it does, and fails loudly. Needs nothing but the standard
library, and a network for the libraries; takes some minutes.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# All that a wheel is made from.
SOURCES = ("pyproject.toml", "setup.py", "README.md", "relaax_like", "algorithms", "environments")
INSTALL = "pip install '.[all]'"
LIMIT_SEC = 1800.0

OWN_ENVIRONMENT = '''\
"""The right action is 1 where two numbers have one sign, and 0 elsewhere."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Signs(gym.Env):
    observation_space = spaces.Dict(
        {"left": spaces.Box(-1, 1, (1,)), "arm": spaces.Dict({"right": spaces.Box(-1, 1, (2,))})}
    )
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.draw(), {}

    def step(self, action):
        reward = float(action == self.right)
        self.steps += 1
        return self.draw(), reward, False, self.steps == 10, {}

    def draw(self):
        numbers = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        self.right = int((numbers[0] > 0) == (numbers[1] > 0))
        return {"left": numbers[:1], "arm": {"right": numbers[1:]}}


gym.register("Signs-v0", Signs)
'''
OWN_EXPERIMENT = """\
run_dir: runs/signs
learner: {target_return: 9, target_episodes: 50}
algorithm:
  name: ppo
  observations: {left: {size: 1}, arm/right: {size: 2, layers: [16]}}
  num_actions: 2
  network: {layers: [32]}
  num_steps: 512
  rollout_steps: 64
  batch_size: 128
  epochs: 6
  learning_rate: 3e-3
  critic_learning_rate: 3e-3
  entropy_coefficient: 0.05
  gamma: 0.5
  max_global_step: 200_000
environment: {program: OpenAI_Gym, env: "signs:Signs-v0", slots: 8}
"""


SERVERS = ("relaax-parameter-server", "relaax-rlx-server")
BUDGET = "-c ppo --set algorithm.max_global_step=20000 --set run_dir=runs/remote"


class NewcomerError(Exception):
    """Something did not go as the README says."""


def main() -> int:
    """Lives through the day; returns the exit status."""
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="newcomer-") as folder:
            live(Path(folder))
    except NewcomerError as error:
        print(f"\nFAILED: {error}", flush=True)
        return 1
    print(f"\nA newcomer's day went well: {time.monotonic() - began:.0f} s.", flush=True)
    return 0


def live(folder: Path) -> None:
    """Does all of it in an empty folder."""
    print(f"Python {sys.version.split()[0]}, in {folder}", flush=True)
    wheel = build_wheel(folder / "build")
    day = Day(folder / "day", folder / "venv")
    install, *commands = read_commands()
    if install != INSTALL:
        raise NewcomerError(f'README "Installed" begins with {install!r}, expected {INSTALL!r}')
    print(f"\n({install} of the README is: the wheel instead of the checkout)")
    day.run(f"pip install --quiet '{wheel}[all]'")
    for command in commands:
        day.run(command)
    day.run(commands[-1], status=2)  # nothing is overwritten
    day.run("relaax doctor")
    day.write("signs.py", OWN_ENVIRONMENT)
    day.write("signs.yaml", OWN_EXPERIMENT)
    day.run("relaax train signs.yaml")
    *_, line = day.run("relaax eval signs.yaml --episodes 50 --json")
    mean = json.loads(line)["mean"]
    if mean < 8.5:
        raise NewcomerError(f"the own environment was not learned: a mean return of {mean}")
    play_for_servers_elsewhere(folder, wheel, day)


def play_for_servers_elsewhere(folder: Path, wheel: Path, day: "Day") -> None:
    """Trains from an environment that has no library of the servers."""
    simulator = Day(folder / "simulator", folder / "simulator-venv")
    simulator.run(f"pip install --quiet '{wheel}' gymnasium")
    for command in ("--version", "--help", "doctor", "examples"):
        simulator.run(f"relaax {command}")
    with contextlib.ExitStack() as stack:
        for server in SERVERS:
            stack.enter_context(day.start(f"{server} {BUDGET}"))
        *_, line = simulator.run("relaax gym --env CartPole-v1 --num-envs 8 --quiet")
    if "budget of 20000 env steps" not in line:
        raise NewcomerError(f"the client ended with {line!r}")


def build_wheel(folder: Path) -> Path:
    """Builds the wheel from a copy of the checkout's sources, which no earlier build is in."""
    source = folder / "source"
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        source.mkdir(parents=True, exist_ok=True)
        copy(ROOT / name, source / name)
    argv = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    for _ in stream([*argv, "--wheel-dir", str(folder), str(source)], folder, dict(os.environ)):
        pass
    (wheel,) = folder.glob("*.whl")
    print(f"built {wheel.name}", flush=True)
    return wheel


def read_commands() -> list[str]:
    """Returns the commands of the README's section "Installed", the indented lines."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = re.search(r"^## Installed$(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    if section is None:
        raise NewcomerError('README.md has no section "Installed"')
    return re.findall(r"^    (\S.*)$", section[1], re.MULTILINE)


class Day:
    """An empty folder, and a fresh environment that is active in it."""

    def __init__(self, folder: Path, venv: Path):
        folder.mkdir()
        self._folder = folder
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        kept = ("HOME", "LANG", "TMPDIR", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
        self._env = {
            **{key: value for key, value in os.environ.items() if key in kept},
            **{key: value for key, value in os.environ.items() if key.startswith("PIP_")},
            "PATH": f"{venv / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "PYTHONUNBUFFERED": "1",
        }

    def write(self, name: str, text: str) -> None:
        """Writes a file, and says so."""
        print(f"\n(writes {name})", flush=True)
        (self._folder / name).write_text(text, encoding="utf-8")

    @contextlib.contextmanager
    def start(self, command: str) -> Iterator[None]:
        """Runs a command until the end of the block."""
        print(f"\n$ {command} &", flush=True)
        argv = ["timeout", str(LIMIT_SEC), *command.split()]
        with subprocess.Popen(argv, cwd=self._folder, env=self._env) as process:
            try:
                yield
            finally:
                process.terminate()

    def run(self, command: str, status: int = 0) -> list[str]:
        """Runs a command in a shell, shows what it prints, and returns the lines.

        Raises:
          NewcomerError: it ends with another status, or prints a stack trace.
        """
        print(f"\n$ {command}", flush=True)
        began = time.monotonic()
        lines = []
        for line in stream(["bash", "-c", command], self._folder, self._env, status):
            print(f"    {line}", flush=True)
            lines.append(line)
            if line.startswith("Traceback"):
                raise NewcomerError(f"{command}: a stack trace")
        print(f"  ({time.monotonic() - began:.1f} s, exit status {status})", flush=True)
        return lines


def stream(argv: list[str], cwd: Path, env: dict[str, str], status: int = 0) -> Iterator[str]:
    """Yields what a command prints, line by line.

    Raises:
      NewcomerError: it ends with another status.
    """
    with subprocess.Popen(
        ["timeout", str(LIMIT_SEC), *argv],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield line.rstrip("\n")
    if process.returncode != status:
        raise NewcomerError(
            f"{' '.join(argv)}: exit status {process.returncode}, expected {status}"
        )


if __name__ == "__main__":
    sys.exit(main())
