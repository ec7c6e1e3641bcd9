"""Hooks that send a learner's policy and progress: DI-engine's SendPolicy and SendLearnInfo.

They are for learners that a comm learner creates (`comm_learner.ServedLearner`).

| type | usual position | what it sends |
|---|---|---|
| `send_policy` | before_run, after_iter | the policy's state, from the learner of rank 0 |
| `send_learn_info` | after_iter, after_run | `learn_info`, each time; `freq` only thins the log |
"""

from typing import TYPE_CHECKING, Any

from relaax_like.learn.hooks import LearnerHook, register_learner_hook
from relaax_like.wire.errors import ConfigError

if TYPE_CHECKING:
    from relaax_like.addons.coordinator.comm_learner import ServedLearner


class SendPolicyHook(LearnerHook):
    """Type `send_policy`: passes the policy's state to the comm learner's `send_policy`.

    Only the learner of rank 0 sends.
    """

    def __call__(self, engine: "ServedLearner") -> None:  # type: ignore[override]
        """Sends `state_dict` and `iter`, the number of updates."""
        if engine.rank == 0:
            engine.send_policy({"state_dict": engine.policy.state_dict(), "iter": engine.updates})


class SendLearnInfoHook(LearnerHook):
    """Type `send_learn_info`: passes `learn_info` to the comm learner's `send_learn_info`.

    Args:
      name: see `LearnerHook`.
      priority: see `LearnerHook`.
      position: see `LearnerHook`.
      freq: iterations between two lines of the debug log, 1 or more; it does not affect what is
        sent.

    Raises:
      ConfigError: `freq` is not an integer of 1 or more, the priority is below 0 or NaN, or there
        is no such position.
    """

    def __init__(self, name: str, priority: float, *, position: str, freq: int = 10):
        super().__init__(name, priority, position=position)
        if isinstance(freq, bool) or not isinstance(freq, int) or freq < 1:
            raise ConfigError(
                f"hook {name}: freq is {freq!r:.80}, expected an integer, 1 or more; in the hooks "
                "of a RemoteCommLearner it is cfg.send_learn_info_freq"
            )
        self._freq = freq

    def __call__(self, engine: "ServedLearner") -> None:  # type: ignore[override]
        """Sends `learn_info`, the learner's progress."""
        info: dict[str, Any] = dict(engine.learn_info)
        engine.send_learn_info(info)
        if engine.updates % self._freq == 0:
            engine.logger.debug("sent the progress of iteration %d", engine.updates)


register_learner_hook("send_policy", SendPolicyHook)
register_learner_hook("send_learn_info", SendLearnInfoHook)
