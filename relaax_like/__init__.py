"""relaax_like: train agents over the network, also on environments that cannot be imported."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # It needs the servers' libraries; the base install has none of them.
    from relaax_like.launch.policy import Policy
    from relaax_like.launch.training import TrainingResult

__version__ = "0.1.0"


def train(
    path: str | os.PathLike[str], overrides: Sequence[str] = (), force: bool = False
) -> "TrainingResult":
    """Trains a new run in this process, as `relaax train` does, and waits for its end.

        result = relaax_like.train("cartpole.yaml", ["algorithm.max_global_step=1e5"])
        print(result.finished, result.mean_return, result.run_dir)

    Ctrl-C and SIGTERM stop it in order, with a snapshot; `relaax resume` continues it. Progress is
    logged through the module `logging`, whose configuration is left as it is; during the training
    the lines are also written to RUN/log.txt.

    Args:
      path: the experiment's YAML file, or a name that `relaax examples` lists.
      overrides: "section.key=value" each, as `--set` takes them.
      force: move an older run in the folder aside, to NAME.old-N.

    Returns:
      How it ended: a `TrainingResult`, with the run's folder, its environment steps and its mean
      return.

    Raises:
      ConfigError: the file, or something that it names, is wrong; the run's folder already has a
        run, and `force` is False or the run cannot be moved; or the extra `server` is not
        installed.
      RelaaxError: the training cannot start or continue; or this is not the main thread.
      SystemExit: a signal arrived before the training had begun.
      Exception: an error of a hook or of a trainer's own code.
    """
    from relaax_like.extras import naming_missing

    with naming_missing():
        from relaax_like.launch.training import train as train_here

    return train_here(Path(path), overrides, force)


def load(
    run: str | os.PathLike[str],
    version: str | int = "latest",
    *,
    observation_space: Any = None,
    action_space: Any = None,
) -> "Policy":
    """Loads the policy of a run, to act in this process.

        policy = relaax_like.load("runs/cartpole")
        action = policy.act(observation)
        policy.reset()  # where an episode has ended

    The run can be training: its folder is read, and nothing is written there. Later snapshots have
    no effect on the policy.

    Args:
      run: the run's folder, or the config.yaml in it.
      version: "latest"; "best", the kept snapshot with the best mean return; or the number of a
        version of which there is a snapshot.
      observation_space: of the environment: a leaf of `relaax_like.wire`, a dict name -> leaf, or a
        Gymnasium space; None: that of the first environment that the run was trained in
        (RUN/spaces.json), or else as the settings say, where vectors are flat and integers count
        from 0.
      action_space: the same for actions, which are clipped to its bounds. With a Gymnasium space
        they are nested as it is, and have its dtype. The settings have bounds only if the policy is
        bounded (`bounded: true`, or an algorithm with `action_low` and `action_high`).

    Returns:
      The policy; see `act` and `reset` of `Policy`.

    Raises:
      ConfigError: no such run, its algorithm cannot be loaded, it does not know which spaces the
        environment has, `version` is something else, a space is of an unsupported kind, or the
        extra `server` is not installed.
      InvalidInputError: a passed space has an invalid leaf, or the algorithm cannot use it.
      SnapshotError: there is no such snapshot (for a number, the error lists the existing ones), or
        it cannot be used.
    """
    from relaax_like.extras import naming_missing

    with naming_missing():
        from relaax_like.launch.policy import load_policy

    return load_policy(Path(run), str(version), observation_space, action_space)
