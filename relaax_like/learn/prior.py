"""Prior: recorded steps, of which a part of each minibatch of a replay table consists.

Source: RLPD, Ball et al. 2023, https://arxiv.org/abs/2302.02948.
"""

import dataclasses
import json
import logging
import os
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from relaax_like.algorithm.model import Model
from relaax_like.config.plan import Replay
from relaax_like.config.sources import PRIOR_NAME
from relaax_like.experience.collector import DataHandler, handle_rollout
from relaax_like.experience.recordings import Recording
from relaax_like.experience.rollout import Rollout
from relaax_like.learn.data_handlers import locate_handler_errors
from relaax_like.learn.recorded_files import read_files
from relaax_like.learn.replayed import MAX_STREAMS, make_items, make_spec
from relaax_like.replay import Storage, Table, Uniform
from relaax_like.wire.errors import ConfigError
from relaax_like.wire.spaces import Space
from relaax_like.wire.syncing import replace_file

logger = logging.getLogger(__name__)


def read_prior(
    files: Sequence[Recording], model: Model, action_spaces: Mapping[str, Space]
) -> tuple[list[Rollout], int]:
    """Reads recordings into memory.

    Args:
      files: at least one, in an order that is always the same.
      model: its specs define the rollouts.
      action_spaces: leaf -> space, if they are known.

    Returns:
      The rollouts, without columns of a data handler; and a checksum of what is learned from.

    Raises:
      InvalidInputError: see `validate_files`.
    """
    rollouts, checksum = [], 0
    for rollout in read_files(files, model, action_spaces):
        for array in _list_arrays(rollout):
            checksum = zlib.crc32(np.ascontiguousarray(array).data, checksum)
        rollouts.append(dataclasses.replace(rollout, extras={}))
    return rollouts, checksum


def _list_arrays(rollout: Rollout) -> Iterator[np.ndarray]:
    for arrays in (rollout.inputs, rollout.next_inputs, rollout.actions, rollout.history):
        yield from (arrays[name] for name in sorted(arrays))
    yield from (rollout.rewards, rollout.next_alive)
    yield from (array for array in (rollout.valid, rollout.starts) if array is not None)


def keep_prior(folder: Path, sources: Sequence[str], steps: int, checksum: int) -> None:
    """Writes down which recorded steps a run learns from, or compares them if it resumes.

    Several processes can do so at the same time.

    Args:
      folder: of checkpoints.
      sources: of the recordings. If they are others than before, the user has changed the setting,
        and that is logged.
      steps: number of recorded steps.
      checksum: of `read_prior`.

    Raises:
      ConfigError: the same sources have other steps than before; or the file cannot be written.
    """
    path = folder / PRIOR_NAME
    found = {"sources": list(sources), "steps": steps, "checksum": checksum}
    try:
        before = json.loads(path.read_bytes())
        named, known = before["sources"], (before["steps"], before["checksum"])
    except (OSError, ValueError, KeyError, TypeError):
        named, known = None, None
    if named == found["sources"] and known is not None and known != (steps, checksum):
        what = f"{known[0]:,} steps" if known[0] != steps else "other steps"
        raise ConfigError(
            f"algorithm.prior: {', '.join(sources)} has {steps:,} steps with checksum "
            f"{checksum:08x}, expected {what}, those that the run began with, with checksum "
            f"{known[1]:08x}; put the old recordings back, name others in another folder, or "
            f"remove {path} to continue with what is there now"
        )
    if named not in (None, found["sources"]):
        logger.warning(
            "algorithm.prior is %s, and was %s until now", *map(", ".join, (sources, named))
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Learners beside their agents start at the same time, and find the same.
        mine = folder / f"{PRIOR_NAME}.{os.getpid()}-{threading.get_ident()}"
        replace_file(mine, json.dumps(found).encode())
        os.replace(mine, path)
    except OSError as error:
        raise ConfigError(
            f"relaax-parameter-server.checkpoint_dir: {path}: cannot be written: "
            f"{error.strerror}; remove the cause, or choose another checkpoint_dir"
        ) from None


def make_prior(
    rollouts: Sequence[Rollout],
    plan: Replay,
    model: Model,
    history: Mapping[str, int],
    data_handler: DataHandler | None = None,
) -> Table:
    """Makes a table that has all steps of recordings, for `Table.mix`.

    With `prior_overridden` it has room for as many steps more as the run's own table; then the
    oldest make room, those of recordings first. Otherwise nothing is ever removed from it. The
    steps become transitions as those of the run do, over the borders of files, too, where the
    numbers of slot, episode and step continue.

    Args:
      rollouts: of `read_prior`.
      plan: of the algorithm.
      model: its specs define the steps.
      history: see `make_table`.
      data_handler: changes the rollouts, as those of agents.

    Raises:
      ConfigError: the table does not fit into memory; or the data handler has failed.
      InvalidInputError: a rollout does not fit the model, or the data handler returned none.
    """
    handled: list[Rollout] = []
    with locate_handler_errors(data_handler, "after_interact"):
        for rollout in rollouts:
            handled += map(_drop_repeated_slots, handle_rollout(data_handler, rollout))
    spec = make_spec(model, history)
    measuring = Storage(spec, 2, history=history)
    rows = sum(measuring.measure(rollout)[-1] for rollout in handled)
    slots = max((rollout.slots for rollout in handled), default=1)
    if plan.prior_overridden:
        rows, slots = rows + plan.capacity, max(slots, MAX_STREAMS)
    storage = Storage(spec, max(rows, 2), history=history, max_streams=slots)
    table = Table(storage, make_items(plan, model, None), Uniform(), minibatch_size=1)
    agents: set[int] = set()
    for rollout in handled:
        table.insert(rollout)
        agents.update([] if rollout.starts is None else rollout.starts[:, 0].tolist())
    table.forget(sorted(agents))  # what was not continued is complete
    return table


def _drop_repeated_slots(rollout: Rollout) -> Rollout:
    """Returns a rollout that continues nothing if it has several parts of one slot."""
    agents = np.zeros(0) if rollout.starts is None else rollout.starts[:, 0]
    if len(np.unique(agents)) == len(agents):
        return rollout
    return dataclasses.replace(rollout, starts=None)
