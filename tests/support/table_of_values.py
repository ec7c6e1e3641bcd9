"""Steps of a tiny table of values, learned from as in a run."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from relaax_like.agent.data_processor import Arrays
from relaax_like.config.plan import OnPolicy
from relaax_like.experience.rollout import ALIVE, RolloutBuffer
from relaax_like.learn.collected import make_collector
from relaax_like.learn.learning_policy import LearningPolicy
from relaax_like.learn.updates import CompiledUpdates
from relaax_like.nn.module import as_tf_variable
from support.batch import load

# State, action, reward, next state, and what `next_alive` is.
Step = tuple[int, int, float, int, float]


def learn_table(algorithm: str, table: Any, steps: Sequence[Step], **settings: Any) -> list[Any]:
    """Learns from steps of one slot as they come.

    Args:
      algorithm: its folder.
      table: the first values, `[states, actions]`.
      steps: one after another; a step after the end of an episode begins the next one.
      settings: of the algorithm.

    Returns:
      The table after each step.
    """
    options = {"num_states": len(table), "num_actions": len(table[0]), **settings}
    config = load("config", algorithm).Config.model_validate(options)
    model = load("model", algorithm).make_model(config, 0)
    made = load("algorithm", algorithm).make_algorithm(config, model, 0)
    made.model.xla = False
    [variable] = [as_tf_variable(one) for one in model.values.find_variables()]
    variable.assign(np.asarray(table, np.float32))
    plan: OnPolicy = config.plan
    policy = LearningPolicy(CompiledUpdates(made, config.optimizers), plan, 0)
    buffer = RolloutBuffer(plan.rollout_steps, np.zeros(1, np.int64), overlap=plan.overlap)
    collector = make_collector(plan, 8)
    tables = []

    def observe(state: int) -> Arrays:
        return {"observation": np.array([[state]])}

    for index, (state, action, reward, following, alive) in enumerate(steps):
        actions, log_prob = {"action": np.array([action])}, np.zeros(1, np.float32)
        buffer.add_actions(observe(state), actions, log_prob, {}, 0)
        begins = steps[index + 1][0] if index + 1 < len(steps) else 0
        rollout = buffer.add_outcome(
            np.array([[reward]], np.float32),
            np.array([alive], np.float32),
            observe(following if alive == ALIVE else begins),
            None if alive == ALIVE else observe(following),
        )
        if rollout is not None:
            collector.add(rollout)
        while (data := collector.get_training_data()) is not None:
            policy.forward(policy.data_preprocess(data))
        tables.append(variable.numpy().copy())
    return tables
