"""RemoteLearners: the agents' view of the learners of all Algorithms, in another process."""

import threading
import time
from collections.abc import Callable, Collection, Sequence

from relaax_like.core.manifest import Manifest
from relaax_like.core.roles import Learner
from relaax_like.learn.remote_learner import RemoteLearner


class RemoteLearners:
    """One RemoteLearner for each Algorithm, each with its own stream.

        learners = RemoteLearners(make_learner)
        learner = learners.learner("goal", names, variables)
        learners.wait_loaded(1.0)
        learners.stop()

    Args:
      make_learner: makes the learner of an Algorithm, not connected, from its name and the argument
        `manifest` of `learner`.
    """

    def __init__(self, make_learner: Callable[[str, Manifest | None], RemoteLearner]):
        self._make_learner = make_learner
        self._learners: list[RemoteLearner] = []

    def learner(
        self,
        name: str = "",
        manifest: Manifest | None = None,
        names: Collection[str] | None = None,
        variables: Sequence[str] | None = None,
    ) -> Learner:
        """Returns an Algorithm's learner, which connects; call it once for each, before agents act.

        Args:
          name: of the Algorithm; "": the only one.
          manifest: of the Algorithm's values, for a `ChildLearner`; None: that of the run.
          names: see `RemoteLearner.connect`.
          variables: see `RemoteLearner.connect`.
        """
        remote = self._make_learner(name, manifest)
        self._learners.append(remote)
        remote.connect(names, variables)
        return remote

    def wait_loaded(self, timeout_sec: float) -> bool:
        """Waits until each learner has answered once; returns whether they have."""
        end = time.monotonic() + timeout_sec
        return all(r.wait_loaded(max(end - time.monotonic(), 0.0)) for r in self._learners)

    def stop(self) -> None:
        """Sends waiting requests, and ends all streams, within some seconds. Idempotent."""
        stops = [threading.Thread(target=remote.close) for remote in self._learners]
        for stop in stops:
            stop.start()
        for stop in stops:
            stop.join()
