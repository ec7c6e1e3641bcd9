"""`relaax run --ray` and `relaax train --workers N --ray`: processes on a Ray cluster."""

import contextlib
import dataclasses
from collections.abc import Iterator

from relaax_like.config.models import Experiment
from relaax_like.launch.base_trainer import BaseTrainer
from relaax_like.launch.run import make_address_overrides
from relaax_like.launch.security import validate_exposure
from relaax_like.launch.trainer import Trainer
from relaax_like.ray_engine.joining import join
from relaax_like.ray_engine.ray_launcher import RayLauncher
from relaax_like.supervision.manager import TERM_SEC
from relaax_like.supervision.topology import Topology
from relaax_like.wire.errors import ConfigError


@contextlib.contextmanager
def open_ray_launcher(
    experiment: Experiment, topology: Topology, address: str
) -> Iterator[RayLauncher]:
    """Joins a Ray cluster, and places the nodes of a run there.

    Args:
      experiment: of the run.
      topology: its processes.
      address: see `join`.

    Raises:
      ConfigError: the cluster cannot be joined; or a server could be reached by unauthorized
        clients.
      RelaaxError: no cluster answers, or it does not have the processors that the run asks for.
    """
    if experiment.learner.backprop_workers < 0:
        raise ConfigError(
            "learner.backprop_workers: -1 measures the cores of a machine, but Ray must know their "
            "number before it chooses one; with --ray, set it to 1 or more"
        )
    with RayLauncher(
        join(address, sum(node.cpus for node in topology.nodes), experiment.security.insecure),
        topology,
        experiment.file.absolute(),
        make_address_overrides,
        TERM_SEC,
    ) as launcher:
        for place in launcher.addresses.values():
            validate_exposure(dataclasses.replace(place, port=0), experiment.security)
        yield launcher


def join_for_workers(trainer: BaseTrainer, address: str) -> None:
    """Joins a Ray cluster, on whose machines the workers of a training will run.

    Args:
      trainer: of the run.
      address: see `join`.

    Raises:
      ConfigError: the training has no workers, or the cluster cannot be joined.
      RelaaxError: no cluster answers.
    """
    workers = trainer.experiment.learner.workers
    if not isinstance(trainer, Trainer) or not workers:
        raise ConfigError(
            f"--ray {address}: only workers run on a Ray cluster, and this training has none; add "
            "--workers N, or start all processes there with relaax run CONFIG --ray"
        )
    trainer.ray = join(address, workers, trainer.experiment.security.insecure)
