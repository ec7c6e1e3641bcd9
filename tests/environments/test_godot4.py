"""The client for Godot 4, in the official engine for the web and a real Chromium. covers PE8, R18

`RELAAX_REQUIRE_GODOT4=1` turns a missing npm, which fetches the engine, from a skip into a failure.
"""

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Thread

import pytest
from support import drivers, godot4
from support.chromium import Chromium, Tab
from support.cluster import ROOT
from support.drivers import Page, Setup
from support.web_server import serve_folder
from test_languages import Game, balance_each_second_pole, check_cartpole, serve, serve_learner
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection
from websockets.sync.server import serve as serve_web_socket

FOLDER = ROOT / "environments" / "godot4"


@contextlib.contextmanager
def open_project(
    chromium: Chromium, folder: Path, files: Mapping[str, bytes], flags: str
) -> Iterator[Tab]:
    godot4.make_page(folder, files)
    with serve_folder(folder) as url:
        page = chromium.open(f"{url}#{flags}")
        yield page
        page.call("Page.close")


def wait_for_exit(page: Tab, timeout_sec: float = 60) -> tuple[int, list[str]]:
    """Returns the status and what it printed, without what the engine says."""
    page.wait_for("globalThis.exitStatus !== undefined", timeout_sec)
    status, lines = page.evaluate("[exitStatus, lines]")
    return status, [line for line in lines if line.startswith("godot4: ")]


def test_each_step_and_end_is_what_the_server_saw(chromium: Chromium, tmp_path: Path) -> None:
    game = Game(balance_each_second_pole, 800)
    with serve(game) as port:
        flags = f"--rlx-server localhost:{port} --name x"
        with open_project(chromium, tmp_path, drivers.read_godot4(), flags) as page:
            status, (line,) = wait_for_exit(page)
    assert (status, line) == (0, "godot4: the agent's budget is used up")
    whole = [episode for episode in game.episodes if episode.truncated is not None]
    assert len(whole) >= len(game.episodes) - 1
    for episode in whole:
        check_cartpole(episode)
    assert {episode.truncated for episode in whole} == {True, False}


@pytest.mark.timeout(300)  # frames are few on a busy machine
def test_it_is_learned_from(chromium: Chromium, tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    pages.mkdir()
    with serve_learner(tmp_path, 100.0) as port:
        flags = f"--rlx-server localhost:{port} --num-envs 8"
        with open_project(chromium, pages, drivers.read_godot4(), flags) as page:
            status, (line,) = wait_for_exit(page, 250)
    assert status == 0
    assert line.endswith("episodes reached the target 100")


@pytest.mark.parametrize(
    ("flags", "match"),
    [("--env Pong", "--env: unknown"), ("--token-file /no/file", "/no/file: cannot be read")],
)
def test_wrong_flags_end_it(chromium: Chromium, tmp_path: Path, flags: str, match: str) -> None:
    with open_project(chromium, tmp_path, drivers.read_godot4(), flags) as page:
        status, (line,) = wait_for_exit(page)
    assert (status, match in line) == (2, True)


def test_the_program_starts_godot_with_the_project_and_the_flags() -> None:
    """The engine itself is not there: `echo` takes its place."""
    flags = ["--name", "a b"]
    for godot, status, out, err in (
        ("echo", 0, f"--headless --path {FOLDER} -- --name a b\n", ""),
        ("no-godot", 2, "", "godot4: no Godot 4 'no-godot'; install it, or name the program"),
    ):
        env = {**os.environ, "GODOT4": godot}
        done = subprocess.run([FOLDER / "main", *flags], env=env, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (status, out)
        assert done.stderr.startswith(err)


GAME = """

var steps := 0

func my_reset() -> Array:
	steps = 0
	return [0.0, 0.0, 0.0, 0.0]

func my_act(action: int) -> void:
	steps += action

func my_observe() -> Array:
	return [float(steps), 0.0, 0.0, 0.0]

func my_reward() -> float:
	return 0.5

func my_has_ended() -> bool:
	return steps == 3

func _process(_delta: float) -> void:
	if client.finished:
		get_tree().quit(7)
"""


def test_the_example_of_the_readme_plays(chromium: Chromium, tmp_path: Path) -> None:
    (example,) = re.findall(r"```gdscript\n(.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)
    game = Game(lambda episode, observation: 1, 9)
    files = drivers.read_godot4()
    with serve(game) as port:
        files["cartpole.gd"] = (example.replace(":7001", f":{port}") + GAME).encode()
        with open_project(chromium, tmp_path, files, "") as page:
            status, _ = wait_for_exit(page)
    assert status == 7
    assert [episode.rewards for episode in game.episodes] == [[0.5] * 3] * 3 + [[]]


# The client by itself.

HELLO = {"name": "x", "slots": 1, "observation": {"box": [1]}, "action": {"discrete": 2}}
READY = '{"ready": {"session": "s", "features": [%s], "max_message_bytes": 200}}'
ACT = {"act": {"observation": [[0.5]]}}
# A call that JavaScript would not spell.
INFINITE = """new Promise((resolve) => {
  calls.push('[{"act": {"observation": [[1e999]]}}, "", ""]');
  giveAnswer = (text) => resolve(JSON.parse(text));
})"""
# Answer to a step -> code, and a part of the message.
HOSTILE = {
    "[1]": ("ANSWER", "not an answer of an rlx server"),
    "nonsense": ("ANSWER", "not an answer"),
    "[" * 2000: ("ANSWER", "not an answer"),
    '{"action": 1, "step_id": 9}': ("ANSWER", "not an answer"),
    '{"error": {"code": "OVERLOADED", "message": "full"}}': ("OVERLOADED", "full"),
    "": ("UNAVAILABLE", "lost the rlx server"),
}


@pytest.fixture(scope="module")
def client(chromium: Chromium, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("driver")
    drivers.write_page("Godot 4", "driver", folder)
    with serve_folder(folder) as url, Page(Setup((chromium.url, url), "page"), "") as page:
        yield page


@contextlib.contextmanager
def answer_steps(*answers: str) -> Iterator[str]:
    """Answers the messages of each connection; "" closes it. Gives the address."""

    def talk(connection: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            for answer in answers:
                connection.recv()
                if answer:
                    connection.send(answer)
            if answers[-1]:
                connection.recv(timeout=60)

    server: Server
    with serve_web_socket(talk, "127.0.0.1", 0) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.socket.getsockname()[1]}"


@pytest.mark.parametrize("answer", HOSTILE, ids=lambda answer: answer[:20] or "closed")
def test_a_hostile_answer_is_an_error(client: Page, answer: str) -> None:
    code, text = HOSTILE[answer]
    with answer_steps(READY % '"step_id"', answer) as client.address:
        assert client.ask({"hello": HELLO}) == {"ready": {"features": ["step_id"]}}
        error = client.ask(ACT)["error"]
    assert (error["code"], text in error["message"]) == (code, True)


def test_mistakes_of_the_caller_are_refused_by_name_and_nothing_is_sent(client: Page) -> None:
    with answer_steps(READY % "", '{"action": [1], "version": 1}') as client.address:
        client.ask({"hello": HELLO})
        for key in ("mask", "executed", "step_id"):
            error = client.ask({"act": {"observation": [[0.5]], key: [1]}})["error"]
            assert (error["code"], error["field"]) == ("CALL", key)
        error = client.ask({"act": {"observation": [[0.5] * 100]}})["error"]
        assert error["message"] == "message: more than 200 bytes"
        error = client.tab.evaluate(INFINITE)["error"]
        assert error["message"] == "message: a number is not finite"
        assert client.ask(ACT) == {"action": [1], "version": 1}


def test_no_server_is_unavailable(client: Page) -> None:
    client.address = "127.0.0.1:1"
    assert client.ask({"hello": HELLO})["error"]["code"] == "UNAVAILABLE"
