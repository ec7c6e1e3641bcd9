"""`relaax eval`: how well a snapshot plays, for people and for programs."""

import json

from relaax_like.config.models import Experiment
from relaax_like.launch.evaluation import (
    Video,
    evaluate_snapshot,
    evaluation_to_dict,
    format_evaluation,
)


def show_evaluation(
    experiment: Experiment, episodes: int, best: bool, video: Video | None, as_json: bool
) -> int:
    """Plays, and prints one line of what was found; without JSON a second one of the video."""
    evaluation = evaluate_snapshot(experiment, episodes, best, video)
    if as_json:
        print(json.dumps(evaluation_to_dict(evaluation)))
        return 0
    print(format_evaluation(evaluation))
    if evaluation.video:
        print(evaluation.video)
    return 0
