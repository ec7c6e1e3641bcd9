"""The wheel, and the checkout without any installation. covers R17

What stands beside the package (`algorithms/`, `environments/`) is inside it in the wheel.
"""

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import google.protobuf
import gymnasium
import numpy
import pytest
from support.cluster import ROOT, Cluster

sys.path.append(str(ROOT / "deploy"))

from check_images import copy_build_context

ENVIRONMENTS = ("OpenAI_Gym", "bandit", "memory")
PROGRAMS = (
    *ENVIRONMENTS,
    "c",
    "csharp",
    "javascript",
    "browser",
    "godot3",
    "godot4",
    "lua",
    "shell",
)
ALGORITHMS = ("policy_gradient", "policy_gradient_tutorial")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout without what was built or written in it."""
    copy = tmp_path_factory.mktemp("copy") / "relaax_like-checkout"
    copy_build_context(copy)
    return copy


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    argv = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    done = subprocess.run(
        [*argv, "--wheel-dir", out, checkout], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    (file,) = out.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def venv(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and nothing else, not even its libraries."""
    venv = tmp_path_factory.mktemp("target") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=60)
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python")]
    done = subprocess.run(
        [*pip, "install", "--no-deps", "--no-index", "--quiet", wheel],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    return venv


@pytest.fixture(scope="module")
def target(venv: Path) -> Path:
    """The folder that the wheel is installed into."""
    (packages,) = venv.glob("lib/python*/site-packages")
    return packages


def run_python(
    argv: list[str], path: Path, cwd: Path, **env: str
) -> subprocess.CompletedProcess[str]:
    """Runs Python with a folder before everything else that is installed."""
    return subprocess.run(
        [sys.executable, *argv],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(path), "COLUMNS": "100", **env},
        timeout=60,
    )


def test_the_wheel_has_all_that_is_used_at_run_time(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = {entry.filename: entry for entry in archive.infolist()}
    for name in PROGRAMS:
        main = files[f"relaax_like/environments/{name}/main"]
        assert main.external_attr >> 16 & 0o111, f"{main.filename} is not executable"
    for name in ALGORITHMS:
        folder = f"relaax_like/algorithms/{name}/"
        inside = {file.removeprefix(folder) for file in files if file.startswith(folder)}
        assert {"config.py", "model.py", "agent.py", "policy_gradient.yaml"} <= inside
    assert "relaax_like/algorithms/policy_gradient_tutorial/pg.Procfile" in files
    assert "relaax_like/environments/OpenAI_Gym/gym_client.py" in files
    for name in ("rlx_wire.c", "rlx_wire.h", "rlx.c", "rlx.h", "rlx_more.c", "rlx.hpp"):
        assert f"relaax_like/environments/c/{name}" in files
    assert "relaax_like/environments/javascript/rlx.js" in files
    for name in ("javascript/rlx.js", "templates/python/main", "browser/index.html"):
        assert f"relaax_like/environments/{name}" in files
    assert "relaax_like/client_checks/checks.txt" in files
    assert "relaax_like/py.typed" in files
    assert "relaax_like/v1/rlx_pb2.pyi" in files


def test_the_wheel_has_every_module_of_the_checkout_and_nothing_else(
    wheel: Path, checkout: Path
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if ".dist-info/" not in name}
    wanted = {
        path.relative_to(checkout).as_posix() for path in checkout.glob("relaax_like/**/*.py")
    }
    for root in ("algorithms", "environments"):
        files = [path for path in checkout.glob(f"{root}/**/*") if path.is_file()]
        wanted |= {f"relaax_like/{path.relative_to(checkout).as_posix()}" for path in files}
    assert wanted - shipped == set()
    # Top level: no `algorithms`, `tests` or `benchmarks` of ours in anybody's site-packages.
    assert {name.split("/")[0] for name in shipped} == {"relaax_like"}


def test_the_base_install_is_the_client_core(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        lines = archive.read(name).decode().splitlines()
    requires = [line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist")]
    base = [re.match(r"[\w.-]+", text) for text in requires if "extra ==" not in text]
    assert sorted(match[0] for match in base if match) == ["numpy", "protobuf"]


RESOLVES = """
import sys
from pathlib import Path
import relaax_like
from relaax_like.config.algorithm_folder import find_algorithm, find_environment
from relaax_like.config.loader import load_experiment
root = Path(sys.argv[1])
assert Path(relaax_like.__file__).is_relative_to(root), relaax_like.__file__
for name in sys.argv[2].split(","):
    folder = find_algorithm(name)
    assert folder.is_relative_to(root), folder
    experiment = load_experiment(folder / "policy_gradient.yaml")
    assert experiment.algorithm_folder == folder
    assert experiment.environment_program.is_relative_to(root), experiment.environment_program
for name in sys.argv[3].split(","):
    assert find_environment(name).is_relative_to(root), find_environment(name)
"""


@pytest.mark.parametrize("place", ["target", "checkout"])
def test_algorithms_and_environments_are_found_where_the_package_is(
    place: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    root: Path = request.getfixturevalue(place)
    arguments = [str(root.resolve()), ",".join(ALGORITHMS), ",".join(PROGRAMS)]
    done = run_python(["-c", RESOLVES, *arguments], root, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


COMMANDS = ("main", "servers parameter_server", "servers rlx_server", "servers metrics_server")


@pytest.mark.parametrize("place", ["target", "checkout"])
def test_each_command_starts_from_an_empty_folder(
    place: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    root: Path = request.getfixturevalue(place)
    for name in COMMANDS:
        arguments = f"-m relaax_like.cli.{name} --help".split()
        done = run_python(arguments, root, tmp_path)
        assert (done.returncode, done.stderr) == (0, ""), name
        assert "Usage" in done.stdout


@pytest.mark.parametrize("place", ["target", "checkout"])
def test_the_environments_programs_start_by_themselves(
    place: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    root: Path = request.getfixturevalue(place)
    folder = root / "relaax_like" / "environments" if place == "target" else root / "environments"
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    for name in ENVIRONMENTS:
        program = folder / name / "main"
        done = subprocess.run(
            [program, "--help"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={"PATH": path, "PYTHONPATH": str(root)},
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, ""), name
        assert "--rlx-server" in done.stdout


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A Python, and a folder with numpy and protobuf and nothing else: the base install's needs."""
    folder = tmp_path_factory.mktemp("base")
    venv, site = folder / "venv", folder / "site"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=60)
    site.mkdir()
    for package in (Path(numpy.__file__).parent, Path(google.protobuf.__file__).parents[1]):
        (site / package.name).symlink_to(package)
        for libraries in package.parent.glob(f"{package.name}.libs"):
            (site / libraries.name).symlink_to(libraries)
    return venv / "bin" / "python", site


def test_a_program_of_the_checkout_finds_the_library_beside_it(
    checkout: Path, base: tuple[Path, Path], tmp_path: Path
) -> None:
    python, site = base
    done = subprocess.run(
        [python, checkout / "environments" / "bandit" / "main", "--help"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(site)},
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "--rlx-server" in done.stdout


def test_what_the_base_install_lacks_is_one_line(
    target: Path, base: tuple[Path, Path], tmp_path: Path
) -> None:
    python, site = base
    gym = target / "relaax_like" / "environments" / "OpenAI_Gym" / "main"
    for argv, want in (
        (["-c", "from relaax_like.cli.entry import relaax as run; run()"], "[server]'"),
        (["-c", "from relaax_like.cli.entry import rlx_server as run; run()"], "[server]'"),
        ([gym, "--env", "CartPole-v1"], "gymnasium is not installed for .*relaax_like[envs]'"),
    ):
        done = subprocess.run(
            [python, *argv],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={"PYTHONPATH": f"{target}:{site}"},
            timeout=60,
        )
        assert (done.returncode, done.stdout) == (2, ""), done
        (line,) = done.stderr.splitlines()
        assert re.search(re.escape(want).replace(r"\.\*", ".*"), line), line
        assert "; install it: pip install 'relaax_like[" in line


RELAAX = "from relaax_like.cli.entry import relaax as run; run()"


@pytest.fixture(scope="module")
def beside_a_simulator(target: Path, base: tuple[Path, Path]) -> tuple[Path, str]:
    """A Python and its PYTHONPATH, with the base install and Gymnasium."""
    python, site = base
    installed = Path(gymnasium.__file__).parents[1]
    for name in ("gymnasium", "cloudpickle", "farama_notifications", "typing_extensions.py"):
        (site / name).symlink_to(installed / name)
    return python, f"{target}:{site}"


@pytest.mark.parametrize(
    ("arguments", "status", "want"),
    [
        ("--version", 0, r"^\d"),
        ("--help", 0, r"usage: relaax(.|\n)*gym(.|\n)*\[server\]"),
        ("doctor", 0, r"ok    numpy(.|\n)*note  servers: .*\[server\]'\nok    gymnasium"),
        ("examples", 0, "ppo +CartPole-v1 with ppo"),
        ("examples --copy copied", 0, "environments, from"),
        ("examples --copy .", 2, "error: .*nothing is overwritten"),
        ("gym --help", 0, "--rlx-server"),
        ("train ppo", 2, r"error: relaax train: .* is not installed for .*\[server\]'$"),
        ("", 2, r"error: relaax: .* is not installed for .*\[server\]'$"),
    ],
)
def test_commands_beside_a_simulator_need_no_libraries_of_the_servers(
    beside_a_simulator: tuple[Path, str],
    arguments: str,
    status: int,
    want: str,
    tmp_path: Path,
) -> None:
    python, path = beside_a_simulator
    (tmp_path / "algorithms").mkdir()
    done = subprocess.run(
        [python, "-c", RELAAX, *arguments.split()],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": path},
        timeout=60,
    )
    assert done.returncode == status, done
    assert re.search(want, done.stdout + done.stderr), done


def test_gym_plays_beside_a_simulator(beside_a_simulator: tuple[Path, str], tmp_path: Path) -> None:
    python, path = beside_a_simulator
    (tmp_path / "run").mkdir()
    with Cluster(tmp_path / "run") as cluster:
        cluster.start_both_servers()
        flags = ["--rlx-server", f"localhost:{cluster.rlx_port}", "--episodes", 3]
        argv = [python, "-c", RELAAX, "gym", "--env", "CartPole-v1", *flags]
        client = cluster.start("gym", argv, PYTHONPATH=path)
        assert client.wait() == 0, client
        assert "3 episodes" in client.lines[-1]


@pytest.mark.parametrize("call", ["load('runs/one')", "train('ppo')"])
def test_python_calls_without_the_servers_libraries_end_with_the_cure(
    beside_a_simulator: tuple[Path, str], call: str, tmp_path: Path
) -> None:
    python, path = beside_a_simulator
    done = subprocess.run(
        [python, "-c", f"import relaax_like; relaax_like.{call}"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": path},
        timeout=60,
    )
    *_, line = done.stderr.splitlines()
    assert re.fullmatch(r"relaax_like\.\S*ConfigError: .* is not installed.*\[server\]'", line)
    assert "ModuleNotFoundError" not in done.stderr


def test_an_installed_wheel_is_a_complete_product(venv: Path, target: Path, tmp_path: Path) -> None:
    """The wheel in an environment of its own, its libraries being those that are here."""
    packages, day = target, tmp_path / "day"
    # Behind the wheel's own; the editable install's finder is not among them.
    for number, path in enumerate(sorted({sysconfig.get_path(n) for n in ("purelib", "platlib")})):
        (packages / f"here-{number}.pth").write_text(f"{path}\n")
    day.mkdir()

    def run(command: str) -> str:
        done = subprocess.run(
            command.split(),
            capture_output=True,
            text=True,
            cwd=day,
            # The kernels need not be compiled for these few steps.
            env={"PATH": f"{venv / 'bin'}:/usr/bin:/bin", "NUMBA_DISABLE_JIT": "1"},
            timeout=100,
        )
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done
        return done.stdout

    assert str(packages / "relaax_like" / "algorithms") in run("relaax examples --copy here")
    text = run("relaax train a2c --max-global-step 256")
    assert "finished: budget of 256 env steps used up" in text
    assert "2 greedy episodes" in run("relaax eval a2c --episodes 2")
    assert "--rlx-server" in run("relaax gym --help")
