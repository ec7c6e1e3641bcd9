"""The client for Godot 3, by itself: numbers, what a hostile server sends, errors of scripts."""

# covers PE8

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.cluster import ROOT
from test_csharp import ACTION, EPISODE, LineServer, ready, write
from test_languages import Game, require_tools, serve

ONE = ACTION.replace(b"[1]", b"1")  # without a slot axis
FOLDER = ROOT / "environments" / "godot3"
WRITE_NUMBERS = """extends SceneTree

func _init():
	var client = load("rlx.gd").new()
	var file = File.new()
	file.open("numbers", File.READ)
	for i in range(1000):
		print(client.to_text(file.get_float()))
	for i in range(1000):
		print(client.to_text(file.get_double()))
	print(client.to_text([1, 2.0, true, null, {"a\\"": PoolByteArray([255, 0])}, "é\\n"]))
	quit(0)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the environment."""
    require_tools("godot3")
    copy = tmp_path / "godot3"
    shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("__*"))
    return copy


def run(*argv: object, cwd: Path) -> tuple[int, list[str], str]:
    env = {**os.environ, "LC_ALL": "en_US.UTF-8", "LANG": "en_US.UTF-8", "XDG_DATA_HOME": str(cwd)}
    done = subprocess.run(
        [*map(str, argv)], cwd=cwd, env=env, capture_output=True, text=True, timeout=100
    )
    return done.returncode, done.stdout.splitlines()[2:], done.stderr


def play(folder: Path, *answers: bytes | None, piece: int = 1 << 20) -> tuple[int, str, LineServer]:
    """Runs the program; returns its status, what it said, and the server."""
    with LineServer(answers, piece) as server:
        status, _, err = run(folder / "main", "--rlx-server", server.address, cwd=folder)
    return status, err, server


def test_numbers_keep_their_digits(folder: Path) -> None:
    rng = np.random.default_rng(5)
    bits = rng.integers(0, 2**32, 1000, np.uint32)
    single = np.where(np.isfinite(bits.view(np.float32)), bits.view(np.float32), np.float32(0.1))
    double = np.exp(rng.uniform(-600, 600, 1000)) * rng.choice([-1, 1], 1000)
    (folder / "numbers").write_bytes(single.tobytes() + double.tobytes())
    (folder / "numbers.gd").write_text(WRITE_NUMBERS)
    status, lines, err = run("godot3-server", "-s", "numbers.gd", cwd=folder)
    assert (status, err) == (0, "")
    np.testing.assert_array_equal(np.array(lines[:1000], np.float64).astype(np.float32), single)
    np.testing.assert_allclose(np.array(lines[1000:2000], np.float64), double, rtol=1e-15)
    assert lines[2000] == '[1,2,true,null,{"a\\"":{"base64":"/wA="}},"é\\n"]'


@pytest.mark.parametrize("piece", [1, 9, 1 << 20])
def test_answers_are_read_however_they_are_split_and_merged(folder: Path, piece: int) -> None:
    ping = b'{"ping": {}}\n'
    answers = [
        ping + ready("ping"),
        ACTION.replace(b"[1]", b"1"),
        ping * 3 + write({"finished": "x"}),
    ]
    status, err, server = play(folder, *answers, piece=piece)
    assert (status, err) == (0, "")
    assert [next(iter(message)) for message in server.received] == [
        "hello",
        "act",
        "reward_and_act",
    ]


@pytest.mark.parametrize(
    "answer",
    [
        b'{"action": ' + b"[" * 200_000 + b"\n",
        b'{"action": ' + b'{"a": [' * 100_000 + b"\n",
        b"[1]\n",
        b"HTTP/1.1 400 Bad Request\r\n",
        b"x" * (17 << 20),
        write({"action": 1, "step_id": 9}),
    ],
    ids=["deep", "deeper", "list", "HTTP", "endless", "another step"],
)
def test_a_hostile_answer_ends_it_with_one_line(folder: Path, answer: bytes) -> None:
    status, err, _ = play(folder, ready("step_id"), answer)
    assert status == 2
    assert " sent " in err.splitlines()[-1]


def test_what_needs_a_feature_is_not_sent_without_it(folder: Path) -> None:
    script = (folder / "cartpole.gd").read_text()
    (folder / "cartpole.gd").write_text(
        script.replace('"reward": 1, ', '"reward": 1, "mask": [], ')
    )
    status, err, server = play(folder, ready(), ACTION.replace(b"[1]", b"1"), EPISODE)
    assert status == 2
    assert "mask: ready.features of this server does not list masks" in err
    assert len(server.received) == 2


def test_an_error_of_the_script_is_a_status(folder: Path) -> None:
    script = (folder / "cartpole.gd").read_text()
    broken = script.replace("\trandomize()", "\tvar nothing = null\n\tnothing.call_it()")
    (folder / "cartpole.gd").write_text(broken)
    status, err, _ = play(folder)
    assert status == 1
    assert "SCRIPT ERROR" in err


GAME = """

var steps = 0

func my_reset():
	steps = 0
	return [0.0, 0.0, 0.0, 0.0]

func my_act(action):
	steps += action

func my_observe():
	return [float(steps), 0.0, 0.0, 0.0]

func my_reward():
	return 0.5

func _process(_delta):
	if client.finished:
		print(client.finished)
		get_tree().quit(0)
"""
SCENE = """[gd_scene load_steps=2 format=2]
[ext_resource path="res://game.gd" type="Script" id=1]
[node name="Game" type="Node"]
script = ExtResource( 1 )
"""


def test_the_example_of_the_readme_plays(folder: Path) -> None:
    (example,) = re.findall(r"```gdscript\n(.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)
    game = Game(lambda episode, observation: 1, 9)
    (folder / "game.tscn").write_text(SCENE)
    project = (folder / "project.godot").read_text()
    (folder / "project.godot").write_text(
        project.replace("[application]", '[application]\nrun/main_scene="res://game.tscn"')
    )
    with serve(game) as port:
        (folder / "game.gd").write_text(example.replace(":7001", f":{port}") + GAME)
        status, lines, err = run("godot3-server", "--path", folder, cwd=folder)
    assert (status, err) == (0, "")
    assert lines == ["the agent's budget is used up"]
    assert [episode.rewards for episode in game.episodes] == [[0.5] * 9]
