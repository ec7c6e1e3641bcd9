"""The policies of a run: what spaces their agents have, and agents that act with snapshots."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from relaax_like.client.interactor import EnvironmentSlots
from relaax_like.config.loader import add_spaces
from relaax_like.config.models import Experiment, PolicyRun
from relaax_like.launch.local import make_slot_spec, open_one_slot
from relaax_like.launch.saved_policy import SavedPolicy
from relaax_like.parameter_server.snapshot_format import State
from relaax_like.rlx_server.hosting import AgentHost
from relaax_like.rlx_server.policy_host import PolicyHost, find_leaves, find_rows, select_spaces
from relaax_like.wire.errors import ConfigError, InvalidInputError, ProtocolError
from relaax_like.wire.spaces import RunSpaces


def complete_policies(experiment: Experiment) -> Experiment:
    """Completes the policies with the spaces of their agents in the environment.

    Raises:
      ConfigError: there is no environment; one of its agents has no policy, or a policy none of its
        agents; or a policy cannot use the spaces.
      Exception: see `open_slots`.
    """
    if not any(run.algorithm.lacks_spaces for run in experiment.runs):
        return experiment
    with open_one_slot(experiment, "train") as slots:
        found = find_policy_spaces(experiment, slots)
    policies: dict[str, PolicyRun] = dict(experiment.policies)
    for name, policy in experiment.policies.items():
        if policy.experiment.algorithm.lacks_spaces:
            if name not in found:
                raise ConfigError(
                    f"{experiment.file}: policies.{name}.agents: the environment has none of the "
                    f"agents {', '.join(policy.agents):.200}; correct the list, or set the spaces "
                    "in the policy's algorithm"
                )
            complete, _ = add_spaces(policy.experiment, *found[name])
            policies[name] = dataclasses.replace(policy, experiment=complete)
    return dataclasses.replace(experiment, policies=policies)


def find_policy_spaces(experiment: Experiment, slots: EnvironmentSlots) -> dict[str, RunSpaces]:
    """Returns the spaces of each policy that has agents among the slots.

    Raises:
      ConfigError: an agent has no policy, or several; or agents of one policy have other leaves.
    """
    spec = make_slot_spec(slots, "train")
    patterns = {name: policy.agents for name, policy in experiment.policies.items()}
    found = {}
    try:
        for name, rows in find_rows(spec, patterns).items():
            found[name] = select_spaces(spec, find_leaves(spec, name, rows))
    except (InvalidInputError, ProtocolError) as error:
        raise ConfigError(f"{experiment.file}: {error}") from None
    return found


@contextlib.contextmanager
def open_saved_host(experiment: Experiment, states: Mapping[str, State]) -> Iterator[AgentHost]:
    """Makes the host of agents that act with snapshots, and closes it.

    Args:
      experiment: of the run.
      states: policy -> its snapshot; of a run of one policy "" -> the snapshot.

    Raises:
      ConfigError, SnapshotError, InvalidInputError: see `SavedPolicy`.
    """
    with contextlib.ExitStack() as ends:
        runs = zip(experiment.policies or [""], experiment.runs, strict=True)
        hosts = [
            ends.enter_context(SavedPolicy(run, states[name], "local")).host for name, run in runs
        ]
        yield join_hosts(experiment, hosts)


def join_hosts(experiment: Experiment, hosts: Sequence[AgentHost]) -> AgentHost:
    """Returns the host of the agents of all policies, given those of its `runs`."""
    policies = experiment.policies
    if not policies:
        return hosts[0]
    return PolicyHost(
        dict(zip(policies, hosts, strict=True)),
        {name: policy.agents for name, policy in policies.items()},
        [name for name, policy in policies.items() if not policy.trains],
    )
