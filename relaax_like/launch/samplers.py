"""Samplers of an experiment: in this process, in processes of their own, or on a Ray cluster."""

import contextlib
import os
import socket
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from relaax_like.addons.sampling.algo_sampler import AlgoSampler
from relaax_like.addons.sampling.remote_sampler import RemoteSampler, answer
from relaax_like.bridge import frames
from relaax_like.bridge.pair import Pair
from relaax_like.config.loader import dump_experiment, load_experiment
from relaax_like.config.models import Experiment
from relaax_like.config.run_folder import CONFIG_NAME
from relaax_like.config.seeds import derive_seed
from relaax_like.launch.algorithm_code import locate_errors, make_model
from relaax_like.launch.learners import require_plan
from relaax_like.launch.local import ask_environment, open_slots, require_program
from relaax_like.nn.settings import prepare_tensorflow
from relaax_like.nn.threads import limit_blas_threads
from relaax_like.runs.processes.launcher import LocalLauncher
from relaax_like.runs.processes.manager import TERM_SEC, describe_status
from relaax_like.runs.processes.process import setup_logging, without_native_stderr
from relaax_like.runs.processes.ray_joining import LOCAL, join
from relaax_like.runs.processes.ray_launcher import PLACEMENT_SEC, shorten
from relaax_like.runs.processes.topology import Node
from relaax_like.wire.errors import ConfigError, RelaaxError

_MAIN = "relaax_like.launch.sampler_main"
_INLINE, _PROCESSES, _RAY = "inline", "processes", "ray:"
# Longest wait for the exit of a process that has nothing to do.
_END_SEC = 3.0


@contextlib.contextmanager
def open_samplers(
    experiment: Experiment, samplers: int, where: str = _INLINE, timeout_sec: float = 600.0
) -> Iterator[list[AlgoSampler | RemoteSampler]]:
    """Opens samplers, and closes them and their environments afterwards.

        with open_samplers(experiment, 4, "processes") as samplers:
            trainer = PPO(samplers, optim)

    Each has its own environments (`environment.slots` of them), and seeds that depend on the
    experiment's seed and its own number only. So what they sample does not depend on `where`, bit
    for bit, on processors of one type. Processes end with this one, also if it is killed.

    Args:
      experiment: of a folder with one Algorithm.
      samplers: their number.
      where: "inline": in this process, one after the other; "processes": each in a process of its
        own; "ray:local" or "ray:HOST:PORT": each on one core of a Ray cluster (see `join`).
      timeout_sec: a process whose sample takes longer is ended, which is a RelaaxError.

    Raises:
      ConfigError: an argument is wrong; there is no environment; or the algorithm, the environment
        or the cluster cannot be used.
      RelaaxError: a process cannot be started, or the cluster has too few free cores.
      ModuleNotFoundError: Ray is not installed.
      Exception: an error of the environments' `close`, at the end; or see `join`.
    """
    is_known = where in (_INLINE, _PROCESSES) or where.startswith(_RAY)
    if samplers < 1 or not timeout_sec > 0 or not is_known:
        raise ConfigError(
            f"open_samplers: samplers {samplers}, where {where!r}, timeout_sec {timeout_sec:g}; "
            f"expected 1 or more; {_INLINE!r}, {_PROCESSES!r}, '{_RAY}{LOCAL}' or "
            f"'{_RAY}HOST:PORT'; and more than 0"
        )
    experiment, _ = ask_environment(experiment)
    numbers = range(1, samplers + 1)
    with ExitStack() as ends:
        if where == _INLINE:
            limit_blas_threads()  # as in processes: the order of sums can depend on it
            yield [ends.enter_context(open_sampler(experiment, number)) for number in numbers]
        else:
            yield _open_remote(experiment, numbers, where, timeout_sec, ends)


def _open_remote(
    experiment: Experiment, numbers: range, where: str, timeout_sec: float, ends: ExitStack
) -> list[AlgoSampler | RemoteSampler]:
    lines: Sequence[_ProcessLine | _RayLine]
    if where == _PROCESSES:
        launcher = ends.enter_context(LocalLauncher(TERM_SEC))
        lines = [_ProcessLine(number, launcher, timeout_sec, ends) for number in numbers]
    else:
        ray = join(where.removeprefix(_RAY), len(numbers), experiment.security.insecure)
        ends.callback(ray.shutdown)
        lines = actors = [_RayLine(number, ray, timeout_sec, ends) for number in numbers]
        places = [line.actor.__ray_ready__.remote() for line in actors]
        ready, _ = ray.wait(places, num_returns=len(places), timeout=PLACEMENT_SEC)
        if len(ready) < len(lines):
            raise RelaaxError(
                f"open_samplers: samplers {len(lines)}, but after {PLACEMENT_SEC:g} s the Ray "
                f"cluster runs only {len(ready)}, each on one core; use fewer, or add machines"
            )
    remote = [RemoteSampler(line.name, line.send, line.receive) for line in lines]
    text, folder = dump_experiment(experiment), os.getcwd()
    for number, sampler in zip(numbers, remote, strict=True):
        sampler.begin("open", number, text, folder)
    for sampler in remote:
        sampler.finish()
    return list(remote)


@contextlib.contextmanager
def open_sampler(experiment: Experiment, number: int) -> Iterator[AlgoSampler]:
    """Opens one sampler in this process, with the environment's and algorithm's settings.

    Args:
      experiment: complete (see `ask_environment`), and of a folder with one Algorithm.
      number: of the sampler; its environments and random numbers depend on it.

    Raises:
      ConfigError: there is no environment, or the algorithm or the environment cannot be used.
      Exception: an error of the environments' `close`, at the end.
    """
    environment, _ = require_program(experiment)
    algorithm, plan, purpose = experiment.algorithm, require_plan(experiment), f"sampler {number}"
    with ExitStack() as ends:
        slots = ends.enter_context(open_slots(experiment, purpose))
        with without_native_stderr(), locate_errors(experiment.algorithm_folder):
            sampler = AlgoSampler(
                make_model(experiment),
                slots,
                discount=plan.discount,
                gae_lambda=getattr(algorithm, "gae_lambda", 1.0),
                seed=derive_seed(experiment.seed, purpose),
                observation_history=algorithm.observation_history,
                random_steps=environment.random_steps,
                max_episode_steps=environment.max_episode_steps,
            )
        yield sampler


class SamplerHost:
    """Opens a sampler in its process, and answers a `RemoteSampler`; takes and returns bytes."""

    def __init__(self) -> None:
        self._ends = ExitStack()
        self._sampler: AlgoSampler | None = None

    def answer(self, request: bytes) -> bytes:
        """Returns the reply to a request; see `remote_sampler.answer`."""
        return answer(request, self._get_sampler)

    def close(self) -> None:
        """Closes the environments.

        Raises:
          Exception: an error of their `close`.
        """
        self._ends.close()

    def _get_sampler(self, number: int = 0, config: str = "", folder: str = "") -> AlgoSampler:
        """Returns the sampler; makes the one with a number, if there is none.

        Args:
          number: see `open_sampler`.
          config: the text of the experiment's file.
          folder: the working directory, which is used if this machine has it.
        """
        if self._sampler is None:
            if os.path.isdir(folder):
                os.chdir(folder)
            with tempfile.TemporaryDirectory(prefix="relaax-") as copies:
                file = Path(copies, CONFIG_NAME)
                file.write_text(config, encoding="utf-8")
                experiment = load_experiment(file)
            setup_logging(experiment.rlx_server.log_level, with_time=False)
            prepare_tensorflow(experiment, learns=False)
            limit_blas_threads()
            self._sampler = self._ends.enter_context(open_sampler(experiment, number))
        return self._sampler


class _ProcessLine:
    """A sampler's child process, with one end of a pair of sockets."""

    def __init__(self, number: int, launcher: LocalLauncher, timeout_sec: float, ends: ExitStack):
        self.name = f"sampler {number}"
        self._timeout_sec = timeout_sec
        self._is_busy = False
        ours, theirs = socket.socketpair()
        self._pair = Pair(ours)
        ends.callback(self._pair.close)
        with theirs:
            argv = [sys.executable, "-m", _MAIN, str(theirs.fileno())]
            node = Node(name=self.name, role="environment", argv=argv)
            self._process = launcher.start(
                node, self._print_lines, lambda line: None, [theirs.fileno()]
            )
        ends.callback(self._end)
        ours.settimeout(timeout_sec)

    def send(self, request: bytes) -> None:
        """See `RemoteSampler`."""
        self._is_busy = True
        try:
            self._pair.send(memoryview(request))
        except OSError:
            raise self._explain() from None

    def receive(self) -> bytes:
        """See `RemoteSampler`."""
        data = self._pair.receive()
        if data is None:
            raise self._explain()
        self._is_busy = False
        return to_chunk(data)

    def _explain(self) -> RelaaxError:
        """Waits for the exit of a process that no longer answers; returns the error to raise."""
        if not self._process.wait(_END_SEC):
            self._process.kill()
            return _explain_silence(self.name, self._timeout_sec)
        status = describe_status(self._process.poll() or 0)
        return RelaaxError(
            f"{self.name}: its process has ended ({status}); see its output above, and open new "
            "samplers"
        )

    def _end(self) -> None:
        """Ends the process and what it has started."""
        self._pair.close()
        if self._is_busy:
            self._process.terminate()
        self._process.wait(_END_SEC)
        self._process.kill()
        self._process.wait(_END_SEC)
        self._process.finish(_END_SEC)

    def _print_lines(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            with contextlib.suppress(OSError, ValueError):  # a full disk: the line is lost
                print(f"{self.name} | {line.decode(errors='replace')}", end="", flush=True)


class _RayLine:
    """A sampler in an actor of a Ray cluster, which has one core."""

    def __init__(self, number: int, ray: Any, timeout_sec: float, ends: ExitStack):
        self.name = f"sampler {number}"
        self._ray = ray
        self._timeout_sec = timeout_sec
        options = {"num_cpus": 1, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        self.actor = ray.remote(SamplerHost).options(**options).remote()
        ends.callback(ray.kill, self.actor)
        self._reply: Any = None

    def send(self, request: bytes) -> None:
        """See `RemoteSampler`."""
        self._reply = self.actor.answer.remote(request)

    def receive(self) -> bytes:
        """See `RemoteSampler`."""
        try:
            reply: bytes = self._ray.get(self._reply, timeout=self._timeout_sec)
        except self._ray.exceptions.GetTimeoutError:
            self._ray.kill(self.actor)
            raise _explain_silence(self.name, self._timeout_sec) from None
        except self._ray.exceptions.RayError as error:
            reason = shorten(error).rstrip(".")
            raise RelaaxError(
                f"{self.name}: Ray no longer runs it: {reason}; open new samplers"
            ) from error
        return reply


def to_chunk(data: bytes) -> bytes:
    """Returns the bytes that the other end of a `Pair` has sent as a memoryview."""
    part = frames.to_experience_reply(data)
    assert isinstance(part, memoryview), "both ends send nothing else"
    return bytes(part)


def _explain_silence(name: str, timeout_sec: float) -> RelaaxError:
    return RelaaxError(
        f"{name}: no answer within {timeout_sec:g} s, so it was ended; check its environment, or "
        "raise timeout_sec of open_samplers"
    )
