"""Versions of a simulator's packages: what is found, and what is refused."""

import sys
from pathlib import Path

import gymnasium
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.versions import MAX_VERSIONS, find_versions, validate_versions

TABLE = """
import base_of_game, needed_game
class Game(base_of_game.Base): pass
"""


def install(folder: Path, package: str, modules: dict[str, str], version: str, *needs: str) -> None:
    """Installs a package as pip does."""
    info = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    requires = "".join(f"Requires-Dist: {need}\n" for need in needs)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n{requires}"
    )
    (info / "top_level.txt").write_text("\n".join(modules))
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)


def test_packages_of_the_class_and_what_is_loaded_of_their_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    install(folder, "stable-game", {"game": TABLE}, "1.0.1", "Needed_Game >=2; extra == 'x'", "no")
    install(folder, "base-of-game", {"base_of_game": "class Base: pass"}, "3.0+local", "absent")
    install(folder, "needed-game", {"needed_game": ""}, "2.3.rc1", "idle-game", "stable-game")
    install(folder, "idle-game", {"idle_game": ""}, "9")
    install(folder, "other", {"other": ""}, "8")
    monkeypatch.syspath_prepend(str(folder))
    import game  # type: ignore[import-not-found]
    import other  # type: ignore[import-not-found]  # noqa: F401

    try:
        assert find_versions(game.Game) == {
            "stable-game": "1.0.1",
            "base-of-game": "3.0+local",
            "needed-game": "2.3.rc1",
        }
    finally:
        for name in ("game", "base_of_game", "needed_game", "other"):
            sys.modules.pop(name, None)


def test_gymnasium_and_a_class_of_no_package() -> None:
    class Own(CartPoleEnv):
        """An environment of this file."""

    versions = find_versions(Own)
    assert versions["gymnasium"] == gymnasium.__version__
    assert validate_versions(versions) == versions
    assert find_versions(object) == {}


@pytest.mark.parametrize(
    "versions",
    [
        {f"package{number}": "1" for number in range(MAX_VERSIONS + 1)},
        {"": "1"},
        {"a b": "1"},
        {"a": "1\n"},
        {"a": ""},
        {"a" * 65: "1"},
        {"a": "1" * 65},
        {"a": 1},
        {"\x1b[2J": "1"},
    ],
)
def test_other_texts_are_refused(versions) -> None:
    with pytest.raises(InvalidInputError, match=r"versions: \d+ pairs.*, expected at most 32"):
        validate_versions(versions)


@pytest.mark.parametrize("versions", [["mujoco"], "mujoco", 3])
def test_what_is_no_dict_is_refused(versions) -> None:
    with pytest.raises(InvalidInputError, match=r"versions: .*expected a dict package -> version"):
        validate_versions(versions)


def test_as_many_and_as_long_as_allowed() -> None:
    versions = {f"{number:064}": "Az9_.+!-" * 8 for number in range(MAX_VERSIONS)}
    assert validate_versions(versions) == versions
