"""The clients of all languages: the table of environments/README.md, and recorded conversations.

`RELAAX_REQUIRE_LUA=1`, and so on, turns a missing tool from a skip into a failure.
"""

# covers PE8, X13, R18, R19

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import counters, drivers, page_program
from support.batch import serve_a2c, serve_batch
from support.certificates import ENVIRONMENT, Authority
from support.cluster import ROOT, find_tool
from support.doors import message_to_json
from support.drivers import Driver, Setup
from support.masked import ACTIONS, CONFIG, SLOTS, draw_masks, is_legal
from support.replay_server import ReplayServer
from support.web_server import serve_folder
from support.wire import FOLDER as RECORDED
from support.wire import read_conversation

from relaax_like.client import RlxClient
from relaax_like.client_checks.checks import CHECKS, FAILED, PASSED, Check, Setting
from relaax_like.client_checks.run import check_client
from relaax_like.client_checks.scenarios import SCENARIOS
from relaax_like.v1 import rlx_pb2
from relaax_like.wire.ndarray import message_to_ndarray
from relaax_like.wire.spaces import Box, Space, make_masks, message_to_space

README = ROOT / "environments" / "README.md"
# Client -> program, package and part of a variable for `find_tool`; the client's programs.
TOOLS = {
    "Python": [],
    "C": [("cc", "g++ libc6-dev", "CC")],
    "C++": [("c++", "g++ libc6-dev", "CC")],
    "C#": [("mcs", "mono-mcs", "MONO"), ("mono", "mono-runtime", "MONO")],
    "JavaScript": [("node", "nodejs", "NODE")],
    "page": [],
    "Godot 3": [("godot3-server", "godot3-server", "GODOT")],
    "Godot 4": [],
    "Lua": [("lua5.4", "lua5.4 lua-socket lua-cjson", "LUA")],
    "shell": [("bash", "bash", "BASH")],
}
_QUICK = ("--retry-sleep", "0.3", "0.6")
PROGRAMS = {
    "Python": [
        ["bandit/main"],
        ["OpenAI_Gym/main", "--env", "CartPole-v1", "--num-envs", "3", *_QUICK],
    ],
    "C": [["c/main", "--num-envs", "2", *_QUICK]],
    "C++": [["c/main", "--cpp", *_QUICK]],
    "C#": [["csharp/main", "--num-envs", "2", *_QUICK]],
    "JavaScript": [["javascript/main", "--num-envs", "2", *_QUICK]],
    "page": [["--num-envs", "2"]],
    "Godot 3": [["godot3/main", *_QUICK]],
    "Godot 4": [["--num-envs", "2", *_QUICK]],
    "Lua": [["lua/main"]],
    "shell": [["shell/main"]],
}
HAVE_TLS = ("Python", "C", "C++", "C#", "JavaScript", "page", "Godot 4")
PAGES = ("page", "Godot 4")
TLS = "TLS"
SILENCE_SEC = 8.0  # drivers give up a silent server after 4 s
PLAIN, FEATURES, FORMS = list(SCENARIOS)[:3]
END, TOKEN = "the end at once", "a wrong token"


@pytest.fixture(params=TOOLS)
def language(request: pytest.FixtureRequest) -> str:
    """A client whose tools are here."""
    for program, package, variable in TOOLS[request.param]:
        find_tool(program, package, f"RELAAX_REQUIRE_{variable}")
    return request.param


@pytest.fixture
def setup(language: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Setup]:
    """The driver of the client."""
    if language not in PAGES:
        yield drivers.build(language, tmp_path)
        return
    chromium = request.getfixturevalue("chromium")
    for name in ("driver", "game"):
        (tmp_path / name).mkdir()
        drivers.write_page(language, name, tmp_path / name)
    with serve_folder(tmp_path) as url:
        # The client for Godot numbers steps by itself.
        yield Setup(
            (chromium.url, f"{url}driver/"),
            "page",
            numbers_steps=language == "page",
            wanted=drivers.ALL_FEATURES,
        )


def list_programs(language: str, setup: Setup) -> list[list[str]]:
    """Returns the shipped programs of a client, compiled."""
    if language in PAGES:
        browser, url = setup.argv
        page = "browser" if language == "page" else url.replace("driver", "game")
        return [[sys.executable, page_program.__file__, browser, page, *PROGRAMS[language][0]]]
    programs = [[str(README.parent / path), *flags] for path, *flags in PROGRAMS[language]]
    for program in programs if language in ("C", "C++", "C#") else ():
        subprocess.run([*program, "--help"], check=True, capture_output=True, timeout=200)
    return programs


def check_all(language: str, setup: Setup, folder: Path) -> tuple[list[Check], set[str]]:
    """Checks the shipped programs, and the library with all that it can send.

    Returns:
      All results; and what passed, with TLS as one of it.
    """
    authority = Authority(folder / "authority", rsa=True)  # Mono knows no others
    driver = [sys.executable, counters.__file__, setup.write()]
    token = Setting([*driver, "--token", ENVIRONMENT], token=ENVIRONMENT, silence_sec=SILENCE_SEC)
    files = map(str, (authority.cert, authority.key, authority.ca))
    # Pages start slowly, and Godot's takes much memory: few at a time, and each scenario once.
    is_heavy = language in PAGES
    # The driver shows them, with the same library.
    shown = (FORMS, "silence", TOKEN, *([FEATURES] if is_heavy else []))
    titles = [title for title in SCENARIOS if title not in shown]
    calls: list[tuple[Setting, Sequence[str]]] = [
        (token, (PLAIN, FORMS, "silence", TOKEN)),
        (Setting([*driver, "--all"]), (FEATURES,)),
        *((Setting(program), titles) for program in list_programs(language, setup)),
    ]
    if language in HAVE_TLS:
        calls.append((Setting([*driver, "--tls", *files]), (END,)))
    if is_heavy:
        calls = [(setting, (title,)) for setting, several in calls for title in several]
    with ThreadPoolExecutor(4 if is_heavy else len(calls)) as pool:
        results = list(pool.map(lambda call: check_client(*call), calls))
    passed = {one.id for found in results for one in found if one.outcome == PASSED}
    if language in HAVE_TLS and any(
        one.id == "finished.early" for one in results[-1] if one.outcome == PASSED
    ):
        passed.add(TLS)
    return [one for found in results for one in found], passed


def read_table() -> tuple[list[str], list[tuple[str, list[str], dict[str, str]]]]:
    """Returns the clients of the table, and its rows: feature, checks, client -> cell."""
    _, _, section = README.read_text().partition("## What each client does\n")
    lines = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("|")]
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    clients = [name.partition("]")[0].lstrip("[") for name in head[2:]]
    return clients, [
        (feature, checks.replace("`", "").split(), dict(zip(clients, cells, strict=True)))
        for feature, checks, *cells in rows
    ]


def test_the_table_names_all_clients_and_known_checks() -> None:
    clients, rows = read_table()
    assert clients == list(TOOLS)
    for feature, checks, cells in rows:
        assert set(checks) <= {*CHECKS, TLS}, feature
        assert set(cells.values()) <= {"yes", "-"}, feature


@pytest.mark.timeout(300)
def test_each_cell_of_a_client_is_what_the_checks_see(
    language: str, setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All steps are played, also on a busy machine: what follows from an action shows in many.
    monkeypatch.setattr("relaax_like.client_checks.scenarios._PLAY_SEC", 60.0)
    results, passed = check_all(language, setup, tmp_path)
    assert [one for one in results if one.outcome == FAILED] == []
    wrong = {}
    for feature, checks, cells in read_table()[1]:
        missing = [one for one in checks if one not in passed]
        if cells[language] != ("-" if missing else "yes"):
            wrong[feature] = missing
    assert wrong == {}


# Those of clients; the others are errors that no client of ours makes.
CONVERSATIONS = sorted([*RECORDED.glob("python-*.txt"), *RECORDED.glob("c-*.txt")])
IN_PROTOBUF = ("Python", "C", "C++")


def test_recorded_conversations_are_played(language: str, setup: Setup) -> None:
    """Each client says what was recorded of another one, and reads the recorded answers."""
    assert len(CONVERSATIONS) > 10
    with contextlib.ExitStack() as stack:
        page: drivers.Page | None = None
        for path in CONVERSATIONS:
            with ReplayServer(read_conversation(path)) as server:
                if language in PAGES:
                    page = page or stack.enter_context(drivers.Page(setup, ""))
                    page.address = server.address
                    play(page, server)
                else:
                    with drivers.start(setup, server.address) as driver:
                        play(driver, server)
                server.check_said()
            assert server.is_text == (language not in IN_PROTOBUF)


def play(driver: Driver, server: ReplayServer) -> None:
    for sent, recorded in zip(server.sent, server.answers, strict=True):
        call = json.loads(message_to_json(sent))
        call.get("hello", {}).pop("features", None)
        check_answer(driver.ask(call), recorded, server.sent[0].hello)


def check_answer(
    answer: dict[str, Any], recorded: rlx_pb2.ServerMessage, hello: rlx_pb2.Hello
) -> None:
    if recorded.HasField("ready"):
        assert "ready" in answer
    elif recorded.HasField("error"):
        code = rlx_pb2.ErrorCode.Name(recorded.error.code)
        assert drivers.find_code(answer["error"]) == code
    else:
        wanted = recorded.actions
        ended = [(one.slot, one.score, one.length) for one in wanted.episodes]
        came = answer.get("episodes", ())
        assert [(one["slot"], one["score"], one["length"]) for one in came] == ended
        spaces = {name: message_to_space(one, name) for name, one in hello.action_spaces.items()}
        given = drivers.to_arrays(answer.get("action") or {}, spaces, hello.slots)
        assert given.keys() == wanted.actions.keys()
        for name, array in given.items():
            np.testing.assert_array_equal(array, message_to_ndarray(wanted.actions[name], name))
            assert answer["version"] == wanted.version


# Masks of legal actions. covers PE20

IN_JSON = ("JavaScript", "page", "Godot 3", "Godot 4", "Lua", "shell")
MASKED_HELLO = {
    "name": "masked",
    "slots": SLOTS,
    "observation": {"box": [4]},
    "action": {"move": {"discrete": 4, "start": 2}, "arms": {"multi_discrete": [3, 2]}},
    "features": ["masks"],
}


def to_lists(masks: dict[str, np.ndarray]) -> dict[str, Any]:
    return {name: mask.tolist() for name, mask in masks.items()}


@contextlib.contextmanager
def serve_compiled(config: Any) -> Iterator[str]:
    """Serves agents that have learned before, since drivers give up a server after 4 s."""
    spaces: dict[str, Space] = {"observation": Box(dtype="float32", shape=(4,))}
    spaces |= make_masks(ACTIONS) if config.masks else {}
    values = {name: np.ones((SLOTS, *space.shape), space.dtype) for name, space in spaces.items()}
    outcome = np.ones(SLOTS), *np.zeros((2, SLOTS), np.bool_)
    with serve_a2c(config) as server, serve_batch(server, config) as port:
        with RlxClient(f"127.0.0.1:{port}", spaces, ACTIONS, slots=SLOTS) as client:
            answer = client.step(values)
            while answer.version < 2:
                answer = client.step(values, *outcome)
        yield f"127.0.0.1:{port}"


@pytest.mark.parametrize("language", IN_JSON, indirect=True)
def test_clients_in_json_send_masks_and_get_legal_actions_only(setup: Setup) -> None:
    random = np.random.default_rng(0)
    with (
        serve_compiled(CONFIG) as address,
        drivers.start(setup, address) as driver,
    ):
        assert "masks" in driver.ask({"hello": MASKED_HELLO})["ready"]["features"]
        seen = np.zeros((SLOTS, 4)).tolist()
        masks = draw_masks(random)
        answer = driver.ask({"act": {"observation": seen, "mask": to_lists(masks)}})
        step: dict[str, Any] = {}
        for number in range(60):
            assert "action" in answer, answer
            assert is_legal(drivers.to_arrays(answer["action"], ACTIONS, SLOTS), masks)
            before, masks = masks, draw_masks(random)
            step = {"reward": [1.0] * SLOTS, "observation": seen, "mask": to_lists(masks)}
            step["truncated"] = [number % 7 == 0, False, False]
            if number % 7 == 0:
                step |= {"final_observation": seen, "final_mask": to_lists(before)}
            answer = driver.ask({"reward_and_act": step})
        # Final masks reach the server, which looks at the rows of slots that end.
        step["truncated"] = [True, False, False]
        step |= {"final_observation": seen, "final_mask": to_lists(masks)}
        step["final_mask"]["move"][0] = [False] * 4
        error = driver.ask({"reward_and_act": step})["error"]
        assert (error["code"], error["field"]) == ("INVALID_FIELD", "final_mask.move")


@pytest.mark.parametrize("language", IN_JSON, indirect=True)
def test_clients_in_json_refuse_to_play_if_the_run_has_no_masks(setup: Setup) -> None:
    config = CONFIG.model_copy(update={"masks": {}})
    masks = to_lists(draw_masks(np.random.default_rng(0)))
    with (
        serve_compiled(config) as address,
        drivers.start(setup, address) as driver,
    ):
        assert "masks" not in driver.ask({"hello": MASKED_HELLO})["ready"]["features"]
        first = {"observation": np.zeros((SLOTS, 4)).tolist(), "mask": masks}
        error = driver.ask({"act": first})["error"]
        assert error["field"] == "mask"
        assert error["code"] in ("CALL", "INVALID_FIELD", "OUT_OF_ORDER")
