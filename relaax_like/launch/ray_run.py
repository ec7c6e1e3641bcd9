"""`relaax run --ray` and `relaax train --workers N --ray`: processes on a Ray cluster."""

import contextlib
from collections.abc import Callable, Iterator

from relaax_like.bridge.control import BridgeControl
from relaax_like.config.models import Experiment
from relaax_like.launch.base_trainer import BaseTrainer
from relaax_like.launch.run import make_address_overrides
from relaax_like.launch.security import make_client_security, validate_exposure
from relaax_like.launch.trainer import Trainer
from relaax_like.parameter_server.mirror import find_newest_step
from relaax_like.parameter_server.snapshots import list_names
from relaax_like.runs.folders.run_folder import find_progress
from relaax_like.runs.processes.manager import TERM_SEC
from relaax_like.runs.processes.ray_joining import join
from relaax_like.runs.processes.ray_launcher import RayLauncher
from relaax_like.runs.processes.run_record import RunRecord
from relaax_like.runs.processes.topology import Node, Topology
from relaax_like.wire.errors import ConfigError, SnapshotError

_STATUS_SEC = 5.0


@contextlib.contextmanager
def open_ray_launcher(
    experiment: Experiment,
    topology: Topology,
    address: str,
    accept_loss: bool,
    begins_new_run: bool = False,
) -> Iterator[RayLauncher]:
    """Joins a Ray cluster, and places the nodes of a run there.

    Within the context, the cluster's record of the run follows the parameter server's progress.

    Args:
      experiment: of the run.
      topology: its processes.
      address: see `join`.
      accept_loss: see `validate_nothing_lost`.
      begins_new_run: a new run replaces what the cluster knows, because an older run in the folder
        is moved aside (--force).

    Raises:
      ConfigError: the cluster cannot be joined; `learner.backprop_workers` is -1; a server could be
        reached by unauthorized clients; or see `validate_nothing_lost` and `make_client_security`.
      RelaaxError: no cluster answers, or it does not have the processors that the run asks for; or
        see `validate_nothing_lost`.
      ModuleNotFoundError: Ray is not installed.
      Exception: see `join` and `RunRecord.read`.
    """
    _validate_cores(experiment)
    ray = join(address, sum(node.cpus for node in topology.nodes), experiment.security.insecure)
    record = RunRecord(ray, experiment.run_dir)
    validate_nothing_lost(experiment, record, accept_loss)
    if begins_new_run:
        record.write(0, 0)

    def validate_start(node: Node) -> None:
        if node.role == "parameter server":
            validate_nothing_lost(experiment, record, accept_loss and not record.is_written)

    with RayLauncher(
        ray,
        topology,
        experiment.file.absolute(),
        make_address_overrides,
        TERM_SEC,
        validate_start=validate_start,
    ) as launcher:
        for place in launcher.addresses.values():
            validate_exposure(place, experiment.security, on_ray=True)
        with record.following(_make_read_progress(experiment, topology, launcher)):
            yield launcher


def _validate_cores(experiment: Experiment) -> None:
    if experiment.learner.backprop_workers < 0:
        raise ConfigError(
            "learner.backprop_workers: -1 measures the cores of a machine, but Ray must know their "
            "number before it chooses one; with --ray, set it to 1 or more"
        )


def validate_nothing_lost(experiment: Experiment, record: RunRecord, accept_loss: bool) -> None:
    """Refuses to start a run on an empty folder if the cluster knows that the run has progressed.

    The run's folder is then on another machine, or lost with it.

    Args:
      experiment: of the run.
      record: what the cluster knows about it.
      accept_loss: start it from the mirror, or from scratch.

    Raises:
      ConfigError: the run has made progress, and `accept_loss` is False; the error says what would
        be lost. Or `mirror_url` cannot be used.
      RelaaxError: the cluster's record of the run is not valid, or the folder of snapshots or of a
        journal cannot be read.
      Exception: see `RunRecord.read`.
    """
    settings = experiment.parameter_server
    folder = settings.checkpoint_dir
    if accept_loss or list_names(folder) or find_progress(folder) is not None:
        return
    known = record.read()
    if known is None or not known.global_t:
        return
    copied, copy = _find_copy(settings.mirror_url)
    lost = max(known.global_t - (copied or 0), 0)
    unless = "if there is none, " if copied is None else ""
    raise ConfigError(
        f"relaax-parameter-server.checkpoint_dir: {folder.absolute()} has no snapshot on this "
        f"machine, {record.host}, but the Ray cluster knows that this run has begun: at "
        f"{known.time} it was at step {known.global_t:,}, version {known.version:,}, on "
        f"{known.host}. {copy}: {unless}a start here would lose at least {lost:,} steps. Start it "
        "where its folder is, or bring the folder here, or choose another run_dir; or start with "
        "--accept-loss, from the copy if there is one"
    )


def _find_copy(mirror_url: str | None) -> tuple[int | None, str]:
    """Returns the steps of the newest copy of a run, and a description.

    The steps are 0 without a copy, and None if it is not known whether there is one.
    """
    if mirror_url is None:
        return 0, "There is no copy (mirror_url)"
    try:
        found = find_newest_step(mirror_url)
    except SnapshotError as error:
        return None, f"Whether there is a copy is not known ({error})"
    if found is None:
        return 0, "There is no copy in mirror_url yet"
    return found, f"The copy in mirror_url is at step {found:,}"


def _make_read_progress(
    experiment: Experiment, topology: Topology, launcher: RayLauncher
) -> Callable[[], tuple[int, int]]:
    """Returns a function that asks a run's parameter server for its steps and version."""
    (server,) = (node.name for node in topology.nodes if node.role == "parameter server")
    security = make_client_security(experiment)

    def read() -> tuple[int, int]:
        address = str(launcher.addresses[server])
        with BridgeControl().connect(address, security) as link:
            status = link.status(_STATUS_SEC)
        return status.global_t, status.version

    return read


def join_for_workers(trainer: BaseTrainer, address: str, accept_loss: bool) -> None:
    """Joins a Ray cluster, on whose machines the workers of a training run will be started.

    Args:
      trainer: of the run.
      address: see `join`.
      accept_loss: see `validate_nothing_lost`.

    Raises:
      ConfigError: the training has no workers; the cluster cannot be joined; or see
        `validate_nothing_lost`.
      RelaaxError: no cluster answers; or see `validate_nothing_lost`.
      ModuleNotFoundError: Ray is not installed.
      Exception: see `join` and `RunRecord.read`.
    """
    workers = trainer.experiment.learner.workers
    if not isinstance(trainer, Trainer):
        raise ConfigError(
            f"--ray {address}: only workers run on a Ray cluster, but this training (from files, "
            "or by trainer.py) has no workers; remove --ray"
        )
    if not workers:
        raise ConfigError(
            f"--ray {address}: only workers run on a Ray cluster, and this training has none; add "
            f"--workers N, or start all processes there with relaax run CONFIG --ray {address}"
        )
    ray = join(address, workers, trainer.experiment.security.insecure)
    record = RunRecord(ray, trainer.experiment.run_dir)
    validate_nothing_lost(trainer.experiment, record, accept_loss)
    trainer.ray = ray
