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
import typing
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np

from relaax_like.loops import LoopType, compile_loop

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

# Types of the arguments; those that begin with "Out" are written to.
Ids = Annotated[np.ndarray, LoopType("int64", 1)]
Table = Annotated[np.ndarray, LoopType("int64", 2)]
Flags = Annotated[np.ndarray, LoopType("bool_", 2)]
Alive = Annotated[np.ndarray, LoopType("float32", 2)]
Masses = Annotated[np.ndarray, LoopType("float64", 1)]
Nodes = Annotated[np.ndarray, LoopType("float64", 2)]
OutIds = Annotated[np.ndarray, LoopType("int64", 1, True)]
OutTable = Annotated[np.ndarray, LoopType("int64", 2, True)]
OutFlags = Annotated[np.ndarray, LoopType("bool_", 1, True)]
OutNumbers = Annotated[np.ndarray, LoopType("float32", 1, True)]
OutNumberTable = Annotated[np.ndarray, LoopType("float32", 2, True)]
OutNodes = Annotated[np.ndarray, LoopType("float64", 2, True)]
_SCALARS: dict[Any, LoopType] = {
    int: LoopType("int64"),
    float: LoopType("float64"),
    bool: LoopType("bool_"),
}


def count_rows(next_alive: Alive, valid: Flags, differs: Flags, closes: bool) -> tuple[int, int]:
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


def match_streams(
    valid: Flags,
    slots: Ids,
    starts: Table,
    streams: OutTable,
    oldest: int,
    joins: OutFlags,
    closing: OutIds,
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


def insert_rows(
    next_alive: Alive,
    valid: Flags,
    differs: Flags,
    joins: OutFlags,
    slots: Ids,
    starts: Table,
    versions: Ids,
    num_history: int,
    closes: bool,
    next_id: int,
    oldest: int,
    capacity: int,
    reach: int,
    now: int,
    rule: OutIds,
    links: OutTable,
    streams: OutTable,
    pending: OutTable,
    sources: OutTable,
    complete: OutIds,
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


def close_streams(
    closing: OutIds,
    num_closing: int,
    next_id: int,
    oldest: int,
    capacity: int,
    reach: int,
    links: OutTable,
    streams: OutTable,
    pending: OutTable,
    sources: OutIds,
    complete: OutIds,
) -> tuple[int, int]:
    """Ends chains: the newest observation of each stream becomes a row.

    Returns:
      Number of rows, whose streams are in `sources`, and of items in `complete`.
    """
    row, found = next_id, 0
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


def evict_rows(
    oldest: int,
    new_oldest: int,
    capacity: int,
    reach: int,
    links: OutTable,
    removed: OutIds,
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


def find_transitions(
    ids: Ids,
    n_step: int,
    discount: float,
    capacity: int,
    links: OutTable,
    rewards: OutNumberTable,
    log_prob: OutNumbers,
    rows: OutIds,
    tokens: OutIds,
    places: OutIds,
    item_keys: OutTable,
    returns: OutNumberTable,
    discounts: OutNumbers,
    lengths: OutIds,
    item_log_prob: OutNumbers,
    item_versions: OutIds,
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


def find_sequences(
    ids: Ids,
    num_steps: int,
    burn_in: int,
    oldest: int,
    capacity: int,
    links: OutTable,
    tokens: OutTable,
    counts: OutTable,
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


def find_goals(
    ids: Ids,
    uniforms: Masses,
    strategy: int,
    oldest: int,
    capacity: int,
    links: OutTable,
    places: OutIds,
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


def find_stacks(
    tokens: Ids,
    oldest: int,
    capacity: int,
    links: OutTable,
    streams: OutTable,
    places: OutTable,
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


def add_members(ids: Ids, count: int, members: OutIds, index: OutIds) -> None:
    """Appends ids to `members[:count]`, and writes their positions there to `index`."""
    capacity = index.size
    for i in range(ids.size):
        members[count + i] = ids[i]
        index[ids[i] % capacity] = count + i


def remove_members(ids: Ids, count: int, members: OutIds, index: OutIds) -> None:
    """Removes ids from `members[:count]`: the last member takes the place of each."""
    capacity = index.size
    for i in range(ids.size):
        place = index[ids[i] % capacity]
        count -= 1
        moved = members[count]
        members[place] = moved
        index[moved % capacity] = place


def set_leaves(positions: Ids, numbers: Masses, nodes: OutNodes) -> None:
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


def find_leaves(masses: Masses, nodes: Nodes, positions: OutIds) -> None:
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


@functools.cache
def load_kernel(loop: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a loop of this module, or loads it from numba's cache."""
    if importlib.util.find_spec("numba"):
        types = typing.get_type_hints(loop, include_extras=True)
        returned = types.pop("return")
        arguments = [
            _SCALARS[one] if one in _SCALARS else one.__metadata__[0] for one in types.values()
        ]
        number = len(typing.get_args(returned)) or int(returned is int)
        try:
            return compile_loop(loop, arguments, number)
        except ImportError as error:  # numba is there, but too old for this NumPy, or broken
            logger.warning(
                "cannot import numba, so the replay table is very slow: %s; install a version of "
                "numba that supports this NumPy",
                error,
            )
    return loop


LOOPS = (
    *(count_rows, match_streams, insert_rows, close_streams, evict_rows, find_transitions),
    *(find_sequences, find_goals, find_stacks, add_members, remove_members, set_leaves),
    find_leaves,
)


def compile_kernels() -> None:
    """Compiles every loop into numba's cache, so that later starts load them from there."""
    for loop in LOOPS:
        load_kernel(loop)
