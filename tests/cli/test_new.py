"""`relaax new`: what it writes runs at once, in each language. covers PE25"""

import subprocess
import sys
from pathlib import Path

import pytest
from support.cluster import find_free_port

from relaax_like.cli.new import LANGUAGES, write_environment
from relaax_like.wire.errors import ConfigError

RELAAX = (sys.executable, "-m", "relaax_like.cli.main")
SPACE = (
    '{"camera": {"box": [2, 2], "low": [[0, null], [-1, -1]]}, "x": {"multi_discrete": [3, 2]},'
    ' "d": {"discrete": 3, "start": 4}, "m": {"multi_binary": [2]}, "s": {"box": []}}'
)
ACTIONS = '{"box": [2], "low": -1, "high": 1}'


@pytest.mark.parametrize("language", LANGUAGES)
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
