"""LearningPolicy: what a BaseLearner trains, as a whole iteration in one compiled call."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from relaax_like.bridge.service import Lease
from relaax_like.computation.prediction import LOG_PROB
from relaax_like.computation.updates import LearningTask, OptimizerState
from relaax_like.config.seeds import derive_seed
from relaax_like.config.update_plan import UpdatePlan
from relaax_like.experience.collector import TrainingData


class LearningPolicy:
    """A LearningTask with the plan of its iterations.

        policy = LearningPolicy(task, plan, seed)
        policy.load(parameter_server.lease())
        log_vars = policy.forward(policy.data_preprocess(training_data))
        values, optimizers = policy.get_values(), policy.get_optimizers()

    Which minibatches an update is made of depends on the seed and on the number of updates so far:
    a run that goes on from a snapshot draws what it would have drawn.
    """

    def __init__(self, task: LearningTask, plan: UpdatePlan, seed: int):
        self.global_t = 0
        self._task = task
        self._plan = plan
        self._seed = seed
        self._updates = 0
        self._names = [variable.name for variable in task.get_variables()]

    def load(self, lease: Lease) -> None:
        """Goes on from what a parameter server holds.

        Raises:
          InvalidInputError: it is of another model or optimizer.
        """
        self._task.set_values(lease.manifest.unpack(lease.values))
        self._set_optimizers(lease.slots, lease.slot_names, lease.updates)
        self.global_t = lease.global_t

    def data_preprocess(self, data: TrainingData) -> dict[str, Any]:
        """Returns the arguments of an update."""
        rollout = data.rollout
        return {
            "inputs": rollout.inputs,
            "next_inputs": rollout.next_inputs,
            "next_alive": {"alive": rollout.next_alive},
            "rewards": {"reward": rollout.rewards},
            # With the probability under the policy that acted, which may be an older one.
            "actions": {**rollout.actions, LOG_PROB: rollout.log_prob},
            "states": rollout.states,
        }

    def forward(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Makes the updates of one iteration; returns the means of costs and metrics."""
        plan = self._plan
        costs, updates = self._task.update_epochs(
            epochs=plan.epochs,
            minibatch=plan.minibatch,
            seed=derive_seed(self._seed, "minibatches", self._updates),
            axis=plan.axis,
            global_t=self.global_t,
            **arguments,
        )
        self._updates += updates
        self.global_t += plan.env_steps
        return {**costs, "updates": updates}

    def get_values(self) -> list[np.ndarray]:
        """Returns copies of all variables, in manifest order."""
        return self._task.get_values()

    def get_optimizers(self) -> OptimizerState:
        """Returns a copy of what the optimizers remember."""
        return self._task.export_optimizers()

    def state_dict(self) -> dict[str, np.ndarray]:
        """Returns values and optimizers as named arrays."""
        optimizers = self.get_optimizers()
        return {
            **{f"value/{n}": v for n, v in zip(self._names, self.get_values(), strict=True)},
            **{f"slots/{group}": slots for group, slots in optimizers.slots.items()},
            "updates": np.array(optimizers.updates),
            "global_t": np.array(self.global_t),
        }

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Goes on from what `state_dict` returned.

        Raises:
          InvalidInputError: it is of another model or optimizer.
        """
        known = self._task.export_optimizers()
        self._task.set_values([state[f"value/{name}"] for name in self._names])
        slots = {group: state[f"slots/{group}"] for group in known.slots}
        self._set_optimizers(slots, known.slot_names, int(state["updates"]))
        self.global_t = int(state["global_t"])

    def _set_optimizers(
        self,
        slots: Mapping[str, np.ndarray],
        slot_names: Mapping[str, Sequence[str]],
        updates: int,
    ) -> None:
        names = {group: tuple(one) for group, one in slot_names.items()}
        self._task.import_optimizers(OptimizerState(updates, slots, names))
        self._updates = updates
