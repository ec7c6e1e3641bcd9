"""relaax_like: train agents, over the network, on environments that cannot be imported."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # It needs the servers' libraries; the base install has none of them.
    from relaax_like.launch.training import TrainingResult

__version__ = "0.1.0"


def train(
    path: str | os.PathLike[str], overrides: Sequence[str] = (), force: bool = False
) -> "TrainingResult":
    """Trains a new run in this process, as `relaax train` does, and waits for its end.

        result = relaax_like.train("cartpole.yaml", ["algorithm.max_global_step=1e5"])
        print(result.finished, result.mean_return, result.run_dir)

    Ctrl-C and SIGTERM stop it in order, with a snapshot; `relaax resume` goes on. The progress is
    logged by the module `logging`, which is left as it is.

    Args:
      path: the experiment's YAML file, or a name that `relaax examples` lists.
      overrides: "section.key=value" each, as `--set` takes them.
      force: move an older run in the folder aside, to NAME.old-N.

    Returns:
      How it ended.

    Raises:
      ConfigError: the file, or what it names, is wrong; or the folder holds a run already, which is
        not to be moved, or cannot.
      RelaaxError: the training cannot go on; or this is not the main thread.
      SystemExit: a signal came before the training had begun.
    """
    from relaax_like.launch.training import train as train_here

    return train_here(Path(path), overrides, force)
