"""ddpg: its updates against a slow reference. covers X19"""

import numpy as np
from support.deterministic import compute_losses, draw_batches, make, make_reference, update_all


def test_the_costs_are_those_of_the_paper():
    _, model, algorithm = make("ddpg")
    batch = draw_batches()[0]
    slow = make_reference(model, critics=1, delay=1)
    losses, want = compute_losses(algorithm, batch), slow.compute_costs(slow.values, batch)
    for name in ("critic", "actor"):
        np.testing.assert_allclose(losses.costs[name], want[name], rtol=1e-5)
    [errors] = slow.compute_errors(slow.values, batch)
    np.testing.assert_allclose(losses.rows["priority"], np.abs(errors), rtol=1e-4)


def test_a_sequence_of_updates_is_that_of_the_paper():
    config, model, algorithm = make("ddpg")
    slow = make_reference(model, critics=1, delay=1)
    start = dict(slow.values)
    for batch in draw_batches():
        slow.update(batch)
    found = update_all(config, algorithm, draw_batches())
    assert found.keys() == slow.values.keys()
    for name, want in slow.values.items():
        np.testing.assert_allclose(found[name], want, rtol=1e-4, atol=1e-5, err_msg=name)
        assert np.abs(want - start[name]).max() > 1e-3, name
