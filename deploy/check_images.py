"""Builds and runs both images without a Docker daemon: `make images`.

Makes a base image of Debian packages (`mmdebstrap`), which stands for the one that the Dockerfiles
name, builds each Dockerfile of this folder with `buildah`, and starts what the images start: the
parameter server, the rlx server as docker-compose.yml does, and an environment that trains against
them; with a display, too. Everything is in a temporary folder of about 6 GB. Takes some minutes, as
root, and the network for packages.

What this does not prove: buildah's chroot isolation has the host's network and process numbers, so
published ports, Compose's network and restarts are not tried.
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
# Debian's release with the Python of the Dockerfiles.
SUITE = "bookworm"
ISOLATION = ("--isolation", "chroot")
# Of the host, which can trust an authority of its own.
CERTIFICATES = ("--volume", "/etc/ssl/certs:/etc/ssl/certs:ro")


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


class Buildah:
    """The command `buildah`, with images and containers in a folder of its own.

    Args:
      folder: for all that it keeps.
    """

    def __init__(self, folder: Path):
        self._argv = ["buildah", "--root", f"{folder / 'images'}", "--runroot", f"{folder / 'run'}"]

    def command(self, *arguments: str) -> list[str]:
        """Returns the command with its folders."""
        return [*self._argv, *arguments]

    def call(self, *arguments: str, timeout_sec: float = 900.0) -> str:
        """Runs it to its end, and returns its standard output.

        Raises:
          CheckError: it fails.
        """
        say("$ buildah " + shlex.join(arguments))
        started = time.monotonic()
        done = subprocess.run(
            self.command(*arguments), stdout=subprocess.PIPE, text=True, timeout=timeout_sec
        )
        if done.returncode:
            raise CheckError(f"status {done.returncode} of: buildah {shlex.join(arguments)}")
        say(f"took {time.monotonic() - started:.0f} s")
        return done.stdout.strip()


class Image:
    """What a Dockerfile builds, and a container of it.

    Attributes:
      dockerfile: what it was built from.
    """

    def __init__(self, buildah: Buildah, dockerfile: Dockerfile):
        self.dockerfile = dockerfile
        self._buildah = buildah
        self._container = ""

    def build(self, run_timeout_sec: float) -> None:
        """Builds the image and makes the container.

        Raises:
          CheckError: it fails or takes too long.
        """
        file = ROOT / "deploy" / self.dockerfile.name
        name = f"relaax_like/{file.stem}"
        flags = ["--pull=never", *ISOLATION, *CERTIFICATES, "--file", f"{file}", "--tag", name]
        self._buildah.call("bud", *flags, f"{ROOT}", timeout_sec=run_timeout_sec)
        self._container = self._buildah.call("from", "--pull=never", name)

    @contextmanager
    def start(self, argv: list[str], **env: str) -> Iterator[subprocess.Popen[bytes]]:
        """Runs a command in the container, and ends it with all that it has started."""
        say("$ " + shlex.join(argv))
        settings = [f"--env={name}={value}" for name, value in env.items()]
        command = ["run", *ISOLATION, *settings, self._container, "--", *argv]
        process = subprocess.Popen(self._buildah.command(*command), start_new_session=True)
        try:
            yield process
        finally:
            _end(process)

    def has(self, test: str) -> bool:
        """Tells whether a shell command succeeds in the container."""
        command = ["run", *ISOLATION, self._container, "--", "sh", "-c", test]
        done = subprocess.run(self._buildah.command(*command), stderr=subprocess.DEVNULL)
        return done.returncode == 0


def make_base(buildah: Buildah, name: str, folder: Path) -> None:
    """Makes the image that the Dockerfiles start from, of Debian's packages.

    Args:
      buildah: that keeps it.
      name: of the image, as in FROM.
      folder: for the archive.
    """
    archive = folder / "base.tar"
    packages = "ca-certificates,python3,python3-pip,python3-venv"
    sources = sorted(Path("/etc/apt/sources.list.d").glob("debian.sources"))
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={packages}", SUITE]
    say("$ " + shlex.join([*command, archive.name]))
    subprocess.run([*command, archive, *sources], check=True, timeout=900)
    container = buildah.call("from", "scratch")
    buildah.call("add", container, f"{archive}")
    archive.unlink()
    # As in the image that it stands for: `python` and `pip` need no environment of their own.
    prepare = "ln -s python3 /usr/bin/python && rm -f /usr/lib/python3*/EXTERNALLY-MANAGED"
    buildah.call("run", *ISOLATION, container, "--", "sh", "-c", prepare)
    buildah.call("commit", "--quiet", container, f"docker.io/library/{name}")
    buildah.call("rm", container)


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


def check_server_and_environment(server: Image, gym: Image) -> None:
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
    parser.add_argument("--run-timeout", type=float, default=1800.0, help="seconds per image")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="relaax-images-") as folder:
        try:
            _check(Path(folder), options.run_timeout)
        except (CheckError, subprocess.SubprocessError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    say("both images were built, and train together")
    return 0


def _check(folder: Path, run_timeout_sec: float) -> None:
    missing = [name for name in ("buildah", "mmdebstrap") if shutil.which(name) is None]
    if missing:
        raise CheckError(f"not installed: apt-get install {' '.join(missing)}")
    if os.geteuid() != 0:
        raise CheckError("chroot isolation needs root")
    buildah = Buildah(folder)
    files = [read_dockerfile(ROOT / "deploy" / f"{name}.Dockerfile") for name in ("server", "gym")]
    (base,) = {name for file in files for name in file.get("FROM")}
    make_base(buildah, base, folder)
    server, gym = images = [Image(buildah, file) for file in files]
    for image in images:
        image.build(run_timeout_sec)
    if gym.has("python -c 'import tensorflow'"):
        raise CheckError("gym.Dockerfile: an environment's image needs no TensorFlow")
    if _accepts(VNC_PORT):
        raise CheckError(f"port {VNC_PORT} is in use, expected a free one for the display")
    check_server_and_environment(server, gym)
    if not server.has("ls runs/cartpole-a2c/checkpoints/* >/dev/null"):
        raise CheckError("the parameter server has written no snapshot")
    buildah.call("rm", "--all")


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
