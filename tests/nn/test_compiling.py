"""Compiled functions that are kept between processes: flags, whole runs, and damaged files."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.cluster import ROOT, find_command
from support.compare import compare

from relaax_like.nn.compiling import get_compile_cache, use_compile_cache
from relaax_like.parameter_server.snapshots import read_latest
from relaax_like.wire.errors import ConfigError

FLAGS = "TF_XLA_FLAGS"
TIMES = r"(\S+) s to start, (\S+) s compiling, (\S+) s learning, (\S+) s to end"


@pytest.fixture
def flags(monkeypatch):
    """Sets the user's own flags; afterwards they are as they were."""
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    monkeypatch.setenv(FLAGS, "")
    return lambda text: monkeypatch.setenv(FLAGS, text)


def test_without_a_folder_nothing_changes(flags):
    flags("--tf_xla_auto_jit=2")
    use_compile_cache(None)
    assert os.environ[FLAGS] == "--tf_xla_auto_jit=2"
    assert get_compile_cache() is None


def test_the_flags_of_the_user_remain(flags, tmp_path):
    flags("--tf_xla_auto_jit=2")
    use_compile_cache(tmp_path / "cache")
    first, *rest = os.environ[FLAGS].split()
    assert first == "--tf_xla_auto_jit=2"
    assert len(rest) == 2
    folder = get_compile_cache()
    assert folder is not None
    assert folder.parent == tmp_path / "cache"
    assert folder.is_dir()
    before = os.environ[FLAGS]
    use_compile_cache(tmp_path / "cache")  # as a process does that inherited them
    assert os.environ[FLAGS] == before


def test_each_setting_of_xla_has_its_folder(flags, tmp_path, monkeypatch):
    folders = set()
    for settings in (
        "",
        "--xla_backend_optimization_level=0",
        "--xla_backend_optimization_level=1",
    ):
        flags("")
        monkeypatch.setenv("XLA_FLAGS", settings)
        use_compile_cache(tmp_path)
        folders.add(get_compile_cache())
    assert len(folders) == 3


def test_a_cache_of_the_user_is_used_instead(flags, tmp_path):
    flags("--tf_xla_persistent_cache_directory=/somewhere")
    use_compile_cache(tmp_path / "cache")
    assert get_compile_cache() == Path("/somewhere")
    assert not (tmp_path / "cache").exists()


def test_what_cannot_be_a_cache_is_refused(flags, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"compile_cache: .*/file/.*: Not a directory; choose"):
        use_compile_cache(tmp_path / "file")
    with pytest.raises(ConfigError, match=r"compile_cache: .*white space.*choose another folder"):
        use_compile_cache(tmp_path / "a folder")
    flags("/etc/flags")
    with pytest.raises(ConfigError, match="TF_XLA_FLAGS names a file of flags, /etc/flags"):
        use_compile_cache(tmp_path / "cache")


def run(argv, **options):
    """Runs a program without the flags of the process that tests."""
    options["env"] = {key: value for key, value in os.environ.items() if key != FLAGS}
    return subprocess.run(argv, capture_output=True, text=True, timeout=100, **options)


def train(folder, cache):
    """Trains a small ppo in a process; returns its result, and the state that it ends with."""
    file = folder / "experiment.yaml"
    file.write_text(
        "algorithm: {name: ppo, max_global_step: 128, state_size: 4, num_actions: 2, "
        "network: {layers: []}, shared_network: true, num_steps: 64, rollout_steps: 16, "
        "epochs: 2, batch_size: 16}\n"
        "environment: {program: OpenAI_Gym, env: CartPole-v1, slots: 4}\n"
    )
    run_dir = folder / f"run{len(list(folder.glob('run*')))}"
    argv = [find_command("relaax"), "train", file, "--set", f"run_dir={run_dir}"]
    if cache is not None:
        argv += ["--set", f"compile_cache={cache}"]
    return run(argv), read_latest(run_dir / "checkpoints")


@pytest.mark.slow
def test_a_second_run_loads_what_the_first_one_compiled(tmp_path):
    cache = tmp_path / "cache"
    states = []
    times = []
    for use in (None, cache, cache):
        done, state = train(tmp_path, use)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stderr == ""
        times_line = re.search(rf"time +{TIMES}", done.stdout)
        assert times_line, done.stdout
        assert float(times_line[2]) > 0
        states.append({"values": state.values, "slots": state.slots, "steps": state.steps})
        times.append({file.name: file.stat().st_mtime_ns for file in cache.glob("*/*")})
    assert not times[0]
    assert times[1]
    assert times[1] == times[2]
    assert compare(states[0], states[1]) == ""
    assert compare(states[0], states[2]) == ""

    (kept,) = cache.glob("*/*")
    kept.write_bytes(kept.read_bytes()[:1000])
    done, _ = train(tmp_path, cache)
    assert done.returncode == 2
    problem = rf"compile_cache: TensorFlow cannot use a file in {kept.parent}: .*"
    assert re.search(
        f"{problem}; free disk space if the disk is full, or remove this folder",
        done.stdout + done.stderr,
    )
    assert "Traceback" not in done.stdout + done.stderr


# The first process writes a file. Each argument after the folder says what is then done to it,
# before the next process loads it.
CALL = """
import sys
from pathlib import Path
from support.forks import import_tensorflow, run_forked
from relaax_like.nn.compiling import CompiledFunction, use_compile_cache
from relaax_like.wire.errors import ConfigError

def call():
    from relaax_like.nn.runtime import tf

    function = tf.function(lambda x: tf.tanh(x) + 1, jit_compile=True)
    call = CompiledFunction(lambda: function.get_concrete_function(tf.TensorSpec([4])))
    try:
        print(call(tf.zeros(4)).numpy().sum())
    except ConfigError as error:
        print(error)

folder, *damages = sys.argv[1:]
use_compile_cache(Path(folder))
import_tensorflow()
assert run_forked(call) == 0
for damage in damages:
    (kept,) = Path(folder).glob("*/*")
    content = bytearray(kept.read_bytes())
    if damage == "changed":
        content[200] ^= 0xFF
    kept.write_bytes(content)
    assert run_forked(call) == 0
"""


def call(cache, *damages):
    """Calls a function in a process, and in one more after each damage; returns what they say."""
    argv = [sys.executable, "-c", CALL, cache, *damages]
    done = run(argv, cwd=ROOT / "tests")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_changed_file_is_an_error_with_its_cure(tmp_path):
    first, loaded, changed = call(tmp_path, "none", "changed")
    assert first == loaded == "4.0"
    (kept,) = tmp_path.glob("*/*")
    wanted = rf"compile_cache: TensorFlow cannot use a file in {kept.parent}: .*remove this folder"
    assert re.match(wanted, changed)


def test_a_full_disk_is_an_error_with_its_cure(small_disk):
    wanted = r"compile_cache: .*No space left on device.*; free disk space if the disk is full, or"
    (said,) = call(small_disk)
    assert re.match(wanted, said)


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        command = ["mount", "-t", "tmpfs", "-o", "size=4k", "none", str(disk)]
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount")
    if done.returncode:
        pytest.skip(f"no file system may be mounted here: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)
