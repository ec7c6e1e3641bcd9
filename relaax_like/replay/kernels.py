"""Loops over rows of the replay table: links between rows, items, and the sum tree.

Each loop is plain Python, which numba compiles once and keeps in its cache. Without numba, the same
source is interpreted: about a hundred times slower, but bit-identical.

A *row* is a step, or an observation alone: the last one of an episode, the last one before a gap,
or, for a model with a history, one from before the first step of a chain. Rows are numbered in the
order of their arrival; row `id` is at the position `id % capacity` of every column.

| column of `links` | meaning |
|---|---|
| `FOLLOWING` | id of the next row of the slot; `-(stream + 1)`: the next observation is the newest of that stream; `NOTHING`: an observation that nothing follows |
| `PREVIOUS` | id of the row before it in the same slot and episode, without a gap; -1: it is the first |
| `POSITION` | number of steps before it, counted from that first row |
| `STATE` | `TERMINATED`, `ALIVE`, `TRUNCATED` or `OBSERVATION`; plus `ITEM` where an item begins |
| `KEY` and two more | of a step: agent, number of the episode, number of the step in it |
| `VERSION` | of a step: version of the values that acted |

The eight numbers of a row are one line of the processor's cache.
"""  # noqa: E501

import functools
import importlib.util
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from relaax_like.core.loops import LoopType, compile_loop

logger = logging.getLogger(__name__)

# Columns of `links`, int64.
FOLLOWING, PREVIOUS, POSITION, STATE, KEY = range(5)
VERSION = KEY + 3
NUM_LINKS = VERSION + 1
NOTHING = -(1 << 62)
TERMINATED, ALIVE, TRUNCATED, OBSERVATION = range(4)
ITEM = 4
_KIND = 3  # mask: STATE without ITEM

# Columns of `streams`, int64: the slot's agent, the step that is expected next, the id of the
# newest row (-1: the next row begins a chain), the time of the last use, number of pending items.
AGENT, EPISODE, STEP, TAIL, LAST_USED, PENDING = range(6)

# Columns of `rule`, int64; see `Storage.start`.
LOOKAHEAD, PERIOD = range(2)

# Which steps `find_goals` chooses from.
FUTURE_GOAL, FINAL_GOAL, EPISODE_GOAL = range(3)

# What a row is copied from.
FROM_STEP, FROM_NEXT, FROM_HISTORY = range(3)


def _count_rows(
    next_alive: np.ndarray, valid: np.ndarray, differs: np.ndarray, closes: bool
) -> tuple[int, int]:
    """Returns the number of steps of a segment, and of observations that nothing follows."""
    length, width = next_alive.shape
    steps = 0
    finals = 0
    for t in range(length):
        for s in range(width):
            if valid[t, s]:
                steps += 1
                if next_alive[t, s] != 1.0:
                    finals += 1
                elif t < length - 1:
                    if not valid[t + 1, s] or differs[t, s]:
                        finals += 1
                elif closes:
                    finals += 1
    return steps, finals


def _match_streams(
    valid: np.ndarray,
    slots: np.ndarray,
    starts: np.ndarray,
    streams: np.ndarray,
    oldest: int,
    joins: np.ndarray,
    closing: np.ndarray,
) -> int:
    """Finds the streams that a segment continues, and those whose chain ends before it.

    Returns:
      Number of streams in `closing`.
    """
    num_closing = 0
    for s in range(slots.size):
        stream = slots[s]
        is_open = streams[stream, TAIL] >= oldest
        joins[s] = (
            is_open
            and valid[0, s]
            and streams[stream, EPISODE] == starts[s, 1]
            and streams[stream, STEP] == starts[s, 2]
        )
        if is_open and not joins[s]:
            closing[num_closing] = stream
            num_closing += 1
    return num_closing


def _insert_rows(
    next_alive: np.ndarray,
    valid: np.ndarray,
    differs: np.ndarray,
    joins: np.ndarray,
    slots: np.ndarray,
    starts: np.ndarray,
    versions: np.ndarray,
    num_history: int,
    closes: bool,
    next_id: int,
    oldest: int,
    capacity: int,
    reach: int,
    now: int,
    rule: np.ndarray,
    links: np.ndarray,
    streams: np.ndarray,
    pending: np.ndarray,
    sources: np.ndarray,
    complete: np.ndarray,
) -> tuple[int, int]:
    """Numbers the rows of a segment, links them, and finds the items that are complete with them.

    Rows are in the order of time, slots side by side; behind each row that nothing follows comes
    its last observation.

    Returns:
      Number of rows, whose sources are in `sources`, and of items in `complete`.
    """
    length, width = next_alive.shape
    lookahead = rule[LOOKAHEAD]
    period = rule[PERIOD]
    last = np.empty(width, np.int64)
    position = np.zeros(width, np.int64)
    episode = starts[:, 1].copy()
    step = starts[:, 2].copy()
    row = next_id
    found = 0
    for s in range(width):
        stream = slots[s]
        last[s] = -1
        if joins[s]:
            last[s] = streams[stream, TAIL]
            position[s] = links[last[s] % capacity, POSITION] + 1
        else:
            streams[stream, PENDING] = 0
    for i in range(num_history):
        for s in range(width):
            if joins[s] or not valid[0, s] or starts[s, 2] <= 0:
                continue
            p = row % capacity
            links[p, FOLLOWING] = NOTHING
            links[p, PREVIOUS] = last[s]
            links[p, POSITION] = 0
            links[p, STATE] = OBSERVATION
            if last[s] >= 0:
                links[last[s] % capacity, FOLLOWING] = row
            sources[row - next_id, 0] = FROM_HISTORY
            sources[row - next_id, 1] = i * width + s
            last[s] = row
            row += 1
    for t in range(length):
        for s in range(width):
            alive = next_alive[t, s]
            if valid[t, s]:
                stream = slots[s]
                p = row % capacity
                if last[s] >= 0:
                    links[last[s] % capacity, FOLLOWING] = row
                links[p, FOLLOWING] = NOTHING
                links[p, PREVIOUS] = last[s]
                links[p, POSITION] = position[s]
                state = ALIVE
                if alive == 0.0:
                    state = TERMINATED
                elif alive < 0.0:
                    state = TRUNCATED
                links[p, STATE] = state
                links[p, KEY] = starts[s, 0]
                links[p, KEY + 1] = episode[s]
                links[p, KEY + 2] = step[s]
                links[p, VERSION] = versions[t]
                sources[row - next_id, 0] = FROM_STEP
                sources[row - next_id, 1] = t * width + s
                if position[s] % period == 0:
                    pending[stream, streams[stream, PENDING]] = row
                    streams[stream, PENDING] += 1
                ends = state != ALIVE
                if t < length - 1:
                    breaks = not ends and (not valid[t + 1, s] or differs[t, s])
                else:
                    breaks = not ends and closes
                # Items that are complete with this row.
                kept = 0
                for i in range(streams[stream, PENDING]):
                    item = pending[stream, i]
                    if item < oldest:
                        continue
                    q = item % capacity
                    if not (ends or breaks) and position[s] - links[q, POSITION] < lookahead:
                        pending[stream, kept] = item
                        kept += 1
                        continue
                    is_complete = True
                    # The observations before it that its own is stacked with must be there.
                    before = item
                    for _ in range(reach):
                        before = links[before % capacity, PREVIOUS]
                        if before < oldest:
                            is_complete = is_complete and before < 0
                            break
                    if is_complete:
                        links[q, STATE] |= ITEM
                        complete[found] = item
                        found += 1
                streams[stream, PENDING] = kept
                last[s] = row
                position[s] += 1
                row += 1
                if ends or breaks:
                    p = row % capacity
                    links[last[s] % capacity, FOLLOWING] = row
                    links[p, FOLLOWING] = NOTHING
                    links[p, PREVIOUS] = last[s]
                    links[p, POSITION] = position[s]
                    links[p, STATE] = OBSERVATION
                    sources[row - next_id, 0] = FROM_NEXT
                    sources[row - next_id, 1] = t * width + s
                    last[s] = -1
                    position[s] = 0
                    row += 1
            step[s] += 1
            if alive != 1.0:
                episode[s] += 1
                step[s] = 0
    for s in range(width):
        stream = slots[s]
        streams[stream, AGENT] = starts[s, 0]
        streams[stream, EPISODE] = episode[s]
        streams[stream, STEP] = step[s]
        streams[stream, TAIL] = last[s]
        streams[stream, LAST_USED] = now
        if last[s] >= 0:
            links[last[s] % capacity, FOLLOWING] = -(stream + 1)
    return row - next_id, found


def _close_streams(
    closing: np.ndarray,
    num_closing: int,
    next_id: int,
    oldest: int,
    capacity: int,
    reach: int,
    links: np.ndarray,
    streams: np.ndarray,
    pending: np.ndarray,
    sources: np.ndarray,
    complete: np.ndarray,
) -> tuple[int, int]:
    """Ends chains: the newest observation of each stream becomes a row.

    Returns:
      Number of rows, whose streams are in `sources`, and of items in `complete`.
    """
    row = next_id
    found = 0
    for i in range(num_closing):
        stream = closing[i]
        tail = streams[stream, TAIL]
        streams[stream, TAIL] = -1
        if tail < oldest:
            streams[stream, PENDING] = 0
            continue
        p = row % capacity
        links[tail % capacity, FOLLOWING] = row
        links[p, FOLLOWING] = NOTHING
        links[p, PREVIOUS] = tail
        links[p, POSITION] = links[tail % capacity, POSITION] + 1
        links[p, STATE] = OBSERVATION
        sources[row - next_id] = stream
        row += 1
        for j in range(streams[stream, PENDING]):
            item = pending[stream, j]
            is_complete = item >= oldest
            if is_complete:
                before = item
                for _ in range(reach):
                    before = links[before % capacity, PREVIOUS]
                    if before < oldest:
                        is_complete = before < 0
                        break
            if is_complete:
                links[item % capacity, STATE] |= ITEM
                complete[found] = item
                found += 1
        streams[stream, PENDING] = 0
    return row - next_id, found


def _evict_rows(
    oldest: int,
    new_oldest: int,
    capacity: int,
    reach: int,
    links: np.ndarray,
    removed: np.ndarray,
) -> int:
    """Finds the items that are lost with evicted rows.

    These are the items that begin there, and those whose first observation is joined with theirs.

    Returns:
      Number of items in `removed`.
    """
    found = 0
    for row in range(oldest, new_oldest):
        p = row % capacity
        if links[p, STATE] & ITEM:
            links[p, STATE] &= _KIND
            removed[found] = row
            found += 1
        following = row
        for _ in range(reach):
            following = links[following % capacity, FOLLOWING]
            if following < 0:
                break
            p = following % capacity
            if links[p, STATE] & ITEM:
                links[p, STATE] &= _KIND
                removed[found] = following
                found += 1
    return found


def _find_transitions(
    ids: np.ndarray,
    n_step: int,
    discount: float,
    capacity: int,
    links: np.ndarray,
    rewards: np.ndarray,
    log_prob: np.ndarray,
    rows: np.ndarray,
    tokens: np.ndarray,
    places: np.ndarray,
    item_keys: np.ndarray,
    returns: np.ndarray,
    discounts: np.ndarray,
    lengths: np.ndarray,
    item_log_prob: np.ndarray,
    item_versions: np.ndarray,
) -> None:
    """Adds up rewards, and finds what follows the last of them; copies the small columns.

    Writes the positions of the first observation to `rows`, and of the one after the last reward to
    `places`.
    """
    totals = np.empty(rewards.shape[1], np.float64)
    for i in range(ids.size):
        p = ids[i] % capacity
        rows[i] = p
        item_log_prob[i] = log_prob[p]
        item_versions[i] = links[p, VERSION]
        for c in range(3):
            item_keys[i, c] = links[p, KEY + c]
        totals[:] = 0.0
        factor = 1.0
        length = 0
        while True:
            for c in range(totals.size):
                totals[c] += factor * np.float64(rewards[p, c])
            factor *= discount
            length += 1
            following = links[p, FOLLOWING]
            state = links[p, STATE] & _KIND
            if following < 0:
                place = capacity - following - 1
                break
            place = following % capacity
            if state != ALIVE or length == n_step:
                break
            if (links[place, STATE] & _KIND) == OBSERVATION:
                break
            p = place
        for c in range(totals.size):
            returns[i, c] = totals[c]
        discounts[i] = 0.0 if state == TERMINATED else factor
        lengths[i] = length
        tokens[i] = following
        places[i] = place


def _find_sequences(
    ids: np.ndarray,
    num_steps: int,
    burn_in: int,
    oldest: int,
    capacity: int,
    links: np.ndarray,
    tokens: np.ndarray,
    counts: np.ndarray,
) -> None:
    """Lists the rows of sequences, and what follows the last of them.

    Each begins with up to `burn_in` steps before the item, as far as they were not evicted, and
    continues with the item's, up to `num_steps - burn_in`. The rest of `tokens`,
    `[num_steps + 1, N]`, is what follows the last step; the two numbers of steps are written to
    `counts`, `[2, N]`.
    """
    for i in range(ids.size):
        first = ids[i]
        before = 0
        while before < burn_in:
            previous = links[first % capacity, PREVIOUS]
            if previous < oldest or (links[previous % capacity, STATE] & _KIND) == OBSERVATION:
                break
            first = previous
            before += 1
        row = first
        most = before + num_steps - burn_in
        length = 0
        while True:
            tokens[length, i] = row
            length += 1
            p = row % capacity
            following = links[p, FOLLOWING]
            if following < 0 or (links[p, STATE] & _KIND) != ALIVE or length == most:
                break
            if (links[following % capacity, STATE] & _KIND) == OBSERVATION:
                break
            row = following
        for t in range(length, num_steps + 1):
            tokens[t, i] = following
        counts[0, i] = before
        counts[1, i] = length - before


def _find_goals(
    ids: np.ndarray,
    uniforms: np.ndarray,
    strategy: int,
    oldest: int,
    capacity: int,
    links: np.ndarray,
    places: np.ndarray,
) -> None:
    """Chooses a step of each item's chain; writes the position of the next observation to `places`.

    `uniforms` in [0, 1) choose among the item's step and later ones (`FUTURE_GOAL`), or among all
    steps that were not evicted (`EPISODE_GOAL`); with `FINAL_GOAL` it is the last one.
    """
    for i in range(ids.size):
        first = ids[i]
        if strategy == EPISODE_GOAL:
            before = links[first % capacity, PREVIOUS]
            while before >= oldest and (links[before % capacity, STATE] & _KIND) != OBSERVATION:
                first = before
                before = links[first % capacity, PREVIOUS]
        length = 0
        row = first
        while row >= 0 and (links[row % capacity, STATE] & _KIND) != OBSERVATION:
            length += 1
            row = links[row % capacity, FOLLOWING]
        hops = length - 1
        if strategy != FINAL_GOAL:
            hops = min(hops, int(uniforms[i] * length))
        row = first
        for _ in range(hops):
            row = links[row % capacity, FOLLOWING]
        following = links[row % capacity, FOLLOWING]
        places[i] = following % capacity if following >= 0 else capacity - following - 1


def _find_stacks(
    tokens: np.ndarray,
    oldest: int,
    capacity: int,
    links: np.ndarray,
    streams: np.ndarray,
    places: np.ndarray,
) -> None:
    """Finds where observations are, and those before them: `places`, `[N, n]`, oldest first.

    The first observation of a chain, or the oldest that was not evicted, stands for those before
    it.
    """
    number = places.shape[1]
    for i in range(tokens.size):
        token = tokens[i]
        if token >= 0:
            places[i, number - 1] = token % capacity
            previous = links[token % capacity, PREVIOUS]
        else:
            places[i, number - 1] = capacity - token - 1
            previous = streams[-token - 1, TAIL]
        for j in range(number - 2, -1, -1):
            if previous >= oldest:
                places[i, j] = previous % capacity
                previous = links[previous % capacity, PREVIOUS]
            else:
                places[i, j] = places[i, j + 1]


def _add_members(ids: np.ndarray, count: int, members: np.ndarray, index: np.ndarray) -> None:
    """Appends ids to `members[:count]`, and writes their positions there to `index`."""
    capacity = index.size
    for i in range(ids.size):
        members[count + i] = ids[i]
        index[ids[i] % capacity] = count + i


def _remove_members(ids: np.ndarray, count: int, members: np.ndarray, index: np.ndarray) -> None:
    """Removes ids from `members[:count]`: the last member takes the place of each."""
    capacity = index.size
    for i in range(ids.size):
        place = index[ids[i] % capacity]
        count -= 1
        moved = members[count]
        members[place] = moved
        index[moved % capacity] = place


def _set_leaves(positions: np.ndarray, numbers: np.ndarray, nodes: np.ndarray) -> None:
    """Writes leaves of a tree of sums and maxima, and recomputes what is above them.

    Level by level: what is above neighbours is computed once, and the processor waits for the
    memory of many nodes at a time.
    """
    size = nodes.shape[0] // 2
    count = positions.size
    above = np.empty(count, np.int64)
    for i in range(count):
        node = size + positions[i]
        nodes[node, 0] = numbers[i]
        nodes[node, 1] = numbers[i]
        above[i] = node
    level = size
    while level > 1:
        level //= 2
        kept = 0
        for i in range(count):
            node = above[i] // 2
            if kept > 0 and above[kept - 1] == node:
                continue
            nodes[node, 0] = nodes[2 * node, 0] + nodes[2 * node + 1, 0]
            nodes[node, 1] = max(nodes[2 * node, 1], nodes[2 * node + 1, 1])
            above[kept] = node
            kept += 1
        count = kept


def _find_leaves(masses: np.ndarray, nodes: np.ndarray, positions: np.ndarray) -> None:
    """Finds the leaf that each mass falls on: descends from the root, level by level."""
    size = nodes.shape[0] // 2
    left_over = masses.copy()
    positions[:] = 1
    level = 1
    while level < size:
        level *= 2
        for i in range(masses.size):
            node = 2 * positions[i]
            left = nodes[node, 0]
            # Rounding can leave a mass beyond the last leaf: never go where nothing is.
            if left_over[i] >= left and nodes[node + 1, 0] > 0.0:
                left_over[i] -= left
                node += 1
            positions[i] = node
    for i in range(masses.size):
        positions[i] -= size


class Kernel(NamedTuple):
    """One loop, and its signature for numba.

    Attributes:
      loop: the Python form.
      arguments: types of the arguments.
      returns: number of int64 that it returns.
    """

    loop: Callable[..., Any]
    arguments: tuple[LoopType, ...]
    returns: int = 0


_INT, _FLOAT, _BOOL = LoopType("int64"), LoopType("float64"), LoopType("bool_")
_IDS, _TABLE = LoopType("int64", 1), LoopType("int64", 2)
_OUT_IDS, _OUT_TABLE = LoopType("int64", 1, True), LoopType("int64", 2, True)
_FLAGS, _OUT_FLAGS = LoopType("bool_", 2), LoopType("bool_", 1, True)
_ALIVE = LoopType("float32", 2)
_OUT_NUMBERS, _OUT_NUMBERS2 = LoopType("float32", 1, True), LoopType("float32", 2, True)

KERNELS: dict[str, Kernel] = {
    "count_rows": Kernel(_count_rows, (_ALIVE, _FLAGS, _FLAGS, _BOOL), 2),
    "match_streams": Kernel(
        _match_streams, (_FLAGS, _IDS, _TABLE, _OUT_TABLE, _INT, _OUT_FLAGS, _OUT_IDS), 1
    ),
    "insert_rows": Kernel(
        _insert_rows,
        (
            *(_ALIVE, _FLAGS, _FLAGS, _OUT_FLAGS, _IDS, _TABLE, _IDS, _INT, _BOOL, _INT, _INT),
            *(_INT, _INT, _INT, _OUT_IDS, _OUT_TABLE, _OUT_TABLE, _OUT_TABLE, _OUT_TABLE),
            _OUT_IDS,
        ),
        2,
    ),
    "close_streams": Kernel(
        _close_streams,
        (
            *(_OUT_IDS, _INT, _INT, _INT, _INT, _INT, _OUT_TABLE, _OUT_TABLE),
            *(_OUT_TABLE, _OUT_IDS, _OUT_IDS),
        ),
        2,
    ),
    "evict_rows": Kernel(_evict_rows, (_INT, _INT, _INT, _INT, _OUT_TABLE, _OUT_IDS), 1),
    "find_transitions": Kernel(
        _find_transitions,
        (
            *(_IDS, _INT, _FLOAT, _INT, _OUT_TABLE, _OUT_NUMBERS2, _OUT_NUMBERS),
            *(_OUT_IDS, _OUT_IDS, _OUT_IDS, _OUT_TABLE, _OUT_NUMBERS2, _OUT_NUMBERS),
            *(_OUT_IDS, _OUT_NUMBERS, _OUT_IDS),
        ),
    ),
    "find_sequences": Kernel(
        _find_sequences, (_IDS, _INT, _INT, _INT, _INT, _OUT_TABLE, _OUT_TABLE, _OUT_TABLE)
    ),
    "find_goals": Kernel(
        _find_goals, (_IDS, LoopType("float64", 1), _INT, _INT, _INT, _OUT_TABLE, _OUT_IDS)
    ),
    "find_stacks": Kernel(_find_stacks, (_IDS, _INT, _INT, _OUT_TABLE, _OUT_TABLE, _OUT_TABLE)),
    "add_members": Kernel(_add_members, (_IDS, _INT, _OUT_IDS, _OUT_IDS)),
    "set_leaves": Kernel(_set_leaves, (_IDS, LoopType("float64", 1), LoopType("float64", 2, True))),
    "find_leaves": Kernel(_find_leaves, (LoopType("float64", 1), LoopType("float64", 2), _OUT_IDS)),
    "remove_members": Kernel(_remove_members, (_IDS, _INT, _OUT_IDS, _OUT_IDS)),
}


@functools.cache
def load_kernel(name: str, form: str | None = None) -> Callable[..., Any]:
    """Returns a loop as a function; compiles it, or loads it from numba's cache.

    Args:
      name: key in `KERNELS`.
      form: "numba" or "python"; None: "numba" if it can be imported, else "python".

    Raises:
      ImportError: `form` is "numba", and numba cannot be imported.
    """
    kernel = KERNELS[name]
    if form is None and importlib.util.find_spec("numba"):
        try:
            return compile_loop(*kernel)
        except ImportError as error:  # numba is there, but too old for this NumPy, or broken
            logger.warning(
                "cannot import numba, so the replay table is very slow: %s; install a version of "
                "numba that supports this NumPy",
                error,
            )
    elif form == "numba":
        return compile_loop(*kernel)
    return kernel.loop


def compile_kernels() -> None:
    """Compiles every loop into numba's cache, so that later starts load them from there.

    Without numba, does nothing.
    """
    for name in KERNELS:
        load_kernel(name)
