"""The in-process version of the stub: the same interface to a parameter server object."""

from relaax_like.bridge.client import BufferingClient, make_client_id
from relaax_like.core.metrics import Metrics
from relaax_like.core.records import Push, Reply
from relaax_like.core.roles import GroupConnection, ParameterServerBackend
from relaax_like.wire.errors import ServerUnavailableError

_TIMEOUT_SEC = 60.0


class InProcessClient(BufferingClient):
    """A parameter server in this process, as one agent or learner sees it; nothing is serialised.

    Args:
      backend: the parameter server.
      client_id: unique in the run; "": a new name.
      metrics: the recorder; None: that of the parameter server.
    """

    def __init__(
        self,
        backend: ParameterServerBackend,
        client_id: str = "",
        metrics: Metrics | None = None,
    ):
        super().__init__(
            backend.manifest, client_id or make_client_id(), metrics or backend.metrics()
        )
        self._backend = backend

    def _call_push_pull(self, push: Push, want_values: bool, have_version: int) -> Reply:
        try:
            return push_pull(self._backend, push, want_values, have_version, _TIMEOUT_SEC)
        except TimeoutError as error:
            raise ServerUnavailableError(str(error)) from None

    def _open_group(self) -> GroupConnection:
        return self._backend.join_group(self.client_id)

    def _call_pull(self, have_version: int | None) -> Reply:
        return self._backend.pull(self.client_id, have_version)


def push_pull(
    backend: ParameterServerBackend,
    push: Push,
    want_values: bool,
    have_version: int,
    timeout_sec: float,
) -> Reply:
    """Applies one push and, if `want_values`, pulls values newer than `have_version`.

    Args:
      backend: the parameter server.
      push: to apply.
      want_values: whether to pull.
      have_version: version of the values that the client has.
      timeout_sec: longest wait of the push in the queue.

    Raises:
      Exception: see `ParameterServerBackend.push` and `ParameterServerBackend.pull`.
    """
    reply = backend.push(push, timeout_sec)
    if not want_values:
        return reply
    pulled = backend.pull(push.client_id, have_version)
    return Reply(**{**vars(reply), "values": pulled.values})
