"""The two Algorithms: REINFORCE on linear policies, one of which never sees the observation."""

from relaax_like.algorithm import Algorithm, Batch, Losses, Model, Specs, Tensors
from relaax_like.nn.action_heads import make_policy
from relaax_like.nn.layers import Dense
from relaax_like.wire.spaces import Discrete

from .config import Config

SPACE = Discrete(n=2)


class LinearPolicy(Model):
    """Logits of one choice out of two, linear in one input of two numbers."""

    xla = False  # it would take longer to compile than to learn

    def __init__(self, sees: str, chooses: str, seed: int):
        super().__init__()
        self._sees = sees
        self._chooses = chooses
        self.layer = Dense("logits", 2, 2, seed=seed, gain=0.1)

    def get_input_specs(self) -> Specs:
        """One input: what the other Algorithm sees is not selected."""
        return [(self._sees, {"shape": [2]})]

    def get_action_specs(self) -> Specs:
        """One choice."""
        return [(self._chooses, {"shape": [], "dtype": "int64"})]

    def policy(self, inputs: Tensors, states: Tensors) -> tuple[dict, Tensors]:
        """Returns the distribution of the choice; in NumPy for arrays."""
        logits = self.layer(inputs[self._sees])
        return {self._chooses: make_policy(SPACE, logits)}, states


class Reinforce(Algorithm):
    """Williams 1992: cost = -mean(log pi(a|x) r), each choice being an episode of its own."""

    autograph = False

    def learn(self, batch: Batch) -> Losses:
        """Returns the cost of a rollout `[T, k, ...]`."""
        ((name, distribution),) = self.model.policy(batch.inputs, batch.memory)[0].items()
        log_prob = distribution.log_prob(batch.actions[name])
        return Losses({"default": -batch.mean(log_prob * batch.returns)})


def make_algorithms(config: Config, seed: int) -> dict[str, Algorithm]:
    """Builds both Algorithms."""
    return {
        "goal": Reinforce(LinearPolicy("observation", "goal", config.seed), config, seed),
        "control": Reinforce(LinearPolicy("goal", "action", config.seed + 1), config, seed + 1),
    }
