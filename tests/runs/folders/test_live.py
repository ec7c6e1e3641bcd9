"""What `relaax train` shows while it trains. covers F21, P23, R24"""

import dataclasses
import errno
import io
import itertools
import json
import logging
import re
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from support.bridge import make_backend
from support.cluster import ROOT, TRACE, Cluster, find_command, wait_until
from support.here import run_here
from support.terminal import Screen, Terminal

from relaax_like.config.loader import load_experiment
from relaax_like.core.records import Episode, Push, Status
from relaax_like.metrics.curves import read_curves
from relaax_like.metrics.recorder import TensorBoardRecorder
from relaax_like.parameter_server.snapshots import read_latest
from relaax_like.runs.folders.live import JsonProgress, NewestScalars, TableProgress
from relaax_like.runs.folders.progress import format_progress, print_summary, watch_progress
from relaax_like.wire.errors import InvalidInputError

QUICK = "relaax-parameter-server.progress_interval_sec=0.1"
STATUS = Status(
    global_t=250_000,
    version=1_200,
    uptime_sec=61.5,
    env_steps_per_sec=5_000.0,
    mean_return=123.456,
    return_episodes=100,
    episodes=2_345,
    snapshot_global_t=240_000,
    snapshot_age_sec=12.3,
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        yield cluster


@pytest.fixture
def newest(tmp_path: Path) -> Iterator[NewestScalars]:
    with TensorBoardRecorder(tmp_path / "metrics") as recorder:
        yield NewestScalars(recorder)


def test_newest_scalars_are_kept_and_recorded(tmp_path: Path, newest: NewestScalars) -> None:
    newest.scalar("b", 1.0, 1)
    newest.scalar("a", 2.0, 1)
    newest.scalar("b", 3.0, 2)
    newest.histogram("h", np.arange(5.0), 2)
    with pytest.raises(InvalidInputError):
        newest.scalar("c", float("nan"))
    assert list(newest.values.items()) == [("b", 3.0), ("a", 2.0)]
    newest._recorder.close()  # type: ignore[attr-defined]
    curves = read_curves(tmp_path / "metrics")
    assert {name: curve.values.tolist() for name, curve in curves.items()} == {
        "a": [2.0],
        "b": [1.0, 3.0],
    }


def draw(cluster: Cluster, newest: NewestScalars, status: Status, *sets: str) -> str:
    experiment = load_experiment(cluster.config, ["algorithm.max_global_step=1000000", *sets])
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    table = TableProgress(experiment, newest, console)
    table.find_mean_length = lambda: 30.0
    console.print(table.make_panel(status))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_table_has_all_numbers(cluster: Cluster, newest: NewestScalars) -> None:
    newest.scalar("Optimizer/KL", 0.012345)
    newest.scalar("Optimizer/[bold]loss", -2.0)
    newest.scalar("Optimizer/learning_rate/actor", 1e-3)
    newest.scalar("Time/Sample Time", 0.3)
    newest.scalar("Time/Optimize Time", 0.1)
    newest.scalar("Time/Timesteps per Second", 5120.0)
    newest.scalar("episode reward", 777.0)
    text = " ".join(draw(cluster, newest, STATUS).replace("│", " ").split())
    for part in (
        "step 250,000 / 1,000,000",
        "ETA 0:02:30",  # 750 000 steps at 5 000 a second
        "steps/s 5,000",
        "mean return 123.46 (last 100)",
        "episode length 30.0",
        "episodes 2,345",
        "version 1,200",
        "snapshot step 240,000, 12 s ago",
        "up 0:01:01",
        "KL 0.01235",
        "[bold]loss -2",
        "sample time 0.300 s, 75 %",
        "optimize time 0.100 s, 25 %",
        "timesteps per second 5,120",
        "learning rate actor 0.001",
    ):
        assert part in text, part
    assert "777" not in text
    assert "refused" not in text


def test_the_table_before_the_first_episode_and_with_a_target(
    cluster: Cluster, newest: NewestScalars
) -> None:
    text = draw(cluster, newest, Status(), "learner.target_return=475")
    for part in ("ETA -", "- of 475", "none"):
        assert part in text
    assert "last 0" not in text
    going = draw(cluster, newest, STATUS, "learner.target_return=475")
    assert "ETA 0:02:30 at most" in going
    assert "123.46 of 475" in going
    for sets in (
        ["learner.max_episodes=1000000"],
        ["learner.eval_freq=10", "learner.target_eval_return=475"],
    ):
        assert "ETA 0:02:30 at most" in draw(cluster, newest, STATUS, *sets)
    troubled = dataclasses.replace(STATUS, refused={"not finite": 3}, snapshot_failures=2)
    text = " ".join(draw(cluster, newest, troubled).split())
    assert "refused 3 x not finite" in text
    assert "failed snapshots 2" in text


def test_where_nothing_is_played_no_episodes_are_shown(newest: NewestScalars) -> None:
    experiment = load_experiment(
        ROOT / "algorithms" / "bc" / "bc.yaml", ["learner.offline=trajectories"]
    )
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    with console.capture() as capture:
        console.print(TableProgress(experiment, newest, console).make_panel(STATUS))
    text = capture.get()
    assert "version" in text
    for row in ("mean return", "episode"):
        assert row not in text


def test_the_line_has_a_mean_return_once_an_episode_has_ended() -> None:
    before = Status(global_t=1200, version=3, env_steps_per_sec=50.4, clients=2)
    assert format_progress(before) == "step 1,200 | 50 steps/s | version 3 | clients 2"
    after = dataclasses.replace(before, mean_return=12.34, return_episodes=7)
    assert format_progress(after) == (
        "step 1,200 | 50 steps/s | mean return 12.3 (last 7) | version 3 | clients 2"
    )
    alone = "step 1,200 | 50 steps/s | mean return 12.3 (last 7) | version 3"
    assert format_progress(after, serves=False) == alone


def test_commands_in_the_summary_can_be_pasted_into_a_shell(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(cluster.folder)
    experiment = load_experiment(cluster.config, ["run_dir=my run"])
    with caplog.at_level(logging.INFO):
        print_summary(experiment, Status())
    for command in (
        "tensorboard --logdir 'my run/metrics'",
        "relaax plot 'my run'",
        "relaax resume 'my run'",
        "relaax eval 'my run/config.yaml'",
    ):
        assert command in caplog.text


def test_the_summary_names_only_commands_that_work(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    alone = dataclasses.replace(
        load_experiment(cluster.config), environment=None, environment_program=None
    )
    with caplog.at_level(logging.INFO):
        print_summary(alone, Status())
    assert "relaax-parameter-server --config" in caplog.text
    assert "relaax resume" not in caplog.text
    assert "relaax eval" not in caplog.text
    caplog.clear()
    program = cluster.folder / "game" / "main"
    with caplog.at_level(logging.INFO):
        print_summary(
            dataclasses.replace(load_experiment(cluster.config), environment_program=program),
            Status(),
        )
    assert "relaax resume" in caplog.text
    assert "relaax eval" not in caplog.text  # it plays in its own process, with slots.py


def test_the_summary_names_the_metrics_server_s_folder(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    experiment = load_experiment(cluster.config, ["relaax-metrics-server.metrics_dir=elsewhere"])
    with caplog.at_level(logging.INFO):
        print_summary(experiment, Status())
    assert re.search(r"tensorboard --logdir (\S*/)?elsewhere$", caplog.text, re.MULTILINE)


def test_nothing_is_shown_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[int] = []
    began: list[int] = []
    shutdown: Any = SimpleNamespace(requested=threading.Event())
    with make_backend() as server:
        server.push(Push(client_id="player", env_steps=100))  # of the run before this one
        looks = itertools.count()

        def wait_finished(timeout_sec: float) -> bool:
            look = next(looks)
            if look == 5:
                assert shown == began == []
                server.push(Push(client_id="player", env_steps=10))
            if look == 10:
                shutdown.requested.set()
            return False

        monkeypatch.setattr(server, "wait_finished", wait_finished)
        watch_progress(
            server,
            shutdown,
            interval_sec=1e-9,
            show=lambda status: shown.append(status.global_t),
            on_first_step=lambda: began.append(server.global_t),
        )
    assert set(shown) == {110}
    assert began == [110]


def test_the_last_point_of_the_returns_is_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutdown: Any = SimpleNamespace(requested=threading.Event())
    with TensorBoardRecorder(tmp_path) as recorder, make_backend(metrics=recorder) as server:
        looks = itertools.count()

        def wait_finished(timeout_sec: float) -> bool:
            if next(looks) == 0:
                server.push(Push(client_id="one", env_steps=10, episodes=(Episode(3.0, 10),)))
                return False
            server.push(Push(client_id="player", env_steps=5))  # of an episode that does not end
            return True

        monkeypatch.setattr(server, "wait_finished", wait_finished)
        watch_progress(server, shutdown, interval_sec=100.0)
    returns = read_curves(tmp_path)["Train/Return"]
    assert returns.steps.tolist() == [10, 15]
    assert returns.values.tolist() == [3.0, 3.0]


def test_only_so_many_curves_fit(cluster: Cluster, newest: NewestScalars) -> None:
    for index in range(20):
        newest.scalar(f"Optimizer/curve {index}", index)
    text = draw(cluster, newest, STATUS)
    assert "curve 13" in text
    assert "curve 14" not in text
    assert "and 6 more" in text


def test_a_budget_for_millions_of_years_has_no_eta(cluster: Cluster, newest: NewestScalars) -> None:
    slow = dataclasses.replace(STATUS, env_steps_per_sec=0.5)
    assert "ETA -" in draw(cluster, newest, slow, "algorithm.max_global_step=1000000000000000000")


def test_a_full_disk_does_not_end_json_progress(
    newest: NewestScalars, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    progress = JsonProgress(1.0, newest)
    for _ in range(3):
        progress.show(STATUS)
    assert caplog.text.count("a line of --log json could not be written") == 1


def test_json_before_the_first_episode(
    newest: NewestScalars, capsys: pytest.CaptureFixture[str]
) -> None:
    JsonProgress(1.0, newest).show(Status())
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["mean_return"] is None
    assert numbers["mean_length"] is None
    assert numbers["scalars"] == {}


def train(cluster: Cluster, *arguments: object, sets: tuple[str, ...]) -> list[object]:
    overrides = [part for text in sets for part in ("--set", text)]
    return [find_command("relaax"), "train", cluster.config, *arguments, *overrides]


def test_json_lines_alone_come_to_standard_output(cluster: Cluster) -> None:
    # With one slot, the last step ends an episode.
    sets = (QUICK, "environment.clients=1", "algorithm.max_global_step=10000")
    program = cluster.start(
        "train",
        [*("sh", "-c", '"$@" 2>log', "sh"), *train(cluster, "--log", "json", sets=sets)],
    )
    assert program.wait() == 0, program
    objects = [json.loads(line) for line in program.lines]
    steps = [numbers["step"] for numbers in objects]
    assert len(objects) > 2
    assert steps == sorted(steps)
    last = objects[-1]
    assert last["finished"] == "budget of 10000 env steps used up"
    assert last["scalars"]["Train/Return"] == last["mean_return"]
    # CartPole's reward is 1 per step, so that a mean length is a mean return.
    assert last["mean_length"] == pytest.approx(last["mean_return"])
    log = (cluster.folder / "log").read_text()
    assert "finished: budget" in log
    assert TRACE not in log

    # What every training records, whatever the algorithm.
    state = read_latest(cluster.folder / "run" / "checkpoints")
    assert state is not None
    curves = read_curves(cluster.folder / "run" / "metrics")
    returns = curves["Train/Return"]
    assert returns.steps[-1] == state.global_t == last["step"]
    assert returns.values[-1] == pytest.approx(state.statistics["mean_return"])
    assert curves["Train/Episodes"].values[-1] == state.statistics["episodes"]
    assert curves["Train/Episode Length"].values.tolist() == returns.values.tolist()


@pytest.mark.parametrize("flags", [(), ("--log", "plain")], ids=["auto", "plain"])
def test_lines_without_a_terminal_or_when_wanted(
    cluster: Cluster, flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = train(cluster, *flags, sets=(QUICK, "algorithm.max_global_step=3000"))
    if flags:
        with Terminal(argv, cluster.folder) as terminal:
            text = terminal.wait().text
            assert terminal.process.returncode == 0
    else:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.chdir(cluster.folder)
        status, text = run_here(*argv[1:])
        assert status == 0
    assert "ETA" not in text
    assert "\x1b" not in text
    assert "| version" in text


def shows_table(screen: Screen) -> bool:
    """Returns whether there is one that is not just being drawn again."""
    corners = [line[0] for line in screen.lines if line.startswith(("╭", "╰"))]
    return corners == ["╭", "╰"] and re.search(r"ETA \d", screen.text) is not None


def test_a_table_in_a_terminal_and_nothing_of_it_after_ctrl_c(cluster: Cluster) -> None:
    # Lines of episodes come all the time, above the table.
    argv = train(cluster, sets=("environment.slots=2", "relaax-rlx-server.score_lines=true"))
    with Terminal(argv, cluster.folder) as terminal:
        screen = terminal.wait_for(
            lambda s: shows_table(s) and "score" in s.text and "staleness" in s.text
        )
        assert not screen.cursor_shown
        (top,) = [n for n, line in enumerate(screen.lines) if line.startswith("╭")]
        assert any("score" in line for line in screen.lines[:top])
        table = screen.lines[top:]
        for word in ("step ", "steps/s", "mean return", "episode length", "staleness"):
            assert any(word in line for line in table), word
        terminal.type("\x03")
        terminal.process.send_signal(signal.SIGINT)
        left = terminal.wait()
        assert terminal.process.returncode == 128 + signal.SIGINT
    assert left.cursor_shown
    assert not any(line.startswith(("╭", "│", "╰")) for line in left.lines)
    # The summary, in the form of the lines before.
    assert any(line.endswith(" stopped") for line in left.lines)
    assert TRACE not in left.text


def see(output: io.StringIO) -> Screen:
    """Returns what a terminal would show, whose lines begin at the left."""
    return Screen(output.getvalue().replace("\n", "\r\n"))


def test_a_table_that_grows_while_others_log_leaves_nothing_behind(
    cluster: Cluster, newest: NewestScalars
) -> None:
    experiment, output = load_experiment(cluster.config), io.StringIO()
    console = Console(file=output, width=100, force_terminal=True)
    with TableProgress(experiment, newest, console) as table:
        ended = threading.Event()

        def log() -> None:
            while not ended.is_set():
                logging.getLogger("slot").warning("score")

        threads = [threading.Thread(target=log) for _ in range(2)]
        for thread in threads:
            thread.start()
        for number in range(400):
            # Taller by a line each time, and then low again.
            newest._values = {f"Optimizer/{n}": 1.0 for n in range(number % 12)}
            table.show(STATUS)
        ended.set()
        for thread in threads:
            thread.join()
        table.show(STATUS)
        assert shows_table(see(output))
    left = see(output).lines
    assert not [line for line in left if line.startswith(("╭", "│", "╰"))]


def test_a_second_ctrl_c_shows_the_cursor_again(cluster: Cluster) -> None:
    # Its environment hangs: the first Ctrl-C does not end it.
    folder = cluster.folder / "hanging"
    folder.mkdir()
    (folder / "slots.py").write_text(
        "import pathlib, time\n"
        "from relaax_like.wire.spaces import Box, Discrete\n"
        "class Slots:\n"
        "    slots = 1\n"
        "    observation_space = Box(dtype='float32', shape=(4,))\n"
        "    action_space = Discrete(n=2)\n"
        "    def reset(self, mask=None):\n"
        f"        pathlib.Path({str(folder / 'hangs')!r}).touch()\n"
        "        time.sleep(60)\n"
        "    def close(self):\n"
        "        pass\n"
        "def make_slots(environment, seed):\n"
        "    return Slots()\n"
    )
    text = cluster.config.read_text().replace(
        "program: OpenAI_Gym, env: CartPole-v0", "path: hanging"
    )
    cluster.config.write_text(text)
    with Terminal(train(cluster, sets=()), cluster.folder) as terminal:
        terminal.wait_for(lambda s: not s.cursor_shown)
        wait_until((folder / "hangs").exists, terminal)

        def press() -> bool:
            terminal.process.send_signal(signal.SIGINT)
            return terminal.process.poll() is not None

        wait_until(press, terminal)  # two that come at once would be one
        screen = terminal.wait()
        assert terminal.process.returncode == 128 + signal.SIGINT
    assert screen.cursor_shown


def test_the_log_goes_back_where_it_went(cluster: Cluster, newest: NewestScalars) -> None:
    experiment = load_experiment(cluster.config)
    output = io.StringIO()
    before = logging.getLogger().handlers[:]
    with TableProgress(experiment, newest, Console(file=output, force_terminal=True)) as table:
        logging.getLogger("test").warning("a [red]line[/red]")
        table.show(STATUS)
    assert logging.getLogger().handlers == before
    assert "a [red]line[/red]" in output.getvalue()
    assert sys.stdout is not output
