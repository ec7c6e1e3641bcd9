"""Two leaves of actions with masks of legal choices, and an a2c for them."""

import numpy as np

from relaax_like.wire.spaces import Discrete, MultiDiscrete

from .batch import make_config

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
