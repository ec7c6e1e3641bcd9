"""BaseTrainer: what all runs in one process have in common, whatever they train on."""

import abc
import logging
import threading
import time
from collections.abc import Sequence

from relaax_like.bridge.in_process import InProcessClient
from relaax_like.client.interactor import EnvironmentSlots, SlotEpisode
from relaax_like.config.models import Experiment
from relaax_like.config.run_spaces import keep_run_spaces
from relaax_like.config.spaces import describe_mismatch
from relaax_like.core.manifest import Variable
from relaax_like.core.records import Status
from relaax_like.core.roles import ParameterServerClient
from relaax_like.launch.agents import make_agent_host, make_serial_host
from relaax_like.launch.backprop import set_backprop_workers
from relaax_like.launch.initial_values_main import make_initial_values
from relaax_like.launch.local import LocalAgents, keep_slots_versions
from relaax_like.launch.parameter_server import (
    make_parameter_server,
    make_recorder,
    make_run_dir,
    open_version_tests,
)
from relaax_like.nn.compiling import get_compile_seconds
from relaax_like.nn.settings import prepare_tensorflow
from relaax_like.nn.threads import limit_blas_threads
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.rlx_server.hosting import AgentHost
from relaax_like.runs.folders.live import JsonProgress, NewestScalars, Progress, open_progress
from relaax_like.runs.folders.modes import LogMode
from relaax_like.runs.folders.progress import print_summary, watch_progress
from relaax_like.runs.folders.run_folder import (
    TRAIN,
    describe_start,
    forget_results,
    write_config,
    write_results,
)
from relaax_like.runs.folders.version_copies import open_version_copies
from relaax_like.runs.processes.log_file import keeping_log
from relaax_like.runs.processes.process import Shutdown
from relaax_like.wire import tracing
from relaax_like.wire.errors import ConfigError, ProtocolError

logger = logging.getLogger(__name__)


class BaseTrainer(abc.ABC):
    """Trains an experiment in this process; a subclass defines `train`, which provides the data.

        class Trainer(BaseTrainer):
            def train(self, server, stop):
                with open_slots(self.experiment, "train") as slots:
                    agents = self.make_agents(slots, server, stop)
                    try:
                        Interactor(slots, agents).run()
                    finally:
                        agents.close()

        status = Trainer(experiment).run(Shutdown())

    All trainers share: the run's folder, the parameter server in this process, curves, progress and
    summary; target and budget, signals, snapshots and the exit status. An algorithm's folder can
    have its own trainer, in `trainer.py`; `relaax train` uses it.

    Attributes:
      experiment: the experiment to train.
      status: of the parameter server at the end of `run`; None before.
      began: `time.perf_counter()` from which the startup time is measured.
      shutdown: the argument of `run`; set by it.

    Args:
      experiment: as the attribute.
      overrides: of keys of its file, for child processes.
      log: how the progress is shown.
    """

    always_trains = False
    """Whether `train` is also called if the run has already finished."""

    def __init__(
        self,
        experiment: Experiment,
        overrides: Sequence[str] = (),
        log: LogMode = LogMode.PLAIN,
    ):
        self.experiment = experiment
        self.status: Status | None = None
        self.began = time.perf_counter()
        # When the first agents were ready, and when training returned.
        self._ready: float | None = None
        self._returned = 0.0
        self._overrides = overrides
        self._log = log
        self.shutdown: Shutdown

    def run(self, shutdown: Shutdown) -> int:
        """Trains until the target, the budget or a signal; returns the exit status.

        Args:
          shutdown: requests the end.

        Raises:
          RelaaxError: the training cannot start, or cannot continue.
          Exception: an error of a hook or of a trainer's own code.
          Stopped: a signal arrived while the parameter server was being made.
        """
        experiment, self.shutdown = self.experiment, shutdown
        prepare_tensorflow(experiment, learns=True)
        make_run_dir(experiment)
        limit_blas_threads()
        with keeping_log(experiment.run_dir):
            return self._run(shutdown)

    def _run(self, shutdown: Shutdown) -> int:
        experiment = self.experiment
        serving: list[ParameterServer] = []
        with make_recorder(experiment, lambda: serving[0].global_t if serving else 0) as recorder:
            newest = NewestScalars(recorder)
            with shutdown.interrupting(), tracing.span(tracing.START):
                build = self._build_values if self._loads_tensorflow else None
                server = make_parameter_server(experiment, self._overrides, newest, build)
            serving.append(server)
            server.is_stopping = shutdown.requested.is_set
            with server:
                # Not earlier: now the folder is locked.
                write_config(experiment)
                forget_results(experiment)
                describe_start(experiment, TRAIN)
                progress = self._train_and_watch(server, newest, shutdown)
        self.status = server.status()
        if isinstance(progress, JsonProgress):
            progress.show(self.status)
        print_summary(experiment, self.status, serves=False)
        write_results(experiment, self.status)
        logger.info("time        %s", self._describe_times())
        return 0 if server.finished else shutdown.exit_status

    @property
    def _loads_tensorflow(self) -> bool:
        """Whether this process can load TensorFlow now: not before its threads are chosen."""
        learner = self.experiment.learner
        return learner.placement == "agent" or learner.backprop_workers == 1

    def _build_values(self) -> list[Variable]:
        return make_initial_values(self.experiment)

    @abc.abstractmethod
    def train(self, server: ParameterServer, stop: threading.Event) -> None:
        """Trains until the end; the state at its return is saved.

        Called once, in the main thread, unless the run had already finished. It must return soon
        after `server.finished` becomes non-empty (target or budget is reached) or `stop` is set (a
        signal arrived). It can return earlier: then the run counts as stopped, and can be resumed.

        Args:
          server: holds weights, optimizers and counts; `InProcessClient(server, name)` is an
            agent's view of it.
          stop: requests the end.
        """

    def make_agents(
        self, slots: EnvironmentSlots, server: ParameterServer, stop: threading.Event
    ) -> LocalAgents:
        """Builds the experiment's agents, which learn, for an `Interactor`. Close them at the end.

        If the run learns in its parameter server (`learner.placement`), they include its learner:
        use only one at a time.

        Args:
          slots: environments of this process, each with an agent, or a row of an agent.
          server: as passed to `train`.
          stop: see `LocalAgents`; as passed to `train`, or another event.

        Raises:
          ConfigError: the algorithm's folder cannot be loaded, its agents cannot learn there, or it
            cannot use the environments' spaces, or RUN/spaces.json cannot be written.
          RelaaxError, Exception: see `AgentHost.make_slot_agents`.
        """
        with tracing.span(tracing.START):
            try:
                agents = LocalAgents(slots, self.make_host(server), stop=stop)
            except ProtocolError as error:
                text = describe_mismatch(error) if server.version > 0 else str(error)
                raise ConfigError(text) from error
        keep_run_spaces(self.experiment.run_dir, agents.spaces)
        keep_slots_versions(self.experiment, "this process", slots)
        self.note_ready()
        return agents

    def make_host(self, server: ParameterServer) -> AgentHost:
        """Makes what builds the agents, which learn; see `make_agents`, also for the errors."""

        def make_client(client_id: str) -> ParameterServerClient:
            return InProcessClient(server, client_id)

        # The name is always the same, and so are the seeds derived from it: two runs with the
        # same seed act identically.
        if self.experiment.learner.placement == "server":
            return make_serial_host(self.experiment, make_client, server, "local")
        return make_agent_host(self.experiment, make_client, "local")

    def note_ready(self) -> None:
        """Ends the startup time that the summary shows; later calls have no effect."""
        if self._ready is None:
            self._ready = time.perf_counter()

    def show_episode(self, episode: SlotEpisode) -> None:
        """Logs an episode if score lines are enabled; for `on_episode` of an `Interactor`."""
        if self.experiment.rlx_server.score_lines:
            logger.info("slot %d: score %g, %d steps", episode.slot, episode.score, episode.length)

    def _describe_times(self) -> str:
        """Describes where the time went, from `began` to now."""
        compiling = get_compile_seconds()
        ready = self._returned if self._ready is None else self._ready
        learning = max(self._returned - ready - compiling, 0.0)
        ending = time.perf_counter() - self._returned
        return (
            f"{ready - self.began:.1f} s to start, {compiling:.1f} s compiling, "
            f"{learning:.1f} s learning, {ending:.1f} s to end"
        )

    def _train_and_watch(
        self, server: ParameterServer, newest: NewestScalars, shutdown: Shutdown
    ) -> Progress:
        with open_progress(self._log, self.experiment, newest, shutdown) as progress:
            progress.policy = self.experiment.policy
            progress.find_mean_length = lambda: server.episode_means.mean_length
            watching = threading.Thread(
                target=watch_progress,
                args=(server, shutdown, progress.interval_sec, progress.show),
            )
            watching.start()
            try:
                if not server.finished or self.always_trains:
                    learner = self.experiment.learner
                    if learner.placement == "server" and not learner.workers:
                        set_backprop_workers(self.experiment)
                    with (
                        open_version_tests(self.experiment, server),
                        open_version_copies(self.experiment, server),
                    ):
                        self.train(server, shutdown.requested)
            finally:
                self._returned = time.perf_counter()
                shutdown.requested.set()
                watching.join()
        return progress
