"""A parameter server with a journal, opened as a start of the process does, and its crash."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.core.manifest import STATISTIC, Variable, make_manifest
from relaax_like.core.metrics import NullMetrics
from relaax_like.core.moments import Moments
from relaax_like.core.records import Episode, Push
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.push_journal import PushJournal
from relaax_like.parameter_server.snapshots import Snapshots
from relaax_like.parameter_server.stop_condition import StopCondition
from relaax_like.parameter_server.store import Store
from support.bridge import VARIABLES

STATISTICS = tuple(
    Variable(f"seen.{part}", np.zeros(shape, np.float64), kind=STATISTIC)
    for part, shape in (("count", ()), ("mean", (2,)), ("m2", (2,)))
)
MANIFEST = make_manifest([*VARIABLES, *STATISTICS])
ADAM = OptimizerConfig(
    learning_rate=0.1, schedule="linear", learning_rate_end=0.0, schedule_env_steps=1000
)


def open_server(
    folder: Path,
    optimizer: OptimizerConfig = ADAM,
    every_sec: float | None = None,
    max_global_step: int | None = None,
    keep: int = 3,
    keep_best: int = 0,
    target_score: float | None = None,
    store: Store | None = None,
    **options: Any,
) -> ParameterServer:
    """Opens a parameter server as a start of the process does; `store`: another one."""
    flat = MANIFEST.pack([variable.value for variable in [*VARIABLES, *STATISTICS]])
    store = store or Store(MANIFEST, flat, {"default": optimizer})
    journal = PushJournal(folder / "journal", store.manifest.fingerprint, **options)
    server = ParameterServer(
        store,
        snapshots=Snapshots(folder, keep, keep_best, every_sec=every_sec),
        journal=journal,
        metrics=NullMetrics(),
        stop=StopCondition(max_global_step, target_score=target_score),
    )
    try:
        server.restore_latest_checkpoint()
    except BaseException:
        server.close(save=False)
        raise
    return server


def make_push(sequence: int, seed: int | None = None) -> Push:
    """Returns a push; some bring a gradient, statistics or an episode, and some do not."""
    random = np.random.default_rng(sequence if seed is None else seed)
    gradient = random.standard_normal(9).astype(np.float32)
    rows = random.standard_normal((4, 2))
    return Push(
        client_id="a",
        incarnation=1,
        sequence=sequence,
        gradient=None if sequence % 5 == 4 else gradient.view(np.uint8),
        env_steps=sequence,
        episodes=(Episode(float(sequence), 3),) if sequence % 3 == 0 else (),
        fingerprint=MANIFEST.fingerprint,
        statistics={"seen": Moments.of(rows)} if sequence % 2 else {},
    )


def crash(server: ParameterServer, folder: Path, tmp_path: Path) -> Path:
    """Returns what `kill -9` leaves: all that was written, and nothing that a close would add."""
    assert server._journal is not None
    server._journal.close()  # its bytes had been handed over; nothing of the state is written
    left = tmp_path / f"left-{len(list(tmp_path.iterdir()))}"
    shutil.copytree(folder, left)
    server.close(save=False)
    return left


def get_state(server: ParameterServer) -> tuple[Any, ...]:
    """Returns all that a restart must bring back."""
    state = server._store.export_state()
    return (
        state.version,
        state.global_t,
        state.values.tobytes(),
        *(slots.tobytes() for slots in state.slots.values()),
        dict(state.steps),
        {k: v for k, v in server._statistics.to_dict().items() if k != "refused"},
        server._applier._dedup.to_dict(),
    )
