"""Trains several policies in this process, in environments that they share."""

import threading
from collections.abc import Sequence

from relaax_like.config.models import Experiment
from relaax_like.config.policies import POLICY
from relaax_like.config.run_spaces import keep_run_spaces
from relaax_like.launch.base_trainer import BaseTrainer
from relaax_like.launch.local import LocalAgents, keep_slots_versions, make_interactor, open_slots
from relaax_like.launch.parameter_server import make_run_dir
from relaax_like.launch.policies import complete_policies, find_policy_spaces, join_hosts
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.runs.folders.modes import LogMode
from relaax_like.runs.folders.run_folder import TRAIN, describe_start
from relaax_like.runs.processes.log_file import keeping_log
from relaax_like.runs.processes.process import Shutdown
from relaax_like.wire.errors import ConfigError, ProtocolError


class PoliciesTrainer(BaseTrainer):
    """Trains all policies of a run; each has a parameter server of its own, as over the network.

    The training ends once it has ended for each policy that learns. A run that is resumed begins
    new episodes.

    Attributes:
      status: of the first policy that learns, after `run`.

    Args:
      experiment: has policies.
      overrides: of keys of its file, for child processes.
      log: how the progress is shown.

    Raises:
      ConfigError: there is no environment, or it has an agent without a policy; or a policy cannot
        use the spaces of its agents.
    """

    def __init__(
        self,
        experiment: Experiment,
        overrides: Sequence[str] = (),
        log: LogMode = LogMode.PLAIN,
    ):
        super().__init__(complete_policies(experiment), overrides, log)
        # A table shows one policy.
        mode = LogMode.PLAIN if log is LogMode.AUTO else log
        self._trainers: dict[str, _PolicyTrainer] = {}
        following: _PolicyTrainer | None = None
        for name, policy in reversed(list(self.experiment.policies.items())):
            own = [*overrides, f"{POLICY}={name}"]
            following = _PolicyTrainer(policy.experiment, own, mode, self, following)
            self._trainers[name] = following

    def run(self, shutdown: Shutdown) -> int:
        """See `BaseTrainer`."""
        make_run_dir(self.experiment)
        with keeping_log(self.experiment.run_dir):
            describe_start(self.experiment, TRAIN)
            first = self._trainers[next(iter(self.experiment.policies))]
            first.run(shutdown)
        policies = self.experiment.policies.items()
        statuses = [self._trainers[name].status for name, policy in policies if policy.trains]
        self.status = statuses[0]
        return 0 if all(one and one.finished for one in statuses) else shutdown.exit_status

    def train(self, server: ParameterServer, stop: threading.Event) -> None:
        """Plays with the agents of all policies until the run ends."""
        policies = self.experiment.policies
        with open_slots(self.experiment, "train") as slots:
            own = [self._trainers[name] for name in policies]
            host = join_hosts(self.experiment, [one.make_host(one.server) for one in own])
            try:
                agents = LocalAgents(slots, host, stop=stop, resumable=False)
            except ProtocolError as error:
                host.close()
                raise ConfigError(str(error)) from error
            for name, spaces in find_policy_spaces(self.experiment, slots).items():
                keep_run_spaces(policies[name].experiment.run_dir, spaces)
                keep_slots_versions(policies[name].experiment, "this process", slots)
            for trainer in self._trainers.values():
                trainer.note_ready()
            interactor = make_interactor(
                self.experiment, slots, agents, stop=stop, on_episode=self.show_episode
            )
            try:
                interactor.run()
            finally:
                agents.close()


class _PolicyTrainer(BaseTrainer):
    """The part of one policy: its folder, parameter server, curves and progress.

    Args:
      experiment: the policy's own run.
      overrides: with which its file yields it.
      log: how the progress is shown.
      owner: trains all policies.
      following: of the next policy, whose part runs within this one.
    """

    always_trains = True

    def __init__(
        self,
        experiment: Experiment,
        overrides: Sequence[str],
        log: LogMode,
        owner: PoliciesTrainer,
        following: "_PolicyTrainer | None",
    ):
        super().__init__(experiment, overrides, log)
        self.server: ParameterServer
        self._owner = owner
        self._following = following

    def train(self, server: ParameterServer, stop: threading.Event) -> None:
        """Makes the parameter servers of the other policies, then plays with all of them."""
        self.server = server
        if self._following is not None:
            self._following.run(self.shutdown)
        else:
            self._owner.train(server, stop)
