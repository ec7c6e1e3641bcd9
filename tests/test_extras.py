"""Libraries that only extras bring."""

import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support.cluster import ROOT

from relaax_like.config.algorithm_folder import load_algorithm_module
from relaax_like.extras import _MODULES, describe_missing
from relaax_like.wire.errors import ConfigError

# Names of distributions whose modules are called otherwise.
MODULES = {
    "grpcio": "grpc",
    "grpcio-health-checking": "grpc_health",
    "ale-py": "ale_py",
    "imageio-ffmpeg": "imageio_ffmpeg",
    "pillow": "PIL",
    "prometheus-client": "prometheus_client",
    "pyyaml": "yaml",
}


def test_every_library_of_an_extra_is_known() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra, modules in _MODULES.items():
        for requirement in extras["optional-dependencies"][extra]:
            name = requirement.split(">")[0].split("[")[0]
            assert MODULES.get(name, name) in modules.split(), requirement


def test_the_line_names_the_extra() -> None:
    line = describe_missing("grpc")
    assert line is not None
    assert line.startswith("grpc is not installed for ")
    assert line.endswith("; install it: pip install 'relaax_like[server]'")
    # Only a part of an installed package is missing, as in another version of it.
    for module in ("grpc.no_such_part", "my_module", "", None):
        assert describe_missing(module) is None


def test_a_folder_s_missing_library_is_named_without_a_place(tmp_path: Path) -> None:
    text = "raise ModuleNotFoundError(\"No module named '{0}'\", name='{0}')"
    for name, want in (
        ("tensorflow", r"^tensorflow is not installed .*relaax_like\[server\]'$"),
        ("mine", r"model\.py:1: ModuleNotFoundError: No module named 'mine'"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "model.py").write_text(text.format(name))
        with pytest.raises(ConfigError, match=want):
            load_algorithm_module(folder, "model")


def test_a_command_is_loaded_without_searches_for_garbage_and_runs_with_them() -> None:
    code = (
        "import gc, sys, types\n"
        "from relaax_like.cli import entry\n"
        "seen = []\n"
        "class Fake:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'relaax_like.cli.main':\n"
        "            seen.append(gc.isenabled())\n"
        "sys.meta_path.insert(0, Fake())\n"
        "sys.argv[1:] = ['--version']\n"
        "sys.exit = seen.append\n"
        "entry.relaax()\n"
        "print(seen[0], gc.isenabled())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.splitlines()[-1] == "False True", done.stderr


def test_ctrl_c_while_libraries_are_loaded_is_no_stack_trace() -> None:
    code = (
        "import sys\n"
        "from relaax_like.cli import entry\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'relaax_like.cli.main':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "entry.relaax()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, "")
