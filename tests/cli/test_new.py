"""`relaax new`: what it writes runs at once, in each language. covers PE25"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.certificates import write_private
from support.cluster import find_free_port

from relaax_like.cli.new import _find_unsupported, write_environment
from relaax_like.client_checks.checks import FAILED, PASSED, Setting
from relaax_like.client_checks.run import check_client
from relaax_like.wire.errors import ConfigError
from relaax_like.wire.spaces import Space

RELAAX = (sys.executable, "-m", "relaax_like.cli.main")
# Language -> the commands that it needs, and the part of RELAAX_REQUIRE_NODE=1 and the like, which
# turn a missing command from a skip into a failure.
LANGUAGES = {
    "python": ((), ""),
    "js": (("node",), "NODE"),
    "csharp": (("mcs", "mono"), "MONO"),
    "cpp": (("cc", "c++"), "CC"),
    "c": (("cc",), "CC"),
    "gdscript": (("godot3-server",), "GODOT"),
    "json": ((), ""),
}
# Each kind, with bounds and without, and names that mean something in one of the languages.
ODD = {
    "class": {"box": [2, 2], "low": [[0, None], [-1, -1]]},
    "for": {"box": [3, 4], "dtype": "uint8", "low": 0, "high": 255},
    "true": {"multi_discrete": [3, 2, 1, 4], "shape": [2, 2]},
    "a/b-c.d": {"discrete": 3, "start": -4},
    "box": {"multi_binary": [2]},
    "discrete": {"box": [], "dtype": "float64", "high": 1},
    "//": {"box": [2], "dtype": "int16", "low": [-3, -2], "high": 3},
    "constructor": {"box": [1], "dtype": "uint64"},
    "__NAME__": {"multi_discrete": [5]},
    "0": {"box": [2, 0]},
    "x" * 200: {"box": [1]},
}
SPACE = (
    '{"camera": {"box": [2, 2], "low": [[0, null], [-1, -1]]}, "x": {"multi_discrete": [3, 2]},'
    ' "d": {"discrete": 3, "start": 4}, "m": {"multi_binary": [2]}, "s": {"box": []}}'
)
ACTIONS = '{"box": [2], "low": -1, "high": 1}'
SCENARIOS = ("without features", "other spellings", "lost within an answer", "a wrong token")


@pytest.fixture(params=LANGUAGES)
def language(request: pytest.FixtureRequest) -> str:
    """A language whose commands are here."""
    commands, require = LANGUAGES[request.param]
    missing = [command for command in commands if shutil.which(command) is None]
    if missing:
        message = f"no {', '.join(missing)}"
        if os.environ.get(f"RELAAX_REQUIRE_{require}"):
            pytest.fail(message)
        pytest.skip(message)
    return request.param


def test_all_languages_are_tested() -> None:
    with pytest.raises(ConfigError) as raised:
        write_environment(Path("walk"), "", SPACE, ACTIONS)
    assert set(str(raised.value).rpartition("one of ")[2].split(", ")) == set(LANGUAGES)


def test_odd_spaces_are_played_as_the_protocol_says(language: str, tmp_path: Path) -> None:
    folder = tmp_path / "walk"
    actions = '{"self": {"box": [2], "low": -1, "high": 1}, "if": {"discrete": 3, "start": 1}}'
    write_environment(folder, language, json.dumps(ODD), actions)
    main = str(folder / "main")
    subprocess.run([main, "--help"], stderr=subprocess.DEVNULL, timeout=100)  # compiles it
    token = write_private(tmp_path / "token", "a-token-of-a-test\n")
    program = [main, "--token-file", str(token)]
    checks = check_client(Setting(program, token="a-token-of-a-test"), SCENARIOS)
    assert [check for check in checks if check.outcome == FAILED] == []
    assert sum(check.outcome == PASSED for check in checks) > 40


@pytest.mark.parametrize(
    "language",
    ["python", *(pytest.param(name, marks=pytest.mark.slow) for name in ("js", "json"))],
    indirect=True,
)
def test_what_is_written_trains(language: str, tmp_path: Path) -> None:
    folder = tmp_path / "my-walk"
    write_environment(folder, language, SPACE, ACTIONS)
    assert "__" not in (folder / "README.md").read_text()
    sizes = ("algorithm.max_global_step=300", "algorithm.num_steps=256", "algorithm.batch_size=64")
    server, rlx = (f"localhost:{find_free_port()}" for _ in range(2))
    binds = (f"relaax-parameter-server.bind={server}", f"relaax-rlx-server.bind={rlx}")
    sets = [part for text in (*sizes, *binds) for part in ("--set", text)]
    ran = subprocess.run(
        [*RELAAX, "run", "my-walk.yaml", *sets],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "mean return 20.0" in ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("js", "no Node 'node'"),
        ("c", "no C compiler 'cc'"),
        ("cpp", "no C compiler 'cc'"),
        ("csharp", "no Mono"),
        ("gdscript", "no godot3-server"),
    ],
)
def test_without_its_tools_a_program_names_them(name: str, words: str, tmp_path: Path) -> None:
    write_environment(tmp_path / "walk", name, SPACE, ACTIONS)
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("sh", "dirname", "basename", "uname", "readlink", "mkdir", "find", "cat"):
        (tools / tool).symlink_to(str(shutil.which(tool)))
    ran = subprocess.run(
        [tmp_path / "walk" / "main"], env={"PATH": str(tools)}, capture_output=True, text=True
    )
    assert (ran.returncode, len(ran.stderr.splitlines())) == (2, 1), ran.stderr
    assert words in ran.stderr
    assert "apt-get install" in ran.stderr


def test_a_folder_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "walk").mkdir()
    with pytest.raises(ConfigError, match="already exists"):
        write_environment(tmp_path / "walk", "python", SPACE, ACTIONS)


@pytest.mark.parametrize(
    ("name", "language", "space", "words"),
    [
        ("walk", "cobol", '{"box": [2]}', "--language"),
        ("my walk", "python", '{"box": [2]}', "NAME"),
        ("walk", "python", '{"box": 2}', "--observation"),
        ("walk", "python", "[4]", "--observation"),
        ("walk", "python", '{"box": [4}', "--observation"),
        ("walk", "json", '{"box": [2], "low": NaN}', "--observation"),
        ("walk", "js", '{"box": [2], "low": -Infinity}', "--observation"),
        ("walk", "c", '{"a\\"b": {"box": [2]}}', "leaf name"),
        ("walk", "js", '{"a`b": {"box": [2]}}', "leaf name"),
        ("walk", "json", '{"a\'b": {"box": [2]}}', "leaf name"),
        ("walk", "csharp", '{"a\\\\b": {"box": [2]}}', "leaf name"),
        ("walk", "gdscript", '{"a\\nb": {"box": [2]}}', "leaf name"),
        ("walk", "cpp", '{"größe": {"box": [2]}}', "leaf name"),
        ("walk", "python", f'{{"{"x" * 201}": {{"box": [2]}}}}', "leaf name"),
        ("walk", "js", '{"__proto__": {"box": [2]}}', "__proto__: this name"),
        ("walk", "c", '{"box": [2], "dtype": "float16"}', "dtype float16"),
        ("walk", "csharp", '{"discrete": 2, "dtype": "int32"}', "dtype cannot be written in C#"),
        ("walk", "cpp", '{"multi_discrete": [2], "starts": [1]}', "starts"),
        ("walk", "python", '{"box": [1], "mirror": [-1]}', "mirror"),
        ('wa"lk', "c", '{"box": [2]}', "NAME"),
        ("größe", "js", '{"box": [2]}', "NAME"),
        ("x" * 62, "cpp", '{"box": [2]}', "NAME"),
    ],
)
def test_what_is_wrong_is_named(
    name: str, language: str, space: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        write_environment(tmp_path / name, language, space, '{"discrete": 2}')
    assert not (tmp_path / name).exists()


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="choose another folder"):
        write_environment(tmp_path / "file" / "walk", "python", '{"box": [2]}', '{"discrete": 2}')


def test_a_kind_of_space_that_a_language_cannot_write_is_named() -> None:
    class Other(Space):
        """A kind that no template knows."""

    space = Other(dtype="float32", shape=(4,))
    found = _find_unsupported("command", space, {"forms": {"": {}}})
    assert list(found) == [f"a space {space.describe()}"]
