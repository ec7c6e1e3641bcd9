"""`relaax run`: an experiment as processes under a Manager."""

import contextlib
import dataclasses
import json
import os
import shlex
import socket
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from relaax_like.config.address import Address
from relaax_like.config.algorithm_folder import MAIN, SLOTS, TRAINER
from relaax_like.config.loader import export_experiment
from relaax_like.config.models import (
    LEARNER,
    METRICS_SERVER,
    PARAMETER_SERVER,
    RLX_SERVER,
    EnvironmentConfig,
    Experiment,
    to_attribute,
)
from relaax_like.config.plan import Offline, get_plan
from relaax_like.config.policies import POLICIES, POLICY
from relaax_like.launch.security import (
    make_client_security,
    make_server_security,
    validate_exposure,
)
from relaax_like.runs.folders.run_folder import ADDRESSES
from relaax_like.runs.processes.process import TRACE_FOLDER, validate_port_free
from relaax_like.runs.processes.topology import Edge, Node, RestartPolicy, Role, Topology
from relaax_like.wire import tracing
from relaax_like.wire.errors import ConfigError
from relaax_like.wire.ports import bind_socket
from relaax_like.wire.security import ClientSecurity

# Name of a node that listens -> the section with its address; in the order of their starts.
_SECTIONS = {
    "metrics": METRICS_SERVER,
    "ps": PARAMETER_SERVER,
    "learner": LEARNER,
    "rlx": RLX_SERVER,
}
_ADDRESS_KEYS = ("bind", "parameter_server")


def _find_servers(experiment: Experiment) -> dict[str, Any]:
    """Returns the name of each node of a run that listens -> its section."""
    found = {name: experiment.sections[section] for name, section in _SECTIONS.items()}
    if experiment.learner.placement != "standalone":
        del found["learner"]
    return {name: settings for name, settings in found.items() if settings is not None}


def make_topology(
    experiment: Experiment, overrides: Sequence[str], trace: bool = False
) -> Topology:
    """Describes the processes of an experiment: servers, then one per client.

    Args:
      experiment: to run.
      overrides: of keys of its file, for the servers.
      trace: whether all of them trace to the run's folder.

    Raises:
      ConfigError: there is no environment, or it has no program to start; or see
        `make_client_security` and, without an environment, `validate_served`.
    """
    # Absolute: an environment's program can change its working directory.
    folder = str((experiment.run_dir / TRACE_FOLDER).absolute())
    env = {tracing.ENVIRONMENT_VARIABLE: folder} if trace else {}
    servers = [
        _make_server(name, experiment, overrides, env)
        for name in _find_servers(experiment)
        if name != "ps" or not experiment.policies
    ]
    own = [
        dataclasses.replace(
            _make_server("ps", policy.experiment, [*overrides, f"{POLICY}={name}"], env),
            name=f"ps-{name}",
            ends_run=policy.trains,
        )
        for name, policy in experiment.policies.items()
    ]
    clients = _make_clients(experiment, env)
    edges = _make_edges(experiment, clients)
    return Topology(nodes=own + servers + clients, edges=edges)


def make_collectors(experiment: Experiment, overrides: Sequence[str] | None = None) -> Topology:
    """Describes the environments of an experiment whose parameter server runs elsewhere.

    They connect to the address of `relaax-rlx-server.bind`. Their names have that of this machine.

    Args:
      experiment: to play for.
      overrides: of keys of its file, for an rlx server of their own; None: it runs elsewhere, too.

    Raises:
      ConfigError: there is no environment, or it has no program to start; or see
        `make_client_security`.
    """
    own = f"{socket.gethostname().partition('.')[0][: _NAME_LENGTH // 2]}-{os.getpid()}"
    servers = [] if overrides is None else [_make_server("rlx", experiment, overrides, {})]
    clients = _make_clients(experiment, {}, own)
    return Topology(nodes=servers + clients, restart=RestartPolicy(alone_sec=0))


def _make_server(
    name: str, experiment: Experiment, overrides: Sequence[str], env: Mapping[str, str]
) -> Node:
    program = to_attribute(_SECTIONS[name])
    arguments = ["--config", str(experiment.file.absolute())]
    for override in overrides:
        arguments += ["--set", override]
    return Node(
        name=name,
        role=cast(Role, program.replace("_", " ")),
        argv=[sys.executable, "-m", "relaax_like.cli.servers", program, *arguments],
        env=env,
        cpus=_count_cpus(name, experiment),
    )


def make_address_overrides(addresses: Mapping[str, Address]) -> list[str]:
    """Returns the overrides with which each server of a run knows where all of them listen.

    Args:
      addresses: name of each node -> its address.
    """
    overrides = [
        f"{_SECTIONS[name]}.bind={addresses[name]}" for name in _SECTIONS if name in addresses
    ]
    return [*overrides, f"relaax-rlx-server.parameter_server={addresses['ps']}"]


def export_addresses(experiment: Experiment) -> dict[str, dict[str, str]]:
    """Returns the keys that `make_address_overrides` overrides: section -> key -> address."""
    data = export_experiment(experiment)
    return {
        section: {key: data[section][key] for key in _ADDRESS_KEYS if key in data[section]}
        for section in _SECTIONS.values()
        if section in data
    }


def keep_addresses(experiment: Experiment, topology: Topology) -> Topology:
    """Returns a topology whose config.yaml has the addresses of the file, not those of this start.

    So the run can be resumed without the cluster, and finds free ports again.

    Args:
      experiment: of the run, as in the file.
      topology: its processes.
    """
    runs = {"ps": experiment}
    runs |= {f"ps-{name}": policy.experiment for name, policy in experiment.policies.items()}
    nodes = []
    for node in topology.nodes:
        if node.is_essential:
            env = {ADDRESSES: json.dumps(export_addresses(runs[node.name]))}
            node = dataclasses.replace(node, env={**node.env, **env})
        nodes.append(node)
    return dataclasses.replace(topology, nodes=nodes)


def choose_ports(experiment: Experiment, names: Collection[str] = tuple(_SECTIONS)) -> list[str]:
    """Finds a free port for each server of these nodes whose address has port 0; returns overrides.

    Raises:
      ConfigError: a host has no address on this machine.
    """
    overrides = []
    with contextlib.ExitStack() as probes:  # open until all are found: they differ
        for prefix, name, settings in _list_servers(experiment):
            if settings.bind.port or name not in names:
                continue
            host = settings.bind.host
            try:
                probe = probes.enter_context(bind_socket(host, 0))
            except OSError as error:
                raise ConfigError(
                    f"{prefix}{_SECTIONS[name]}.bind: no port of {host} can be used: "
                    f"{error.strerror}; set the name or an address of this machine"
                ) from None
            address = Address(host, probe.getsockname()[1])
            overrides.append(f"{prefix}{_SECTIONS[name]}.bind={address}")
            if name == "ps":
                key = f"{prefix}{RLX_SERVER}.parameter_server"
                overrides.append(f"{key}={address.to_connect()}")
    return overrides


def _list_servers(experiment: Experiment) -> Iterator[tuple[str, str, Any]]:
    """Yields each server of a run: prefix of its section's keys, name of its node, section."""
    for name, settings in _find_servers(experiment).items():
        if name != "ps" or not experiment.policies:
            yield "", name, settings
    for policy, own in experiment.policies.items():
        yield f"{POLICIES}.{policy}.", "ps", own.experiment.parameter_server


def validate_run(experiment: Experiment) -> None:
    """Checks the settings of a run as processes, except for its addresses.

    Raises:
      ConfigError: a file of `security` cannot be used, the clients' token is missing, or only
        `relaax train` can train the run.
    """
    for run in experiment.runs:
        validate_served(run)
        _validate_no_trainer(run)
    make_server_security(experiment)
    make_client_security(experiment)


def validate_servers(experiment: Experiment) -> None:
    """Checks the servers' settings before any process is started; a restart would not help.

    Raises:
      ConfigError: see `validate_run`; two servers have the same address; or a server could be
        reached by unauthorized clients.
      RelaaxError: an address cannot be used; if its port is taken, the error names the process that
        holds it, if possible, and the key that chooses another.
    """
    validate_run(experiment)
    binds: dict[str, Address] = {}
    for prefix, name, settings in _list_servers(experiment):
        section = f"{prefix}{_SECTIONS[name]}"
        for other, bind in binds.items():
            if settings.bind.collides_with(bind):
                raise ConfigError(
                    f"{section}.bind: {settings.bind} collides with {other}.bind: {bind}; "
                    "choose another port"
                )
        binds[section] = settings.bind
        validate_exposure(settings.bind, experiment.security, key=f"{section}.bind")
        validate_port_free(settings.bind, f"--set {section}.bind=HOST:PORT")


def validate_served(experiment: Experiment) -> None:
    """Refuses settings that only `relaax train` supports: `learner.workers`, `learner.offline`.

    Raises:
      ConfigError: one of them is set; the error names the key and the command.
    """
    learner = experiment.learner
    if learner.workers:
        raise ConfigError(
            f"learner.workers: {learner.workers}, but only relaax train starts workers; "
            "set it to 0 (here, environments are clients)"
        )
    if learner.offline is not None:
        sources = ", ".join(learner.offline)
        value = shlex.quote(sources if len(learner.offline) == 1 else f"[{sources}]")
        file = shlex.quote(str(experiment.file))
        online = not isinstance(get_plan(experiment.algorithm), Offline)
        raise ConfigError(
            (
                f"learner.offline: {sources}, but only relaax train learns from files: run "
                f"`relaax train {file} --offline {value}`"
            )
            + (
                ", or learn from live environments with `--set learner.offline=null`"
                if online
                else ""
            )
        )


def _validate_no_trainer(experiment: Experiment) -> None:
    trainer = experiment.algorithm_folder / TRAINER
    if trainer.is_file():
        raise ConfigError(
            f"{trainer}: relaax run does not use trainers; start `relaax train "
            f"{shlex.quote(str(experiment.file))}`, or rename trainer.py, so that clients play in "
            "the environment of the `environment` section"
        )


def _count_cpus(name: str, experiment: Experiment) -> int:
    """Returns the processor cores of a server: the threads of TensorFlow, where it learns."""
    learner = experiment.learner
    if name == "rlx":
        return 2 if learner.placement == "agent" else 1  # its learner is another process
    learns = {"server": "ps", "standalone": "learner"}.get(learner.placement or "")
    return max(learner.backprop_workers, 1) if name == learns else 1


# Notifies a client's program that its lines are mixed with those of others.
_QUIET = {"RELAAX_QUIET": "1"}
# Clients' names have at most 100 characters, with their number.
_NAME_LENGTH = 90


def _make_edges(experiment: Experiment, clients: Sequence[Node]) -> list[Edge]:
    rlx = str(experiment.rlx_server.bind.to_connect())
    edges = [
        Edge(source=client.name, target="rlx", protocol="rlx", address=rlx) for client in clients
    ]
    bridge = str(experiment.rlx_server.parameter_server.to_connect())
    if not experiment.policies:
        edges.append(Edge(source="rlx", target="ps", protocol="bridge", address=bridge))
    for name, policy in experiment.policies.items():
        address = str(policy.experiment.rlx_server.parameter_server.to_connect())
        edges.append(Edge(source="rlx", target=f"ps-{name}", protocol="bridge", address=address))
    servers = _find_servers(experiment)
    if "learner" in servers:
        address = str(experiment.learner.advertise or experiment.learner.bind.to_connect())
        edges.append(Edge(source="learner", target="ps", protocol="bridge", address=bridge))
        edges.append(Edge(source="rlx", target="learner", protocol="bridge", address=address))
    if "metrics" in servers:
        metrics = str(servers.pop("metrics").bind.to_connect())
        edges += [
            Edge(source=source, target="metrics", protocol="metrics", address=metrics)
            for source in servers
        ]
    return edges


def _make_clients(experiment: Experiment, env: Mapping[str, str], owner: str = "") -> list[Node]:
    environment, program = experiment.environment, experiment.environment_program
    if environment is None or program is None:
        if experiment.learner.offline is not None:  # it needs no environment
            validate_served(experiment)
        raise ConfigError(
            f"{experiment.file}: no `environment` section, so there is nothing to train on; add "
            "one, or start the servers and your own clients individually"
        )
    if program.name == SLOTS:
        key = "program" if environment.path is None else "path"
        raise ConfigError(
            f"environment.{key}: {program} is not a program that relaax run can start; name a "
            f"folder with a program {MAIN}, or train in one process: relaax train "
            f"{shlex.quote(str(experiment.file))}"
        )
    argv = make_client_argv(experiment, environment)
    clients = []
    for number in range(1, environment.clients + 1):
        end = f"{owner}-{number}" if owner else f"{number}"
        start = (environment.env or program.parent.name)[: _NAME_LENGTH - len(owner)]
        client_name = f"{start}-{end}"
        clients.append(
            Node(
                name=f"env{number}",
                role="environment",
                argv=[*argv, "--name", client_name],
                client_name=client_name,
                env={**env, **_QUIET},
            )
        )
    return clients


def make_client_argv(experiment: Experiment, environment: EnvironmentConfig) -> list[str]:
    """Returns the command of one environment process, without its name.

    Raises:
      ConfigError: see `make_client_security`.
    """
    assert experiment.environment_program is not None
    address = experiment.rlx_server.bind.to_connect()
    argv = [*_make_start(experiment.environment_program), "--rlx-server", str(address)]
    if environment.env is not None:
        argv += ["--env", environment.env]
    for flag, value, default in (
        ("--num-envs", environment.slots, 1),
        ("--action-repeat", environment.action_repeat, 1),
        ("--random-steps", environment.random_steps, 0),
        ("--max-episode-steps", environment.max_episode_steps, None),
        ("--masks", environment.masks, "auto"),
    ):
        if value != default:
            argv += [flag, str(value)]
    argv += ["--seed-resets"] * environment.seed_resets
    argv += ["--no-versions"] * (environment.versions == "off")
    for key, argument in environment.args.items():
        argv += ["--env-arg", f"{key}={json.dumps(argument)}"]
    return argv + _make_security_flags(make_client_security(experiment))


def _make_security_flags(security: ClientSecurity) -> list[str]:
    paths = {
        "--token-file": security.token_file,
        "--tls-ca": security.tls_ca,
        "--tls-cert": security.tls_cert,
        "--tls-key": security.tls_key,
    }
    return [part for flag, path in paths.items() if path for part in (flag, str(path))]


def _make_start(program: Path) -> list[str]:
    """Returns the command: a Python program runs in our own Python, whatever is on the PATH."""
    first = b""
    # A program can be executable without being readable.
    with contextlib.suppress(OSError), program.open("rb") as file:
        first = file.readline(200)
    is_python = program.suffix == ".py" or (first.startswith(b"#!") and b"python" in first)
    return [sys.executable, str(program)] if is_python else [str(program)]
