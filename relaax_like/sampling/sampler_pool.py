"""SamplerPool: processes that sample whole trajectories."""

import logging
import queue
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from relaax_like.experience.buffer import Buffer
from relaax_like.learn.channel import Channel
from relaax_like.learn.child import start_child
from relaax_like.sampling.algo_sampler import SampleTiming
from relaax_like.sampling.messages import message_to_buffer, values_to_message
from relaax_like.v1 import sampling_pb2
from relaax_like.wire.errors import RelaaxError

logger = logging.getLogger(__name__)

# A process that has ended so is not started again: its settings are wrong, as it has said.
_EXIT_USAGE = 2
# Processes that may end one after another without a trajectory between them.
_MAX_DEATHS = 5
_POLL_SEC = 0.2
_END_SEC = 3.0
# For a step in the environments of each process, after which it reports its last steps.
_FINISH_SEC = 5.0
# For what a process does not read: it has a thread for that.
_SEND_SEC = 20

_Channel = Channel[sampling_pb2.SamplerRequest, sampling_pb2.Sampled]


@dataclass
class _Worker:
    """One process.

    Attributes:
      place: its number in the pool.
      starts: how many were started in its place before.
      unfinished: whether it may have begun trajectories that are not whole.
    """

    place: int
    starts: int
    process: subprocess.Popen[bytes]
    channel: _Channel
    unfinished: bool = False


class SamplerPool:
    """N processes, each with its own copy of the policy and its own environments.

        with SamplerPool(argv, workers=4, slots=1, discount=0.99, gae_lambda=0.95) as pool:
            pool.sync_policy(values, version)
            buffer, timing = pool.sample(num_steps=2000, max_traj_len=300)
            ...
            env_steps = pool.finish()  # that no sample has told of

    They play until the sample is large enough, and pause then. What is under way goes on with the
    next sample, unless the policy has changed: then it is forgotten, and counted. As with all
    samples that end with the first so many steps, long trajectories are a little rarer in them than
    in truth; the less so, the more a sample has.

    A process that dies is replaced; its unfinished trajectories are lost. Which trajectories make a
    sample depends on the clock. Used by one thread.

    Args:
      argv: the program, to which the name of the worker and the number of its socket are added.
      workers: N.
      slots: environments of each.
      discount: of the buffers.
      gae_lambda: of the buffers.
      environment: variables of the processes' environment; None: those of this process.

    Raises:
      RelaaxError: a process cannot be started.
    """

    def __init__(
        self,
        argv: Sequence[str],
        workers: int,
        *,
        slots: int,
        discount: float,
        gae_lambda: float,
        environment: Mapping[str, str] | None = None,
    ):
        self._argv = list(argv)
        self._slots = slots
        self._discount = discount
        self._gae_lambda = gae_lambda
        self._environment = environment
        # What a worker has said; None: it has gone. Those that were replaced are not listened to.
        # No SimpleQueue: of CPython's, a `get` with a timeout may wait for ever (3.11 to 3.13).
        self._queue: queue.Queue[tuple[_Worker, sampling_pb2.Sampled | None]] = queue.Queue()
        self._sync = sampling_pb2.Sync(version=-1)
        self._playing = 0  # max_traj_len while the workers play, else 0
        self._deaths = 0  # since the last trajectory
        self._given_up_steps = 0  # of samples that were given up
        self._workers: list[_Worker] = []
        try:
            for place in range(workers):
                self._workers.append(self._start(place, 0))
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Of the processes at this moment."""
        return [worker.process.pid for worker in self._workers]

    def sync_policy(self, values: Sequence[np.ndarray], version: int) -> None:
        """Has all workers act with these values from now on.

        Args:
          values: of all variables, in manifest order.
          version: of the values; nothing happens where they have it already.
        """
        if version != self._sync.version:
            self._sync = values_to_message(values, version)
            self._send_all(sampling_pb2.SamplerRequest(sync=self._sync))

    def sample(
        self, num_steps: int, max_traj_len: int, stop: threading.Event | None = None
    ) -> tuple[Buffer, SampleTiming] | None:
        """Samples whole trajectories with the newest values.

        Args:
          num_steps: that they have together, at least.
          max_traj_len: steps after which one is cut off.
          stop: gives up when it is set.

        Returns:
          The trajectories, and what they have cost. None: it was given up; what has been sampled is
          forgotten, and `finish` counts it.

        Raises:
          RelaaxError: the workers end as soon as they are started.
        """
        began = time.perf_counter()
        buffers: list[Buffer] = []
        spent = SampleTiming(env_steps=0, sample_sec=0.0, ideal_sec=0.0)
        while spent.env_steps < num_steps:
            if stop is not None and stop.is_set():
                self._pause()
                self._given_up_steps += spent.env_steps + spent.discarded_steps
                return None
            if self._queue.empty():
                self._play(max_traj_len)
            try:
                worker, message = self._queue.get(timeout=_POLL_SEC)
            except queue.Empty:
                continue
            if self._workers[worker.place] is not worker:
                continue
            if message is None:
                self._replace(worker)
                lost = self._slots if worker.unfinished else 0
                spent = _add(spent, discarded_trajectories=lost)
                continue
            buffer = self._read(message)
            spent = _add(
                spent,
                ideal_sec=message.sample_sec / len(self._workers),
                discarded_trajectories=message.discarded_trajectories,
                discarded_steps=message.discarded_steps,
            )
            if buffer is None:
                continue
            if message.version == self._sync.version:
                buffers.append(buffer)
                spent = _add(spent, env_steps=len(buffer))
            else:
                spent = _add(spent, discarded_trajectories=1, discarded_steps=len(buffer))
        self._pause()
        return Buffer.join(buffers), replace(spent, sample_sec=time.perf_counter() - began)

    def finish(self) -> int:
        """Makes the workers discard what they have begun; nothing is sampled afterwards.

        Returns:
          Environment steps that are in no sample, and that no sample's timing has counted. Without
          those of a worker that dies, or that does not answer within five seconds.
        """
        env_steps, self._given_up_steps = self._given_up_steps, 0
        self._playing = 0
        self._send_all(sampling_pb2.SamplerRequest(finish=sampling_pb2.Finish()))
        missing = {worker.place for worker in self._workers if worker.process.poll() is None}
        deadline = time.monotonic() + _FINISH_SEC
        while missing:
            try:
                worker, message = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                logger.warning(
                    "%d sampling worker(s) did not report their last steps; they are not counted",
                    len(missing),
                )
                break
            if self._workers[worker.place] is not worker:
                continue
            if message is None or message.finished:
                missing.discard(worker.place)
                continue
            buffer = self._read(message)
            env_steps += message.discarded_steps + (0 if buffer is None else len(buffer))
        return env_steps

    def close(self) -> None:
        """Ends the processes; may be called twice."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.channel.close()
        deadline = time.monotonic() + _END_SEC
        for worker in workers:
            try:
                worker.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:  # it hangs in an environment
                worker.process.kill()
                worker.process.wait()

    def __enter__(self) -> "SamplerPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, place: int, starts: int) -> _Worker:
        # A worker that is replaced must not play its predecessor's episodes again.
        name = f"{place}.{starts}" if starts else str(place)
        try:
            process, stream = start_child([*self._argv, name], self._environment, f"worker {name}")
        except OSError as error:
            raise RelaaxError(f"sampling worker {place} cannot be started: {error}") from error
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_SEC, 0))
        worker = _Worker(place, starts, process, Channel(stream, sampling_pb2.Sampled))
        threading.Thread(
            target=self._receive_all, args=(worker,), name=f"worker {name}", daemon=True
        ).start()
        return worker

    def _receive_all(self, worker: _Worker) -> None:
        while (message := worker.channel.receive()) is not None:
            self._queue.put((worker, message))
        self._queue.put((worker, None))

    def _replace(self, worker: _Worker) -> None:
        worker.channel.close()
        status = worker.process.wait()
        self._deaths += 1
        message = f"sampling worker {worker.place} ended with status {status}"
        if status == _EXIT_USAGE:
            raise RelaaxError(f"{message}; see its error above")
        if self._deaths >= _MAX_DEATHS:
            raise RelaaxError(
                f"{message}, worker number {self._deaths} in a row to exit without a "
                "trajectory; see its output above"
            )
        logger.error("%s; its unfinished trajectories are lost, starting another one", message)
        new = self._start(worker.place, worker.starts + 1)
        self._workers[worker.place] = new
        self._send(new, sampling_pb2.SamplerRequest(sync=self._sync))
        if self._playing:
            sample = sampling_pb2.Sample(max_traj_len=self._playing)
            self._send(new, sampling_pb2.SamplerRequest(sample=sample))

    def _read(self, message: sampling_pb2.Sampled) -> Buffer | None:
        if not message.HasField("trajectories"):
            return None
        self._deaths = 0
        return message_to_buffer(message.trajectories, self._discount, self._gae_lambda)

    def _play(self, max_traj_len: int) -> None:
        if not self._playing:
            self._playing = max_traj_len
            sample = sampling_pb2.Sample(max_traj_len=max_traj_len)
            self._send_all(sampling_pb2.SamplerRequest(sample=sample))

    def _pause(self) -> None:
        if self._playing:
            self._playing = 0
            self._send_all(sampling_pb2.SamplerRequest(pause=sampling_pb2.Pause()))

    def _send_all(self, request: sampling_pb2.SamplerRequest) -> None:
        for worker in self._workers:
            self._send(worker, request)

    def _send(self, worker: _Worker, request: sampling_pb2.SamplerRequest) -> None:
        if request.HasField("sync"):
            worker.unfinished = False
        elif request.HasField("sample"):
            worker.unfinished = True
        try:
            worker.channel.send(request)
        except BlockingIOError:
            logger.error("sampling worker %d no longer reads its input; killing it", worker.place)
            worker.process.kill()  # which the receiver notices
        except OSError:  # it has gone: the receiver notices, too
            pass


def _add(timing: SampleTiming, **more: float) -> SampleTiming:
    return replace(timing, **{name: getattr(timing, name) + y for name, y in more.items()})
