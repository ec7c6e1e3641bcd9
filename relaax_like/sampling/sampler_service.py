"""SamplerService: a sampling worker's process, from inside."""

import os
import queue
import threading
import time

from relaax_like.experience.buffer import Buffer
from relaax_like.learn.channel import Channel
from relaax_like.sampling.algo_sampler import AlgoSampler
from relaax_like.sampling.messages import buffer_to_message, message_to_values
from relaax_like.v1 import sampling_pb2

ServiceChannel = Channel[sampling_pb2.Sampled, sampling_pb2.SamplerRequest]


class SamplerService:
    """Reads wishes from the beginning, and fulfils them once there is a sampler.

        service = SamplerService(channel)  # ends the process when the other side has gone
        sampler = make_slowly()
        service.serve(sampler)  # for ever

    Args:
      channel: to the run.
    """

    def __init__(self, channel: ServiceChannel):
        self._channel = channel
        self._queue: queue.SimpleQueue[sampling_pb2.SamplerRequest] = queue.SimpleQueue()
        self._sync: sampling_pb2.Sync | None = None  # taken up, not yet acted with
        self._finishing = False
        self._version = 0
        self._sample_sec = 0.0  # since the last message, up to _playing_since
        self._playing_since: float | None = None  # None: it does not play
        threading.Thread(target=self._receive_all, name="from run", daemon=True).start()

    def serve(self, sampler: AlgoSampler) -> None:
        """Does what it is told, until the process ends."""
        while True:
            request = self._queue.get()
            if request.HasField("sync"):
                self._sync = request.sync
            elif request.HasField("sample"):
                self._take_up(sampler)
                self._play(sampler, request.sample.max_traj_len)
            elif request.HasField("finish"):
                self._finishing = True
            if self._finishing:
                self._finishing = False
                self._answer(sampling_pb2.Sampled(finished=True))

    def _take_up(self, sampler: AlgoSampler) -> None:
        if self._sync is not None:
            sampler.sync_policy(message_to_values(self._sync), self._sync.version)
            self._version, self._sync = self._sync.version, None

    def _play(self, sampler: AlgoSampler, max_traj_len: int) -> None:
        """Plays until new values, or the end, have come."""
        self._start_clock()
        trajectories, steps = sampler.sample_on(max_traj_len, self._send, self._goes_on)
        self._stop_clock()
        if trajectories:
            self._answer(
                sampling_pb2.Sampled(discarded_trajectories=trajectories, discarded_steps=steps)
            )

    def _goes_on(self) -> bool:
        """Does what has come meanwhile; waits through a pause.

        Returns:
          False when there are new values, or this is the end.
        """
        paused = False
        while paused or not self._queue.empty():
            request = self._queue.get()
            if request.HasField("sync"):
                self._sync = request.sync
                return False
            if request.HasField("finish"):
                self._finishing = True
                return False
            if request.HasField("pause"):
                paused = True
                self._stop_clock()
            elif paused:
                paused = False
                self._start_clock()
        return True

    def _start_clock(self) -> None:
        self._playing_since = time.perf_counter()

    def _stop_clock(self) -> None:
        if self._playing_since is not None:
            self._sample_sec += time.perf_counter() - self._playing_since
            self._playing_since = None

    def _send(self, buffer: Buffer) -> None:
        message = sampling_pb2.Sampled(trajectories=buffer_to_message(buffer))
        self._stop_clock()
        self._answer(message)
        self._start_clock()

    def _answer(self, message: sampling_pb2.Sampled) -> None:
        message.version = self._version
        message.sample_sec, self._sample_sec = self._sample_sec, 0.0
        try:
            self._channel.send(message)
        except OSError:
            self._leave()

    def _receive_all(self) -> None:
        while (request := self._channel.receive()) is not None:
            self._queue.put(request)
        self._leave()

    def _leave(self) -> None:
        """Ends the process at once: nobody is left to sample for."""
        os._exit(0)
