"""A server of a run with masks of legal actions, and what clients in any language play with it.

Their environments have three slots, which observe `observation`, four numbers, and act with `move`,
one of four choices from 2, and `arms`, two components of three and two choices.
"""

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np

from relaax_like.wire.spaces import Discrete, MultiDiscrete

from .batch import make_config, serve_a2c, serve_batch

# Leaf -> choices of each component.
SIZES = {"move": [4], "arms": [3, 2]}
ACTIONS = {"move": Discrete(n=4, start=2), "arms": MultiDiscrete(n=(3, 2), shape=(2,))}
CONFIG = make_config(
    layers=(8,),
    rollout_steps=4,
    num_actions=None,
    actions={"move": {"num": 4}, "arms": {"num": (3, 2)}},
    masks={name: tuple(sizes) for name, sizes in SIZES.items()},
)
SLOTS = 3


def draw_masks(random: np.random.Generator, slots: int = SLOTS) -> dict[str, np.ndarray]:
    """Returns masks with one to all legal choices in each component."""
    masks = {}
    for name, sizes in SIZES.items():
        parts = []
        for n in sizes:
            part = random.random((slots, n)) < 0.4
            part[np.arange(slots), random.integers(n, size=slots)] = True
            parts.append(part)
        masks[name] = np.concatenate(parts, -1)
    return masks


def is_legal(actions: dict[str, np.ndarray], masks: dict[str, np.ndarray]) -> bool:
    """Returns whether the actions of all slots are legal."""
    rows = np.arange(len(actions["move"]))
    arms = actions["arms"]
    return bool(
        masks["move"][rows, actions["move"] - 2].all()
        and masks["arms"][rows, arms[:, 0]].all()
        and masks["arms"][rows, 3 + arms[:, 1]].all()
    )


@contextlib.contextmanager
def serve_masked(has_masks: bool = True) -> Iterator[int]:
    """Serves the run, or one without masks; yields the port."""
    config = CONFIG if has_masks else CONFIG.model_copy(update={"masks": {}})
    with serve_a2c(config) as server, serve_batch(server, config) as port:
        yield port


def check_choices(lines: Sequence[str]) -> None:
    """Checks that all actions were legal, and that legal ones were not avoided.

    Args:
      lines: for each action of a slot its nine flags, and the three chosen numbers, such as
        `110001101 3 2 0`.
    """
    chosen = set()
    for line in lines:
        flags, *numbers = line.split()
        move, *arms = map(int, numbers)
        assert len(flags) == 9
        assert [flags[move - 2], flags[4 + arms[0]], flags[7 + arms[1]]] == ["1"] * 3, line
        chosen |= {("move", move), ("first", arms[0]), ("second", arms[1])}
    assert len(chosen) == 4 + 3 + 2
    assert sum("0" in line.split()[0] for line in lines) > len(lines) // 2
