"""RemoteSampler: an AlgoSampler in another process; and what that process answers."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from relaax_like.addons.sampling.algo_sampler import AlgoSampler, SampleTiming
from relaax_like.core.moments import Moments
from relaax_like.experience.buffer import Buffer
from relaax_like.wire.array_tree import bytes_to_tree, tree_to_bytes
from relaax_like.wire.errors import (
    ConfigError,
    InvalidInputError,
    RelaaxError,
    describe_exception,
)

_KIND = "sampler 1"


class RemoteSampler:
    """Samples with an `AlgoSampler` in another process, through two functions that carry bytes.

        sampler.sync_policy(values, version)
        finish = sampler.start_traj(max_traj_len=300)   # other samplers can be started meanwhile
        buffer, timing = finish()

    Buffers and statistics are bit-identical to those that the sampler has there. An error there is
    raised here, with the name before it. Used by one thread.

    Attributes:
      name: for errors.

    Args:
      name: as the attribute.
      send: sends a request; raises RelaaxError if the process has ended.
      receive: waits for its reply; raises RelaaxError if the process ends, or does not answer.
    """

    def __init__(self, name: str, send: Callable[[bytes], None], receive: Callable[[], bytes]):
        self.name = name
        self._send = send
        self._receive = receive
        self._is_waiting = False
        self._policy: dict[str, Any] | None = None  # that is not sent yet

    def sync_policy(self, values: Sequence[np.ndarray], version: int) -> None:
        """Sets the values of actor and critic, with the next request; see `AlgoWorker`."""
        self._policy = {"values": list(values), "version": version}

    def sample_traj(
        self, max_traj_len: int, do_eval: bool = False, update_normalization_param: bool = False
    ) -> tuple[Buffer, SampleTiming]:
        """Plays one trajectory in each slot; see `AlgoSampler`.

        Raises:
          ConfigError, InvalidInputError, RelaaxError: see `AlgoSampler.sample_traj`.
          RelaaxError: the process has ended, or does not answer.
        """
        return self.start_traj(max_traj_len, do_eval, update_normalization_param)()

    def start_traj(
        self, max_traj_len: int, *flags: bool
    ) -> Callable[[], tuple[Buffer, SampleTiming]]:
        """Begins a sample; returns the function that waits for its end, as `sample_traj` does.

        Raises:
          RelaaxError: the process has ended.
        """
        self.begin("sample_traj", max_traj_len, *flags)
        return self._finish_traj

    def get_statistic(self, name: str) -> Moments:
        """Returns a running statistic of the sampler's copy; see `AlgoWorker`.

        Raises:
          RelaaxError: the process has ended, or does not answer.
        """
        self.begin("get_statistic", name)
        return Moments(**self.finish())

    def begin(self, what: str, *arguments: Any) -> None:
        """Sends a request. The reply to an earlier one that was not finished is discarded.

        Args:
          what: is requested; see `answer`.
          arguments: arrays and JSON types, nested.

        Raises:
          RelaaxError: the process has ended.
        """
        if self._is_waiting:
            with contextlib.suppress(RelaaxError):
                self.finish()
        tree = {"what": what, "arguments": arguments, "policy": self._policy}
        self._send(tree_to_bytes(tree, _KIND))
        self._is_waiting, self._policy = True, None

    def finish(self) -> Any:
        """Waits for the reply, and returns the result.

        Raises:
          ConfigError, InvalidInputError, RelaaxError: the request has failed there.
          RelaaxError: the process has ended, or does not answer.
        """
        try:
            reply = bytes_to_tree(self._receive(), _KIND)
        except RelaaxError:
            self._is_waiting = False
            raise
        self._is_waiting = False
        if "error" not in reply:
            return reply["result"]
        text = f"{self.name}: {reply['error']}"
        if reply["kind"] == "InvalidInputError":
            raise InvalidInputError(text, reply["field"])
        raise (ConfigError if reply["kind"] == "ConfigError" else RelaaxError)(text)

    def _finish_traj(self) -> tuple[Buffer, SampleTiming]:
        result = self.finish()
        buffer = Buffer(result["discount"], result["gae_lambda"])
        buffer.set_state(result["state"])
        return buffer, SampleTiming(**result["timing"])


def answer(request: bytes, get_sampler: Callable[..., AlgoSampler]) -> bytes:
    """Returns the reply to a request of a `RemoteSampler`: a result, or an error.

    Args:
      request: "sample_traj", "get_statistic", or "open", whose arguments are those of
        `get_sampler`.
      get_sampler: returns the sampler; makes it if there are arguments.
    """
    try:
        tree = bytes_to_tree(request, _KIND)
        reply = {"result": _execute(get_sampler, **tree)}
    except Exception as error:  # reported in the other process
        reply = {
            "error": str(error) if isinstance(error, RelaaxError) else describe_exception(error),
            "kind": type(error).__name__,
            "field": getattr(error, "field", ""),
        }
    return tree_to_bytes(reply, _KIND)


def _execute(
    get_sampler: Callable[..., AlgoSampler],
    what: str,
    arguments: Sequence[Any],
    policy: Mapping[str, Any] | None,
) -> Any:
    if what == "open":
        get_sampler(*arguments)
        return None
    sampler = get_sampler()
    if policy is not None:
        sampler.sync_policy(**policy)
    if what == "get_statistic":
        return vars(sampler.get_statistic(*arguments))
    buffer, timing = sampler.sample_traj(*arguments)
    return {
        "discount": buffer.discount,
        "gae_lambda": buffer.gae_lambda,
        "state": buffer.get_state(),
        "timing": vars(timing),
    }
