"""Which tests `make quick` runs for which changes, in a small project."""

import subprocess
from pathlib import Path

import pytest

from support.quick import find_changed, select_tests

FILES = {
    "relaax_like/wire/tls.py": "",
    "relaax_like/wire/framing.py": "",
    "environments/pole/pole.c": "",
    "tests/support/rlx.py": "",
    "tests/wire/test_tls.py": "",
    "tests/wire/test_other.py": "",
    "tests/client/test_client.py": "import relaax_like.wire.tls, relaax_like.wire.framing",
    "tests/environments/test_pole.py": "SOURCE = 'pole.c'",
    "tests/fault/test_kill.py": "from relaax_like.wire import tls",
    "tests/rlx/test_rlx.py": "from support.rlx import RawClient",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        (["relaax_like/wire/tls.py"], ["wire/test_tls", "client/test_client"]),
        (
            ["relaax_like/wire/framing.py"],
            ["client/test_client", "wire/test_other", "wire/test_tls"],
        ),
        (
            ["relaax_like/wire/tls.py", "tests/wire/test_other.py"],
            ["wire/test_other", "wire/test_tls", "client/test_client"],
        ),
        (["relaax_like/wire/deep/one.py"], ["wire/test_other", "wire/test_tls"]),
        (["tests/wire/test_gone.py"], []),
        (["tests/wire/conftest.py"], ["wire/test_other", "wire/test_tls"]),
        (["tests/support/rlx.py"], ["rlx/test_rlx"]),
        (["environments/pole/pole.c"], ["environments/test_pole"]),
        (["tests/fault/test_kill.py"], ["fault/test_kill"]),
    ],
    ids=[
        "mirror",
        "folder",
        "test first",
        "deep",
        "deleted",
        "conftest",
        "support",
        "c",
        "slow itself",
    ],
)
def test_which_tests_are_run(project: Path, changed: list[str], tests: list[str]) -> None:
    found = select_tests(project, map(Path, changed))
    assert found == [Path("tests", f"{test}.py") for test in tests]


def test_what_changed(project: Path) -> None:
    def git(*arguments: str) -> None:
        who = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
        subprocess.run(["git", *who, *arguments], cwd=project, check=True, capture_output=True)

    git("init", "-b", "main")
    git("add", "relaax_like")
    git("commit", "-m", "first")
    git("add", "tests")
    git("commit", "-m", "second")
    (project / "environments/pole/pole.c").unlink()
    assert {path.parts[0] for path in find_changed(project)} == {"tests"}, "the last commit"
    (project / "new.py").touch()
    (project / "relaax_like/wire/tls.py").unlink()
    edited = [Path("new.py"), Path("relaax_like/wire/tls.py")]
    assert find_changed(project) == edited
    git("switch", "-c", "branch")
    git("add", "--all")
    git("commit", "-m", "third")
    assert find_changed(project) == edited, "since main"
    assert len(find_changed(project, "HEAD~2")) > len(edited)
