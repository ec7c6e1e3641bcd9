"""A disk that is full, fails, or gives back something else; and no descriptors left.

covers R24
"""

import contextlib
import os
import random
import re
import resource
import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.cluster import TRACE, Cluster, Program, wait_until
from support.disks import fill, mount
from support.history import History, make_store

from relaax_like.bridge.control import BridgeControl
from relaax_like.core.records import Push
from relaax_like.parameter_server.snapshots import list_names, read_latest

SEEDS = int(os.environ.get("RELAAX_FAULT_SEEDS", "1"))
PARAMETERS = 100
OFTEN = "relaax-parameter-server.checkpoint_time_interval=0.2"
NEVER = "relaax-parameter-server.checkpoint_time_interval=1e6"
AFTER_SIGTERM = 128 + signal.SIGTERM
RELAAX = (sys.executable, "-m", "relaax_like.cli.main")
GIVEN_UP = "the journal is no longer written"
TOLD = "the journal was given up"


@pytest.fixture
def history(cluster: Cluster) -> Iterator[History]:
    history = History(f"localhost:{cluster.ps_port}", pause_sec=0.005, parameters=PARAMETERS)
    yield history
    history.abandon()


def start_server(cluster: Cluster, *sets: str) -> Program:
    server = cluster.start_parameter_server(*sets)
    server.wait_for("parameter server on")
    return server


def ask_durability(cluster: Cluster) -> set[str]:
    """Returns what status and a reply say."""
    with BridgeControl().connect(f"localhost:{cluster.ps_port}") as link:
        with link.parameter_server_stub(timeout_sec=20.0) as client:
            reply = client._call_push_pull(Push(client_id="asks"), False, 0)
        return {reply.durability, link.status().durability}


def get_snapshots(cluster: Cluster) -> list[str]:
    return list_names(cluster.folder / "run" / "checkpoints")


def wait_snapshot(cluster: Cluster, history: History, more: int = 1) -> None:
    """Waits until so many more snapshots have been written."""
    for _ in range(more):
        before = get_snapshots(cluster)[-1:]
        history.wait(1)
        wait_until(lambda before=before: get_snapshots(cluster)[-1:] != before, cluster.started)


def restart_and_check(cluster: Cluster, history: History) -> None:
    """Starts the server once more, continues for a while, and checks everything."""
    server = cluster.start_parameter_server()
    history.wait(20)
    assert ask_durability(cluster) == {"journal"}
    history.stop()
    history.check()
    assert TRACE not in server.output


def test_training_goes_on_while_the_disk_is_full(cluster: Cluster, history: History) -> None:
    run = cluster.folder / "run"
    with mount(run, "size=3m"):
        server = start_server(cluster, OFTEN)
        history.start()
        wait_snapshot(cluster, history)
        filler = fill(run)
        server.wait_for(GIVEN_UP)
        # One might have been renamed just before.
        server.wait_for("the snapshot could not be written")
        newest = read_latest(run / "checkpoints")
        lines = len(server.lines)
        history.wait(20)
        server.wait_for("the snapshot could not be written", after=lines)
        assert ask_durability(cluster) == {"snapshot"}
        still = read_latest(run / "checkpoints")
        assert newest is not None
        assert still is not None
        assert (still.version, still.global_t) == (newest.version, newest.global_t)
        np.testing.assert_array_equal(still.values, newest.values)

        filler.unlink()
        # The next snapshot has everything, and the journal what comes then.
        wait_until(lambda: ask_durability(cluster) == {"journal"}, server)
        history.wait(20)
        assert server.stop(signal.SIGKILL) == -signal.SIGKILL
        assert server.output.count(GIVEN_UP) == 1
        assert TRACE not in server.output
        restart_and_check(cluster, history)
        assert TOLD not in cluster.started[-1].output
        cluster.close()
        assert not [path for path in run.rglob("*") if "tmp" in path.name]


def test_a_kill_while_the_disk_is_full_loses_only_what_is_reported(
    cluster: Cluster, history: History
) -> None:
    run = cluster.folder / "run"
    with mount(run, "size=3m"):
        server = start_server(cluster, OFTEN)
        history.start()
        history.wait(20)
        filler = fill(run)
        server.wait_for(GIVEN_UP)
        history.wait(20)
        status = cluster.wait_status(lambda one: one.given_up_version is not None, "any answer")
        version = status.given_up_version
        assert version is not None
        assert status.version > version
        history.stop()
        server.stop(signal.SIGKILL)
        filler.unlink()

        told = rf"{TOLD} at version {version:,}, step [\d,]+: what was acknowledged later is lost"
        cluster.start("fsck", [*RELAAX, "fsck", str(run)]).wait_for(told)
        server = start_server(cluster, NEVER)
        server.wait_for(told)
        check_prefix(cluster, history, version)
        server.stop(signal.SIGKILL)
        assert TOLD not in start_server(cluster, NEVER).output  # once
        cluster.close()


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.skipif(SEEDS < 2, reason="one full disk is tried above; `make faults` tries more")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_write_that_finds_no_space(cluster: Cluster, history: History, seed: int) -> None:
    at = random.Random(seed).randint(1, 60)
    server = start_server(cluster)
    history.start()
    history.wait(20)
    tracer = trace(cluster, server, "writev", f"error=ENOSPC:when={at}")
    server.wait_for(GIVEN_UP)
    tracer.stop()
    history.wait(20)
    assert ask_durability(cluster) == {"snapshot"}
    assert server.stop() == AFTER_SIGTERM
    assert TRACE not in server.output
    restart_and_check(cluster, history)


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_failed_sync_ends_the_acknowledging_and_loses_nothing(
    cluster: Cluster, history: History
) -> None:
    server = start_server(cluster, OFTEN)
    history.start()
    history.wait(40)
    assert re.search("a crash loses.*nothing acknowledged", show_status(cluster))
    tracer = trace(cluster, server, "fsync", "error=EIO")
    server.wait_for("the journal cannot be synced")
    assert re.search(r"a crash loses.*up to \d+ acknowledged", show_status(cluster))
    before = len(history.acknowledged)
    tracer.stop()  # the disk is well again, and nobody knows what it has lost
    lines = len(server.lines)
    server.wait_for("the journal cannot be synced", after=lines)  # with the next snapshot
    assert len(history.acknowledged) <= before + 3  # answers that were under way
    assert GIVEN_UP not in server.output
    assert server.stop() == AFTER_SIGTERM
    assert TRACE not in server.output
    restart_and_check(cluster, history)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_damaged_snapshot_is_skipped_and_nothing_lost(
    cluster: Cluster, history: History, seed: int
) -> None:
    draw = random.Random(seed)
    server = start_server(cluster, OFTEN)
    history.start()
    for damage in ("truncated", "flipped") if SEEDS > 1 else ("flipped",):
        wait_snapshot(cluster, history, 2)
        history.wait(10)
        server.stop(signal.SIGKILL)
        newest = cluster.folder / "run" / "checkpoints" / get_snapshots(cluster)[-1]
        path = draw.choice(sorted(newest.glob("*" if seed % 2 else "*.npy")))
        offset = draw.randrange(path.stat().st_size)
        if damage == "truncated":
            os.truncate(path, offset)
        else:
            flip(path, offset, draw.randrange(8))
        server = start_server(cluster, OFTEN)
        server.wait_for(rf"{newest.name}: skipping a damaged snapshot")
    history.wait(20)
    history.stop()
    history.check()
    server.stop()  # not in the middle of a snapshot


def flip(path: Path, offset: int, bit: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_damaged_journal_is_refused_and_cut_when_asked(
    cluster: Cluster, history: History, seed: int
) -> None:
    server = start_server(cluster, NEVER)
    history.start()
    history.wait(60)
    history.stop()
    server.stop(signal.SIGKILL)
    draw = random.Random(seed)
    (path,) = (cluster.folder / "run" / "checkpoints" / "journal").glob("journal-*")
    size = path.stat().st_size
    offset = draw.randrange(size // 10, size * 9 // 10)
    flip(path, offset, draw.randrange(8))

    server = cluster.start_parameter_server()
    assert server.wait() == 1
    found = server.wait_for(rf"error: .*{path.name}: damaged at offset (\d+)")
    record_bytes = size // len(history.acknowledged)
    assert offset - 2 * record_bytes <= int(found[1]) <= offset
    assert TRACE not in server.output
    version = give_up(cluster, server)

    cluster.start_parameter_server()
    assert history.pull().version == version
    check_prefix(cluster, history, int(found[1]) // record_bytes)


def give_up(cluster: Cluster, server: Program) -> int:
    """Does what a server that refused recommends; returns the version that it is to start with."""
    command = server.wait_for(r"error: .*`relaax (fsck \S+ --to-last-good)`")[1].split()
    program = cluster.start("fsck", [*RELAAX, *command])
    assert program.wait() == 0
    done = program.wait_for(r"discarded: .*; the parameter server starts at version ([\d,]+),")
    return int(done[1].replace(",", ""))


def test_a_gap_behind_too_many_bytes_is_refused_and_given_up_when_asked(
    cluster: Cluster, history: History
) -> None:
    run = cluster.folder / "run"
    with mount(run, "size=3m"):
        # A full disk would leave no gap: the journal continues behind the next snapshot.
        server = start_server(cluster, OFTEN, "relaax-parameter-server.journal_max_mb_per_sec=0.01")
        history.start()
        wait_snapshot(cluster, history)
        server.wait_for(GIVEN_UP)
        wait_snapshot(cluster, history, 2)
        history.stop()
        server.stop(signal.SIGKILL)

        # What comes now goes to the journal, behind pushes that did not.
        server = start_server(cluster, NEVER)
        more = History(f"localhost:{cluster.ps_port}", clients=1, pushes=20)
        more.start()
        more.join()
        server.stop(signal.SIGKILL)
        checkpoints = run / "checkpoints"
        flip(checkpoints / list_names(checkpoints)[-1] / "values.npy", 200, 0)
        older = read_latest(checkpoints)
        assert older is not None

        server = cluster.start_parameter_server()
        assert server.wait() == 1
        assert "what lies between was not written or is lost" in server.output
        assert TRACE not in server.output
        assert give_up(cluster, server) == older.version
        server = start_server(cluster, NEVER)
        check_prefix(cluster, history, older.version)
        cluster.close()


def check_prefix(cluster: Cluster, history: History, version: int) -> None:
    """Fails unless the server has exactly the first pushes, about so many, and takes more."""
    values = history.pull()
    assert version - 2 <= values.version <= version + 2
    store = make_store(PARAMETERS)
    for record in sorted(history.acknowledged, key=lambda one: one.version)[: values.version]:
        store.apply(record.gradient, record.env_steps)
    np.testing.assert_array_equal(values.flat, store.values.flat)
    with BridgeControl().connect(f"localhost:{cluster.ps_port}") as link:
        assert link.status().global_t == store.global_t
        with link.parameter_server_stub() as client:
            client.push_pull([np.ones(PARAMETERS, np.float32)])
            assert client.version == values.version + 1


def test_a_server_without_descriptors_left_goes_on(cluster: Cluster, history: History) -> None:
    server = start_server(cluster, OFTEN)
    history.start()
    wait_snapshot(cluster, history)
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (64, 64))
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            address = ("127.0.0.1", cluster.ps_port)
            stack.enter_context(socket.create_connection(address, timeout=20))
        server.wait_for("the snapshot could not be written: .*Too many open files")
        history.wait(40)
    status = cluster.wait_status(lambda status: True, "an answer to somebody new")
    assert (GIVEN_UP in server.output) == (status.durability == "snapshot")
    wait_snapshot(cluster, history)
    server.stop(signal.SIGKILL if status.durability == "journal" else signal.SIGTERM)
    assert TRACE not in server.output
    restart_and_check(cluster, history)


def test_a_new_run_on_a_nearly_full_disk_ends_with_one_line(cluster: Cluster) -> None:
    """The initial values find no room."""
    cluster.sets = []  # the algorithm's own
    with mount(cluster.folder / "run", "size=8k"):
        server = cluster.start_parameter_server()
        assert server.wait() in (1, 2)
        (line,) = [line for line in server.lines if line.startswith("error: ")]
        assert "No space left on device" in line
        assert TRACE not in server.output
        assert len(server.lines) <= 3


def test_a_folder_that_cannot_be_written_to_is_named(cluster: Cluster) -> None:
    run = cluster.folder / "run"
    with mount(run, "ro"):
        server = cluster.start_parameter_server()
        assert server.wait() in (1, 2)
        assert re.search(r"error: .*run/.*Read-only file system", server.output)
        assert TRACE not in server.output


def show_status(cluster: Cluster) -> str:
    """Returns what `relaax status` prints."""
    address = f"localhost:{cluster.ps_port}"
    program = cluster.start("status", [*RELAAX, "status", address])
    assert program.wait() == 0
    return program.output


def trace(cluster: Cluster, server: Program, call: str, fault: str) -> Program:
    """Lets a system call of the server fail from now on, until the program is stopped."""
    flags = ["-f", "-qq", "-o", os.devnull, "-e", f"trace={call}", "-e", f"inject={call}:{fault}"]
    return cluster.start("strace", ["strace", *flags, "-p", server.pid])
