"""Steps that something other than the policy decided, with a plan `Replay`."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from support.batch import load

from relaax_like.agent.data_processor import ComputationDataProcessor
from relaax_like.algorithm.acting import make_actor
from relaax_like.algorithm.model import get_variables
from relaax_like.core.metrics import NullMetrics
from relaax_like.core.prediction import ONLY_NAME
from relaax_like.core.records import LearnRequest
from relaax_like.experience.rollout import Executed, Rollout, RolloutBuffer, make_agent_ids
from relaax_like.learn.frozen_policy import FrozenPolicy
from relaax_like.learn.replayed import make_table
from relaax_like.rlx_server.hosting import BatchHost
from relaax_like.rlx_server.slots import SlotSpec
from relaax_like.rlx_server.transition import ReceivedStep

SLOTS, STEPS = 2, 3


class Keeping(FrozenPolicy):
    """Keeps the rollouts that agents submit."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.rollouts: list[Rollout] = []

    def submit(self, work: LearnRequest) -> None:
        if work.rollout is not None:
            self.rollouts.append(work.rollout)
        super().submit(work)


@pytest.mark.parametrize(("history", "marks"), [(1, False), (2, False), (1, True)])
def test_they_are_steps_like_all_others_with_the_executed_actions(
    history: int, marks: bool
) -> None:
    """Slot 0 is overridden in every second step, and its episode continues."""
    config = load("config", "dqn").Config.model_validate(
        {
            "state_size": 2,
            "num_actions": 3,
            "network": {"layers": (5,)},
            "rollout_steps": STEPS,
            "observation_history": history,
            "batch_size": 4,
            "prior_overridden": marks,
            "warm_up_steps": 0,
            "updates_at_once": 2 * SLOTS * STEPS,
        }
    )
    model = load("model", "dqn").make_model(config, 0)
    keeping = Keeping([variable.value for variable in get_variables(model)], 0)
    processor = ComputationDataProcessor(
        make_actor(model, 0, config), keeping, NullMetrics(), "test"
    )
    host = BatchHost(config, lambda: {ONLY_NAME: processor})
    slots: Any = host.make_slot_agents(
        SlotSpec(config.observation_spaces, config.action_spaces, SLOTS, client_id="x")
    )
    assert "executed" not in slots.unsupported
    carried_out = []
    executed: Any = None
    for step in range(2 * STEPS + 1):
        seen = {"observation": np.full((SLOTS, 2), step, np.float32)}
        first = ReceivedStep(
            observations=seen,
            rewards=None if step == 0 else np.full((SLOTS, 1), step, np.float32),
            terminated=None if step == 0 else np.zeros(SLOTS, bool),
            truncated=None if step == 0 else np.zeros(SLOTS, bool),
            ended=None,
            final_observations=None,
            success=None,
        )
        slots.observe(first if step == 0 else first._replace(executed=executed))
        given = slots.decide(host.predict([slots.request()])[0]).actions["action"]
        taken = given.copy()
        if step % 2 == 0:
            taken[0] = (given[0] + 1) % 3
        carried_out.append(taken)
        executed = {"action": taken}
    slots.close()
    host.close()
    assert len(keeping.rollouts) == 2
    actions = np.concatenate([rollout.actions["action"] for rollout in keeping.rollouts])
    np.testing.assert_array_equal(actions, carried_out[:-1])
    table = make_table(
        config.plan, model, {"observation": history} if history > 1 else {}, SLOTS, 0
    )
    found: list[Any] = []
    for rollout in keeping.rollouts:
        assert rollout.valid is None
        found.append(rollout.extras.get("overridden"))
        rollout = dataclasses.replace(rollout, extras={})
        assert (rollout.next_alive == 1).all()
        assert table.insert(rollout) is not None
    if marks:
        overridden = np.arange(2 * STEPS) % 2 == 0
        want = np.stack([overridden, np.zeros_like(overridden)], 1).astype(np.float32)
        np.testing.assert_array_equal(np.concatenate(found), want)
    else:
        assert found == [None, None]
    drawn = table.sample(2 * SLOTS * STEPS)
    assert drawn is not None
    # Each step is followed by the next one, with the observations before it.
    before, after = drawn.observations["observation"], drawn.next_observations["observation"]
    np.testing.assert_array_equal(after[..., -2:], before[..., -2:] + 1)
    if history > 1:
        np.testing.assert_array_equal(after[..., :2], before[..., -2:])


def test_only_slots_that_were_overridden_change() -> None:
    buffer = RolloutBuffer(1, make_agent_ids("test", 3), "keep")
    seen = {"x": np.zeros((3, 1), np.float32)}
    buffer.add_actions(seen, {"a": np.array([5, 6, 7])}, np.full(3, -0.5), {}, 0)
    executed = Executed({"a": np.array([0, 1, 2])}, np.array([True, False, True]))
    alive = np.array([1.0, 0.0, -1.0], np.float32)
    rollout = buffer.add_outcome(np.ones((3, 1)), alive, seen, seen, executed)
    assert rollout is not None
    assert rollout.valid is None
    assert rollout.actions["a"].tolist() == [[0, 6, 2]]
    assert rollout.log_prob.tolist() == [[0.0, -0.5, 0.0]]
    assert rollout.next_alive.tolist() == [[1.0, 0.0, -1.0]]
