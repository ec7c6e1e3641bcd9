"""`honcho start` on our Procfiles, TensorFlow and TensorBoard included. covers R17, R19, R30, R33

The copies that are started differ from the real ones in ports and the budget only, which `--set`
changes.
"""

import re
import shlex
import signal
from pathlib import Path

import pytest
from support.cluster import (
    GYM_MAIN,
    ROOT,
    TRACE,
    Processes,
    Program,
    accepts,
    find_command,
    find_free_port,
    wait_until,
)

from relaax_like.config.loader import load_experiment
from relaax_like.config.models import Experiment
from relaax_like.parameter_server.snapshots import read_latest

CARTPOLE = ROOT / "Procfile"
TUTORIAL = ROOT / "algorithms" / "policy_gradient_tutorial" / "pg.Procfile"


def read_procfile(path: Path) -> dict[str, list[str]]:
    lines = [line.partition(":") for line in path.read_text().splitlines() if line.strip()]
    return {name: shlex.split(command) for name, _, command in lines}


def find_config(commands: dict[str, list[str]]) -> str:
    (config,) = {
        argv[argv.index("--config") + 1] for argv in commands.values() if "--config" in argv
    }
    return config


@pytest.mark.parametrize("path", [CARTPOLE, TUTORIAL], ids=lambda path: path.name)
def test_it_names_what_exists_and_what_belongs_together(path: Path) -> None:
    commands = read_procfile(path)
    config = find_config(commands)
    experiment = load_experiment(ROOT / config if (ROOT / config).exists() else config)
    for argv in commands.values():
        if "/" in argv[0]:
            assert (ROOT / argv[0]).stat().st_mode & 0o111, f"{argv[0]} is not executable"
        else:
            find_command(argv[0])
    assert commands["ps"][0] == "relaax-parameter-server"
    assert commands["rlx"][0] == "relaax-rlx-server"
    # Where TensorBoard looks is where the curves are written.
    assert commands["tb"] == [
        "tensorboard",
        "--logdir",
        str(experiment.parameter_server.metrics_dir),
    ]
    clients = [argv for name, argv in commands.items() if name.startswith("env")]
    for argv in clients:
        assert argv[argv.index("--rlx-server") + 1] == str(experiment.rlx_server.bind)
        assert experiment.environment is not None
        assert argv[argv.index("--env") + 1] == experiment.environment.env
    assert len(clients) == (2 if path == CARTPOLE else 0)  # the tutorial's are started by hand


class Copy:
    """A copy of a Procfile, with other ports and a small budget."""

    def __init__(self, path: Path, folder: Path, budget: int):
        self.rlx_port = find_free_port()
        self.tensorboard_port = find_free_port()
        parameter_server = f"localhost:{find_free_port()}"
        self.procfile = folder / "Copy.Procfile"
        name = find_config(read_procfile(path))
        self.config = ROOT / name if (ROOT / name).exists() else name
        self.overrides = [
            f"relaax-parameter-server.bind={parameter_server}",
            f"relaax-rlx-server.bind={self.rlx_address}",
            f"relaax-rlx-server.parameter_server={parameter_server}",
            f"algorithm.max_global_step={budget}",
            "learner.target_return=1000",
        ]
        # From another folder, the file of the checkout's root has its whole path.
        text = path.read_text().replace(f"--config {name}", f"--config {self.config}")
        text = text.replace("localhost:7001", self.rlx_address)
        text = text.replace(" environments/OpenAI_Gym/main", f" {GYM_MAIN}")
        servers = " ".join(f"--set {override}" for override in self.overrides)
        for pattern, flags in (
            ("(ps|rlx): .*", servers),
            ("tb: .*", f"--port {self.tensorboard_port}"),
        ):
            text = re.sub(f"^{pattern}$", rf"\g<0> {flags}", text, flags=re.MULTILINE)
        self.procfile.write_text(text)

    def load(self) -> Experiment:
        """Its settings."""
        return load_experiment(self.config, self.overrides)

    @property
    def rlx_address(self) -> str:
        """Where its rlx server will be."""
        return f"localhost:{self.rlx_port}"


def start_honcho(processes: Processes, copy: Copy) -> Program:
    path = f"{Path(find_command('relaax')).parent}:/usr/bin:/bin"
    command = [find_command("honcho"), "start", "-f", copy.procfile]
    # As users start it: it compiles all that it needs.
    folders = {"XDG_CACHE_HOME": str(copy.procfile.parent)}
    return processes.start("honcho", command, PATH=path, TF_XLA_FLAGS="", XLA_FLAGS="", **folders)


def assert_ended_well(honcho: Program, copy: Copy, folder: Path) -> None:
    # Honcho ends the others with SIGTERM and kills what needs longer than five seconds.
    assert "SIGKILL" not in honcho.output
    assert_finished(honcho, copy, folder)


def assert_finished(honcho: Program, copy: Copy, folder: Path) -> None:
    honcho.wait_for("ps.* finished: budget of 300 env steps used up")
    honcho.wait_for("ps.* snapshots +")
    assert TRACE not in honcho.output
    experiment = copy.load()
    state = read_latest(folder / experiment.parameter_server.checkpoint_dir)
    assert state is not None
    assert state.global_t >= 300
    assert list((folder / experiment.parameter_server.metrics_dir).rglob("events.*"))


def test_make_run_s_procfile_trains_and_ends_by_itself(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        copy = Copy(CARTPOLE, tmp_path, budget=300)
        honcho = start_honcho(processes, copy)
        assert honcho.wait(100) == 0, honcho
        assert_ended_well(honcho, copy, tmp_path)
        for client in ("env[12]",):
            assert re.search(rf"{client}.*CartPole-v1: ", honcho.output)
        processes.assert_nothing_left()

        # Once more: it says that nothing is left to do, and ends while the others still load.
        again = start_honcho(processes, copy)
        assert again.wait(100) == 0, again
        again.wait_for("has already finished")
        # Who is in the middle of loading a library hears of a signal when that is loaded: on a busy
        # machine honcho does not wait for so long.
        assert_finished(again, copy, tmp_path)
        processes.assert_nothing_left()


def test_the_tutorial_s_procfile_and_its_two_clients_from_another_folder(tmp_path: Path) -> None:
    assert not Path(find_config(read_procfile(TUTORIAL))).suffix  # a name, which any folder finds
    with Processes(tmp_path) as processes:
        copy = Copy(TUTORIAL, tmp_path, budget=300)
        honcho = start_honcho(processes, copy)
        flags = f"--rlx-server {copy.rlx_address} --env CartPole-v0 --rnd 0 --limit 800".split()
        wait_until(lambda: accepts(copy.tensorboard_port), honcho)
        honcho.wait_for("rlx.* waiting for environments")
        clients = [processes.start("client", [GYM_MAIN, *flags]) for _ in range(2)]
        for client in clients:
            assert client.wait(100) == 0
        assert honcho.wait(100) == 0, honcho
        assert_ended_well(honcho, copy, tmp_path)
        processes.assert_nothing_left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_ctrl_c_at_any_moment_ends_honcho_without_a_kill(
    tmp_path: Path, number: signal.Signals
) -> None:
    with Processes(tmp_path) as processes:
        honcho = start_honcho(processes, Copy(CARTPOLE, tmp_path, budget=10**9))
        # In the middle of loading TensorFlow, or while it learns.
        early = number == signal.SIGTERM
        honcho.wait_for("building the initial values" if early else "ps.*step [1-9]")
        honcho.send(number)
        honcho.wait(100)
        assert "SIGKILL" not in honcho.output, honcho
        assert TRACE not in honcho.output, honcho
        processes.assert_nothing_left()
