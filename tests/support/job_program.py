"""Stands beside `relaax train` and `relaax resume` in tests of the coordinator: it counts steps.

It takes their arguments, reads a job's settings, and leaves a run's folder: config.yaml, snapshots
that are complete or absent, and `history.txt` with the step that each start began with. The seed
says how it ends: 13: with status 3 and a line of output; 14: by SIGKILL; 15: it hangs; otherwise at
algorithm.max_global_step.
"""

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

STEP_SEC = 0.005
SNAPSHOT_STEPS = 5


def main() -> None:
    command, place = sys.argv[1:3]
    run = Path("run") if command == "train" else Path(place)
    checkpoints = run / "checkpoints"
    checkpoints.mkdir(parents=True, exist_ok=True)
    if command == "train":
        (run / "config.yaml").write_text(Path(place).read_text())
    config = json.loads((run / "config.yaml").read_text())
    last = config["algorithm"]["max_global_step"]
    steps = [int(path.name.split("-")[1]) for path in checkpoints.glob("cp-*")]
    step = max(steps, default=0)
    with open(run / "history.txt", "a") as history:
        history.write(f"{step}\n")
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    while step < last and not stopped:
        time.sleep(STEP_SEC)
        step += 1
        if step % SNAPSHOT_STEPS == 0:
            save(checkpoints, step)
            print(json.dumps({"step": step, "mean_return": 1.0}), flush=True)
            fail(config["seed"])
    save(checkpoints, step)
    print(json.dumps({"step": step, "mean_return": 1.0}), flush=True)
    if stopped:
        sys.exit(128 + stopped[0])
    print(f"finished: {last} steps", file=sys.stderr)


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
