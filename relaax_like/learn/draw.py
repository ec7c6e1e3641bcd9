"""Draw: which rows or slots of an iteration each update learns from."""

from dataclasses import dataclass

from relaax_like.config.plan import Unit


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Which rows or slots of a batch each update learns from.

    Rows that do not fill a complete minibatch are left out; each epoch leaves out different ones.

    Attributes:
      batch_size: rows, or slots, in one update; 0: all of the batch.
      minibatch_of: "steps": a batch `[B, ...]` is split along its first axis; rollouts
        `[T, k, ...]` are first flattened to T * k rows, and `learn` receives `[batch_size, ...]`.
        "rollouts": rollouts `[T, k, ...]` are split along k, and keep their steps and the memory
        before them; `learn` receives `[T, batch_size, ...]`.
      epochs: passes over the batch, 1 or more.
      seed: of the order, which is a different one in each epoch; the same seed, values and batch
        give the same result. None: one pass in the order of the batch, which consists of complete
        minibatches.
      count: number of rows or slots from which minibatches are drawn: the first slots; or, for
        steps, the rows where `extras["mask"]` is 1. The others are padding. None: all.
      minibatches: number of minibatches in an epoch, if several learners make each update together;
        None: as many as `count` fills.
    """

    batch_size: int = 0
    minibatch_of: Unit = "steps"
    epochs: int = 1
    seed: int | None = None
    count: int | None = None
    minibatches: int | None = None
