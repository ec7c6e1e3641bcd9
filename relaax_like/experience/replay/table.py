"""Table: storage, items, selector and rate limiter, behind one lock."""

import copy
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaax_like.experience.replay.items import Items, Minibatches, TransitionBatch
from relaax_like.experience.replay.rate_limiter import RateLimiter
from relaax_like.experience.replay.selectors import Balanced, Prioritized, Selector
from relaax_like.experience.replay.storage import Change, Storage
from relaax_like.experience.rollout import Rollout
from relaax_like.wire.errors import InvalidInputError

# Settings that choose a part of the table; the limiter has none.
_HINTS = {
    "items": " (see sequence_steps and hindsight of the plan Replay)",
    "selector": " (see priority_exponent and balance_rewards of the plan Replay)",
}


@dataclass(frozen=True)
class TableCounts:
    """Counts of a table; while it is in use, only `rows`, `items` and `deficit` can decrease.

    Attributes:
      rows: number of rows in the table now; see `kernels` for what a row is.
      items: number of items in the table now.
      steps: environment steps that were inserted.
      minibatches: number of minibatches that were sampled.
      deficit: minibatches that are due and were not sampled; 0 without a limiter.
      prior_items: number of items in the table that was passed to `Table.mix`; None: there is none.
    """

    rows: int
    items: int
    steps: int
    minibatches: int
    deficit: float
    prior_items: int | None = None


class Table:
    """Stores agents' steps, and draws minibatches from them.

        table = Table(
            Storage(RowSpec.from_rollout(rollout), capacity=1_000_000),
            Transitions(n_step=3, discount=0.99),
            Prioritized(alpha=0.6),
            minibatch_size=256,
            limiter=RateLimiter(1.0, warm_up_steps=10_000, max_segment_steps=64),
        )
        table.insert(rollout)                        # agents' threads
        batch = table.sample()                       # the learner's
        table.update_priorities(batch.ids, errors)

    Nothing waits here: with a limiter, `can_insert` and `can_sample` say who should, either those
    who insert, or those who sample, never both. Sampling is possible once enough steps were
    inserted and an item is complete; inserting, unless the learner is behind and has something to
    sample.

    A second table, with recorded steps, can be a part of each minibatch: see `mix`.

    Everything is in memory, and lost with the process; `learn.replay_log` keeps rollouts on disk.
    Thread-safe: all calls are made under one lock.
    """

    def __init__(
        self,
        storage: Storage,
        items: Items,
        selector: Selector,
        *,
        minibatch_size: int,
        limiter: RateLimiter | None = None,
        seed: int = 0,
    ):
        """Starts empty.

        Args:
          storage: holds the rows; must be empty; belongs to the table.
          items: what minibatches consist of.
          selector: chooses the items of each minibatch; belongs to the table.
          minibatch_size: number of items in a minibatch (B), 1 or more.
          limiter: keeps the updates per step in a range; belongs to the table; None: minibatches
            can be sampled as soon as there is an item.
          seed: of the random generator.

        Raises:
          ConfigError: the table does not fit into memory.
        """
        storage.validate_memory(selector.bytes_per_row)
        self._storage = storage
        self._items = items
        self._selector = selector
        self._limiter = limiter
        self._prior: Table | None = None
        self._prior_size = 0
        self._batch_size = minibatch_size
        self._seed = seed
        self._random = np.random.Generator(np.random.PCG64(seed))
        storage.start(items.rule)
        selector.start(storage.capacity)
        # Guards all that follows, and what is above.
        self._lock = threading.RLock()
        self._num_items = 0
        self._steps = 0
        self._minibatches = 0
        self._evicted = 0
        self._dropped = 0  # errors of evicted items

    @property
    def counts(self) -> TableCounts:
        """Counts at this moment."""
        with self._lock:
            return TableCounts(
                rows=self._storage.num_rows,
                items=self._num_items,
                steps=self._steps,
                minibatches=self._minibatches,
                deficit=self._limiter.deficit if self._limiter else 0.0,
                prior_items=self._prior._num_items if self._prior else None,
            )

    @property
    def rows(self) -> tuple[int, int]:
        """Ids of the oldest row and of the row that is inserted next; no id is used twice."""
        with self._lock:
            return self._storage.oldest_id, self._storage.next_id

    def mix(self, prior: "Table", size: int) -> None:
        """Draws a part of each minibatch from another table, with this one's random generator.

        It has the last columns of each array, whose `ids` are -1 - the id in the other table. While
        it has no items, minibatches come from this table alone.
        Nothing else changes: limiter, counts and state are those of this table alone.

        Source: symmetric sampling, Ball et al. 2023, https://arxiv.org/abs/2302.02948, section 4.1,
        there with one half each.

        Args:
          prior: with the same columns, and transitions like those of this table.
          size: number of items in each minibatch that come from it, 1 to `minibatch_size` - 1.
        """
        with self._lock:
            self._prior, self._prior_size = prior, size

    def insert_prior(self, rollout: Rollout) -> None:
        """Adds a segment to the table that was passed to `mix`, if there is one; see `insert`."""
        if self._prior is not None:
            self._prior.insert(rollout)

    def insert(self, rollout: Rollout) -> Change:
        """Adds the steps of a segment, `[T, k]`, whether or not `can_insert`; copies its arrays.

        Args:
          rollout: the segment; its holes are not stored.

        Returns:
          What was inserted, completed and evicted.

        Raises:
          InvalidInputError: the segment does not fit the storage (see `Storage.insert`); nothing
            was changed.
        """
        with self._lock:
            change = self._storage.insert(rollout)
            self._apply(change)
            return change

    def validate(self, rollout: Rollout) -> None:
        """Checks that the table can take a segment, now or later.

        Raises:
          InvalidInputError: see `insert`.
        """
        with self._lock:
            self._storage.validate(rollout)

    def sample(self, minibatches: int = 1) -> Minibatches | None:
        """Returns U minibatches of B items; see `TransitionBatch` and `SequenceBatch`.

        Args:
          minibatches: number of minibatches (U).

        Returns:
          The minibatches, whose arrays are copies; None: so many are not due, or there is nothing
          to draw.

        Raises:
          InvalidInputError: `minibatches` is below 1, or the limiter was made for fewer.
          ConfigError: `compute_rewards` of `Hindsight` did not return two arrays `[N]`.
          Exception: an error of `compute_rewards`.
        """
        limiter = self._limiter
        if minibatches < 1 or (limiter and minibatches > limiter.max_minibatches):
            expected = "1 or more"
            if limiter and minibatches >= 1:
                expected = (
                    f"at most {limiter.max_minibatches}; request fewer, or raise max_minibatches "
                    "of RateLimiter"
                )
            raise InvalidInputError(
                f"replay: {minibatches} minibatches requested, expected {expected}",
                "minibatches",
            )
        with self._lock:
            if not self._can_sample(minibatches):
                return None
            prior = self._prior if self._prior and self._prior.can_sample() else None
            size = self._batch_size - (self._prior_size if prior else 0)
            ids, weights = self._selector.draw(minibatches, size, self._random, self._minibatches)
            if limiter:
                limiter.note_sample(minibatches)
            self._minibatches += minibatches
            mine = self._items.gather(self._storage, ids, weights, self._random)
            if prior is None:
                return mine
            return _join(mine, prior._draw(minibatches, self._prior_size, self._random))

    def can_insert(self, steps: int) -> bool:
        """Returns whether the limiter lets a segment of `steps` steps be inserted now."""
        with self._lock:
            return self._can_insert(steps)

    def can_sample(self, minibatches: int = 1) -> bool:
        """Returns whether `minibatches` minibatches would be returned now."""
        with self._lock:
            return self._can_sample(minibatches)

    def update_priorities(self, ids: np.ndarray, errors: np.ndarray) -> None:
        """Updates the priorities of items from the results of an update, such as value errors.

        Args:
          ids: [...] int64, the `ids` of minibatches that `sample` returned.
          errors: [...] of the same shape; if an item occurs twice, its last error counts. Those of
            items that were evicted after they had been drawn are ignored.

        Raises:
          InvalidInputError: the shapes differ, or the selector has priorities and an error is not
            finite; nothing was changed.
        """
        if np.shape(ids) != np.shape(errors):
            raise InvalidInputError(
                f"replay: errors have shape {list(np.shape(errors))}, expected "
                f"{list(np.shape(ids))}, the shape of ids; pass one error for each item",
                "errors",
            )
        flat = np.ascontiguousarray(ids, np.int64).reshape(-1)
        with self._lock:
            errors = np.asarray(errors, np.float64).reshape(-1)
            self._dropped += self._selector.update(flat, errors)

    def forget(self, agents: Sequence[int]) -> None:
        """Ends the chains of slots that send nothing more, as at a gap; see `Storage`.

        Args:
          agents: numbers of the slots, the first column of `Rollout.starts`; unknown ones are
            ignored.
        """
        with self._lock:
            self._apply(self._storage.close_streams(agents))

    def get_state(self) -> dict[str, Any]:
        """Returns everything: rows, items, priorities, counts, and the random generator.

        Arrays can be views of the table's: write or copy them before it changes.
        """
        with self._lock:
            return {
                "kinds": self._name_parts(),
                "storage": self._storage.get_state(),
                "selector": self._selector.get_state(),
                "limiter": self._limiter.get_state() if self._limiter else {},
                "random": self._random.bit_generator.state,
                "counts": {
                    "items": self._num_items,
                    "steps": self._steps,
                    "minibatches": self._minibatches,
                    "evicted": self._evicted,
                    "dropped": self._dropped,
                },
            }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` returned; the table must be empty before.

        With the same settings, all further calls return exactly what they would have returned in
        the table that was saved. Not all settings are compared.

        Raises:
          InvalidInputError: the state is that of a table with another kind of items, selector or
            limiter, or with another storage (see `Storage.set_state`), and the error names the
            first difference; or the state is incomplete or damaged. The table stays empty.
        """
        with self._lock:
            kinds = state.get("kinds")
            kinds = kinds if isinstance(kinds, Mapping) else {}
            for part, name in self._name_parts().items():
                if kinds.get(part) != name:
                    there, here = (
                        str(kind).replace("NoneType", "None") for kind in (kinds.get(part), name)
                    )
                    raise InvalidInputError(
                        f"replay: the saved table was made with {part} {there}, this one with "
                        f"{here}{_HINTS.get(part, '')}; resume with the same settings, or start "
                        "with an empty table",
                        part,
                    )
            empty = copy.deepcopy(self.get_state())
            try:
                self._set_parts(state)
            except InvalidInputError:
                self._set_parts(empty)
                raise
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                self._set_parts(empty)
                raise InvalidInputError(
                    f"replay: the saved table is incomplete or damaged: {error!r:.200}; resume "
                    "from another state, or start with an empty table",
                    "table",
                ) from error

    def _set_parts(self, state: Mapping[str, Any]) -> None:
        self._storage.set_state(state["storage"])
        self._selector.set_state(state["selector"])
        if self._limiter:
            self._limiter.set_state(state["limiter"])
        self._random.bit_generator.state = state["random"]
        counts = {name: int(value) for name, value in state["counts"].items()}
        self._num_items = counts["items"]
        self._steps = counts["steps"]
        self._minibatches = counts["minibatches"]
        self._evicted = counts["evicted"]
        self._dropped = counts["dropped"]

    def set_progress(self, steps: int, minibatches: int) -> None:
        """Sets the counts of a resumed run, after its rows were inserted again.

        What is drawn from now on depends on the seed and on `minibatches`.

        Args:
          steps: environment steps that were inserted in the whole run.
          minibatches: number of minibatches that were drawn in the whole run.
        """
        with self._lock:
            self._steps, self._minibatches = steps, minibatches
            if self._limiter:
                self._limiter.set_counts(steps, minibatches)
            self._random = np.random.Generator(np.random.PCG64([self._seed, minibatches]))

    def get_priorities(self) -> dict[str, np.ndarray]:
        """Returns the priorities of all items, each identified by its first step.

        Returns:
          "keys", [n, 3] int64: agent, episode and step of the first step that is learned from;
          "priorities", [n] float64, to the power of alpha. {} if the selector has no priorities.
        """
        if not isinstance(self._selector, Prioritized):
            return {}
        with self._lock:
            ids, priorities = self._selector.get_priorities()
            keys = self._storage.keys[ids % self._storage.capacity]
        return {"keys": keys, "priorities": priorities}

    def set_priorities(self, saved: Mapping[str, np.ndarray]) -> int:
        """Restores priorities that `get_priorities` returned, for items that the table has.

        Returns:
          Number of items whose priority was restored.
        """
        if not saved or not isinstance(self._selector, Prioritized):
            return 0
        with self._lock:
            ids, _ = self._selector.get_priorities()
            mine = _join_keys(self._storage.keys[ids % self._storage.capacity])
            theirs = _join_keys(np.asarray(saved["keys"], np.int64))
            _, places, sources = np.intersect1d(mine, theirs, return_indices=True)
            self._selector.set_priorities(ids[places], np.asarray(saved["priorities"])[sources])
            return len(places)

    def _draw(self, minibatches: int, size: int, random: np.random.Generator) -> Minibatches:
        """Draws from a prior, which counts nothing, `[U, size, ...]`."""
        with self._lock:
            ids, weights = self._selector.draw(minibatches, size, random, 0)
            drawn = self._items.gather(self._storage, ids, weights, random)
        return drawn._replace(ids=-1 - ids)

    def _name_parts(self) -> dict[str, str]:
        parts = {"items": self._items, "selector": self._selector, "limiter": self._limiter}
        return {name: type(part).__name__ for name, part in parts.items()}

    def _can_insert(self, steps: int) -> bool:
        limiter = self._limiter
        if limiter is None or limiter.can_insert(steps):
            return True
        # Steps that have to come first: nothing else could let the learner continue.
        return not self._selector.can_draw

    def _can_sample(self, minibatches: int) -> bool:
        limiter = self._limiter
        return self._selector.can_draw and (limiter is None or limiter.can_sample(minibatches))

    def _apply(self, change: Change) -> None:
        """Brings the selector and the counts up to date."""
        if len(change.removed):
            self._selector.remove(change.removed)
        if isinstance(self._selector, Balanced):
            has_reward = self._items.have_rewards(self._storage, change.added)
            self._selector.insert(change.added, has_reward)
        else:
            self._selector.insert(change.added)
        self._num_items += len(change.added) - len(change.removed)
        self._evicted += len(change.removed)
        self._steps += change.steps
        if self._limiter:
            self._limiter.note_insert(change.steps)
            if self._num_items and not self._selector.can_draw:
                self._limiter.drop_due()


def _join(mine: Minibatches, others: Minibatches) -> Minibatches:
    """Returns minibatches of single steps with the columns of both, `[U, B, ...]`."""

    def join(one: Any, other: Any) -> Any:
        if isinstance(one, Mapping):
            return {name: np.concatenate([one[name], other[name]], 1) for name in one}
        return np.concatenate([one, other], 1)

    return TransitionBatch(*map(join, mine, others))


def _join_keys(keys: np.ndarray) -> np.ndarray:
    """Returns rows `[n, 3] int64` as numbers that can be compared, `[n]`."""
    whole = np.ascontiguousarray(keys)
    return whole.view([(name, np.int64) for name in ("agent", "episode", "step")]).reshape(-1)
