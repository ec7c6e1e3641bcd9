"""Trainer: plays and learns, with all roles in one process, or with workers."""

import threading
from typing import Any

from relaax_like.launch.base_trainer import BaseTrainer
from relaax_like.launch.local import make_interactor, open_slots, require_program, set_slots
from relaax_like.launch.serial_state import SerialState
from relaax_like.launch.workers import train_with_workers
from relaax_like.parameter_server.parameter_server import ParameterServer


class Trainer(BaseTrainer):
    """Runs the experiment's environments against its agents, in this process or in workers.

        status = Trainer(experiment).run(Shutdown())

    It uses the same objects, run folder and curves as a run over the network.

    Attributes:
      ray: see `train_with_workers`; set before `run`.
    """

    ray: Any = None

    def train(self, server: ParameterServer, stop: threading.Event) -> None:
        """Trains until the run ends; see `BaseTrainer`.

        Without workers, a stopped run resumes where it left off if its state was saved.
        """
        experiment = self.experiment
        if experiment.learner.workers:
            train_with_workers(experiment, server, stop, self.note_ready, self.ray)
            return
        environment, _ = require_program(experiment)
        # Those of all clients that `relaax run` would start.
        number = max(environment.clients, 1) * environment.slots
        with open_slots(set_slots(experiment, number), "train") as slots:
            agents = self.make_agents(slots, server, stop)
            # Agents with a state stop at a point where it can be taken.
            stop_loop = None if agents.has_state else stop
            interactor = make_interactor(
                experiment, slots, agents, stop=stop_loop, on_episode=self.show_episode
            )
            state = SerialState(experiment, server, slots, agents, interactor)
            try:
                state.restore()
                interactor.run()
                state.save()
            finally:
                agents.close()
