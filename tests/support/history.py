"""History: clients that write down what was acknowledged, and a replay that checks it.

    history = History(address, clients=3, parameters=100)
    history.start()
    ...                                   # whatever happens to the server
    history.stop()
    history.check(address)

A client repeats each push until it is answered, as agents do for two seconds. So at the end each
push that was sent is acknowledged, and the server's state must be what exactly these records lead
to, one by one in the order of the versions that the answers named.
"""

import dataclasses
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from relaax_like.bridge.control import BridgeControl
from relaax_like.bridge.stub import ParameterServerStub
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.core.manifest import Variable, make_manifest
from relaax_like.core.records import Push, Reply, Values
from relaax_like.parameter_server.store import Store
from relaax_like.wire.errors import ServerUnavailableError

OPTIMIZER = {"name": "adam", "learning_rate": 0.01}


@dataclasses.dataclass(frozen=True)
class Acknowledged:
    """One push that was answered."""

    client: int
    number: int
    version: int
    global_t: int
    outcome: str
    env_steps: int
    gradient: np.ndarray


class _Patient(ParameterServerStub):
    """Repeats a push until it is answered, however long that takes."""

    give_up = threading.Event()

    def _call_push_pull(self, push: Push, want_values: bool, have_version: int) -> Reply:
        return self._repeat(lambda: self._send(push, want_values, have_version))

    def _call_pull(self, have_version: int | None) -> Reply:
        return self._repeat(lambda: super(_Patient, self)._call_pull(have_version))

    def _repeat(self, call: Callable[[], Reply]) -> Reply:
        while True:
            try:
                return call()
            except ServerUnavailableError:
                if self.give_up.is_set():
                    raise
                time.sleep(0.02)


class History:
    """Several clients in threads of this process.

    Attributes:
      acknowledged: what was answered so far, in no order.
    """

    def __init__(
        self,
        address: str,
        clients: int = 3,
        parameters: int = 100,
        seed: int = 0,
        pushes: int | None = None,
        pause_sec: float = 0.0,
        often: bool = True,
        share: bool = True,
    ):
        """Describes what is pushed; nothing is started.

        Args:
          address: of the parameter server, or of a proxy before it.
          clients: threads, each with a link of its own.
          parameters: of the model.
          seed: of gradients and steps.
          pushes: of each client; None: until `stop`.
          pause_sec: between two pushes of a client.
          often: clients keep their stream open.
          share: clients and server can share memory.
        """
        self.acknowledged: list[Acknowledged] = []
        self.parameters = parameters
        self._address = address
        self._seed = seed
        self._pushes = pushes
        self._pause_sec = pause_sec
        self._often = often
        self._share = share
        self._stopping = threading.Event()
        self._failed: list[BaseException] = []
        self._joined = 0
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, args=(client,), name=f"client {client}")
            for client in range(clients)
        ]

    def start(self) -> None:
        """Starts all clients."""
        _Patient.give_up.clear()
        for thread in self._threads:
            thread.start()

    def wait(self, more: int, timeout_sec: float = 60.0) -> None:
        """Waits until all clients have joined and that many more pushes are acknowledged.

        A client that has not joined does not repeat what failed: a server that is killed whenever
        it has answered another client could keep it away.
        """
        want, end = len(self.acknowledged) + more, time.monotonic() + timeout_sec
        while len(self.acknowledged) < want or self._joined < len(self._threads):
            self._validate_running(end, f"{more} more pushes")
            time.sleep(0.005)

    def join(self, timeout_sec: float = 60.0) -> None:
        """Waits until all clients have made their pushes."""
        end = time.monotonic() + timeout_sec
        while any(thread.is_alive() for thread in self._threads):
            self._validate_running(end, "the clients' last pushes")
            time.sleep(0.005)
        assert not self._failed, self._failed

    def stop(self) -> None:
        """Lets each client finish its push: the server must be there."""
        self._stopping.set()
        self.join()

    def abandon(self) -> None:
        """Ends the clients whatever they are waiting for."""
        _Patient.give_up.set()
        self._stopping.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(60)

    def check(self, address: str | None = None) -> None:
        """Fails unless the server's state is what the acknowledged pushes lead to, bit by bit."""
        records = sorted(self.acknowledged, key=lambda one: one.version)
        assert {one.outcome for one in records} == {"applied"}
        numbers = sorted((one.client, one.number) for one in records)
        assert len(set(numbers)) == len(numbers)
        assert [one.version for one in records] == list(range(1, len(records) + 1))
        store = make_store(self.parameters)
        for record in records:
            store.apply(record.gradient, record.env_steps)
            assert store.global_t == record.global_t, record
        values = self.pull(address)
        assert values.version == store.version
        np.testing.assert_array_equal(values.flat, store.values.flat)
        with BridgeControl().connect(address or self._address) as link:
            assert link.status().global_t == sum(one.env_steps for one in records)

    def pull(self, address: str | None = None) -> Values:
        """Returns the server's newest values."""
        with BridgeControl().connect(address or self._address) as link:
            with link.parameter_server_stub(timeout_sec=30.0) as client:
                client.get_values()
                assert client._values is not None
                return client._values

    def _validate_running(self, end: float, what: str) -> None:
        assert not self._failed, self._failed
        assert time.monotonic() < end, f"waited in vain for {what}"

    def _run(self, client: int) -> None:
        try:
            with BridgeControl().connect(self._address) as link:
                manifest = link.wait(60.0)
                stub = _Patient(
                    link._channel,
                    self._address,
                    manifest,
                    link.metrics(),
                    f"client-{client}",
                    keep_stream_open=self._often,
                    use_shared_memory=self._share,
                )
                with stub:
                    stub.get_values()
                    with self._lock:
                        self._joined += 1
                    self._push_all(stub, client)
        except BaseException as error:
            if not _Patient.give_up.is_set():
                self._failed.append(error)

    def _push_all(self, stub: ParameterServerStub, client: int) -> None:
        random = np.random.default_rng([self._seed, client])
        number = 0
        while not self._stopping.is_set() and number != self._pushes:
            number += 1
            gradient = random.normal(size=self.parameters).astype(np.float32)
            env_steps = int(random.integers(1, 9))
            stub.increment_global_t(env_steps)
            stub.push_pull([gradient])
            if _Patient.give_up.is_set():
                return
            reply = stub._reply
            self.acknowledged.append(
                Acknowledged(
                    client,
                    number,
                    reply.version,
                    reply.global_t,
                    reply.outcome,
                    env_steps,
                    gradient,
                )
            )
            if self._pause_sec:
                self._stopping.wait(self._pause_sec)


def make_store(parameters: int) -> Store:
    """Returns the store that the server starts with."""
    variables = [Variable("w", np.zeros(parameters, np.float32))]
    manifest = make_manifest(variables)
    flat = manifest.pack([variable.value for variable in variables])
    return Store(manifest, flat, {"default": OptimizerConfig(**OPTIMIZER)})  # type: ignore[arg-type]


def write_initial_values(folder: Path, parameters: int) -> tuple[str, ...]:
    """Writes what the server starts from; returns the settings for it."""
    path = folder / "initial.npz"
    np.savez(path, w=np.zeros(parameters, np.float32))
    rate = OPTIMIZER["learning_rate"]
    return (
        f"relaax-parameter-server.initial_values={path}",
        f"relaax-parameter-server.optimizers={{default: {{name: adam, learning_rate: {rate}}}}}",
    )
