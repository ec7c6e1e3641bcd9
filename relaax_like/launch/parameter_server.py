"""The parameter server's process: combines store, snapshots, recorder and bridge.

Trainers and `relaax-learner` use parts of it.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from relaax_like.bridge.control import BridgeControl
from relaax_like.bridge.metrics_client import MetricsClient
from relaax_like.config.address import Address
from relaax_like.config.loader import add_spaces
from relaax_like.config.models import Experiment
from relaax_like.config.plan import Episodes, OnPolicy, Replay, get_plan
from relaax_like.core.metrics import Metrics
from relaax_like.core.prediction import ONLY_NAME
from relaax_like.core.records import ClientsReport
from relaax_like.core.roles import Publisher
from relaax_like.launch.backprop import set_backprop_workers
from relaax_like.launch.learners import make_iteration_learners
from relaax_like.launch.run import validate_served
from relaax_like.launch.security import (
    make_client_security,
    make_server_security,
    validate_exposure,
    validate_unprotected,
)
from relaax_like.launch.start_values import BuildValues, find_recipe, make_start
from relaax_like.launch.waiting import make_proposer, wait_for_spaces
from relaax_like.learn.experience_service import ExperienceService, log_failure
from relaax_like.learn.experience_services import ExperienceServices
from relaax_like.metrics.buffered import BufferedMetrics
from relaax_like.nn.settings import prepare_tensorflow
from relaax_like.parameter_server.learner_lease import LearnerLease
from relaax_like.parameter_server.mirror import SnapshotMirror, fetch_newest
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.push_journal import PushJournal
from relaax_like.parameter_server.snapshots import Snapshots
from relaax_like.parameter_server.stop_condition import StopCondition
from relaax_like.parameter_server.store import Store
from relaax_like.runs.folders.previous import tell_jumps_at_resume
from relaax_like.runs.folders.progress import print_summary, watch_progress
from relaax_like.runs.folders.recording import make_file_recorder
from relaax_like.runs.folders.run_folder import (
    SERVERS,
    describe_start,
    forget_results,
    is_described,
    note_begun,
    validate_not_emptied,
    write_config,
    write_results,
)
from relaax_like.runs.folders.version_copies import open_version_copies
from relaax_like.runs.folders.versions import keep_versions
from relaax_like.runs.processes.log_file import add_log_file
from relaax_like.runs.processes.process import (
    EXIT_ERROR,
    EXIT_USAGE,
    Shutdown,
    end_now,
    freeze_gc,
    raise_descriptor_limit,
    validate_port_free,
)
from relaax_like.wire import failpoints, tracing
from relaax_like.wire.errors import ConfigError, SnapshotError
from relaax_like.wire.reports import Event, Reporter

if TYPE_CHECKING:  # It imports TensorFlow.
    from relaax_like.learn.agent_source import AgentSource
    from relaax_like.learn.learner_loop import LearnerLoop

logger = logging.getLogger(__name__)

# After the end, agents have this long to send another request and be notified.
_FINISH_GRACE_SEC = 3.0
# Largest rollout that a learner in this process accepts.
_MAX_ROLLOUT_BYTES = 1 << 30
# Once all agents have left, this long after the newest report the process ends.
_LEFT_SEC = 0.05
# Time for a step that an environment was executing when its agent was notified.
_LAST_STEPS_SEC = 5.0
_LAST_STEPS_POLL_SEC = 0.02
# Seconds between attempts to save the trained weights if the disk is full or not writable.
_SAVE_RETRY_SEC = 5.0
# Grace period at the end for calls that have begun.
_GRACE_SEC = 1.0
# For those that do not end even then.
_CALLS_SEC = 3.0


def make_parameter_server(
    experiment: Experiment,
    overrides: Sequence[str],
    metrics: Metrics,
    build: BuildValues | None = None,
) -> ParameterServer:
    """Opens the checkpoint folder and restores the run in it, or starts a new run.

    Args:
      experiment: to train.
      overrides: with which it was loaded, for the process that builds the initial values.
      metrics: the recorder.
      build: builds the initial values in this process; None: in another process, so that this one
        does not load TensorFlow.

    Raises:
      ConfigError: the algorithm has no usable initial values, the optimizers are not those of its
        variable groups, or `learner.previous` or `mirror_url` cannot be used; or the folder of a
        run that had begun is empty.
      InvalidInputError: the file `initial_values` cannot be used, the algorithm's initial values
        are not valid, or a restored value is not finite or out of range.
      SnapshotError: the folder is in use, or its snapshots, their mirror, its file of the learner's
        lease or the snapshots of `learner.previous` cannot be used.
      JournalError: the journal cannot be used.
    """
    settings = experiment.parameter_server
    keep, keep_best = settings.checkpoints_to_keep, settings.best_checkpoints_to_keep
    learner = experiment.learner
    snapshots = Snapshots(
        settings.checkpoint_dir,
        keep,
        keep_best,
        every_sec=settings.checkpoint_time_interval,
        every_env_steps=settings.checkpoint_global_step_interval,
        recipe=find_recipe(experiment),
    )
    try:
        validate_not_emptied(experiment)
        if settings.mirror_url is not None:
            fetched = fetch_newest(settings.mirror_url, settings.checkpoint_dir)
            if fetched is not None:
                logger.info("downloaded the newest snapshot from the mirror: %s", fetched)
            snapshots.mirror = SnapshotMirror(settings.mirror_url, keep=keep, keep_best=keep_best)
        manifest, flat, follows = make_start(experiment, overrides, build)
        server = ParameterServer(
            Store(
                manifest,
                flat,
                experiment.optimizers,
                follows,
                expects_gradients=not learner.publishes,
            ),
            snapshots=snapshots,
            journal=PushJournal(
                settings.checkpoint_dir / "journal",
                manifest.fingerprint,
                # A learner in the server publishes complete versions: there is nothing to replay.
                enabled=settings.durability == "journal" and not learner.publishes,
                strict=settings.journal_strict,
                max_bytes_per_sec=1e6 * settings.journal_max_mb_per_sec,
            ),
            metrics=metrics,
            combine=settings.combine,
            stop=StopCondition(
                experiment.algorithm.max_global_step,
                learner.target_return,
                target_score=learner.target_eval_return,
                max_episodes=learner.max_episodes,
            ),
            window=learner.target_episodes,
            scores_returns=not learner.eval_freq,
            learner_lease=_open_lease(experiment),
        )
    except BaseException:
        snapshots.close(0.0)
        raise
    try:
        if server.restore_latest_checkpoint():
            logger.info("restored the newest snapshot in %s", settings.checkpoint_dir)
    except BaseException:
        server.close(save=False)
        raise
    note_begun(experiment)
    logger.info("global_t is %d", server.global_t)
    metrics.start_at(server.global_t)
    if server.global_t:
        tell_jumps_at_resume(experiment, server.global_t)
    if server.finished:
        logger.info(
            "this run has already finished: %s; to continue it, raise that budget or target "
            "(relaax resume RUN with --max-global-step, --max-episodes, --target-return or "
            "--target-eval-return), or start again in another run_dir",
            server.finished,
        )
    return server


def _keep_versions(run_dir: Path, report: ClientsReport) -> None:
    for client in report.clients:
        keep_versions(run_dir, client.name, client.versions)


def _open_lease(experiment: Experiment) -> LearnerLease | None:
    if experiment.learner.placement != "standalone":
        return None
    return LearnerLease(experiment.parameter_server.checkpoint_dir)


def run_parameter_server(experiment: Experiment, overrides: Sequence[str] = ()) -> int:
    """Serves until training finishes, a signal arrives or its learner fails.

    Args:
      experiment: to train.
      overrides: with which it was loaded, for the process that builds the initial values.

    Returns:
      The exit status. With `learner.placement: server` or `learner.eval_freq`, and if a signal
      arrives before the spaces are known, the process ends with it instead.

    Raises:
      ConfigError: the settings are wrong, or other machines could connect without TLS or without
        tokens.
      RelaaxError: a port is taken, or an address cannot be used; or see `make_parameter_server` and
        `open_version_tests`.
      Stopped: a signal arrived during `make_parameter_server`.
    """
    failpoints.arm_from_environment()
    prepare_tensorflow(experiment, learns=True)
    reporter = Reporter.from_environment()
    settings = experiment.parameter_server
    validate_served(experiment)
    shutdown = Shutdown()
    validate_exposure(settings.bind, experiment.security, key="relaax-parameter-server.bind")
    if settings.prometheus_bind is not None:
        key = "relaax-parameter-server.prometheus_bind"
        validate_unprotected(settings.prometheus_bind, experiment.security, key)
        if settings.prometheus_bind.collides_with(settings.bind):
            raise ConfigError(
                f"{key}: {settings.prometheus_bind} collides with the server's own address "
                f"(relaax-parameter-server.bind: {settings.bind}); choose another port"
            )
    security = make_server_security(experiment)
    validate_port_free(settings.bind, "--bind")
    make_run_dir(experiment)
    if not reporter.is_heard:  # otherwise `relaax run` writes the lines of all its processes
        add_log_file(experiment.run_dir)
    if experiment.algorithm.lacks_spaces:
        spaces = wait_for_spaces(
            experiment, security, shutdown, lambda: reporter.report(Event.READY)
        )
        if spaces is None:
            end_now(shutdown.exit_status)  # TensorFlow might still be loading
        experiment, found = add_spaces(experiment, *spaces)
        overrides = [*overrides, *found]
    serving: list[ParameterServer] = []
    metrics = make_recorder(experiment, lambda: serving[0].global_t if serving else 0)
    with shutdown.interrupting(), tracing.span(tracing.START):
        server = make_parameter_server(experiment, overrides, metrics)
    serving.append(server)
    server.on_report = lambda report: _keep_versions(experiment.run_dir, report)
    stops = (shutdown.requested, server.stop_requested)
    server.is_stopping = lambda: any(stop.is_set() for stop in stops)
    with contextlib.ExitStack() as ends:
        ends.callback(metrics.close)
        ends.callback(server.close, save=True)
        if settings.prometheus_bind is not None:
            from relaax_like.metrics.prometheus import PrometheusPage

            numbers = PrometheusPage(settings.prometheus_bind, server.status)
            ends.enter_context(numbers)
            page = Address(settings.prometheus_bind.host, numbers.port)
            logger.info("Prometheus metrics on http://%s/metrics", page)
        write_config(experiment)
        forget_results(experiment)
        if not is_described(experiment):
            describe_start(experiment, SERVERS)
        services = None
        if experiment.learner.placement == "server":
            services = make_experience_services(
                experiment, server, lambda error: end_without_learner(error, shutdown)
            )
            server.get_table_status = lambda: services.table_status
        tests = open_version_tests(experiment, server)
        grpc_server, port = BridgeControl().create_server(
            str(settings.bind),
            server,
            security,
            None if services is None else services.sinks,
            make_proposer(experiment),
            server,
        )
        raise_descriptor_limit()
        freeze_gc()
        grpc_server.start()
        if services is not None:
            services.start()
            ends.callback(services.stop)
        logger.info("parameter server on %s", Address(settings.bind.host, port))
        reporter.report(Event.READY)
        with tests, open_version_copies(experiment, server):
            watch_progress(
                server,
                shutdown,
                settings.progress_interval_sec,
                on_first_step=lambda: reporter.report(Event.WORKED),
            )
        grace_sec = _GRACE_SEC
        if server.status().finished:
            _save_finished(server, shutdown)
            server.wait_notified(_FINISH_GRACE_SEC)
            grace_sec = _LEFT_SEC if _wait_last_steps(server, services, shutdown) else grace_sec
        if services is not None:
            services.stop()  # ends their streams, which would use up the grace period
        # Whatever happens to the calls, the learned values must be saved.
        grpc_server.stop(grace_sec).wait(_CALLS_SEC)
    print_summary(experiment, server.status())
    write_results(experiment, server.status())
    status = 0 if server.status().finished else shutdown.exit_status
    if services is not None or experiment.learner.eval_freq:
        # TensorFlow's normal exit takes seconds, and aborts while an iteration is being computed.
        end_now(status)
    return status


def open_version_tests(
    experiment: Experiment, server: ParameterServer
) -> contextlib.AbstractContextManager[object]:
    """Returns a context manager that tests the server's values; see `VersionTests`.

    It does nothing without `learner.eval_freq`, or if the run's learner publishes, and tests.

    Raises:
      ConfigError: tests are requested but not possible; see `make_version_tests`.
      InvalidInputError: see `make_version_tests`.
    """
    if not experiment.learner.eval_freq or experiment.learner.publishes:
        return contextlib.nullcontext()
    from relaax_like.launch.online_tester import make_version_tests  # it knows how to play

    return make_version_tests(experiment, server)


def end_without_learner(error: Exception, shutdown: Shutdown) -> None:
    """Logs why the learning has failed, and requests the end of this process."""
    log_failure(error)
    shutdown.request(EXIT_USAGE if isinstance(error, ConfigError) else EXIT_ERROR)


def make_experience_services(
    experiment: Experiment, publisher: Publisher, on_failure: Callable[[Exception], None]
) -> ExperienceServices:
    """Makes the learners of all agents' experience, not started.

    Args:
      experiment: to train.
      publisher: to which they publish.
      on_failure: see `ExperienceServices`.
    """
    plan = get_plan(experiment.algorithm)
    plans = {
        name: one
        for name, one in (plan if isinstance(plan, Mapping) else {"": plan}).items()
        if isinstance(one, OnPolicy | Episodes | Replay)
    }

    def make_learners() -> "dict[str, LearnerLoop[AgentSource]]":
        set_backprop_workers(experiment)
        keeps = experiment.parameter_server.durability == "journal"
        learners = make_iteration_learners(experiment, publisher, keeps_experience=keeps)
        return learners if isinstance(plan, Mapping) else {"": learners[ONLY_NAME]}

    def make_service(
        name: str,
        make_learner: "Callable[[], LearnerLoop[AgentSource]]",
        on_failure: Callable[[Exception], None],
    ) -> ExperienceService:
        own = plans[name]
        return ExperienceService(
            make_learner,
            own.columns,
            _MAX_ROLLOUT_BYTES,
            on_failure,
            waits=isinstance(own, OnPolicy),
            name=name,
            has_others=len(plans) > 1,
        )

    return ExperienceServices(make_learners, make_service, on_failure, tuple(plans))


def _save_finished(server: ParameterServer, shutdown: Shutdown) -> None:
    """Saves the trained weights; after a failure, retries until a shutdown is requested.

    Until they are saved, this process can be the only place where they exist.
    """
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
) -> bool:
    """Waits while agents that have been notified of the end report their last steps.

    Returns whether all of them have left, so that no call matters that has not ended.
    """
    now = reported = time.monotonic()
    deadline, counted = now + _LAST_STEPS_SEC, server.global_t
    while now < deadline and not shutdown.requested.wait(_LAST_STEPS_POLL_SEC):
        now = time.monotonic()
        has_agents = server.has_players if services is None else services.has_agents
        if server.global_t != counted or has_agents:
            counted, reported = server.global_t, now
        elif now - reported > _LEFT_SEC:
            return True
    return False


def make_run_dir(experiment: Experiment) -> None:
    """Creates the run's folder.

    Raises:
      ConfigError: the folder cannot be created.
    """
    try:
        experiment.run_dir.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"run_dir: {str(experiment.run_dir)[:200]!r} cannot be created: "
            f"{getattr(error, 'strerror', None) or error}; set run_dir, or logdir if the folder is "
            "in it, to a writable folder"
        ) from None


def make_recorder(experiment: Experiment, global_t: Callable[[], int]) -> BufferedMetrics:
    """Returns a recorder that writes event files, or sends to the metrics server if there is one.

    Raises:
      ConfigError: see `make_file_recorder` or, with a metrics server, `make_client_security`.
    """
    if experiment.metrics_server is not None:
        address = experiment.metrics_server.bind.to_connect()
        return MetricsClient(address, global_t, security=make_client_security(experiment))
    return make_file_recorder(experiment, experiment.parameter_server.metrics_dir, global_t)
