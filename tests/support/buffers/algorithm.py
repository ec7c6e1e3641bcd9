"""Moving means and variances of observations, and a count of the critic's steps."""

from relaax_like.algorithm import Algorithm, Batch, Losses

from .config import Config
from .model import MovingModel


class Moving(Algorithm):
    autograph = False
    max_gradient_norm = 0.5

    def learn(self, batch: Batch) -> Losses:
        model, x = self.model, batch.inputs["observation"]
        policies, _ = model.policy(batch.inputs, batch.memory)
        log_prob = policies["action"].log_prob(batch.actions["action"])
        costs = {
            "actor": -batch.mean(log_prob * batch.returns),
            "critic": batch.mean((batch.returns - model.critic(x)) ** 2),
        }
        updates = {"critic.steps": model.critic.steps.variable + 1.0}
        for name, new in zip(("mean", "variance"), batch.moments(x), strict=True):
            old = getattr(model, name).variable
            updates[name] = old + self.config.rate * (new - old)
        return Losses(costs, updates=updates)


def make_algorithm(config: Config, model: MovingModel, seed: int) -> Moving:
    return Moving(model, config, seed)
