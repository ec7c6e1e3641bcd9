"""A cluster with `learner.placement: standalone`."""

from pathlib import Path

from relaax_like.bridge.control import BridgeControl
from relaax_like.wire.errors import ServerUnavailableError
from support.cluster import Cluster, Program, find_command, find_free_port


class StandaloneCluster(Cluster):
    """A cluster whose learner is a process of its own.

    Attributes:
      learner_port: where that takes experience.
    """

    def __init__(self, folder: Path, algorithm: Path, *sets: str):
        """Writes the configuration; nothing is started; see `Cluster`."""
        self.learner_port = find_free_port()
        mine = (
            "learner.placement=standalone",
            f"learner.bind=localhost:{self.learner_port}",
            "relaax-rlx-server.parameter_server=localhost:{}",
        )
        super().__init__(folder, algorithm, *sets)
        self.sets += [text.format(self.ps_port) for text in mine]

    def start_learner(self, *sets: str) -> Program:
        """Starts `relaax-learner`."""
        overrides = [part for text in (*self.sets, *sets) for part in ("--set", text)]
        argv = [find_command("relaax-learner"), "--config", self.config, *overrides]
        return self.start("relaax-learner", argv)

    def find_learner(self) -> str:
        """Asks the parameter server where the learner is; "" if it does not say."""
        with BridgeControl().connect(f"localhost:{self.ps_port}") as link:
            try:
                return link.publisher_stub().find_learner()
            except ServerUnavailableError:
                return ""
