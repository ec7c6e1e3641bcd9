"""Settings of dqn."""

from pydantic import Field

from relaax_like.algorithm import Linear, Schedule
from relaax_like.config import DiscreteConfig, OptimizerConfig, ReplayConfig, hyper


class Config(DiscreteConfig, ReplayConfig):
    """Fields are read from the keys of the YAML's `algorithm` section."""

    double: bool = True
    """Choose the next action with the network, and value it with the target (double DQN)."""
    dueling: bool = False
    """Split the last layer into the value of the state and the advantages of actions."""
    target_every: int = Field(default=500, ge=1)
    """Updates between two copies of the network to the target."""
    epsilon: Schedule = Linear(1.0, 0.05, steps=10_000)
    """Fraction of actions that are random, by environment steps of all slots together."""
    max_gradient_norm: hyper.MaxGradientNorm = 10.0
    """Maximum gradient norm; larger gradients are scaled down; null: no limit."""
    learning_rate: hyper.LearningRate = 1e-3
    """Learning rate of Adam."""

    @property
    def optimizers(self) -> dict[str, OptimizerConfig]:
        """Adam."""
        adam = OptimizerConfig(learning_rate=self.learning_rate, epsilon=self.adam_epsilon)
        return {"default": adam}
