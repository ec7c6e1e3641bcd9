"""`python -m benchmarks.compile_cache`: the first call of ppo's update, with and without a cache.

Processes alternate; each builds the update of algorithms/ppo/ppo.yaml, traces it, and calls it
once. Tracing is not counted.
"""

import argparse
import json
import logging
import math
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

CHILD = "--child"


class Watch(logging.Handler):
    """Notes when the learner says that it compiles: between tracing and the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.at = math.nan

    def emit(self, record: logging.LogRecord) -> None:
        """Notes the time."""
        if record.getMessage().startswith("compiling the update"):
            self.at = time.perf_counter()


def call_once(cache: str) -> None:
    """Prints the seconds of the first call, and a checksum of the values after it."""
    from relaax_like.config.loader import load_experiment
    from relaax_like.config.plan import OnPolicy
    from relaax_like.experience.collector import Collector
    from relaax_like.launch.backprop_main import make_fake_rollout
    from relaax_like.launch.learners import make_compiled_updates, require_plan
    from relaax_like.nn.compiling import use_compile_cache
    from relaax_like.runs.processes.process import without_native_stderr

    use_compile_cache(Path(cache) if cache else None)
    experiment = load_experiment("ppo", ["algorithm.state_size=4", "algorithm.num_actions=2"])
    plan = require_plan(experiment)
    assert isinstance(plan, OnPolicy), "ppo has one"
    compiled, model = make_compiled_updates(experiment)
    with without_native_stderr():
        from relaax_like.learn.learning_policy import LearningPolicy
    policy = LearningPolicy(compiled, plan, 0)
    assert plan.rollouts is not None, "ppo counts them"
    collector = Collector(plan.rollout_steps, plan.rollouts, capacity=plan.rollouts)
    collector.add(make_fake_rollout(model, plan))
    data = collector.get_training_data()
    assert data is not None
    watch = Watch()
    logger = logging.getLogger("relaax_like")
    logger.addHandler(watch)
    logger.setLevel(logging.INFO)
    with without_native_stderr():
        policy.forward(policy.data_preprocess(data))
    seconds = time.perf_counter() - watch.at
    values = zlib.crc32(b"".join(value.tobytes() for value in compiled.get_values()))
    print(json.dumps({"seconds": seconds, "values": values}))


def measure(cache: str) -> tuple[float, int]:
    """Runs a child; returns the seconds and the checksum."""
    argv = [sys.executable, "-m", "benchmarks.compile_cache", f"{CHILD}={cache}"]
    output = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout
    result = json.loads(output.splitlines()[-1])
    return result["seconds"], result["values"]


def main() -> None:
    """Runs the pairs, and prints the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="of each kind")
    parser.add_argument(CHILD, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        call_once(arguments.child)
        return
    with tempfile.TemporaryDirectory() as cache:
        fill, values = measure(cache)
        print(f"first start with an empty cache: {fill:.2f} s")
        pairs = []
        for _ in range(arguments.runs):
            without, with_cache = measure(""), measure(cache)
            assert {without[1], with_cache[1]} == {values}, "the updates differ"
            pairs.append((without[0], with_cache[0]))
            print(f"without {without[0]:.2f} s, with {with_cache[0]:.2f} s", flush=True)
    medians = [statistics.median(column) for column in zip(*pairs, strict=True)]
    print(
        f"medians: without {medians[0]:.2f} s, with {medians[1]:.2f} s, ratio "
        f"{medians[1] / medians[0]:.2f}; the same values, bit for bit"
    )


if __name__ == "__main__":
    main()
