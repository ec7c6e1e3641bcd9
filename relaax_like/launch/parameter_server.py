"""The parameter server's process: puts store, snapshots, recorder and bridge together."""

import contextlib
import logging
import shlex
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from relaax_like.bridge.control import BridgeControl
from relaax_like.config.loader import add_spaces
from relaax_like.config.models import Experiment
from relaax_like.config.plan import Episodes, Offline, OnPolicy, get_plan
from relaax_like.core.manifest import (
    Follow,
    Manifest,
    Variable,
    find_follows,
    make_manifest,
)
from relaax_like.core.metrics import Metrics
from relaax_like.core.prediction import TASK
from relaax_like.core.records import Status
from relaax_like.launch.backprop import set_backprop_workers
from relaax_like.launch.learners import make_iteration_learners
from relaax_like.launch.log_file import add_log_file
from relaax_like.launch.previous import load_previous
from relaax_like.launch.process import (
    EXIT_ERROR,
    EXIT_USAGE,
    Shutdown,
    end_now,
    keep_what_is_loaded,
    raise_descriptor_limit,
    validate_port_free,
)
from relaax_like.launch.recording import make_file_recorder
from relaax_like.launch.run_folder import (
    SERVERS,
    describe_start,
    forget_results,
    is_described,
    write_config,
    write_results,
)
from relaax_like.launch.runs import EPISODE_LENGTH, EPISODES, MEAN_RETURN
from relaax_like.launch.security import (
    make_client_security,
    make_server_security,
    validate_exposure,
    validate_unprotected,
)
from relaax_like.launch.version_copies import open_version_copies
from relaax_like.launch.waiting import make_proposer, wait_for_spaces
from relaax_like.learn.experience_service import ExperienceService, log_failure
from relaax_like.learn.experience_services import ExperienceServices
from relaax_like.metrics.buffered import BufferedMetrics
from relaax_like.metrics.client import MetricsClient
from relaax_like.metrics.prometheus import PrometheusPage
from relaax_like.nn.compiling import use_compile_cache
from relaax_like.parameter_server.ending import Target
from relaax_like.parameter_server.initial_values import (
    compute_initial_values,
    load_variables,
    save_variables,
)
from relaax_like.parameter_server.mirror import Mirror, fetch_newest
from relaax_like.parameter_server.parameter_server import RECIPE, ParameterServer
from relaax_like.parameter_server.push_journal import PushJournal, holds_records
from relaax_like.parameter_server.snapshot_format import unpack_layout, unpack_optimizers
from relaax_like.parameter_server.snapshots import Snapshots, read_newest_manifest
from relaax_like.parameter_server.store import Store
from relaax_like.parameter_server.targets import get_follows
from relaax_like.wire import failpoints, tracing
from relaax_like.wire.errors import ConfigError, InvalidInputError, SnapshotError
from relaax_like.wire.reports import Event, Reporter

if TYPE_CHECKING:  # It imports TensorFlow.
    from relaax_like.learn.collected import Collected
    from relaax_like.learn.learner_loop import LearnerLoop

logger = logging.getLogger(__name__)

_INITIAL_VALUES = "relaax_like.launch.initial_values_main"
_INITIAL_VALUES_TIMEOUT_SEC = 300.0
# After the end, agents have this long to ask once more and hear of it.
_FINISH_GRACE_SEC = 3.0
# Longest rollout that may come to a learner in this process.
_MAX_ROLLOUT_BYTES = 1 << 30
# When all agents have heard: until they have told their environments, and reported their last
# steps, since the newest such report.
_TOLD_SEC = 0.5
# For a step that an environment was in the middle of when its agent heard.
_LAST_STEPS_SEC = 5.0
_LAST_STEPS_POLL_SEC = 0.02
# Between attempts to save the trained weights, when the disk is full or the folder unwritable.
_SAVE_RETRY_SEC = 5.0
_CURVES_INTERVAL_SEC = 1.0
# At the end, for calls that do not end by themselves.
_CALLS_SEC = 3.0


# Builds the initial values of a run.
BuildValues = Callable[[], list[Variable]]


def make_parameter_server(
    experiment: Experiment,
    overrides: Sequence[str],
    metrics: Metrics,
    build: BuildValues | None = None,
) -> ParameterServer:
    """Opens the run folder and restores its newest snapshot, or starts a fresh run.

    Args:
      experiment: what is trained.
      overrides: that it was loaded with, for the process that builds the initial values.
      metrics: the recorder.
      build: builds the initial values in this process; None: in a process of its own, so that this
        one does not load TensorFlow.

    Raises:
      ConfigError: the algorithm has no usable initial values.
      SnapshotError: the folder is in use, or its snapshots cannot be used.
    """
    settings = experiment.parameter_server
    keep, keep_best = settings.checkpoints_to_keep, settings.best_checkpoints_to_keep
    snapshots = Snapshots(settings.checkpoint_dir, keep, keep_best)
    mirror = None
    try:
        if settings.mirror_url is not None:
            fetched = fetch_newest(settings.mirror_url, settings.checkpoint_dir)
            if fetched is not None:
                logger.info("downloaded the newest snapshot from the mirror: %s", fetched)
            mirror = Mirror(settings.mirror_url, keep=keep, keep_best=keep_best)
        manifest, flat, follows = _make_start(experiment, overrides, build)
        publishes = experiment.learner.placement == "server"
        target = None
        if experiment.learner.target_return is not None:
            target = Target(
                mean_return=experiment.learner.target_return,
                episodes=experiment.learner.target_episodes,
            )
        server = ParameterServer(
            Store(
                manifest,
                flat,
                experiment.optimizers,
                follows,
                expects_gradients=not publishes,
            ),
            snapshots=snapshots,
            journal=PushJournal(
                settings.checkpoint_dir / "journal",
                manifest.fingerprint,
                # A learner in the server publishes whole versions: there is nothing to replay.
                enabled=settings.durability == "journal" and not publishes,
                strict=settings.journal_strict,
                max_bytes_per_sec=1e6 * settings.journal_max_mb_per_sec,
            ),
            mirror=mirror,
            metrics=metrics,
            combine=settings.combine,
            max_global_step=experiment.algorithm.max_global_step,
            scores_returns=not experiment.learner.eval_freq,
            target=target,
            target_score=experiment.learner.target_eval_return,
            max_episodes=experiment.learner.max_episodes,
            snapshot_every_sec=settings.checkpoint_time_interval,
            snapshot_every_env_steps=settings.checkpoint_global_step_interval,
            recipe=_find_recipe(experiment),
        )
    except BaseException:
        if mirror is not None:
            mirror.close(0.0)
        snapshots.close()
        raise
    try:
        if server.restore_latest_checkpoint():
            logger.info("restored the newest snapshot in %s", settings.checkpoint_dir)
    except BaseException:
        server.close(save=False)
        raise
    logger.info("global_t is %d", server.global_t)
    if server.finished:
        logger.info(
            "this run has already finished; to continue it, raise its target or "
            "algorithm.max_global_step (relaax resume RUN --max-global-step N), or start "
            "again in another run_dir"
        )
    return server


def run_parameter_server(experiment: Experiment, overrides: Sequence[str] = ()) -> int:
    """Serves until training finishes or a signal comes; returns the exit status."""
    failpoints.arm_from_environment()
    use_compile_cache(experiment.compile_cache)
    reporter = Reporter.from_environment()
    settings = experiment.parameter_server
    validate_served(experiment)
    shutdown = Shutdown()
    validate_exposure(settings.bind, experiment.security)
    if settings.prometheus_bind is not None:
        validate_unprotected(settings.prometheus_bind, experiment.security, "prometheus_bind")
        if settings.prometheus_bind.collides_with(settings.bind):
            raise ConfigError(
                f"prometheus_bind: {settings.prometheus_bind} is the server's own address; choose "
                "another port"
            )
    security = make_server_security(experiment)
    validate_port_free(settings.bind, "--bind")
    make_run_dir(experiment)
    if not reporter.is_heard:  # else `relaax run` writes the lines of all its processes
        add_log_file(experiment.run_dir)
    if experiment.algorithm.lacks_spaces:
        spaces = wait_for_spaces(
            experiment, security, shutdown, lambda: reporter.report(Event.READY)
        )
        if spaces is None:
            end_now(shutdown.exit_status)  # TensorFlow may be being loaded
        experiment, found = add_spaces(experiment, *spaces)
        overrides = [*overrides, *found]
    serving: list[ParameterServer] = []
    metrics = make_recorder(experiment, lambda: serving[0].global_t if serving else 0)
    with shutdown.interrupting(), tracing.span(tracing.START):
        server = make_parameter_server(experiment, overrides, metrics)
    serving.append(server)
    with contextlib.ExitStack() as ends:
        ends.callback(metrics.close)
        ends.callback(server.close, save=True)
        if settings.prometheus_bind is not None:
            numbers = PrometheusPage(settings.prometheus_bind, server.status)
            ends.enter_context(numbers)
            host = settings.prometheus_bind.host
            logger.info("Prometheus metrics on http://%s:%d/metrics", host, numbers.port)
        write_config(experiment)
        forget_results(experiment)
        if not is_described(experiment):
            describe_start(experiment, SERVERS)
        services = make_experience_services(
            experiment, server, lambda error: _end_without_learner(error, shutdown)
        )
        tests = open_version_tests(experiment, server)
        grpc_server, port = BridgeControl().create_server(
            str(settings.bind),
            server,
            security,
            None if services is None else services.sinks,
            make_proposer(experiment),
        )
        raise_descriptor_limit()
        keep_what_is_loaded()
        grpc_server.start()
        if services is not None:
            services.start()
            ends.callback(services.stop)
        logger.info("parameter server on %s:%d", settings.bind.host, port)
        reporter.report(Event.READY)
        with tests, open_version_copies(experiment, server):
            watch_progress(
                server,
                shutdown,
                settings.progress_interval_sec,
                on_first_step=lambda: reporter.report(Event.WORKED),
            )
        if server.status().finished:
            _save_finished(server, shutdown)
            server.wait_told(_FINISH_GRACE_SEC)
            _wait_last_steps(server, services, shutdown)
        if services is not None:
            services.stop()  # ends their streams, which would use up the grace
        # Whatever becomes of the calls: what was learned is to be saved.
        grpc_server.stop(grace=1.0).wait(_CALLS_SEC)
    print_summary(experiment, server.status())
    write_results(experiment, server.status())
    status = 0 if server.status().finished else shutdown.exit_status
    if services is not None or experiment.learner.eval_freq:
        # TensorFlow's own end takes seconds; while an iteration is still being computed, it aborts.
        end_now(status)
    return status


def open_version_tests(
    experiment: Experiment, server: ParameterServer
) -> contextlib.AbstractContextManager[object]:
    """Returns what tests the server's values as long as it is open; see `VersionTests`.

    It does nothing without `learner.eval_freq`, and where a learner in the server tests.

    Raises:
      ConfigError: tests are wanted, and impossible; see `make_version_tests`.
      InvalidInputError: the same.
    """
    if not experiment.learner.eval_freq or experiment.learner.placement == "server":
        return contextlib.nullcontext()
    from relaax_like.launch.online_tester import make_version_tests  # it knows how to play

    return make_version_tests(experiment, server)


def validate_served(experiment: Experiment) -> None:
    """Refuses what only a run in one process can do.

    Raises:
      ConfigError: names the key, and the command.
    """
    learner = experiment.learner
    if learner.workers:
        raise ConfigError(
            f"learner.workers: {learner.workers}, but only relaax train starts workers; "
            "set it to 0 (here, environments are clients)"
        )
    if learner.offline is not None:
        file, folder = shlex.quote(str(experiment.file)), shlex.quote(str(learner.offline))
        online = not isinstance(get_plan(experiment.algorithm), Offline)
        raise ConfigError(
            (
                f"learner.offline: {learner.offline}, but only relaax train learns from files: run "
                f"`relaax train {file} --offline {folder}`"
            )
            + (
                ", or learn from live environments with `--set learner.offline=null`"
                if online
                else ""
            )
        )


def _end_without_learner(error: Exception, shutdown: Shutdown) -> None:
    log_failure(error)
    shutdown.request(EXIT_USAGE if isinstance(error, ConfigError) else EXIT_ERROR)


def make_experience_services(
    experiment: Experiment, server: ParameterServer, on_failure: Callable[[Exception], None]
) -> ExperienceServices | None:
    """Makes the learners of a server's process, not started; None: the run learns elsewhere.

    Args:
      experiment: what is trained.
      server: to which they publish.
      on_failure: see `ExperienceServices`.
    """
    plan = get_plan(experiment.algorithm)
    plans = {
        task: one
        for task, one in (plan if isinstance(plan, Mapping) else {"": plan}).items()
        if isinstance(one, OnPolicy | Episodes)
    }
    if experiment.learner.placement != "server" or not plans:
        return None

    def make_learners() -> "dict[str, LearnerLoop[Collected]]":
        set_backprop_workers(experiment)
        learners = make_iteration_learners(experiment, server)
        return learners if isinstance(plan, Mapping) else {"": learners[TASK]}

    def make_service(
        task: str,
        make_learner: "Callable[[], LearnerLoop[Collected]]",
        on_failure: Callable[[Exception], None],
    ) -> ExperienceService:
        own = plans[task]
        return ExperienceService(
            make_learner,
            own.columns,
            _MAX_ROLLOUT_BYTES,
            on_failure,
            waits=isinstance(own, OnPolicy),
            task=task,
            has_others=len(plans) > 1,
        )

    return ExperienceServices(make_learners, make_service, on_failure, tuple(plans))


def _save_finished(server: ParameterServer, shutdown: Shutdown) -> None:
    """Saves what was trained before anything else, and does not give up: the weights are here."""
    while True:
        try:
            server.save_checkpoint()
            return
        except SnapshotError as error:
            logger.error("%s; the weights are still in memory, retrying", error)
        if shutdown.requested.wait(_SAVE_RETRY_SEC):
            return


def _wait_last_steps(
    server: ParameterServer, services: ExperienceServices | None, shutdown: Shutdown
) -> None:
    """Waits while agents that have heard of the end report the steps that they still took."""
    now = reported = time.monotonic()
    deadline, counted = now + _LAST_STEPS_SEC, server.global_t
    while now < deadline and not shutdown.requested.wait(_LAST_STEPS_POLL_SEC):
        now = time.monotonic()
        if server.global_t != counted or (services is not None and services.has_agents):
            counted, reported = server.global_t, now
        elif now - reported > _TOLD_SEC:
            return


def make_run_dir(experiment: Experiment) -> None:
    """Makes the run's folder.

    Raises:
      ConfigError: it cannot be made.
    """
    try:
        experiment.run_dir.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise ConfigError(f"run_dir {str(experiment.run_dir)[:200]!r}: {error}") from None


def format_progress(status: Status, serves: bool = True) -> str:
    """Returns the progress line for people; without a mean return where no episode has ended.

    Args:
      status: of the parameter server.
      serves: whether it has clients, as it has not in a run in one process.
    """
    parts = [f"step {status.global_t:,}", f"{status.env_steps_per_sec:,.0f} steps/s"]
    if status.mean_return is not None:
        parts.append(f"mean return {status.mean_return:.1f} (last {status.return_episodes})")
    parts.append(f"version {status.version:,}")
    if serves:
        parts.append(f"clients {status.clients}")
    return " | ".join(parts)


def make_recorder(experiment: Experiment, global_t: Callable[[], int]) -> BufferedMetrics:
    """Opens the recorder of the curves: event files, or the metrics server where there is one."""
    if experiment.metrics_server is not None:
        address = experiment.metrics_server.bind.to_connect()
        return MetricsClient(address, global_t, security=make_client_security(experiment))
    return make_file_recorder(experiment, experiment.parameter_server.metrics_dir, global_t)


def log_progress(status: Status, serves: bool = True) -> None:
    """Writes the progress line to the log; see `format_progress`."""
    logger.info("%s", format_progress(status, serves))


def watch_progress(
    server: ParameterServer,
    shutdown: Shutdown,
    interval_sec: float,
    show: Callable[[Status], None] = log_progress,
    on_first_step: Callable[[], None] = lambda: None,
) -> None:
    """Shows the progress and records its curves, until the end of the training or of the process.

    Nothing is shown before the first step: libraries are being loaded, and code is being compiled.

    Args:
      server: whose training.
      shutdown: of the process.
      interval_sec: between two calls of `show`.
      show: shows the numbers.
      on_first_step: called once, when a step has been counted.
    """
    curves = _ReturnCurves(server)
    next_points, next_line = time.monotonic(), time.monotonic() + interval_sec
    shown = first = server.global_t
    has_begun = False
    while not (shutdown.requested.is_set() or server.stop_requested.is_set()):
        if server.wait_finished(0.1):
            break
        if not has_begun and server.global_t != first:
            has_begun = True
            on_first_step()
        now = time.monotonic()
        if now >= next_points:
            next_points = now + _CURVES_INTERVAL_SEC
            curves.record(server.global_t)
        if now < next_line:
            continue
        next_line += interval_sec
        status = server.status()
        if status.global_t != shown or (status.clients and has_begun):
            show(status)
        shown = status.global_t
    curves.record(server.global_t, last=True)


class _ReturnCurves:
    """Records how well the training goes, whatever is trained."""

    def __init__(self, server: ParameterServer):
        self._server = server
        self._metrics = server.metrics()
        self._recorded = 0  # episodes
        self._newest_x = -1

    def record(self, global_t: int, last: bool = False) -> None:
        """Adds a point to each curve, if an episode has ended since the one before.

        The last point is at the end of the training, whenever an episode has ended.
        """
        means = self._server.episode_means
        is_new = means.episodes != self._recorded or (last and global_t != self._newest_x)
        if means.mean_return is None or not is_new:
            return
        self._recorded, self._newest_x = means.episodes, global_t
        self._metrics.scalar(MEAN_RETURN, means.mean_return, global_t)
        if means.mean_length is not None:  # snapshots of earlier days have returns only
            self._metrics.scalar(EPISODE_LENGTH, means.mean_length, global_t)
        self._metrics.scalar(EPISODES, means.episodes, global_t)


def _make_start(
    experiment: Experiment, overrides: Sequence[str], build: BuildValues | None
) -> tuple[Manifest, np.ndarray, dict[str, Follow]]:
    """Returns the layout of the values, values to start from, [total_bytes] uint8, and what targets
    follow.

    Where there is a snapshot of these settings, the layout is its own, and so will the values be:
    initial values are neither built nor read, and zeros stand for them.
    """
    settings = experiment.parameter_server
    if settings.initial_values is None:
        newest = read_newest_manifest(settings.checkpoint_dir)
        if newest is not None and newest["statistics"].get(RECIPE) == _find_recipe(experiment):
            manifest = unpack_layout(newest)
            follows = get_follows(unpack_optimizers(newest["optimizers"]))
            return manifest, np.zeros(manifest.total_bytes, np.uint8), follows
    variables = _load_initial_values(experiment, overrides, build)
    manifest = make_manifest(variables)
    by_name = {variable.name: variable.value for variable in variables}
    flat = manifest.pack([by_name[segment.name] for segment in manifest.segments])
    return manifest, flat, find_follows(variables)


def _find_recipe(experiment: Experiment) -> str:
    """Returns a checksum of all that the initial values are made from."""
    recipe = f"{experiment.algorithm_folder} {experiment.algorithm!r} {experiment.seed}"
    return f"{zlib.crc32(recipe.encode()):08x}"


def _load_initial_values(
    experiment: Experiment, overrides: Sequence[str], build: BuildValues | None
) -> list[Variable]:
    """Builds them once per run and keeps them, so that a restart needs no TensorFlow."""
    settings = experiment.parameter_server
    if settings.initial_values is not None:
        return load_variables(settings.initial_values)
    own = _compute_initial_values(experiment, overrides, build)
    previous = experiment.learner.previous
    return own if previous is None else load_previous(experiment, previous, own)


def _compute_initial_values(
    experiment: Experiment, overrides: Sequence[str], build: BuildValues | None
) -> list[Variable]:
    settings = experiment.parameter_server
    kept = settings.checkpoint_dir / f"initial-{_find_recipe(experiment)}.npz"
    if kept.exists():
        try:
            return load_variables(kept)
        except InvalidInputError as error:
            _validate_rebuildable(kept)
            logger.warning("%s; building them again", error)
    logger.info("building the initial values of %s", experiment.algorithm_folder.name)
    variables = _run_initial_values(experiment, overrides) if build is None else build()
    save_variables(kept, variables)
    return variables


def _validate_rebuildable(kept: Path) -> None:
    """Checks that nothing but a fresh run depends on damaged initial values.

    Raises:
      ConfigError: there are pushes that were made to them, and no snapshot that has both.
    """
    checkpoints = kept.parent
    if read_newest_manifest(checkpoints) is None and holds_records(checkpoints / "journal"):
        raise ConfigError(
            f"{kept}: damaged, and the journal next to it has records that no usable snapshot "
            "precedes; restore the snapshots, or start in another run_dir"
        )


def _run_initial_values(experiment: Experiment, overrides: Sequence[str]) -> list[Variable]:
    """Builds them in a process of its own; its error, where it tells one, is ours."""
    with tempfile.TemporaryDirectory(prefix="relaax-error-") as folder:
        told = Path(folder) / "error"
        command = [sys.executable, "-m", _INITIAL_VALUES, f"--error={told}", str(experiment.file)]
        try:
            return compute_initial_values([*command, *overrides], _INITIAL_VALUES_TIMEOUT_SEC)
        except ConfigError:
            if told.exists():
                raise ConfigError(told.read_text("utf-8")) from None
            raise


def print_summary(experiment: Experiment, status: Status, serves: bool = True) -> None:
    """Tells how the training ended and what lies where; see `format_progress`."""
    settings = experiment.parameter_server
    logger.info("%s", f"finished: {status.finished}" if status.finished else "stopped")
    episodes = f"; {status.episodes} episodes" if status.episodes else ""
    logger.info("%s%s", format_progress(status, serves), episodes)
    logger.info("snapshots   %s", _relative(settings.checkpoint_dir))
    logger.info("curves      tensorboard --logdir %s", _relative(settings.metrics_dir))
    logger.info("picture     relaax plot %s", _relative(experiment.run_dir))
    logger.info("config      %s", _relative(experiment.run_dir / "config.yaml"))
    if not status.finished:
        logger.info("continue    relaax resume %s", _relative(experiment.run_dir))
    if experiment.environment is not None:
        logger.info("evaluate    relaax eval %s", _relative(experiment.run_dir / "config.yaml"))


def _relative(path: Path) -> Path:
    absolute = path.absolute()
    return absolute.relative_to(Path.cwd()) if absolute.is_relative_to(Path.cwd()) else absolute
