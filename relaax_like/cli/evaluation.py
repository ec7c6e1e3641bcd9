"""`relaax eval`: evaluates a snapshot, with output for people or for programs."""

import json

from relaax_like.config.models import Experiment
from relaax_like.launch.evaluation import (
    Evaluation,
    Video,
    evaluate_snapshot,
    evaluation_to_dict,
    format_evaluation,
)
from relaax_like.wire.errors import ConfigError


def show_evaluation(
    experiment: Experiment,
    episodes: int,
    version: str,
    video: Video | None,
    timeout_sec: float,
    as_json: bool,
) -> int:
    """Evaluates a snapshot and prints one line; without JSON also one about the video, if any.

    For a run without an `environment` section, clients that connect to this process play.

    Args:
      experiment: of the run.
      episodes: number of episodes to play.
      version: see `read_snapshot`.
      video: to record; None: no video.
      timeout_sec: longest time without a message from any client, if clients play.
      as_json: print a JSON object instead of a line for people.

    Raises:
      ConfigError: there is a video to record, but clients play.
      RelaaxError, Exception: see `evaluate_snapshot`.
      RelaaxError, Stopped: see `evaluate_with_clients`.
    """
    if experiment.environment is None:
        evaluation = _evaluate_with_clients(experiment, episodes, version, video, timeout_sec)
    else:
        evaluation = evaluate_snapshot(experiment, episodes, version, video)
    if as_json:
        print(json.dumps(evaluation_to_dict(evaluation)))
        return 0
    print(format_evaluation(evaluation))
    if evaluation.video:
        print(evaluation.video)
    return 0


def _evaluate_with_clients(
    experiment: Experiment, episodes: int, version: str, video: Video | None, timeout_sec: float
) -> Evaluation:
    if video is not None:
        raise ConfigError(
            f"{experiment.file}: --video needs an `environment` section, because the environment "
            "is drawn in this process; add one, or omit --video"
        )
    from relaax_like.launch.client_evaluation import evaluate_with_clients

    return evaluate_with_clients(experiment, episodes, version, timeout_sec)
