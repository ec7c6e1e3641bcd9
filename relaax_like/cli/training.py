"""`relaax run`, `relaax train` and `relaax resume`."""

import contextlib
import json
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from relaax_like.config.keys import flags_to_overrides
from relaax_like.config.loader import load_experiment
from relaax_like.config.models import Experiment
from relaax_like.config.run_folder import fix_run_dir
from relaax_like.runs.folders.modes import LogMode
from relaax_like.runs.processes.process import (
    EXIT_ERROR,
    Shutdown,
    clear_traces,
    get_process_start,
    setup_logging,
    start_tracing,
)
from relaax_like.wire.errors import ConfigError

if TYPE_CHECKING:
    from relaax_like.runs.processes.topology import Topology


def print_topology(config: Path, sets: Sequence[str]) -> int:
    """Prints the processes that `relaax run` would start, as JSON.

    Args:
      config: the experiment's file.
      sets: overrides of its keys.

    Raises:
      ConfigError: see `load_experiment` and `make_topology`.
    """
    from relaax_like.launch.run import make_topology

    topology = make_topology(load_experiment(config, sets, several=True), sets)
    print(json.dumps(topology.to_dict(), indent=2))
    return 0


def begin(
    config: Path,
    sets: Sequence[str],
    trace: bool,
    force: bool,
    log: LogMode | None,
    ray: str | None = None,
    accept_loss: bool = False,
) -> int:
    """Starts a new run, in this process or as several; returns the exit status.

    Args:
      config: the experiment's file.
      sets: overrides of its keys.
      trace: record where the time goes.
      force: move an older run in the folder aside.
      log: how this process shows the progress of its training; None: the run has processes.
      ray: address of the Ray cluster that processes or workers run on, or "local"; None: this
        machine.
      accept_loss: start a run that had begun, although its folder of checkpoints is empty.

    Raises:
      ConfigError: the settings are wrong, or the folder already contains a run, cannot be written
        to, or was emptied and `accept_loss` is False.
      RelaaxError: see `begin_run` and, of processes, `validate_servers` and with `ray`
        `open_ray_launcher`, or one cannot be started; of a training, see `BaseTrainer.run` and
        with `ray` `join_for_workers`.
      ModuleNotFoundError: `ray` is given, but Ray is not installed.
      Exception: see `make_trainer` and `BaseTrainer.run`.
      Stopped: see `BaseTrainer.run`.
    """
    from relaax_like.runs.folders.run_folder import begin_run

    experiment = load_experiment(config, sets, new_run=True, several=True)

    def take() -> None:
        begin_run(experiment, force)

    if log is not None:
        return _train(experiment, sets, trace, log, take, ray, accept_loss)
    return _run_processes(experiment, sets, trace, take, ray, accept_loss, force)


def play(config: Path, sets: Sequence[str], address: str, own_policy: bool) -> int:
    """Starts only the environments of a run, for servers that run elsewhere; returns the status.

    After SIGHUP, the environments end with their next episodes.

    Args:
      config: the experiment's file.
      sets: overrides of its keys.
      address: HOST:PORT of the rlx server, or with `own_policy` of the parameter server.
      own_policy: whether to start an rlx server, too, whose agents act here.

    Raises:
      ConfigError: the settings are wrong; or see `make_collectors`.
      RelaaxError: an environment, or the rlx server, cannot be started.
    """
    from relaax_like.launch import run
    from relaax_like.runs.processes.manager import Manager

    setup_logging("INFO")
    key = "parameter_server" if own_policy else "bind"
    sets = [*sets, f"relaax-rlx-server.{key}={address}"]
    experiment = load_experiment(config, sets, several=not own_policy)
    if own_policy:
        run.validate_served(experiment)
        sets += run.choose_ports(experiment, ["rlx"])
        experiment = load_experiment(config, sets)
    manager = Manager(run.make_collectors(experiment, sets if own_policy else None))
    shutdown = Shutdown()
    shutdown.on_request(manager.stop)
    shutdown.on_repeat(manager.kill)
    shutdown.end_with_output()
    signal.signal(signal.SIGHUP, lambda *_: manager.end_episodes())
    return manager.run() or shutdown.exit_status


def resume(
    run: Path,
    flags: Sequence[str],
    sets: Sequence[str],
    trace: bool,
    log: LogMode,
    ray: str | None = None,
    accept_loss: bool = False,
) -> int:
    """Resumes a run in the way it was started; returns the exit status.

    Args:
      run: its folder, or the config.yaml in it.
      flags: command-line flags that are keys of the file.
      sets: overrides of its keys.
      trace: record where the time goes.
      log: how the progress of a training run in one process is shown.
      ray: see `begin`.
      accept_loss: see `begin`.

    Raises:
      ConfigError: there is no such run, a flag is not one of its keys, the settings are wrong or
        name another folder, or the folder cannot be written to, or was emptied and `accept_loss` is
        False.
      SnapshotError: see `validate_not_held`.
      RelaaxError, ModuleNotFoundError, Exception, Stopped: see `begin`.
    """
    from relaax_like.config.run_folder import find_config, find_experiment
    from relaax_like.runs.folders.run_folder import TRAIN, read_command

    file, folders = find_experiment(find_config(run).parent)
    overrides = [*folders, *flags_to_overrides(file, flags), *sets]
    experiment = load_experiment(file, overrides, several=True)
    if experiment.run_dir.absolute() != file.parent.absolute():
        raise ConfigError(
            f"run_dir: a run is resumed in its own folder, {file.parent}, but a flag or --set "
            f"names {experiment.run_dir}; omit it; or move the folder first; or begin another run "
            "from these weights: relaax train CONFIG --previous RUN"
        )

    is_training = read_command(file.parent) == TRAIN

    def start(take: Callable[[], None]) -> int:
        if is_training:
            return _train(experiment, overrides, trace, log, take, ray, accept_loss)
        return _run_processes(experiment, overrides, trace, take, ray, accept_loss)

    return _restart(experiment, start)


def _restart(experiment: Experiment, start: Callable[[Callable[[], None]], int]) -> int:
    """Starts a run again, and restores its folder if that is refused; returns the exit status."""
    from relaax_like.runs.folders.run_folder import remember, validate_not_held

    remembered: list[Callable[[], None]] = []

    def take_folder() -> None:
        validate_not_held(experiment)
        remembered.append(remember(experiment))

    status = EXIT_ERROR
    try:
        status = start(take_folder)
    finally:
        if status:
            for restore in remembered:
                restore()
    return status


def _train(
    experiment: Experiment,
    sets: Sequence[str],
    trace: bool,
    log: LogMode,
    take_folder: Callable[[], None],
    ray: str | None,
    accept_loss: bool,
) -> int:
    from relaax_like.launch.training import make_trainer
    from relaax_like.runs.folders.run_folder import validate_not_emptied

    setup_logging("INFO", sys.stderr if log is LogMode.JSON else None)
    trainer = make_trainer(experiment, sets, log)
    trainer.began = get_process_start()
    if ray is not None:
        from relaax_like.launch.ray_run import join_for_workers

        # Before Shutdown: Ray has handlers of signals, too.
        join_for_workers(trainer, ray, accept_loss)
    for run in experiment.runs:
        validate_not_emptied(run, accept_loss)
    take_folder()
    if trace:
        clear_traces(experiment)
    start_tracing("train", experiment, trace)
    shutdown = Shutdown()
    shutdown.end_with_output()
    return trainer.run(shutdown)


def _run_processes(
    experiment: Experiment,
    sets: Sequence[str],
    trace: bool,
    take_folder: Callable[[], None],
    ray: str | None,
    accept_loss: bool,
    begins_new_run: bool = False,
) -> int:
    from relaax_like.launch.parameter_server import make_run_dir
    from relaax_like.runs.folders.run_folder import RUN, describe_start, validate_not_emptied
    from relaax_like.runs.processes.launcher import Launcher
    from relaax_like.runs.processes.log_file import add_log_file
    from relaax_like.runs.processes.manager import Manager, output

    setup_logging("INFO")
    if ray is not None and experiment.policies:
        raise ConfigError("--ray: a run on Ray has one policy; omit it, or set `policy` to one")
    topology = _plan(experiment, [*sets, *fix_run_dir(experiment.run_dir)], trace, ray is not None)
    with contextlib.ExitStack() as ends:
        launcher: Launcher | None = None
        if ray is not None:
            from relaax_like.launch.ray_run import open_ray_launcher

            launcher = ends.enter_context(
                open_ray_launcher(experiment, topology, ray, accept_loss, begins_new_run)
            )
        manager = Manager(topology, launcher=launcher)
        for run in experiment.runs:
            validate_not_emptied(run, accept_loss)
        take_folder()
        make_run_dir(experiment)
        add_log_file(experiment.run_dir, ("", output.name))
        describe_start(experiment, RUN)
        if trace:
            clear_traces(experiment)
        shutdown = Shutdown()
        shutdown.on_request(manager.stop)
        shutdown.on_repeat(manager.kill)
        shutdown.end_with_output()
        status = manager.run()
    if trace:
        print(f"where the time went: relaax trace {shlex.quote(str(experiment.run_dir))}")
    return status or shutdown.exit_status


def _plan(experiment: Experiment, sets: Sequence[str], trace: bool, on_ray: bool) -> "Topology":
    """Returns the processes of a run, with ports of this machine unless they run on Ray."""
    from relaax_like.launch import run

    (run.validate_run if on_ray else run.validate_servers)(experiment)
    ports = [] if on_ray else run.choose_ports(experiment)
    placed = (
        load_experiment(experiment.file, [*sets, *ports], several=True) if ports else experiment
    )
    topology = run.make_topology(placed, [*sets, *ports], trace)
    return run.keep_addresses(experiment, topology) if ports or on_ray else topology
