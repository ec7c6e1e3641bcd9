"""A run's folder is begun once, described, and never written over. covers J17, P22"""

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from support.cluster import Cluster, Program, find_command
from support.here import refuse_here, run_here

from relaax_like.config.loader import load_experiment
from relaax_like.config.yaml_document import read_yaml
from relaax_like.core.journal.files import HEADER_BYTES
from relaax_like.core.journal.head import JournalHead, path_of_head
from relaax_like.core.journal.journal import Journal
from relaax_like.core.journal.reader import JournalReader
from relaax_like.parameter_server.folder import lock_folder
from relaax_like.parameter_server.rehearsal import rehearse
from relaax_like.parameter_server.snapshots import list_names, read_latest
from relaax_like.runs.folders.run_folder import (
    RUN,
    SERVERS,
    TRAIN,
    _replace,
    begin_run,
    describe_start,
    find_progress,
    is_described,
    note_begun,
    read_command,
    validate_not_emptied,
    validate_not_held,
)
from relaax_like.wire.errors import ConfigError, SnapshotError

RELAAX = find_command("relaax")
BUDGET = "--max-global-step"


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Cluster(tmp_path) as cluster:
        yield cluster


def start(cluster: Cluster, *arguments: object) -> Program:
    return cluster.start(str(arguments[0]), [RELAAX, *arguments])


def read_steps(folder: Path) -> int:
    state = read_latest(folder / "checkpoints")
    assert state is not None
    return state.global_t


def load(cluster, *sets):
    return load_experiment(cluster.config, [f"run_dir={cluster.folder / 'run'}", *sets])


def make_snapshot(folder: Path, global_t: int, version: int) -> None:
    (folder / f"cp-{global_t:020d}-{version:020d}").mkdir(parents=True)


def test_what_counts_as_a_run(tmp_path):
    assert find_progress(tmp_path / "nowhere") is None
    make_snapshot(tmp_path, 0, 0)
    (tmp_path / "lock").touch()
    assert find_progress(tmp_path) is None
    make_snapshot(tmp_path, 7, 1)
    assert find_progress(tmp_path) == 7
    killed = tmp_path / "killed"
    make_snapshot(killed, 0, 0)
    (killed / "published-0.state").touch()
    assert find_progress(killed) == 0
    pushed = tmp_path / "pushed"
    make_snapshot(pushed, 0, 0)
    (pushed / "journal").mkdir()
    journal = pushed / "journal" / f"journal-{0:020d}.log"
    journal.write_bytes(bytes(HEADER_BYTES))
    assert find_progress(pushed) is None
    journal.write_bytes(bytes(HEADER_BYTES + 1))
    assert find_progress(pushed) == 0


def test_a_start_that_came_to_nothing_leaves_no_model_behind(cluster):
    """Its snapshot would be refused where the settings have been mended since."""
    experiment = load(cluster)
    checkpoints = experiment.parameter_server.checkpoint_dir
    make_snapshot(checkpoints, 0, 0)
    note_begun(experiment)
    (checkpoints / "journal").mkdir()
    (checkpoints / "journal" / f"journal-{0:020d}.log").write_bytes(bytes(HEADER_BYTES))
    (checkpoints / "initial-1.npz").touch()
    with contextlib.closing(lock_folder(checkpoints)), pytest.raises(SnapshotError):
        begin_run(experiment, force=False)  # somebody has just started it
    begin_run(experiment, force=False)
    assert not list_names(checkpoints)
    assert not (checkpoints / "journal").exists()
    assert (checkpoints / "initial-1.npz").exists()
    validate_not_emptied(experiment)  # it was this program that emptied it


def test_a_start_that_came_to_nothing_and_cannot_be_removed_is_one_line(cluster, monkeypatch):
    def fail(path):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    experiment = load(cluster)
    make_snapshot(experiment.parameter_server.checkpoint_dir, 0, 0)
    monkeypatch.setattr(shutil, "rmtree", fail)
    with pytest.raises(SnapshotError, match=r"cannot be removed: .*Read-only file system"):
        begin_run(experiment, force=False)


def test_a_start_that_was_killed_before_its_first_step_can_be_repeated(cluster):
    experiment = load(cluster)
    checkpoints = experiment.parameter_server.checkpoint_dir
    make_snapshot(checkpoints, 0, 0)
    for name in ("journal", "replay"):
        head = JournalHead(path_of_head(checkpoints / name))
        journal = Journal(checkpoints / name, 0, fingerprint=0, head=head, sync_interval_sec=None)
        journal.sync()  # and no more: it is killed
        assert head.read().newest_segment == 0
    begin_run(experiment, force=False)
    for name in ("journal", "replay"):
        head = JournalHead(path_of_head(checkpoints / name))
        assert list(JournalReader(checkpoints / name, 0, 0, head)) == []
        journal.close()


def test_experience_in_a_replay_table_s_journal_counts_as_a_run(tmp_path):
    make_snapshot(tmp_path, 0, 0)
    with Journal(tmp_path / "replay-goal", 0, fingerprint=0) as journal:
        assert find_progress(tmp_path) is None
        journal.append([b"a rollout"])
    assert find_progress(tmp_path) == 0


def test_a_run_that_is_there_is_refused_with_the_two_cures(cluster):
    experiment = load(cluster)
    begin_run(experiment, force=False)
    make_snapshot(experiment.parameter_server.checkpoint_dir, 12345, 6)
    (cluster.folder / "run.old-1").mkdir()
    with pytest.raises(ConfigError) as caught:
        begin_run(experiment, force=False)
    for text in ("at step 12,345", f"`relaax resume {cluster.folder}/run`", "--force", "run.old-2"):
        assert text in str(caught.value)


def test_a_run_that_cannot_be_moved_is_refused_without_force_as_a_cure(cluster, monkeypatch):
    folder = cluster.folder / "run"
    checkpoints = folder / "checkpoints"
    make_snapshot(checkpoints, 7, 1)
    apart = f"relaax-parameter-server.checkpoint_dir={checkpoints}"
    for inside, sets, cures in (
        (folder, ["run_dir=."], "`relaax resume .`, or choose another run_dir"),
        (checkpoints, ["run_dir=.."], "`relaax resume ..`, or choose another run_dir"),
        (checkpoints, ["run_dir=other", apart], "Choose another checkpoint_dir"),
    ):
        monkeypatch.chdir(inside)
        with pytest.raises(ConfigError) as refused:
            begin_run(load(cluster, *sets), force=False)
        assert str(refused.value).endswith(cures)
        with pytest.raises(ConfigError, match="it contains the current directory"):
            begin_run(load(cluster, *sets), force=True)


def test_a_run_with_a_mirror_is_refused_without_force_as_a_cure(cluster, monkeypatch):
    monkeypatch.setattr("relaax_like.runs.folders.run_folder.find_progress", lambda folder: 5)
    mirror = "relaax-parameter-server.mirror_url=memory://run"
    with pytest.raises(ConfigError, match=r"or choose another run_dir and another mirror_url$"):
        begin_run(load(cluster, mirror), force=False)
    apart = f"relaax-parameter-server.checkpoint_dir={cluster.folder / 'apart'}"
    with pytest.raises(ConfigError, match=r"another checkpoint_dir and another mirror_url$"):
        begin_run(load(cluster, mirror, apart), force=False)


def test_force_moves_all_folders_aside_and_deletes_none(cluster):
    elsewhere = [
        f"relaax-parameter-server.checkpoint_dir={cluster.folder / 'cps'}",
        f"relaax-parameter-server.metrics_dir={cluster.folder / 'run' / 'curves'}",
    ]
    experiment = load(cluster, *elsewhere)
    for number in (1, 2):
        make_snapshot(cluster.folder / "cps", number, number)
        (cluster.folder / "run" / "curves").mkdir(parents=True)
        begin_run(experiment, force=True)
        assert not (cluster.folder / "cps").exists()
        assert not (cluster.folder / "run").exists()
        assert find_progress(cluster.folder / f"cps.old-{number}") == number
        assert (cluster.folder / f"run.old-{number}" / "curves").is_dir()


def test_force_does_not_move_what_is_needed_or_used(cluster, monkeypatch):
    experiment = load(cluster)
    checkpoints = experiment.parameter_server.checkpoint_dir
    make_snapshot(checkpoints, 5, 5)
    with lock_folder(checkpoints):
        for call in (lambda: begin_run(experiment, True), lambda: validate_not_held(experiment)):
            with pytest.raises(SnapshotError, match=r"in use by a parameter server, .* \(pid \d"):
                call()
    lock = checkpoints / "lock"
    lock.unlink()
    lock.mkdir()
    with pytest.raises(SnapshotError, match=f"{lock}: cannot be locked: Is a directory; it must"):
        validate_not_held(experiment)
    lock.rmdir()
    mirrored = load(cluster, "relaax-parameter-server.mirror_url=ftp://me:secret@host/run")
    with pytest.raises(ConfigError, match="choose another mirror_url") as refused:
        begin_run(mirrored, force=True)
    assert "ftp://me@host/run" in str(refused.value)
    assert "secret" not in str(refused.value)
    monkeypatch.chdir(checkpoints)
    with pytest.raises(
        ConfigError,
        match=r"--force cannot move .*run: it contains the current directory .*checkpoints; set "
        "run_dir to another folder",
    ):
        begin_run(experiment, force=True)
    assert find_progress(checkpoints) == 5


def test_force_moves_nothing_if_the_previous_run_cannot_be_used(cluster):
    checkpoints = load(cluster).parameter_server.checkpoint_dir
    make_snapshot(checkpoints, 5, 5)
    run = cluster.folder / "run"
    for previous, text in (
        (cluster.folder / "nowhere", "learner.previous: .*nowhere: no such file"),
        (run, f"--force cannot move {run}: it contains the run of learner.previous, {run}; set"),
    ):
        shutil.copy(cluster.config, run / "config.yaml")
        with pytest.raises(ConfigError, match=text):
            begin_run(load(cluster, f"learner.previous={previous}"), force=True)
        assert find_progress(checkpoints) == 5


def test_force_moves_nothing_if_there_is_no_environment_to_train_on(cluster):
    experiment = load(cluster)
    make_snapshot(experiment.parameter_server.checkpoint_dir, 5, 5)
    text = cluster.config.read_text()
    cluster.config.write_text(text[: text.index("environment:")])
    refused = refuse_here("train", cluster.config, "--force")
    assert "there is no `environment` section" in refused
    assert find_progress(experiment.parameter_server.checkpoint_dir) == 5


def test_a_run_is_resumed_in_its_own_folder_and_with_its_spaces_only(cluster):
    assert run_here("train", cluster.config, BUDGET, 100)[0] == 0
    line = refuse_here("resume", "run", "--run-dir", "other", BUDGET, 200)
    assert line.startswith("error: run_dir: a run is resumed in its own folder, run, but a flag")
    assert not (cluster.folder / "other").exists()
    other = ("--set", "environment.env=Pendulum-v1")
    status, output = run_here("resume", "run", *other, BUDGET, 200)
    assert status == 2
    assert "A run that has begun keeps its spaces" in output


def test_each_start_is_described_for_people_and_for_programs(cluster, monkeypatch, caplog):
    experiment = load(cluster, "seed=5")
    folder = experiment.run_dir
    folder.mkdir()
    assert (read_command(folder), is_described(experiment)) == (SERVERS, False)
    monkeypatch.setattr(sys, "argv", ["relaax", "train", "it's.yaml", "--seed", "5"])
    describe_start(experiment, TRAIN)
    monkeypatch.setattr(sys, "argv", ["relaax", "resume", "run"])
    describe_start(experiment, RUN)
    assert (read_command(folder), is_described(experiment)) == (RUN, True)
    data = read_yaml(folder / "experiment.yaml").data
    first, second = data["starts"]
    assert first["argv"] == ["relaax", "train", "it's.yaml", "--seed", "5"]
    assert (first["command"], second["command"]) == ("train", "run")
    assert first["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert set(first["versions"]) == {"python", "numpy", "tensorflow", "relaax_like"}
    assert all(first["versions"].values())
    assert data["settings"]["seed"] == 5
    info = (folder / "experiment.info").read_text()
    assert "relaax train 'it'\"'\"'s.yaml' --seed 5" in info
    assert "relaax resume run" in info
    for setting in ("seed: 5", "checkpoint_time_interval: 60.0", "env: CartPole-v0"):
        assert setting in info
    # A damaged one is replaced.
    (folder / "experiment.yaml").write_text("[")
    assert read_command(folder) == SERVERS
    assert "it is resumed as by relaax run" in caplog.text
    describe_start(experiment, TRAIN)
    assert read_command(folder) == TRAIN
    assert sorted(path.name for path in folder.iterdir()) == ["experiment.info", "experiment.yaml"]


def test_train_is_refused_resumed_and_forced(cluster):
    # covers P28
    folder = cluster.folder
    assert run_here("train", cluster.config, BUDGET, 300)[0] == 0
    line = refuse_here("train", cluster.config, BUDGET, 600)
    assert line.startswith("error: run_dir: run already contains a run, at step 3")
    steps = read_steps(folder / "run")
    outside = f"relaax-parameter-server.checkpoint_dir={folder / 'run' / 'checkpoints'}"
    line = refuse_here("train", cluster.config, "--run-dir", "other", "--set", outside)
    assert line.startswith("error: relaax-parameter-server.checkpoint_dir: ")
    assert "already contains a run, at step" in line
    status, resumed = run_here("resume", "run/config.yaml", BUDGET, 900, "--insecure")
    assert status == 0
    assert f" global_t is {steps}\n" in resumed
    status, forced = run_here("train", cluster.config, BUDGET, 200, "--force")
    assert status == 0
    assert " global_t is 0\n" in forced
    assert read_steps(folder / "run") < 300
    assert read_steps(folder / "run.old-1") >= 900
    data = read_yaml(folder / "run.old-1" / "experiment.yaml").data
    assert [one["argv"][1] for one in data["starts"]] == ["train", "resume"]
    assert data["settings"]["algorithm"]["max_global_step"] == 900
    assert data["settings"]["security"]["insecure"]
    # The lines of both starts, with the date; and how the second one ended.
    log = (folder / "run.old-1" / "log.txt").read_text()
    for budget in (300, 900):
        assert re.search(rf"^\d{{4}}-\d\d-\d\d \S+ finished: budget of {budget} env", log, re.M)
    results = json.loads((folder / "run.old-1" / "results.json").read_text())
    assert results["finished"] == "budget of 900 env steps used up"
    assert results["global_t"] == read_steps(folder / "run.old-1")


REFUSED = {
    "relaax-parameter-server.optimizers={x: {}}": "has no optimizer",
    "environment.env=Nope-v3": "Environment `Nope` doesn't exist",
    "environment.env=Pendulum-v1": "A run that has begun keeps its spaces: choose the environment",
    "learner.previous=nowhere": "nowhere: no such file",
}


def read_files(folder: Path) -> dict[str, bytes]:
    """Returns all files but the one that names the newest process."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "lock"
    }


def check_refusals(run: Path, sets: Iterable[str]) -> None:
    before = read_files(run)
    for one in sets:
        status, output = run_here("resume", run, BUDGET, 10**6, "--set", one)
        assert status in (1, 2)
        assert REFUSED[one] in output
        assert "set it to" not in output
        assert read_files(run) == before


def test_a_resume_that_is_refused_changes_nothing(cluster):
    run = cluster.folder / "run"
    assert run_here("train", cluster.config, BUDGET, 300)[0] == 0
    before = read_files(run)
    check_refusals(run, REFUSED)
    assert run_here("resume", "run", BUDGET, 2 * read_steps(run))[0] == 0
    assert read_files(run) != before


def test_a_refusal_names_the_step_of_the_journal(cluster):
    """It was killed long after its newest snapshot."""
    never = "relaax-parameter-server.checkpoint_time_interval=1e6"
    training = start(cluster, "train", cluster.config, BUDGET, 10**6, "--set", never)
    training.wait_for(r"step [1-9]")
    refuse_here("train", cluster.config)
    training.stop(signal.SIGKILL)
    refused = refuse_here("train", cluster.config)
    step = rehearse(cluster.folder / "run" / "checkpoints").end.global_t
    assert step > 0
    assert f"already contains a run, at step {step:,}." in refused
    assert read_steps(cluster.folder / "run") == 0


def test_processes_agree_on_the_folder_are_refused_and_resumed(cluster):
    sets = ("--run-dir", "null", "--logdir", "logs", "--run-name", "two")
    one_client = ("--set", "environment.clients=1")
    first = start(cluster, "run", cluster.config, BUDGET, 500, "--trace", *sets, *one_client)
    assert first.wait() == 0, first
    (run,) = (cluster.folder / "logs" / "CartPole-v0" / "two").iterdir()
    # All processes have traced into it.
    roles = {path.name.rpartition("-")[0] for path in (run / "trace").iterdir()}
    assert roles >= {"parameter-server", "rlx-server", "environment"}
    assert read_command(run) == RUN
    log = (run / "log.txt").read_text()
    assert len(re.findall(r"\| \S+ finished: budget of 500 env steps used up", log)) == 1
    for process in ("ps", "rlx", "env"):
        assert re.search(rf"^\S+ \S+ {process}\S* +\| ", log, re.M)
    assert json.loads((run / "results.json").read_text())["global_t"] == read_steps(run)
    name = run.relative_to(cluster.folder)
    assert f"relaax resume {name}" in refuse_here("run", cluster.config, "--run-dir", name)
    # Clients that are refused do not end a run.
    check_refusals(name, (one for one in REFUSED if not one.startswith("environment")))
    steps = read_steps(run)
    resumed = start(cluster, "resume", name, BUDGET, steps + 500)
    assert resumed.wait() == 0, resumed
    resumed.wait_for(rf"ps +\| .* global_t is {steps}$")
    assert read_steps(run) >= steps + 500
    assert [path.name for path in run.parent.iterdir()] == [run.name]
    # The loss of its checkpoints is accepted by its processes, too.
    shutil.rmtree(run / "checkpoints")
    assert EMPTIED.format(run=name) in refuse_here("resume", name)
    assert start(cluster, "resume", name, BUDGET, 300, "--accept-loss").wait() == 0
    assert read_steps(run) >= 300


def test_servers_go_on_by_themselves_and_say_how_they_were_started(cluster):
    for _ in range(2):
        server = cluster.start_parameter_server()
        server.wait_for("parameter server on")
        assert server.stop() == 128 + signal.SIGTERM
    server.wait_for("restored the newest snapshot")
    run = cluster.folder / "run"
    assert read_command(run) == SERVERS
    assert (run / "log.txt").read_text().count(" parameter server on localhost:") == 2
    assert json.loads((run / "results.json").read_text())["finished"] == ""
    assert len(read_yaml(run / "experiment.yaml").data["starts"]) == 1
    logdir = cluster.start_parameter_server("run_dir=null", "logdir=logs")
    assert logdir.wait() == 2
    assert "need run_dir instead of logdir" in logdir.output


EMPTIED = "has no checkpoints, but this run had begun ({run}/begun), and a start here would lose it"


def test_an_emptied_folder_of_checkpoints_is_refused_unless_the_loss_is_accepted(cluster):
    train = ("train", cluster.config, BUDGET, 300)
    run = cluster.folder / "run"
    assert run_here(*train)[0] == 0
    shutil.rmtree(run / "checkpoints")
    for command in (train, ("resume", "run"), ("run", cluster.config)):
        line = refuse_here(*command)
        assert line.startswith("error: relaax-parameter-server.checkpoint_dir: ")
        assert EMPTIED.format(run="run") in line
        assert "--accept-loss" in line
    server = cluster.start_parameter_server()
    assert server.wait() == 2
    assert "had begun" in server.output
    status, accepted = run_here("resume", "run", "--accept-loss")
    assert status == 0
    assert " global_t is 0\n" in accepted
    assert (run / "begun").exists()


def test_resume_wants_a_run(cluster):
    for argument, want in (("nowhere", "no such folder"), (cluster.config, "config.yaml")):
        line = refuse_here("resume", argument)
        assert line.startswith("error: ")
        assert want in line


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path, monkeypatch):
    def refuse(path, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refuse)
        with pytest.raises(ConfigError, match="cannot be written: No space left on device; free"):
            _replace(tmp_path / "config.yaml", "text")
    assert list(tmp_path.iterdir()) == []


def test_a_command_line_that_is_not_utf_8_is_escaped(tmp_path):
    _replace(tmp_path / "experiment.info", "relaax train caf\udce9.yaml")
    assert (tmp_path / "experiment.info").read_text() == r"relaax train caf\udce9.yaml"
