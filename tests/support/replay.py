"""Random segments, and a slow reference of the replay table's rows and items."""

from dataclasses import dataclass, field

import numpy as np

from relaax_like.experience.rollout import ALIVE, TERMINATED, TRUNCATED, Rollout, get_valid
from relaax_like.replay import RowSpec

REWARDS = 2
HISTORY = {"pixels": 3, "touch": 2}


@dataclass
class Agent:
    """A slot of an environment; each observation is a number of its own."""

    number: int
    episode: int = 0
    step: int = 0
    seen: list[int] = field(default_factory=list)  # in this episode


class World:
    """Makes segments of slots that end episodes, take no part in steps, and lose segments."""

    def __init__(self, seed: int, agents: int = 4, zeros: float = 0.0):
        self.random = np.random.default_rng(seed)
        self.zeros = zeros  # share of the steps whose rewards are 0
        self.agents = [Agent(100 + i) for i in range(agents)]
        self._observations = 0

    def observe(self) -> int:
        self._observations += 1
        return self._observations

    def make_segment(
        self,
        length: int,
        slots: list[int],
        *,
        ends: float = 0.15,
        holes: float = 0.15,
        differs: float = 0.05,
        history: bool = True,
        starts: bool = True,
    ) -> Rollout:
        random, width = self.random, len(slots)
        shape = (length, width)
        inputs, following = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        next_alive = np.full(shape, ALIVE, np.float32)
        earlier = np.zeros((2, width), np.int64)
        agents = [self.agents[slot] for slot in slots]
        first = np.array([[a.number, a.episode, a.step] for a in agents], np.int64)
        valid = random.random(shape) >= holes
        for column, agent in enumerate(agents):
            agent.seen = agent.seen or [self.observe()]
            before = [agent.seen[max(0, len(agent.seen) - 1 - age)] for age in (2, 1)]
            earlier[:, column] = before
            for t in range(length):
                inputs[t, column] = agent.seen[-1]
                agent.seen.append(self.observe())
                following[t, column] = agent.seen[-1]
                agent.step += 1
                if random.random() < ends:
                    next_alive[t, column] = random.choice([TERMINATED, TRUNCATED])
                    agent.seen = [self.observe()]
                    agent.episode, agent.step = agent.episode + 1, 0
                elif t < length - 1 and random.random() < differs:
                    following[t, column] = self.observe()
        rewards = random.standard_normal((*shape, REWARDS)).astype(np.float32)
        if self.zeros:
            rewards[random.random(shape) < self.zeros] = 0.0
        return Rollout(
            inputs=show_all(inputs),
            next_inputs=show_all(following),
            next_alive=next_alive,
            rewards=rewards,
            actions={"action": random.integers(0, 5, shape)},
            log_prob=random.standard_normal(shape).astype(np.float32),
            states={},
            versions=np.sort(random.integers(0, 100, length)),
            valid=valid if holes else None,
            starts=first if starts else None,
            extras={"priority": random.random(shape).astype(np.float32)},
            history={n: show_all(earlier)[n][3 - k :] for n, k in HISTORY.items()}
            if history
            else {},
        )

    def lose_segment(self, length: int, slot: int) -> None:
        """Plays on without sending anything."""
        self.make_segment(length, [slot])


def show_all(numbers: np.ndarray) -> dict[str, np.ndarray]:
    """Returns observations `[..., shape]` of numbers `[...]`."""
    pixels = numbers[..., None, None, None] * np.ones((2, 2, 1))
    vector = numbers[..., None] + np.array([0.0, 0.25, 0.5])
    touch = numbers[..., None] * np.array([1, -1])
    return {
        "pixels": pixels.astype(np.float32),
        "vector": vector,
        "touch": touch.astype(np.int32),
    }


SPEC = RowSpec.from_rollout(World(0).make_segment(1, [0]))


@dataclass
class Row:
    """A step, or an observation alone. Observations are numbers."""

    id: int
    observation: int
    previous: "Row | None" = None
    next: "Row | None" = None  # the next step of the chain
    is_step: bool = True
    key: tuple[int, int, int] = (0, 0, 0)
    position: int = 0
    reward: np.ndarray | None = None
    action: int = 0
    log_prob: float = 0.0
    version: int = 0
    extra: float = 0.0
    alive: float = ALIVE
    following: int = 0  # the observation after it
    is_cut: bool = False  # by a gap


class Reference:
    """Rows, linked one by one; items, as their definition says."""

    def __init__(self, has_history: bool):
        self.has_history = has_history
        self.rows: dict[int, Row] = {}
        self.next_id = 0
        self.oldest_id = 0
        self.tails: dict[int, Row] = {}
        self.expected: dict[int, tuple[int, int]] = {}

    def add(self, observation: int, **values) -> Row:
        row = Row(self.next_id, observation, **values)
        self.rows[row.id] = row
        self.next_id += 1
        return row

    def evict(self, oldest_id: int) -> None:
        self.oldest_id = oldest_id
        self.rows = {i: row for i, row in self.rows.items() if i >= oldest_id}
        self.tails = {a: row for a, row in self.tails.items() if row.id >= oldest_id}

    def cut(self, agent: int) -> None:
        tail = self.tails.pop(agent, None)
        if tail is not None:
            tail.is_cut = True
            self.add(tail.following, previous=tail, is_step=False)

    def insert(self, rollout: Rollout, oldest_id: int) -> None:
        self.evict(oldest_id)
        valid = get_valid(rollout)
        length, width = valid.shape
        numbers = rollout.inputs["vector"][..., 0].astype(int)
        followers = rollout.next_inputs["vector"][..., 0].astype(int)
        is_known = rollout.starts is not None
        starts = rollout.starts if is_known else np.zeros((width, 3), np.int64) - [1, 0, 0]
        last: list[Row | None] = []
        for s, (agent, episode, step) in enumerate(starts.tolist()):
            agrees = is_known and self.expected.get(agent) == (episode, step)
            if is_known and not (agrees and valid[0, s]):
                self.cut(agent)
            last.append(self.tails.pop(agent, None) if is_known else None)
        if self.has_history and rollout.history:
            earlier = rollout.history["pixels"][..., 0, 0, 0].astype(int)
            joined = list(last)
            for i in range(len(earlier)):
                for s in range(width):
                    if joined[s] is None and valid[0, s] and starts[s, 2] > 0:
                        last[s] = self.add(earlier[i, s], previous=last[s], is_step=False)
        ids = [[e, s] for _, e, s in starts.tolist()]
        for t in range(length):
            for s in range(width):
                alive = rollout.next_alive[t, s]
                if valid[t, s]:
                    before = last[s]
                    row = self.add(
                        numbers[t, s],
                        previous=before,
                        key=(int(starts[s, 0]), *ids[s]),
                        position=before.position + 1 if before and before.is_step else 0,
                        reward=rollout.rewards[t, s],
                        action=int(rollout.actions["action"][t, s]),
                        log_prob=rollout.log_prob[t, s],
                        version=int(rollout.versions[t]),
                        extra=rollout.extras["priority"][t, s],
                        alive=alive,
                        following=followers[t, s],
                    )
                    if before is not None and before.is_step:
                        before.next = row
                    last[s] = row
                    is_last = t == length - 1
                    row.is_cut = alive == ALIVE and (
                        not is_known
                        if is_last
                        else not valid[t + 1, s] or numbers[t + 1, s] != followers[t, s]
                    )
                    if row.is_cut or alive != ALIVE:
                        self.add(followers[t, s], previous=row, is_step=False)
                        last[s] = None
                ids[s][1] += 1
                if alive != ALIVE:
                    ids[s] = [ids[s][0] + 1, 0]
        for s, agent in enumerate(starts[:, 0].tolist()):
            if is_known:
                self.expected[agent] = tuple(ids[s])
                if last[s] is not None:
                    self.tails[agent] = last[s]

    # Items.

    def is_there(self, row: Row) -> bool:
        return row.id >= self.oldest_id

    def stack(self, row: Row, number: int) -> list[int] | None:
        """Returns the last observations, oldest first; None: some were evicted."""
        found = [row.observation]
        while len(found) < number and row.previous is not None:
            row = row.previous
            if not self.is_there(row):
                return None
            found.append(row.observation)
        return [found[-1]] * (number - len(found)) + found[::-1]

    def stack_next(self, row: Row, number: int) -> list[int]:
        before = self.stack(row, number)
        return [*before, row.following][-number:] if number > 1 else [row.following]

    def list_chain(self, row: Row) -> tuple[list[Row], bool]:
        """Returns a step and all after it, and whether the chain has ended."""
        rows = [row]
        while rows[-1].next is not None:
            rows.append(rows[-1].next)
        return rows, rows[-1].alive != ALIVE or rows[-1].is_cut

    def list_steps(self, history: int) -> list[Row]:
        """Returns the steps that have all their observations."""
        return [r for r in self.rows.values() if r.is_step and self.stack(r, history) is not None]

    def find_transition(self, row: Row, n: int, discount: float):
        """Returns return, discount, last step; None: it is not complete."""
        rows, has_ended = self.list_chain(row)
        if len(rows) < n and not has_ended:
            return None
        rows = rows[:n]
        total = sum(discount**i * r.reward.astype(np.float64) for i, r in enumerate(rows))
        factor = 0.0 if rows[-1].alive == TERMINATED else discount ** len(rows)
        return total, factor, rows

    def find_sequence(self, row: Row, steps: int, burn_in: int, period: int):
        """Returns steps that are burnt in, and others; None: it is no item, or not complete."""
        rows, has_ended = self.list_chain(row)
        learned = steps - burn_in
        if row.position % period or (len(rows) < learned and not has_ended):
            return None
        before: list[Row] = []
        while len(before) < burn_in:
            previous = (before[0] if before else row).previous
            if previous is None or not previous.is_step or not self.is_there(previous):
                break
            before.insert(0, previous)
        return before, rows[:learned]

    def find_episode(self, row: Row):
        rows, _ = self.list_chain(row)
        is_whole = row.position == 0 and row.key[2] == 0 and rows[-1].alive != ALIVE
        return rows if is_whole else None
