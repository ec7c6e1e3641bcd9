"""What the numbers of a conversation show, beyond what a server refuses."""

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from relaax_like.client_checks.talk import Note, Talk
from relaax_like.rlx_server.transition import Arrays, ReceivedStep
from relaax_like.wire.spaces import Discrete, Space, Spaces

# Called with the id of a check that does not apply, and why.
Skip = Callable[[str, str], None]
# The actions that were given before a step, and the step.
Steps = Sequence[tuple[Arrays | None, ReceivedStep]]
# Correlations in multiples of their standard error: certain, and not more than chance gives.
_CERTAIN, _CHANCE = 8.0, 4.5
_MIN_STEPS, _MIN_NUMBERS, _MIN_ENDS, _MIN_EPISODES = 50, 12, 4, 16
_MAX_COLUMNS, _MAX_CHOICES, _MAX_SLOTS = 64, 16, 8
# Between the small and the large numbers of a leaf; swapped bytes spread over more.
_MAX_DECADES = 12.0


def judge(talk: Talk, note: Note, skip: Skip) -> None:
    """Judges the rows of a conversation.

    Args:
      talk: that has ended.
      note: called with each check that the client passes or fails.
      skip: called with each check that does not apply, and why.
    """
    greeting, steps = talk.greeting, talk.steps
    if greeting is None or not steps:
        return
    for name in greeting.observation_spaces:
        rows = [one.observations[name] for _, one in steps if one.observations is not None]
        values = np.stack(rows)
        is_swapped = _spread(values) > _MAX_DECADES > _spread(values.byteswap())
        note("steps.byte_order", not is_swapped, f"{name}: {values.ravel()[:3].tolist()}")
    firsts, ends = _find_borders(steps, greeting.slots)
    if len(ends) < _MIN_ENDS or len({row for rows in firsts for row in rows}) < 2:
        skip("ends.final_is_last", "there are too few ends with observations that can differ")
    else:
        is_wrong = all(final == first for final, first in ends)
        note("ends.final_is_last", not is_wrong, f"they were equal at all {len(ends)} ends")
    # With one seed the first episodes begin equally. If few observations can begin an episode, that
    # can be chance, unless it is so in many episodes.
    is_rich = all(len(set(rows)) == len(rows) for rows in firsts)
    is_rich &= all(space.dtype[0] == "f" for space in greeting.observation_spaces.values())
    count = 1 if is_rich else min(map(len, firsts))
    begun = [tuple(rows[:count]) for rows in firsts]
    if greeting.slots == 1:
        for name in ("differ", "own_reward", "own_action"):
            skip(f"slots.{name}", "the client has one slot")
    elif len(set(firsts[0])) < 2 or not (is_rich or count >= _MIN_EPISODES):
        skip("slots.differ", "there are too few episodes that can differ")
    else:
        note(
            "slots.differ", len(set(begun)) == len(begun), "two slots begin their episodes equally"
        )
    _judge_effects(steps, greeting.action_spaces, note, skip)


def list_rows(steps: Steps) -> list[list[bytes]]:
    """Returns the observations of each slot, for each step that has them, to compare."""
    seen = [one.observations for _, one in steps if one.observations is not None]
    return [
        [_get_row(arrays, slot) for slot in range(len(next(iter(arrays.values()))))]
        for arrays in seen
    ]


def _get_row(arrays: Arrays, slot: int) -> bytes:
    return b"".join(array[slot].tobytes() for array in arrays.values())


def _find_borders(steps: Steps, slots: int) -> tuple[list[list[bytes]], list[tuple[bytes, bytes]]]:
    """Returns where episodes begin and end.

    Returns:
      Each slot's first observations; and final observations with the first ones that follow them.
    """
    firsts: list[list[bytes]] = [[] for _ in range(slots)]
    ends = []
    for _, one in steps:
        begun = np.ones(slots, bool) if one.rewards is None else one.ended
        if one.observations is None or begun is None:
            continue
        for slot in np.flatnonzero(begun).tolist():
            firsts[slot].append(_get_row(one.observations, slot))
            if one.final_observations is not None:
                ends.append((_get_row(one.final_observations, slot), firsts[slot][-1]))
    return firsts, ends


def _spread(values: np.ndarray) -> float:
    """Returns the decades over which nine of ten numbers spread; 0: too few, or integers."""
    if values.dtype.kind != "f":
        return 0.0
    numbers = np.abs(values[np.isfinite(values) & (values != 0)].astype(float))
    if numbers.size < _MIN_NUMBERS:
        return 0.0
    low, high = np.quantile(np.log10(numbers), (0.05, 0.95))
    return float(high - low)


def _judge_effects(steps: Steps, spaces: Spaces, note: Note, skip: Skip) -> None:
    rewards, changes, columns = [], [], []
    for (_, before), (given, after) in itertools.pairwise(steps):
        if given is None or after.rewards is None:
            continue
        if before.observations is None or after.observations is None:
            continue
        change = _flatten(after.observations) - _flatten(before.observations)
        change[[] if after.ended is None else after.ended] = 0.0
        rewards.append(after.rewards.sum(axis=1, keepdims=True))
        changes.append(change)
        columns.append([_to_columns(given[name], space) for name, space in spaces.items()])
    if len(changes) < _MIN_STEPS:
        return
    # Each [n, k, columns].
    paid, moved = np.array(rewards), np.array(changes)
    causes = {
        name: np.array(rows) for name, rows in zip(spaces, zip(*columns, strict=True), strict=True)
    }
    actions = np.concatenate(list(causes.values()), axis=2)
    slots = range(min(actions.shape[1], _MAX_SLOTS))
    is_mixed = False
    for name, effects in (("slots.own_reward", paid), ("slots.own_action", moved)):
        table = np.array([[_measure(actions[:, j], effects[:, i]) for j in slots] for i in slots])
        wrong = [i for i in slots if table[i].max() > _CERTAIN and table[i, i] < _CHANCE]
        if len(slots) > 1 and table.max() > _CERTAIN:
            is_mixed = is_mixed or bool(wrong)
            note(name, not wrong, f"slots {wrong} follow the actions of others")
        else:
            skip(name, "nothing follows clearly from the actions of one step before")
    everything = np.concatenate([paid, moved], axis=2)
    found = {
        name: _measure(*(array.reshape(-1, array.shape[2]) for array in (rows, everything)))
        for name, rows in causes.items()
    }
    unused = [name for name, size in found.items() if size < _CHANCE]
    if is_mixed or len(found) < 2 or max(found.values()) < 2 * _CERTAIN:
        skip("actions.every_leaf", "there are no two leaves, or no step shows the effect of one")
    else:
        note("actions.every_leaf", not unused, f"nothing follows from {unused[:8]}")


def _to_columns(actions: np.ndarray, space: Space) -> np.ndarray:
    """Returns `[k, columns]`: one for each choice, if there are few, or for each component."""
    if isinstance(space, Discrete) and space.n <= _MAX_CHOICES:
        return (actions[:, None] == space.start + np.arange(space.n)).astype(float)
    return actions.reshape(len(actions), -1)[:, :_MAX_COLUMNS].astype(float)


def _flatten(arrays: Arrays) -> np.ndarray:
    """Returns `[k, columns]` of observations: of each leaf some, evenly spaced."""
    rows = [array.reshape(len(array), -1) for array in arrays.values()]
    return np.concatenate(
        [row[:, :: max(1, row.shape[1] // _MAX_COLUMNS)].astype(float) for row in rows], axis=1
    )


def _measure(causes: np.ndarray, effects: np.ndarray) -> float:
    """Returns the largest correlation of `[n, a]` and `[n, b]`, in standard errors."""
    units = []
    for columns in (causes, effects):
        centred = columns - columns.mean(axis=0)
        length = np.linalg.norm(centred, axis=0)
        units.append(centred[:, length > 1e-9] / length[length > 1e-9])
    return float(np.abs(units[0].T @ units[1]).max(initial=0.0) * np.sqrt(len(causes)))
