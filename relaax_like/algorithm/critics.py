"""Critics of one continuous action, and an actor without randomness, for off-policy algorithms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relaax_like.algorithm.encoder import Encoder
from relaax_like.algorithm.model import Model, Specs, Tensors
from relaax_like.config.continuous import ACTOR, CRITIC, ContinuousReplayConfig, NoisyReplayConfig
from relaax_like.nn.action_heads import make_noisy_policy, squash_to_box
from relaax_like.nn.layers import Dense
from relaax_like.nn.lazy_tensorflow import tf
from relaax_like.nn.module import Module
from relaax_like.nn.networks import make_network
from relaax_like.nn.target import Target


class Critics(Module):
    """Several values of the same observations, all of them vectors, and action.

    Args:
      config: describes the observation, the action, and the layers of each network.
      seed: of the initial values.
      number: of critics.
    """

    def __init__(self, config: ContinuousReplayConfig, seed: int, number: int):
        super().__init__()
        space = config.action_space
        self._low, self._width = space.low, space.high - space.low
        self._names = sorted(config.input_shapes)
        size = sum(config.input_shapes[name][0] for name in self._names)
        shape = (size + len(self._low),)
        self.networks = [
            make_network(f"critic{i}", config.network, shape, 1, seed=seed + 1000 * i)
            for i in range(1, number + 1)
        ]

    def __call__(self, inputs: Tensors, action: tf.Tensor) -> tf.Tensor:
        """Returns `[..., number]`; an action is scaled to [-1, 1] first."""
        x = self._join(inputs, action)
        return tf.concat([network(x) for network in self.networks], -1)

    def compute_first(self, inputs: Tensors, action: tf.Tensor) -> tf.Tensor:
        """Returns the value of the first critic alone, `[...]`."""
        return self.networks[0](self._join(inputs, action))[..., 0]

    def _join(self, inputs: Tensors, action: tf.Tensor) -> tf.Tensor:
        scaled = 2.0 * (action - self._low) / self._width - 1.0
        return tf.concat([*(inputs[name] for name in self._names), scaled], -1)


class DeterministicActor(Module):
    """Maps an observation to an action within the bounds; acts in NumPy."""

    def __init__(self, config: ContinuousReplayConfig, seed: int):
        super().__init__()
        self._space = config.action_space
        self.encoder = Encoder(config, seed=seed, name="actor")
        size = len(self._space.low)
        self.head = Dense("policy", self.encoder.features, size, seed=seed + 1, gain=0.01)

    def __call__(self, inputs: Tensors) -> Any:
        """Returns `[..., d] float32`, squashed by tanh."""
        return squash_to_box(self._space, self.head(self.encoder(inputs, {})[0]))


class DeterministicModel(Model):
    """An actor without randomness, critics, and targets of both; the networks of DDPG and TD3.

    Agents add the noise `exploration_noise` to the action.

    Attributes:
      space: of the action.

    Args:
      config: describes the observation, the action, and the layers of each network.
      seed: of the initial values.
      critics: number of critics.
      target_every: updates of the critics between two of their targets; that of the actor moves
        after each step of the actor.
    """

    autograph = False
    acting: Sequence[str] = ("actor",)
    groups: Mapping[str, Sequence[str]] = {CRITIC: ("critics",), ACTOR: ("actor",)}

    def __init__(self, config: NoisyReplayConfig, seed: int, critics: int, target_every: int = 1):
        super().__init__()
        self.space = config.action_space
        self.actor = DeterministicActor(config, seed)
        self.critics = Critics(config, seed, critics)
        self.target_actor = Target(self.actor, tau=config.tau)
        self.target_critics = Target(self.critics, tau=config.tau, every=target_every)

    def get_input_specs(self) -> Specs:
        """Returns the observations."""
        return self.actor.encoder.get_input_specs()

    def get_action_specs(self) -> Specs:
        """Returns one continuous action."""
        return [("action", {"shape": list(self.space.shape)})]

    def policy(
        self, inputs: Tensors, memory: Tensors, explore: Tensors
    ) -> tuple[dict[str, Any], Tensors]:
        """Returns the action, with noise where it is drawn."""
        policy = make_noisy_policy(self.space, self.actor(inputs), explore["exploration_noise"])
        return {"action": policy}, memory
