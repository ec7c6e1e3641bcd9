"""`relaax eval`: how well a snapshot plays, for people and for programs."""

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
    """Plays, and prints one line of what was found; without JSON a second one of the video.

    A run without a section `environment` is played by clients that connect meanwhile.
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
            f"{experiment.file}: --video needs a section environment, which is drawn here; add "
            "one, or leave --video out"
        )
    from relaax_like.launch.client_evaluation import evaluate_with_clients

    return evaluate_with_clients(experiment, episodes, version, timeout_sec)
