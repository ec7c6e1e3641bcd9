"""What agents report of their episodes: checked, saved, and written to messages."""

import math
from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import Any

from relaax_like.core.records import (
    MAX_ENV_STEPS,
    MAX_EPISODES,
    Episode,
    EpisodeReport,
    Playing,
)
from relaax_like.wire.errors import InvalidInputError

# Of one agent.
MAX_SLOTS = 65_536
_MAX_NAME_LENGTH = 300


def pack_reports(reports: Sequence[EpisodeReport]) -> list[list[Any]]:
    """Converts reports to JSON types, for a state that is saved."""
    return [list(astuple(report)) for report in reports]


def unpack_reports(rows: Sequence[Sequence[Any]]) -> list[EpisodeReport]:
    """Converts what `pack_reports` returned back."""
    return [Playing(*row) if isinstance(row[0], str) else Episode(*row) for row in rows]


def write_reports(header: Any, reports: Sequence[EpisodeReport]) -> None:
    """Writes reports to the header of a message, one with `episodes` and `players`."""
    for report in reports:
        if isinstance(report, Playing):
            header.players.add(
                name=report.player,
                slots=report.slots,
                env_steps=report.env_steps,
                unlearned_steps=report.unlearned_steps,
            )
        else:
            header.episodes.add(**vars(report))


def read_reports(header: Any, limit: int = MAX_EPISODES) -> tuple[EpisodeReport, ...]:
    """Reads what `write_reports` has written: who plays, what ended, and who has left.

    `validate_reports` checks the content.

    Raises:
      InvalidInputError: there are more than `limit`.
    """
    number = len(header.episodes) + len(header.players)
    if number > limit:
        raise InvalidInputError(
            f"episodes: {number} episodes and players, but at most {limit} are allowed in one "
            "message; send several messages"
        )
    players = [Playing(p.name, p.slots, p.env_steps, p.unlearned_steps) for p in header.players]
    return (
        *(playing for playing in players if playing.slots),
        *(Episode(e.episode_return, e.length, e.slot, e.player) for e in header.episodes),
        *(playing for playing in players if not playing.slots),
    )


def validate_reports(reports: Sequence[EpisodeReport]) -> None:
    """Checks reports. A single NaN would spoil the mean return, and prevent all further snapshots.

    Raises:
      InvalidInputError: a return is not finite, a number is out of range, or a name is too long.
    """
    for index, one in enumerate(reports):
        if isinstance(one, Playing):
            problem = _find_problem_of_player(one)
        else:
            problem = _find_problem_of_episode(one)
        if problem:
            raise InvalidInputError(f"episodes[{index}]{problem}", "episodes")


def _find_problem_of_episode(episode: Episode) -> str:
    if not math.isfinite(episode.episode_return):
        return f": return {episode.episode_return}, expected a finite number; check the rewards"
    if not _is_count(episode.length, 1, MAX_ENV_STEPS):
        return f".length: {episode.length!r}, expected an integer in 1..2^40"
    if not _is_count(episode.slot, 0, MAX_SLOTS - 1):
        return f".slot: {episode.slot!r}, expected an integer in 0..{MAX_SLOTS - 1}"
    return _find_problem_of_name(episode.player)


def _find_problem_of_player(playing: Playing) -> str:
    if not _is_count(playing.slots, 0, MAX_SLOTS):
        return f".slots: {playing.slots!r}, expected an integer in 0..{MAX_SLOTS}"
    for steps in (playing.env_steps, playing.unlearned_steps):
        if not _is_count(steps, 0, MAX_ENV_STEPS):
            return f".env_steps: {steps!r}, expected an integer in 0..2^40"
    return _find_problem_of_name(playing.player)


def _find_problem_of_name(name: str) -> str:
    if len(name) > _MAX_NAME_LENGTH:
        return f".player: {len(name)} characters, expected at most {_MAX_NAME_LENGTH}"
    return ""


def _is_count(value: Any, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def to_unlearned(reports: Sequence[EpisodeReport]) -> list[EpisodeReport]:
    """Returns what to report of a rollout that is not learned from: its steps, and no episodes."""
    return [
        replace(report, unlearned_steps=report.env_steps)
        for report in reports
        if isinstance(report, Playing)
    ]
