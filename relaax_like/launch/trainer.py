"""Trainer: all roles in one process, without a network."""

import logging
import threading
from collections.abc import Sequence

from relaax_like.bridge.in_process import InProcessClient
from relaax_like.client.interactor import Interactor, SlotEpisode
from relaax_like.config.models import Experiment
from relaax_like.launch.backprop import set_backprop_workers
from relaax_like.launch.live import JsonProgress, NewestScalars, Progress, open_progress
from relaax_like.launch.local import make_local_agents, open_slots
from relaax_like.launch.modes import LogMode
from relaax_like.launch.parameter_server import (
    make_parameter_server,
    make_recorder,
    make_run_dir,
    print_summary,
    watch_progress,
)
from relaax_like.launch.process import Shutdown
from relaax_like.launch.run_folder import TRAIN, describe_start, write_config
from relaax_like.launch.serial_state import SerialState
from relaax_like.launch.trajectory_trainer import train_on_trajectories
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.wire import tracing

logger = logging.getLogger(__name__)


class Trainer:
    """Runs the experiment's environments against its agents and an in-process parameter server.

        status = Trainer(experiment).run(Shutdown())

    The same objects as over the network, the same run folder, the same curves.
    """

    def __init__(
        self,
        experiment: Experiment,
        overrides: Sequence[str] = (),
        log: LogMode = LogMode.PLAIN,
    ):
        self._experiment = experiment
        self._overrides = overrides
        self._log = log

    def run(self, shutdown: Shutdown) -> int:
        """Trains until the target, the budget or a signal; returns the exit status."""
        experiment = self._experiment
        make_run_dir(experiment)
        serving: list[ParameterServer] = []
        with make_recorder(experiment, lambda: serving[0].global_t if serving else 0) as recorder:
            newest = NewestScalars(recorder)
            with shutdown.interrupting(), tracing.span(tracing.START):
                server = make_parameter_server(experiment, self._overrides, newest)
            serving.append(server)
            with server:
                # Not before: now nobody else works in the folder.
                write_config(experiment)
                describe_start(experiment, TRAIN)
                progress = self._train(server, newest, shutdown)
        if isinstance(progress, JsonProgress):
            progress.show(server.status())
        print_summary(experiment, server.status())
        return 0 if server.finished else shutdown.exit_status

    def _train(
        self, server: ParameterServer, newest: NewestScalars, shutdown: Shutdown
    ) -> Progress:
        with open_progress(self._log, self._experiment, newest, shutdown) as progress:
            watching = threading.Thread(
                target=watch_progress,
                args=(server, shutdown, progress.interval_sec, progress.show),
            )
            watching.start()
            try:
                self._interact(server, shutdown.requested, progress)
            finally:
                shutdown.requested.set()
                watching.join()
        return progress

    def _interact(self, server: ParameterServer, stop: threading.Event, progress: Progress) -> None:
        experiment = self._experiment
        if server.finished:
            return
        if experiment.learner.placement == "server":
            set_backprop_workers(experiment)
        if experiment.learner.workers:
            train_on_trajectories(experiment, server, stop, progress.lengths)
            return

        def take_episode(episode: SlotEpisode) -> None:
            progress.lengths.append(episode.length)
            if experiment.rlx_server.score_lines:
                _log_episode(episode)

        environment = experiment.environment
        with open_slots(experiment, "train") as slots:
            assert environment is not None
            with tracing.span(tracing.START):
                agents = make_local_agents(
                    experiment,
                    slots,
                    lambda client_id: InProcessClient(server, client_id),
                    publisher=server if experiment.learner.placement == "server" else None,
                    stop=stop,
                )
            interactor = Interactor(
                slots,
                agents,
                rnd=environment.rnd,
                limit=environment.limit,
                # Agents with a state end where it can be taken.
                stop=None if agents.has_state else stop,
                on_episode=take_episode,
                seed=experiment.seed,
            )
            state = SerialState(experiment, server, slots, agents, interactor)
            try:
                state.restore()
                interactor.run()
                state.save()
            finally:
                agents.close()


def _log_episode(episode: SlotEpisode) -> None:
    logger.info("slot %d: score %g, %d steps", episode.slot, episode.score, episode.length)
