"""Hosts of agents that act with fixed values and do not learn."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from relaax_like.agent.data_processor import ComputationDataProcessor
from relaax_like.algorithm.model import get_variables
from relaax_like.config.algorithm_folder import load_algorithm_module
from relaax_like.config.models import Experiment
from relaax_like.core.metrics import NullMetrics
from relaax_like.core.prediction import ONLY_NAME
from relaax_like.core.roles import ParameterServerClient
from relaax_like.launch.algorithm_code import (
    get_make_algorithms,
    has_plain_agents,
    is_batch_native,
    load_agent_class,
    load_model_module,
    locate_errors,
    make_actors,
)
from relaax_like.learn.frozen_policy import FrozenPolicy
from relaax_like.rlx_server.hosting import AgentHost, BatchHost, PlainHost
from relaax_like.runs.processes.process import without_native_stderr
from relaax_like.wire.errors import ConfigError, InvalidInputError, SnapshotError


def make_frozen_host(
    experiment: Experiment,
    make_client: Callable[[str], ParameterServerClient],
    fixed: FrozenPolicy,
    client_id: str,
) -> AgentHost:
    """Makes the host of agents that act with fixed values.

    Args:
      experiment: names the algorithm's folder.
      make_client: opens a view of a parameter server with these values from a client id: for plain
        agents, which read them by themselves, and for those with several Algorithms.
      fixed: the values with which batch-native agents with one Algorithm act; it can change at any
        time.
      client_id: of the agents; the seed of their random numbers depends on it.

    Raises:
      ConfigError: the algorithm folder cannot be loaded, or its code fails; or its plain Agent
        lacks a method.
      SnapshotError: the values belong to another model.
      RelaaxError: an error of `make_client`.
    """
    agent_class = load_agent_class(experiment)
    if not is_batch_native(agent_class):
        return PlainHost(experiment.algorithm, agent_class, make_client)
    actors = make_actors(experiment, client_id, agent_class)
    if load_model_module(experiment) is not None:
        validate_values(experiment, actors[ONLY_NAME].model, fixed.values)
        policies = {ONLY_NAME: fixed}
    else:
        policies = _freeze_several(experiment, make_client, client_id)
    processors = {
        name: ComputationDataProcessor(actor, policies[name], NullMetrics(), client_id)
        for name, actor in actors.items()
    }
    return BatchHost(experiment.algorithm, lambda: processors, agent_class)


def can_play_fixed(experiment: Experiment) -> bool:
    """Returns whether the algorithm's agents only need a `FrozenPolicy` to act.

    Raises:
      ConfigError: see `load_agent_class` and `load_model_module`.
    """
    return not has_plain_agents(experiment) and load_model_module(experiment) is not None


def validate_values(experiment: Experiment, model: Any, values: Sequence[np.ndarray]) -> None:
    """Checks that a snapshot's values match the model that will act with them.

    Raises:
      SnapshotError: the values belong to another model.
    """
    wanted = [(variable.name, variable.value.shape) for variable in get_variables(model)]
    found = [value.shape for value in values]
    what = f"{len(found)} variable(s), but the model has {len(wanted)}"
    if len(found) == len(wanted):
        pairs = zip(wanted, found, strict=True)
        what = next(
            (
                f"shape {list(shape)} for variable {name}, but the model has {list(own)}"
                for (name, own), shape in pairs
                if own != shape
            ),
            "",
        )
    if what:
        raise SnapshotError(
            f"{experiment.parameter_server.checkpoint_dir}: the snapshot has {what}; use the "
            "settings and the algorithm's code of its run"
        )


def _freeze_several(
    experiment: Experiment, make_client: Callable[[str], ParameterServerClient], client_id: str
) -> dict[str, FrozenPolicy]:
    """Returns a policy with the current values of each Algorithm's variables; they can share some.

    Raises:
      ConfigError: the folder's code fails, or makes no Algorithms.
      SnapshotError: the values belong to another model.
    """
    with without_native_stderr():
        from relaax_like.learn.named_algorithms import NamedAlgorithms

        module = load_algorithm_module(experiment.algorithm_folder, "algorithm")
    make_algorithms = get_make_algorithms(module)
    with locate_errors(experiment.algorithm_folder):
        named = NamedAlgorithms(make_algorithms(experiment.algorithm, experiment.algorithm.seed))
    policies = {}
    for name, algorithm in named.algorithms.items():
        whole = make_client(f"{client_id}-{name}")
        try:
            client = named.make_client(name, whole)
        except ConfigError as error:
            cause = error.__cause__
            where = f" (see {cause.field})" if isinstance(cause, InvalidInputError) else ""
            raise SnapshotError(
                f"{experiment.parameter_server.checkpoint_dir}: the snapshot's variables are not "
                f"those of {name!r}{where}; use the settings and the algorithm's code of its run"
            ) from None
        with client:
            values = client.get_values()
            validate_values(experiment, algorithm.model, values)
            policies[name] = FrozenPolicy(values, client.version, client.global_t)
    return policies
