"""A parameter server as a Ray actor, for `benchmarks.push_pull --ray`. Prints times per round."""

import json
import logging
import sys
import time
from typing import Any

import numba
import numpy as np
import ray

WARM_UP = 3


@numba.njit(fastmath=False, error_model="numpy")
def _adam(w: Any, g: Any, m: Any, v: Any, rate: Any, epsilon: Any) -> None:
    b1, r1, b2, r2 = np.float32(0.9), np.float32(0.1), np.float32(0.999), np.float32(0.001)
    for i in range(w.size):
        m[i] = b1 * m[i] + r1 * g[i]
        v[i] = b2 * v[i] + r2 * g[i] * g[i]
        w[i] -= rate * m[i] / (np.sqrt(v[i]) + epsilon)


class Server:
    """Weights and Adam; gradients arrive, and weights leave, through the object store."""

    def __init__(self, parameters: int):
        self._w, self._m, self._v = (np.zeros(parameters, np.float32) for _ in range(3))
        self._step = 0
        self.push_pull(np.zeros(parameters, np.float32))

    def push_pull(self, gradient: np.ndarray) -> np.ndarray:
        """One step; returns the weights after it."""
        self._step += 1
        scale = np.sqrt(1 - 0.999**self._step) / (1 - 0.9**self._step)
        _adam(self._w, gradient, self._m, self._v, np.float32(1e-3 * scale), np.float32(1e-7))
        return self._w


class Worker:
    """Pushes as fast as it is answered."""

    def __init__(self, server: Any, parameters: int):
        self._server = server
        self._gradient = np.full(parameters, 1e-3, np.float32)
        for _ in range(WARM_UP):
            self._push()

    def work(self, seconds: float) -> list[float]:
        """Returns the seconds of each round."""
        rounds, end = [], time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            self._push()
            rounds.append(time.perf_counter() - start)
        return rounds

    def _push(self) -> None:
        ray.get(self._server.push_pull.remote(self._gradient))


def main() -> None:
    """Measures what the arguments say: parameters, workers, seconds."""
    parameters, workers, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    ray.init(
        num_cpus=workers + 1,
        include_dashboard=False,
        logging_level=logging.ERROR,
        object_store_memory=4 << 30,
    )
    server = ray.remote(Server).remote(parameters)
    started = [ray.remote(Worker).remote(server, parameters) for _ in range(workers)]
    ray.get([worker.work.remote(0.0) for worker in started])
    print(json.dumps(ray.get([worker.work.remote(seconds) for worker in started])))


if __name__ == "__main__":
    main()
