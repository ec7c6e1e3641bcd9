"""Compiled functions that are kept between processes: flags, whole runs, and damaged files."""

import os
import re
import shutil
import stat
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from support.cluster import ROOT, find_command
from support.compare import compare

from relaax_like.nn.compiled_files import _is_intact
from relaax_like.nn.compiling import AUTO, get_compile_cache, use_compile_cache
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


def test_by_default_it_is_in_the_folder_of_the_user(flags, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    use_compile_cache(AUTO)
    folder = get_compile_cache()
    assert folder is not None
    assert folder.parent == tmp_path / "caches" / "relaax-like" / "compiled"
    for made in (folder, *folder.parents[:3]):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700, made
    for version in (metadata.version("relaax_like"), metadata.version("tensorflow")):
        assert version in folder.name

    flags("")
    monkeypatch.setenv("XDG_CACHE_HOME", "not absolute")
    monkeypatch.setenv("HOME", str(tmp_path / "caches"))
    (tmp_path / "caches" / ".cache").symlink_to(tmp_path / "caches")  # the user's own link
    use_compile_cache(AUTO)
    assert get_compile_cache() == tmp_path / "caches" / ".cache" / folder.relative_to(
        tmp_path / "caches"
    )


def open_to_others(folder):
    folder.chmod(0o770)


def link(folder):
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")


def give_away(folder):
    if os.geteuid():
        pytest.skip("only root can give a folder away")
    os.chown(folder, 12345, -1)


def make_a_file(folder):
    shutil.rmtree(folder)
    folder.write_text("")


SPOILT = [
    (open_to_others, "has mode 0770, which includes others"),
    (link, "is a link, or of another kind"),
    (give_away, "belongs to another user"),
    (make_a_file, "is a link, or of another kind"),
]


@pytest.mark.parametrize(("spoil", "problem"), SPOILT, ids=[one.__name__ for one, _ in SPOILT])
@pytest.mark.parametrize("level", [0, 1, 2])
def test_what_others_could_change_is_not_used(
    spoil, problem, level, flags, tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    use_compile_cache(AUTO)
    own = get_compile_cache()
    spoil((own, *own.parents)[level])
    flags("--tf_xla_auto_jit=2")
    for _ in range(2):  # a child process inherits what the first one found, and says nothing
        use_compile_cache(AUTO)
    assert get_compile_cache() is None
    assert os.environ[FLAGS].startswith("--tf_xla_auto_jit=2 ")
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "3"  # from the first call
    (line,) = caplog.messages
    assert line.startswith("compiled functions are not kept: compile_cache: ")
    assert problem in line


@pytest.mark.parametrize("home", ["/dev/null", "/nonexistent/folder", "/with a space"])
def test_a_user_without_a_folder_has_no_cache(home, flags, monkeypatch, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", home)
    use_compile_cache(AUTO)
    assert get_compile_cache() is None
    assert not Path("/nonexistent").exists()
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "2"
    assert len(caplog.messages) == 1


def test_a_cache_of_the_user_is_used_instead(flags, tmp_path):
    flags("--tf_xla_persistent_cache_directory=/somewhere")
    use_compile_cache(tmp_path / "cache")
    assert get_compile_cache() == Path("/somewhere")
    assert not (tmp_path / "cache").exists()


def test_what_cannot_be_a_cache_is_refused(flags, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"compile_cache: .*/file/.*: File exists; correct"):
        use_compile_cache(tmp_path / "file")
    with pytest.raises(ConfigError, match=r"compile_cache: .*white space.*choose another folder"):
        use_compile_cache(tmp_path / "a folder")
    use_compile_cache(tmp_path / "open")
    get_compile_cache().chmod(0o755)
    flags("")
    with pytest.raises(
        ConfigError, match=r"compile_cache: .* has mode 0755, .*; correct this, or "
    ):
        use_compile_cache(tmp_path / "open")
    flags("/etc/flags")
    with pytest.raises(ConfigError, match="TF_XLA_FLAGS names a file of flags, /etc/flags"):
        use_compile_cache(tmp_path / "cache")


def run(argv, flags="", **options):
    """Runs a program without the flags of the process that tests."""
    options["env"] = {**os.environ, FLAGS: flags}
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
    argv += ["--set", f"compile_cache={cache or 'null'}"]
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
    done, state = train(tmp_path, cache)
    assert (done.returncode, done.stderr) == (0, "")
    assert compare(states[0]["values"], state.values) == ""
    assert kept.stat().st_size > 1000


# The first two processes write a file at once. Each argument after the folder says what is then
# done to it, before the next process loads it.
CALL = """
import os, sys
from pathlib import Path
from support.forks import import_tensorflow, run_forked
from relaax_like.nn.compiling import CompiledFunction, use_compile_cache
from relaax_like.wire.errors import ConfigError

def call():
    from relaax_like.nn.runtime import tf

    function = tf.function(lambda x: tf.tanh(x) + 1, jit_compile=True)
    shapes = [tf.TensorSpec([None])]
    call = CompiledFunction(lambda: function.get_concrete_function(*shapes))
    try:
        said = f"{call(tf.zeros(4)).numpy().sum()} {call(tf.zeros(8)).numpy().sum()}"
    except ConfigError as error:
        said = str(error)
    os.write(1, f"{said}\\n".encode())  # one write: the other process writes at the same time

folder, *damages = sys.argv[1:]
use_compile_cache(Path(folder))
import_tensorflow()
assert run_forked(call, processes=2) == 0
for damage in damages:
    for kept in Path(folder).glob("*/*"):
        content = kept.read_bytes()
        if damage == "changed":
            kept.write_bytes(content[:-200] + bytes([content[-200] ^ 0xFF]) + content[-199:])
        elif damage == "cut":
            kept.write_bytes(content[:1000])
        elif damage == "empty":
            kept.write_bytes(b"")
        elif damage == "linked":
            os.link(kept, Path(folder) / kept.name)
        elif damage == "unsealed":  # as a process leaves it that is killed
            kept.write_bytes(content[:-15])
    assert run_forked(call) == 0
"""


def call(cache, *damages, flags=""):
    """Calls a function in two processes, and in one more after each damage.

    Returns:
      What they say.
    """
    argv = [sys.executable, "-c", CALL, cache, *damages]
    done = run(argv, flags, cwd=ROOT / "tests")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


def test_processes_share_a_folder_and_compile_a_damaged_file_again(tmp_path):
    said, errors = call(tmp_path, "none", "changed", "cut", "empty", "unsealed", "linked")
    assert said == ["4.0 8.0"] * 8
    assert len(re.findall("compile_cache: removed .* because it is a link", errors)) == 2
    kept = list(tmp_path.glob("*/*"))
    assert len(kept) == 2
    for file in kept:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert _is_intact(file)


def test_a_full_disk_is_an_error_with_its_cure(small_disk, flags, monkeypatch, caplog):
    with pytest.raises(
        ConfigError, match=r"compile_cache: .*: less than 64 MiB of its disk are free; correct"
    ):
        use_compile_cache(small_disk)
    monkeypatch.setenv("XDG_CACHE_HOME", str(small_disk))
    use_compile_cache(AUTO)
    assert "less than 64 MiB of its disk are free" in caplog.text
    # One that fills up later: a folder of the user is not looked at before.
    wanted = r"compile_cache: .*No space left on device.*; free disk space if the disk is full, or"
    flag = f"--tf_xla_persistent_cache_directory={small_disk}"
    said, _ = call(small_disk, flags=flag)
    assert len(said) == 2
    assert all(re.match(wanted, line) for line in said)


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
