"""Folders of code that a YAML file names. covers J12, R22"""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from relaax_like.config import algorithm_folder as folders
from relaax_like.wire.errors import ConfigError


@pytest.fixture
def built_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout's `algorithms/` and `environments/`, with one of each."""
    root = tmp_path / "checkout"
    (root / "algorithms" / "salsa").mkdir(parents=True)
    (root / "algorithms" / "salsa" / "config.py").write_text("ORIGIN = 'built in'\n")
    (root / "algorithms" / "no_algorithm").mkdir()
    (root / "environments" / "gym").mkdir(parents=True)
    (root / "environments" / "gym" / "main").write_text("#!/usr/bin/env python\n")
    monkeypatch.setattr(folders, "get_shipped_folder", lambda kind: root / kind)
    return root


def test_built_in_names_are_found(built_in: Path) -> None:
    assert folders.find_algorithm("salsa") == built_in / "algorithms" / "salsa"
    assert folders.find_environment("gym") == built_in / "environments" / "gym" / "main"


def test_shipped_folders_are_found_in_this_checkout() -> None:
    with pytest.raises(ConfigError, match="did you mean policy_gradient"):
        folders.find_algorithm("policy_gradent")


def offer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installs a distribution that offers an algorithm, and one that is not there."""
    (folder / "plugin" / "salsa_lambda").mkdir(parents=True)
    for package in ("plugin", "plugin/salsa_lambda"):
        (folder / package / "__init__.py").touch()
    (folder / "plugin" / "salsa_lambda" / "config.py").write_text("ORIGIN = 'installed'\n")
    info = folder / "plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[relaax.algorithms]\nsalsa_lambda = plugin.salsa_lambda\nlost = plugin.lost\n"
        "lone = nowhere.lone\nsalsa = plugin.salsa_lambda\n"
    )
    monkeypatch.syspath_prepend(str(folder))


def test_an_installed_distribution_offers_algorithms_by_name(
    built_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(tmp_path / "site", monkeypatch)
    found = folders.find_algorithm("salsa_lambda")
    assert found == tmp_path / "site" / "plugin" / "salsa_lambda"
    assert folders.load_algorithm_module(found, "config").ORIGIN == "installed"
    # What is shipped keeps its name.
    assert folders.find_algorithm("salsa") == built_in / "algorithms" / "salsa"
    with pytest.raises(ConfigError, match=r"'lost' is registered as the package 'plugin.lost'"):
        folders.find_algorithm("lost")
    with pytest.raises(ConfigError, match=r"'lone' is registered as the package 'nowhere.lone'"):
        folders.find_algorithm("lone")
    with pytest.raises(ConfigError, match=r"known: lone, lost, salsa, salsa_lambda; "):
        folders.find_algorithm("salsu")


@pytest.mark.parametrize(
    ("text", "want"), [("import nowhere_to_be_found", "No module named"), ("1 / 0", "division by")]
)
def test_an_installed_package_that_cannot_be_imported_is_named(
    built_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, want: str
) -> None:
    offer(tmp_path / "site", monkeypatch)
    (tmp_path / "site" / "plugin" / "__init__.py").write_text(text)
    monkeypatch.delitem(sys.modules, "plugin", raising=False)
    with pytest.raises(ConfigError, match=rf"'plugin.lost' .*, which cannot be imported: .*{want}"):
        folders.find_algorithm("lost")


@pytest.mark.parametrize("name", ["salsu", "no_algorithm", "SALSA", "", "salsa\n", "salsa.config"])
def test_unknown_name_lists_the_known_ones(built_in: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown algorithm .*\(known: salsa; ") as caught:
        folders.find_algorithm(name)
    assert ("did you mean salsa?" in str(caught.value)) == (name in ("salsu", "salsa\n"))


@pytest.mark.parametrize("name", ["../algorithms/salsa", "./salsa", "/etc", ".."])
def test_path_is_never_looked_up_among_the_built_in_ones(built_in: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"no such folder|no config\.py"):
        folders.find_algorithm(name, built_in / "environments" / "gym")


def test_own_folder_is_found_relative_to_the_file(algorithm_folder: Path) -> None:
    base = algorithm_folder.parent
    want = algorithm_folder.resolve()
    assert folders.find_algorithm("./my_algorithm", base) == want
    assert folders.find_algorithm(Path("my_algorithm"), base) == want
    assert folders.find_algorithm(algorithm_folder) == want
    (base / "sub").mkdir()
    assert folders.find_algorithm("../my_algorithm", base / "sub") == want


def test_folder_without_config_is_no_algorithm(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing: no such folder"):
        folders.find_algorithm(Path("missing"), tmp_path)
    with pytest.raises(ConfigError, match=r"contains no config\.py"):
        folders.find_algorithm(tmp_path)


def test_a_path_that_the_system_refuses_is_an_error_of_the_settings(tmp_path: Path) -> None:
    too_long = Path("x" * 300)
    with pytest.raises(ConfigError, match="no such folder, or no access to it"):
        folders.find_algorithm(too_long, tmp_path)
    with pytest.raises(ConfigError, match="no such file, or no access to it"):
        folders.find_environment(too_long, tmp_path)
    with pytest.raises(ConfigError, match="unknown algorithm 'xxx"):
        folders.find_algorithm("x" * 300)


def test_own_program_may_be_a_file_or_a_folder_with_main(tmp_path: Path) -> None:
    (tmp_path / "game").mkdir()
    (tmp_path / "game" / "main").touch()
    (tmp_path / "play.py").touch()
    assert folders.find_environment("./game", tmp_path) == tmp_path / "game" / "main"
    assert folders.find_environment(Path("play.py"), tmp_path) == tmp_path / "play.py"
    with pytest.raises(
        ConfigError, match=r"nothing: no such file, or no .*; expected an environment's program"
    ):
        folders.find_environment("./nothing", tmp_path)
    (tmp_path / "game" / "slots.py").touch()
    assert folders.find_environment("./game", tmp_path).name == "main"
    (tmp_path / "game" / "main").unlink()
    assert folders.find_environment("./game", tmp_path).name == "slots.py"
    (tmp_path / "game" / "slots.py").unlink()
    with pytest.raises(
        ConfigError,
        match=r"game: not an environment folder, or .*folder with a file main .* or slots\.py",
    ):
        folders.find_environment("./game", tmp_path)


@pytest.mark.parametrize("path", ["./loop", "./a\0b"])
@pytest.mark.parametrize("find", [folders.find_algorithm, folders.find_environment])
def test_a_link_to_itself_and_a_name_with_nul_are_no_such_path(
    tmp_path: Path, find: Any, path: str
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ConfigError, match=r": no such (file|folder), or no access to it"):
        find(path, tmp_path)


def test_module_imports_its_neighbours_and_is_loaded_once(algorithm_folder: Path) -> None:
    config = folders.load_algorithm_module(algorithm_folder, "config")
    assert config.LAYER_SIZE == 200
    assert folders.load_algorithm_module(algorithm_folder, "config") is config
    same = algorithm_folder.parent / "x" / ".." / "my_algorithm"
    (algorithm_folder.parent / "x").mkdir()
    assert folders.load_algorithm_module(same, "config") is config
    assert "my_algorithm" not in sys.modules
    assert "config" not in sys.modules


def test_threads_that_load_at_once_get_one_module(algorithm_folder: Path) -> None:
    modules: list[object] = []
    threads = [
        threading.Thread(
            target=lambda: modules.append(folders.load_algorithm_module(algorithm_folder, "config"))
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(modules) == 8
    assert len(set(map(id, modules))) == 1


def test_init_of_the_folder_is_run(algorithm_folder: Path) -> None:
    (algorithm_folder / "__init__.py").write_text("FROM_INIT = 5\n")
    (algorithm_folder / "agent.py").write_text("from . import FROM_INIT\n")
    assert folders.load_algorithm_module(algorithm_folder, "agent").FROM_INIT == 5


def test_own_folder_of_a_built_in_name_is_kept_apart(built_in: Path, tmp_path: Path) -> None:
    own = tmp_path / "salsa"
    own.mkdir()
    (own / "config.py").write_text("ORIGIN = 'own'\n")
    theirs = folders.load_algorithm_module(built_in / "algorithms" / "salsa", "config")
    assert folders.load_algorithm_module(own, "config").ORIGIN == "own"
    assert theirs.ORIGIN == "built in"
    assert theirs.__name__ == "relaax_algorithms.salsa.config"


def test_folder_name_that_is_no_identifier_is_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "2nd try-ä.v1"
    folder.mkdir()
    (folder / "config.py").write_text("from .other import X\n")
    (folder / "other.py").write_text("X = 3\n")
    assert folders.load_algorithm_module(folder, "config").X == 3


@pytest.mark.parametrize("module", ["agent", "", "../config", "config.py", "os.path"])
def test_missing_module_is_refused(algorithm_folder: Path, module: str) -> None:
    with pytest.raises(ConfigError, match=r"my_algorithm: this folder has no "):
        folders.load_algorithm_module(algorithm_folder, module)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("\ndef broken(:\n", r"broken\.py:2: SyntaxError"),
        ("x = 1\n\nimport no_such_module_x\n", r"broken\.py:3: ModuleNotFoundError: No module"),
        ("1 / 0\n", r"broken\.py:1: ZeroDivisionError"),
        ("from .defaults import MISSING\n", r"broken\.py:1: ImportError"),
    ],
    ids=["syntax", "import", "exception", "name"],
)
def test_module_that_fails_names_the_line(algorithm_folder: Path, text: str, want: str) -> None:
    (algorithm_folder / "broken.py").write_text(text)
    with pytest.raises(ConfigError, match=want) as caught:
        folders.load_algorithm_module(algorithm_folder, "broken")
    assert caught.value.__cause__ is not None


def test_module_is_loaded_after_it_was_repaired(algorithm_folder: Path) -> None:
    (algorithm_folder / "__init__.py").write_text("1 / 0\n")
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        folders.load_algorithm_module(algorithm_folder, "config")
    (algorithm_folder / "__init__.py").write_text("# repaired, and of another length\n")
    assert folders.load_config_class(algorithm_folder)().max_global_step == 10**8


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("", r"config\.py: no Config, expected a class Config that"),
        ("Config = 3\n", r"config\.py: Config is 3, expected a class Config that"),
        ("class Config:\n    pass\n", r"config\.py: Config is <class '.*'>, expected"),
    ],
)
def test_folder_without_a_config_class_is_refused(tmp_path: Path, text: str, want: str) -> None:
    (tmp_path / "config.py").write_text(text)
    with pytest.raises(ConfigError, match=want):
        folders.load_config_class(tmp_path)


def test_loading_an_experiment_imports_no_tensorflow(algorithm_folder: Path) -> None:
    file = algorithm_folder.parent / "e.yaml"
    file.write_text("algorithm: {path: my_algorithm}\n")
    code = (
        "import sys; from relaax_like.config.loader import load_experiment; "
        "load_experiment(sys.argv[1]); "
        "sys.exit(', '.join({'tensorflow', 'keras', 'grpc'} & set(sys.modules)) or None)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(file)], capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, result.stderr.strip()) == (0, "")
