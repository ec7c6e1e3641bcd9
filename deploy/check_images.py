"""Proves without Docker that the images work: `python deploy/check_images.py`.

Reads each Dockerfile of this folder, executes its RUN lines (but those of apt-get, which need root)
in a fresh virtual environment and a copy of the checkout, then starts what the images start: the
parameter server, the rlx server as docker-compose.yml does, and an environment that trains against
them; with a display, too, where Xvfb and x11vnc are installed. Takes some minutes: TensorFlow is
installed again.
"""

import argparse
import fnmatch
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
# Of environment steps: some seconds at full speed, more with a display.
BUDGET = 3000
START_SEC = 120.0
END_SEC = 120.0
VNC_PORT = 5900


class CheckError(Exception):
    """An image would not work."""


@dataclass(frozen=True)
class Dockerfile:
    """The instructions of one Dockerfile, in order: (name, the rest of the line)."""

    name: str
    instructions: tuple[tuple[str, str], ...]

    def get(self, instruction: str) -> list[str]:
        """Returns what stands behind an instruction, once for each time that it occurs."""
        return [rest for name, rest in self.instructions if name == instruction]

    def start_command(self, *arguments: str) -> list[str]:
        """Returns what `docker run IMAGE ARGUMENTS` starts: they replace CMD, never ENTRYPOINT."""
        entrypoint = [part for text in self.get("ENTRYPOINT") for part in _to_argv(text)]
        command = [part for text in self.get("CMD") for part in _to_argv(text)]
        return [*entrypoint, *(arguments or command)]


def read_dockerfile(path: Path) -> Dockerfile:
    """Reads instructions; comments are left out and continued lines joined."""
    text = "\n".join(x for x in path.read_text().splitlines() if not x.lstrip().startswith("#"))
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    parts = [line.partition(" ") for line in lines]
    return Dockerfile(path.name, tuple((name.upper(), rest.strip()) for name, _, rest in parts))


def _to_argv(text: str) -> list[str]:
    return list(json.loads(text)) if text.startswith("[") else ["/bin/sh", "-c", text]


class Image:
    """What a Dockerfile builds, as a folder with a copy of the checkout and an environment.

    Attributes:
      dockerfile: what it was built from.
      copy: the checkout as COPY sees it; where commands are started.
    """

    def __init__(self, dockerfile: Dockerfile, folder: Path):
        self.dockerfile = dockerfile
        self.copy = folder / "checkout"
        self._venv = folder / "venv"

    def build(self, run_timeout_sec: float) -> None:
        """Executes the RUN lines.

        Raises:
          CheckError: one fails or takes too long.
        """
        if self.dockerfile.get("COPY") != [". ."]:
            raise CheckError(f"{self.dockerfile.name}: only `COPY . .` is understood here")
        copy_build_context(self.copy)
        subprocess.run([sys.executable, "-m", "venv", self._venv], check=True)
        for line in self.dockerfile.get("RUN"):
            if "apt-get" in line:
                say(f"{self.dockerfile.name}: not executed: {line}")
                continue
            say(f"{self.dockerfile.name}: {line}")
            started = time.monotonic()
            done = subprocess.run(
                line, shell=True, cwd=self.copy, env=self._env(), timeout=run_timeout_sec
            )
            if done.returncode:
                raise CheckError(f"{self.dockerfile.name}: status {done.returncode} of: {line}")
            say(f"{self.dockerfile.name}: took {time.monotonic() - started:.0f} s")

    @contextmanager
    def start(self, argv: list[str], **env: str) -> Iterator[subprocess.Popen[bytes]]:
        """Runs a command as the image would, and ends it with all that it has started."""
        say("$ " + shlex.join(argv))
        process = subprocess.Popen(
            argv, cwd=self.copy, env={**self._env(), **env}, start_new_session=True
        )
        try:
            yield process
        finally:
            _end(process)

    def has_package(self, name: str) -> bool:
        """Tells whether a distribution is installed in the image."""
        python = self._venv / "bin" / "python"
        code = f"import importlib.metadata as m; m.version({name!r})"
        done = subprocess.run([python, "-c", code], cwd="/", stderr=subprocess.DEVNULL)
        return done.returncode == 0

    def _env(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "PYTHONPATH")}
        return {**kept, "PATH": f"{self._venv / 'bin'}:/usr/local/bin:/usr/bin:/bin"}


def copy_build_context(target: Path) -> None:
    """Copies the checkout but for what .dockerignore names."""
    patterns = (ROOT / ".dockerignore").read_text().split()

    def ignore(folder: str, names: list[str]) -> set[str]:
        here = Path(folder).relative_to(ROOT)
        return {name for name in names if any(_matches(here / name, p) for p in patterns)}

    shutil.copytree(ROOT, target, ignore=ignore, symlinks=True)


def _matches(path: Path, pattern: str) -> bool:
    if pattern.startswith("**/"):
        return fnmatch.fnmatchcase(path.name, pattern.removeprefix("**/"))
    return fnmatch.fnmatchcase(str(path), pattern)


def check_server_and_environment(server: Image, gym: Image, with_display: bool) -> None:
    """Trains a few steps with the images' own start commands.

    Raises:
      CheckError: something does not come up, or does not end.
    """
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    ps_port, rlx_port = _find_free_port(), _find_free_port()
    ps_address, rlx_address = f"127.0.0.1:{ps_port}", f"127.0.0.1:{rlx_port}"
    budget = ["--set", f"algorithm.max_global_step={BUDGET}"]
    # The commands as they stand, on ports of our own: a flag that comes twice counts once.
    ps_argv = [*server.dockerfile.start_command(), "--bind", ps_address, *budget]
    rlx_command = shlex.split(compose["rlx-server"]["command"])
    rlx_argv = [*server.dockerfile.start_command(*rlx_command), "--bind", rlx_address, *budget]
    with (
        server.start(ps_argv) as ps,
        server.start([*rlx_argv, "--parameter-server", ps_address]) as rlx,
    ):
        _wait_port(ps, ps_port)
        _wait_port(rlx, rlx_port)
        if with_display:
            check_display(gym, rlx_address)
        command = gym.dockerfile.start_command(rlx_address, "CartPole-v1")
        with gym.start(command) as client:
            _wait_end(client, "the environment")
        _wait_end(ps, "the parameter server")


def check_display(gym: Image, rlx_address: str) -> None:
    """Starts an environment with `display` and waits for VNC's port.

    Raises:
      CheckError: no VNC server comes up.
    """
    number = next(n for n in range(99, 199) if not Path(f"/tmp/.X11-unix/X{n}").exists())
    command = gym.dockerfile.start_command(rlx_address, "CartPole-v1", "display")
    with gym.start(command, DISPLAY_NUMBER=f":{number}") as client:
        _wait_port(client, VNC_PORT)
        with socket.create_connection(("127.0.0.1", VNC_PORT), timeout=10) as vnc:
            greeting = vnc.recv(12)
        if not greeting.startswith(b"RFB "):
            raise CheckError(f"port {VNC_PORT} answers {greeting!r}, expected a VNC server")
        say(f"VNC answers {greeting!r}")


def main() -> int:
    """Checks all images; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--run-timeout", type=float, default=900.0, help="seconds per RUN line")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="relaax-images-") as folder:
        try:
            _check(Path(folder), options.run_timeout)
        except (CheckError, subprocess.TimeoutExpired) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    say("all images work")
    return 0


def _check(folder: Path, run_timeout_sec: float) -> None:
    images = {}
    for name in ("server", "gym"):
        dockerfile = read_dockerfile(ROOT / "deploy" / f"{name}.Dockerfile")
        images[name] = Image(dockerfile, folder / name)
        images[name].build(run_timeout_sec)
    if images["gym"].has_package("tensorflow"):
        raise CheckError("gym.Dockerfile: an environment's image needs no TensorFlow")
    missing = [name for name in ("Xvfb", "x11vnc") if shutil.which(name) is None]
    if not missing and _accepts(VNC_PORT):
        missing = [f"free port {VNC_PORT}"]
    if missing:
        say(f"no check of the display: no {', no '.join(missing)}")
    check_server_and_environment(images["server"], images["gym"], with_display=not missing)


def say(text: str) -> None:
    """Prints a line of our own among those of the commands."""
    print(f"== {text}", flush=True)


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _wait_port(process: subprocess.Popen[bytes], port: int) -> None:
    what = f"port {port} of {process.args!r}"
    _wait(lambda: _accepts(port) or process.poll() is not None, what, START_SEC)
    if process.poll() is not None:
        raise CheckError(f"status {process.returncode} instead of {what}")


def _wait_end(process: subprocess.Popen[bytes], what: str) -> None:
    _wait(lambda: process.poll() is not None, f"the end of {what}", END_SEC)
    if process.returncode != 0:
        raise CheckError(f"{what} ended with status {process.returncode}, expected 0")


def _wait(condition: Callable[[], bool], what: str, timeout_sec: float) -> None:
    deadline = time.monotonic() + timeout_sec
    while not condition():
        if time.monotonic() > deadline:
            raise CheckError(f"waited {timeout_sec:g} s in vain for {what}")
        time.sleep(0.1)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process as `docker stop` does, and kills what it leaves in its group."""
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


if __name__ == "__main__":
    sys.exit(main())
