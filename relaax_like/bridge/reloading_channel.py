"""A TLS channel whose certificates can be replaced: gRPC itself keeps the first ones."""

import functools
from collections.abc import Callable
from typing import Any

import grpc

from relaax_like.wire.closing import Closing
from relaax_like.wire.tls import Pem


class ReloadingChannel(Closing, grpc.Channel):
    """Makes calls over a channel that is replaced when the certificates have changed.

    Calls in progress continue on the channel on which they started, which stays open until they
    end. Thread-safe.

    Args:
      make: makes a channel from the contents of the certificate files.
      get: returns the current contents, the same object while nothing changes; must be fast.
    """

    def __init__(self, make: Callable[[Pem], grpc.Channel], get: Callable[[], Pem]):
        self._make = make
        self._get = get
        pem = get()
        self._current = pem, make(pem)
        self._closed = False

    def current(self) -> grpc.Channel:
        """Returns the channel for new calls."""
        # No lock: two threads can each make one, and then one of the two is used for only one call.
        pem, channel = self._current
        newest = self._get()
        if newest is not pem and not self._closed:
            channel = self._make(newest)
            self._current = newest, channel
        return channel

    def subscribe(self, callback: Any, try_to_connect: bool = False) -> None:
        """Reports the connectivity of the channel that is current now, not of later ones."""
        self.current().subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Any) -> None:
        """Ends `subscribe`, if the channel has not been replaced since."""
        self._current[1].unsubscribe(callback)

    def _bind(self, kind: str, method: str, *args: Any, **kwargs: Any) -> Any:
        return _Method(self, lambda channel: getattr(channel, kind)(method, *args, **kwargs))

    # What they return is called as that of `grpc.Channel`.
    unary_unary = functools.partialmethod(_bind, "unary_unary")
    unary_stream = functools.partialmethod(_bind, "unary_stream")
    stream_unary = functools.partialmethod(_bind, "stream_unary")
    stream_stream = functools.partialmethod(_bind, "stream_stream")

    def close(self) -> None:
        """Closes the current channel. Idempotent."""
        self._closed = True
        self._current[1].close()


class _Method:
    """The callable of one method, which uses the current channel for each call."""

    def __init__(self, channel: ReloadingChannel, bind: Callable[[grpc.Channel], Any]):
        self._channel = channel
        self._bind = bind
        current = channel.current()
        self._bound = current, bind(current)

    def _resolve(self) -> Any:
        current = self._channel.current()
        channel, bound = self._bound
        if channel is not current:
            bound = self._bind(current)
            self._bound = current, bound
        return bound

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._resolve()(*args, **kwargs)

    def with_call(self, *args: Any, **kwargs: Any) -> Any:
        return self._resolve().with_call(*args, **kwargs)

    def future(self, *args: Any, **kwargs: Any) -> Any:
        return self._resolve().future(*args, **kwargs)
