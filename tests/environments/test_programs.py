"""The programs as users start them: real processes, signals, windows. covers R18-R21, R26, R30"""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from OpenAI_Gym.gym_display import Display
from scripted_server import Role, ScriptedServer

from relaax_like.v1 import rlx_pb2

ROOT = Path(__file__).parents[2]
GYM = ROOT / "environments" / "OpenAI_Gym" / "main"
BANDIT = ROOT / "environments" / "bandit" / "main"
TOYS = Path(__file__).parent
Serve = Callable[..., ScriptedServer]
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts programs in an empty folder; kills what is left of them."""
    processes: list[subprocess.Popen[str]] = []

    def run(program: Path, *args: object, **env: str) -> subprocess.Popen[str]:
        clean = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY")}
        process = subprocess.Popen(
            [sys.executable, str(program), *map(str, args)],
            cwd=tmp_path,
            env=clean | {"PYTHONPATH": str(TOYS), "PYTHONUNBUFFERED": "1"} | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
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
    return process.returncode, out, err


def test_the_tutorial_command_runs_until_training_has_finished(serve: Serve, start: Start) -> None:
    server = serve(Role(finish_after=300))
    command = f"--rlx-server {server.address} --env CartPole-v0 --rnd 0 --limit 800".split()
    code, out, err = finish(start(GYM, *command))
    assert (code, err) == (0, "")
    assert "Score = " in out
    assert out.splitlines()[-1].startswith("CartPole-v0: max_global_step reached; ")
    session = server.sessions[0]
    assert session.hello.mode == rlx_pb2.TRAIN
    assert len(session.steps) == 300


def test_slots_exploit_name_and_episodes_reach_the_server(serve: Serve, start: Start) -> None:
    server = serve()
    options = "--env CartPole-v1 --num-envs 5 --exploit --name pole --episodes 7 --rnd 2 --seed 3"
    argv = (GYM, "--rlx-server", server.address, *options.split())
    code, out, err = finish(start(*argv, RELAAX_QUIET="1"))
    assert (code, err) == (0, "")
    assert out.splitlines() == [out.splitlines()[-1]]  # no line for each episode
    hello = server.sessions[0].hello
    assert (hello.slots, hello.mode, hello.client_name) == (5, rlx_pb2.EXPLOIT, "pole")
    assert "client latency" in [name for name, *_ in server.scalars]


def test_same_seed_same_first_observation(serve: Serve, start: Start) -> None:
    server = serve(Role(policy=lambda o: {"action": np.zeros(len(o["observation"]), np.int64)}))
    processes = [
        start(GYM, "--rlx-server", server.address, "--seed", 3, "--episodes", 3, "--rnd", 1)
        for _ in range(2)
    ]
    for process in processes:
        assert finish(process)[0] == 0
    one, other = (
        [step.observations["observation"].tolist() for step in session.steps if step.observations]
        for session in server.sessions
    )
    assert one == other


def test_limit_truncates_with_the_final_observation(serve: Serve, start: Start) -> None:
    server = serve()
    options = ("--env", "Pendulum-v1", "--limit", 3, "--episodes", 2)
    code, out, _ = finish(start(GYM, "--rlx-server", server.address, *options))
    assert code == 0
    assert out.count("(truncated)") == 2
    steps = server.sessions[0].steps
    assert [bool(s.truncated[0]) for s in steps[1:] if s.truncated is not None] == [
        False, False, True, False, False, True,
    ]  # fmt: skip
    assert steps[3].final_observations is not None


def test_nested_spaces_and_actions_that_overshoot_work_over_the_network(
    serve: Serve, start: Start
) -> None:
    server = serve()
    options = ("--env", "toy_envs:Nested-v0", "--episodes", 4, "--num-envs", 2)
    code, _, err = finish(start(GYM, "--rlx-server", server.address, *options))
    assert (code, err) == (0, "")
    assert set(server.sessions[0].action_spaces) == {
        "camera", "arm/joints", "tools/0", "tools/1", "dials"
    }  # fmt: skip


def test_a_server_that_drops_in_an_episode_is_found_again(serve: Serve, start: Start) -> None:
    server = serve(Role(drop_at={0: 10}, finish_after=60))
    options = ("--env", "CartPole-v1", "--retry-sleep", 0, 0.1)
    code, out, err = finish(start(GYM, "--rlx-server", server.address, *options))
    assert (code, err) == (0, "")
    assert out.count("retrying in") == 1
    assert [len(session.steps) for session in server.sessions] == [10, 50]
    first = server.sessions[1].steps[0].observations
    assert first is not None
    assert (np.abs(first["observation"]) <= 0.05).all()  # a fresh episode


def test_a_client_started_before_its_server_waits_for_it(serve: Serve, start: Start) -> None:
    closed = serve()
    closed.close()
    process = start(BANDIT, "--rlx-server", closed.address, "--episodes", 3)
    assert process.stdout is not None
    assert process.stdout.readline() == f"waiting for the rlx server at {closed.address}\n"
    server = serve(port=closed.port)
    assert finish(process)[0] == 0
    assert len(server.sessions) == 1


@pytest.mark.parametrize(
    ("args", "match"),
    [
        (["--env", "CartPoel-v1"], "Close matches: CartPole-v1"),
        (["--env", "CartPole-v1", "--env-arg", "wheels=4"], "wheels"),
        (["--env-arg", "wheels"], "expected KEY=VALUE"),
        (["--limit", "0"], "'0', expected an integer of 1 or more"),
        (["--rnd", "two"], "'two', expected an integer of 0 or more"),
        (["--seed", "-1"], "'-1', expected an integer of 0 or more"),
        (["--rlx-server", "nowhere:x"], "expected HOST:PORT"),
        (["--env", "toy_envs:Unsendable-v0"], "Text is not supported"),
        (["--retry-sleep", "5", "1"], "min_sleep_sec <= max_sleep_sec"),
        # Before it connects.
        (["--env", "toy_envs:Odd-v0", "--env-arg", "kind=bare reset"], "reset returned a ndarray"),
    ],
)
def test_a_mistake_is_one_clear_line_and_code_2(start: Start, args: list[str], match: str) -> None:
    code, _, err = finish(start(GYM, *args))
    assert code == 2
    assert match in err.splitlines()[-1]
    assert "Traceback" not in err


def test_a_refused_hello_is_one_line_and_code_2(serve: Serve, start: Start) -> None:
    server = serve(Role(refuse=(rlx_pb2.SPACE_MISMATCH, "this algorithm needs 8 numbers")))
    code, _, err = finish(start(GYM, "--rlx-server", server.address))
    assert (code, err) == (2, "CartPole-v1: this algorithm needs 8 numbers\n")


def test_missing_gymnasium_is_one_line_with_the_cure(start: Start, tmp_path: Path) -> None:
    (tmp_path / "gymnasium.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'gymnasium'\", name='gymnasium')"
    )
    code, _, err = finish(start(GYM, PYTHONPATH=str(tmp_path)))
    assert code == 2
    assert "pip install 'relaax_like[envs]'" in err
    assert "Traceback" not in err


def test_an_error_of_an_environment_is_one_line_and_its_traceback_comes_with_v(
    serve: Serve, start: Start
) -> None:
    server = serve()
    options = ("--env", "toy_envs:Odd-v0", "--env-arg", "kind=error", "--quiet")
    line = "toy_envs:Odd-v0: slot 0, step 1: KeyError: 'arm'"
    code, _, err = finish(start(GYM, "--rlx-server", server.address, *options))
    assert (code, err.splitlines()) == (1, [line])
    code, _, err = finish(start(GYM, "--rlx-server", server.address, *options, "-v"))
    assert (code, err.splitlines()[0]) == (1, line)
    assert 'raise KeyError("arm")' in err


def test_help_needs_no_gymnasium_and_names_every_flag(start: Start, tmp_path: Path) -> None:
    (tmp_path / "gymnasium.py").write_text("raise SystemExit(77)")
    code, out, _ = finish(start(GYM, "--help", PYTHONPATH=str(tmp_path)))
    assert code == 0
    for flag in ("--rlx-server", "--env", "--rnd", "--limit", "--num-envs", "--display", "USR1"):
        assert flag in out


@pytest.mark.parametrize(
    ("number", "want"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"]
)
@pytest.mark.parametrize("hang", [False, True], ids=["stepping", "waiting for an answer"])
def test_a_signal_closes_cleanly(
    serve: Serve, start: Start, number: int, want: int, hang: bool
) -> None:
    server = serve(Role(hang_at=5 if hang else None))
    process = start(GYM, "--rlx-server", server.address, "--quiet")
    server.wait_for(lambda s: s.steps >= 5)
    process.send_signal(number)
    assert finish(process) == (want, "", "")


def test_sigterm_while_waiting_for_a_server_ends_the_program(start: Start, serve: Serve) -> None:
    closed = serve()
    closed.close()
    process = start(GYM, "--rlx-server", closed.address, "--retry-sleep", 1000, 1000)
    assert process.stdout is not None
    assert "waiting for the rlx server" in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 143


# A checkout that is not installed, with the dependencies at hand.


def test_the_programs_run_from_a_plain_checkout(serve: Serve, start: Start, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    for folder in ("relaax_like", "environments"):
        shutil.copytree(
            ROOT / folder, checkout / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    # Hides an installed relaax_like, editable or not.
    hider = tmp_path / "sitecustomize.py"
    hider.write_text(
        "import sys\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in repr(f).lower()]\n"
        f"sys.path[:] = [p for p in sys.path if p != {str(ROOT)!r}]\n"
    )
    server = serve()
    for program in ("OpenAI_Gym/main", "bandit/main"):
        path = checkout / "environments" / program
        assert os.access(path, os.X_OK)
        code, _, err = finish(
            start(path, "--rlx-server", server.address, "--episodes", 2, PYTHONPATH=str(tmp_path))
        )
        assert (code, err) == (0, "")
    assert len(server.sessions) == 2


def test_bandit_pays_best_at_the_arm_of_its_seed(serve: Serve, start: Start) -> None:
    turn = iter(range(10_000))

    def all_arms(observations: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"action": np.array([next(turn) % 4])}

    server = serve(Role(policy=all_arms, finish_after=801))
    code, _, err = finish(start(BANDIT, "--rlx-server", server.address, "--seed", 6))
    assert (code, err) == (0, "")
    paid = np.array([s.rewards[0] for s in server.sessions[0].steps if s.rewards is not None])
    means = [paid[arm::4].mean() for arm in range(4)]
    assert int(np.argmax(means)) == 2
    assert means[2] > 0.7
    assert max(means[:2] + means[3:]) < 0.3


def test_bandit_exits_with_2_when_its_settings_are_wrong(serve: Serve, start: Start) -> None:
    code, _, err = finish(start(BANDIT, "--rlx-server", "localhost"))
    assert code == 2
    assert err.startswith("bandit: address 'localhost': port missing")
    server = serve(Role(refuse=(rlx_pb2.SPACE_MISMATCH, "this algorithm needs 4 numbers")))
    code, _, err = finish(start(BANDIT, "--rlx-server", server.address))
    assert (code, err) == (2, "bandit: this algorithm needs 4 numbers\n")


# The window.


@pytest.fixture
def screen() -> Iterator[str]:
    """A virtual screen; skips where there is none, unless RELAAX_REQUIRE_XVFB=1."""
    missing = [tool for tool in ("Xvfb", "xwininfo") if shutil.which(tool) is None]
    if missing:
        message = f"{', '.join(missing)} missing (apt-get install xvfb x11-utils)"
        if os.environ.get("RELAAX_REQUIRE_XVFB") == "1":
            pytest.fail(message)
        pytest.skip(message)
    read, write = os.pipe()
    server = subprocess.Popen(
        # Without -noreset it restarts whenever its last client leaves, and loses one that connects.
        ["Xvfb", "-displayfd", str(write), "-screen", "0", "1024x768x24", "-noreset"],
        pass_fds=(write,),
        stderr=subprocess.DEVNULL,
    )
    os.close(write)
    try:
        with os.fdopen(read) as pipe:
            number = pipe.readline().strip()
        assert number, "Xvfb did not start"
        yield f":{number}"
    finally:
        server.terminate()
        server.wait(30)


def window_titles(screen: str) -> str:
    command = ["xwininfo", "-root", "-tree", "-display", screen]
    for _ in range(20):
        listed = subprocess.run(command, capture_output=True, text=True, timeout=30)
        if listed.returncode == 0:
            return listed.stdout
        # A window that goes away while the tree is walked is an error of the whole listing.
    raise AssertionError(f"{command}: {listed.stderr}")


def wait_until(condition: Callable[[], Any], what: str, timeout_sec: float = 60) -> None:
    deadline = time.monotonic() + timeout_sec
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_sec} s for {what}"
        pause.wait(0.05)


@pytest.mark.parametrize(
    "options",
    [("--env", "CartPole-v1"), ("--env", "CartPole-v1", "--num-envs", 3)],
    ids=["one", "vectorised"],
)
def test_sigusr1_shows_a_window_and_hides_it_again(
    serve: Serve, start: Start, screen: str, options: tuple[object, ...]
) -> None:
    # covers R20
    server = serve()
    process = start(
        GYM,
        *("--rlx-server", server.address, "--name", "robot", "--quiet"),
        *("--env-arg", "render_mode=rgb_array"),
        *options,
        DISPLAY=screen,
    )
    title = '"CartPole-v1 - robot"'
    server.wait_for(lambda s: s.steps > 10)
    assert title not in window_titles(screen)
    for _ in range(2):  # on and off, and all over again
        process.send_signal(signal.SIGUSR1)
        wait_until(lambda: title in window_titles(screen), "the window")
        shown_at = server.steps
        server.wait_for(lambda s, at=shown_at: s.steps > at + 2)
        process.send_signal(signal.SIGUSR1)
        wait_until(lambda: title not in window_titles(screen), "the window's end")
        hidden_at = server.steps
        server.wait_for(lambda s, at=hidden_at: s.steps > at + 100)
    process.send_signal(signal.SIGTERM)
    assert finish(process) == (143, "", "")


def test_display_flag_begins_with_a_window_and_sigterm_ends_it(
    serve: Serve, start: Start, screen: str
) -> None:
    server = serve()
    process = start(
        GYM, "--rlx-server", server.address, "--name", "r2", "--display", "--quiet", DISPLAY=screen
    )
    wait_until(lambda: '"CartPole-v1 - r2"' in window_titles(screen), "the window")
    process.send_signal(signal.SIGTERM)
    assert finish(process) == (143, "", "")


@pytest.mark.parametrize(
    ("options", "env", "match"),
    [
        ((), {}, "no display available"),
        ((), {"DISPLAY": ":987"}, "cannot show CartPole-v1 - x in a window"),
    ],
    ids=["no DISPLAY", "wrong DISPLAY"],
)
def test_without_a_screen_one_line_says_so_and_training_goes_on(
    serve: Serve, start: Start, options: tuple[str, ...], env: dict[str, str], match: str
) -> None:
    server = serve(Role(finish_after=50))
    process = start(GYM, "--rlx-server", server.address, "--name", "x", "--display", **env)
    code, _, err = finish(process)
    assert code == 0
    assert len(err.splitlines()) == 1
    assert match in err
    assert "continuing without a window" in err


def test_an_environment_that_cannot_draw_says_so_and_training_goes_on(
    serve: Serve, start: Start, screen: str
) -> None:
    server = serve(Role(finish_after=50))
    options = ("--env", "toy_envs:Nested-v0", "--display")
    code, _, err = finish(start(GYM, "--rlx-server", server.address, *options, DISPLAY=screen))
    assert code == 0
    assert "draws no frames; it needs render_mode rgb_array: start with --display" in err


def test_a_display_that_is_off_never_draws() -> None:
    def render() -> np.ndarray:
        raise AssertionError("drawn while off")

    display = Display("x")
    display.attach(render, 30)
    display.update()
    display.toggle()
    display.toggle()
    display.update()
