"""What agents report of their episodes."""

from collections.abc import Sequence

from relaax_like.core.records import Episode, EpisodeReport


def list_ended(reports: Sequence[EpisodeReport]) -> list[Episode]:
    """Returns the episodes that ended, without the names of their players and slots."""
    ended = (report for report in reports if isinstance(report, Episode))
    return [Episode(one.episode_return, one.length) for one in ended]
