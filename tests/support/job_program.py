"""Stands beside `relaax train`, `run` and `resume` in tests of the coordinator: it counts steps.

It takes their arguments, reads a job's settings, and leaves a run's folder: config.yaml, snapshots
that are complete or absent, and `history.txt` with the step that each start began with. The seed
says how it ends: 13: with status 3 and a line of output; 14: by SIGKILL; 15: it hangs; otherwise at
algorithm.max_global_step.

With an address of an rlx server it counts the steps that collectors send there, and writes them to
`played.txt`; as `collect` it is such a collector, whose episodes have EPISODE_STEPS steps.
"""

import json
import os
import queue
import shutil
import signal
import socket
import sys
import threading
import time
from pathlib import Path

STEP_SEC = 0.005
SNAPSHOT_STEPS = 5
EPISODE_STEPS = 10


def main() -> None:
    command, place = sys.argv[1:3]
    if command == "collect":
        collect(sys.argv[3])
        return
    run = Path(place) if command == "resume" else Path("run")
    checkpoints = run / "checkpoints"
    checkpoints.mkdir(parents=True, exist_ok=True)
    if command != "resume":
        (run / "config.yaml").write_text(Path(place).read_text())
    config = json.loads((run / "config.yaml").read_text())
    last = config["algorithm"]["max_global_step"]
    steps = [int(path.name.split("-")[1]) for path in checkpoints.glob("cp-*")]
    step = max(steps, default=0)
    with open(run / "history.txt", "a") as history:
        history.write(f"{step}\n")
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    binds = [one for one in sys.argv if one.startswith("relaax-rlx-server.bind=")]
    played = Played(binds[0].partition("=")[2].strip("\"'"), run) if binds else None
    while step < last and not stopped:
        if played is None:
            time.sleep(STEP_SEC)
        elif not played.take():
            continue
        step += 1
        if step % SNAPSHOT_STEPS == 0:
            save(checkpoints, step)
            show(step, played is not None)
            fail(config["seed"])
    save(checkpoints, step)
    show(step, played is not None)
    if played is not None:
        played.finish()
    if stopped:
        sys.exit(128 + stopped[0])
    print(f"finished: {last} steps", file=sys.stderr)


def show(step: int, serves: bool) -> None:
    """Prints the progress as the real program does."""
    if serves:
        text = (
            f"ps   | 12:00:00 step {step:,} | 1,234 steps/s | mean return 1.0 (last 3) | version 5"
        )
    else:
        text = json.dumps({"step": step, "mean_return": 1.0})
    print(text, flush=True)


class Played:
    """The steps that collectors send: each is a line, which is answered once it is counted."""

    def __init__(self, address: str, run: Path):
        host, _, port = address.rpartition(":")
        self._steps: queue.Queue[tuple[str, socket.socket]] = queue.Queue()
        self._file = (run / "played.txt").open("a")
        self._finished = False
        self._server = socket.create_server((host, int(port)))
        threading.Thread(target=self._serve, daemon=True).start()

    def take(self) -> bool:
        """Counts the next step; returns whether one came."""
        try:
            line, peer = self._steps.get(timeout=0.05)
        except queue.Empty:
            return False
        self._file.write(line)
        self._file.flush()
        peer.sendall(b"ok\n")
        return True

    def finish(self) -> None:
        """Tells the collectors whose steps wait that the training is over."""
        self._finished = True
        while not self._steps.empty():
            self._steps.get()[1].sendall(b"finished\n")

    def _serve(self) -> None:
        while True:
            peer, _ = self._server.accept()
            threading.Thread(target=self._read, args=(peer,), daemon=True).start()

    def _read(self, peer: socket.socket) -> None:
        for line in peer.makefile():
            self._steps.put((line, peer))


def collect(address: str) -> None:
    """Sends steps until the training is over, or, after SIGHUP, to the end of an episode."""
    host, _, port = address.rpartition(":")
    ending: list[int] = []
    signal.signal(signal.SIGHUP, lambda number, frame: ending.append(number))
    while True:
        try:
            peer = socket.create_connection((host, int(port)))
            break
        except OSError:
            time.sleep(0.05)
    answers, number = peer.makefile(), 0
    while not (ending and number % EPISODE_STEPS == 0):
        time.sleep(STEP_SEC)
        number += 1
        peer.sendall(f'{{"collector": {os.getpid()}, "number": {number}}}\n'.encode())
        answer = answers.readline()
        if answer == "finished\n":
            return
        if not answer:
            sys.exit(1)


def fail(seed: int) -> None:
    if seed == 13:
        print("error: this job never succeeds", file=sys.stderr)
        sys.exit(3)
    if seed == 14:
        os.kill(os.getpid(), signal.SIGKILL)
    while seed == 15:
        time.sleep(1)


def save(checkpoints: Path, step: int) -> None:
    target = checkpoints / f"cp-{step:020d}-{step:020d}"
    if target.exists():
        return
    temporary = checkpoints / f".tmp-{step}"
    temporary.mkdir()
    (temporary / "values.npy").write_bytes(step.to_bytes(8, "little") * 100)
    temporary.rename(target)
    for older in sorted(checkpoints.glob("cp-*"))[:-3]:
        shutil.rmtree(older)


if __name__ == "__main__":
    main()
