"""The check that only legal actions are chosen and learned from."""

import numpy as np

from relaax_like.config.places import describe_place
from relaax_like.config.spaces import validate_run_spaces
from relaax_like.launch.conformance_subject import Failed, NotApplicable, Subject, make_zeros
from relaax_like.wire.spaces import MASK, find_legal, split_masks

_ROWS = 256
_CURE = (
    "return distributions of relaax_like.nn from Model.policy, or define restrict(mask) in yours"
)


def check_masks(subject: Subject) -> str:
    """Checks actions and an update with random masks of legal actions.

    Args:
      subject: the folder.

    Returns:
      Why no update was made; "": one was.

    Raises:
      Failed: an action is not legal, or a log-probability, a cost or a gradient is not finite.
      InvalidInputError: the masks have other numbers of choices than the actions.
      NotApplicable: neither settings nor environment have masks.
    """
    if not subject.config.masks:
        raise NotApplicable(
            "there are no masks; an environment has some, or the settings, such as with --set "
            "'algorithm.masks={action: [2]}'"
        )
    config = subject.config
    if config.action_spaces:
        validate_run_spaces(config, config.observation_spaces, config.action_spaces)
    _check_actions(subject)
    return _check_update(subject)


def _check_actions(subject: Subject) -> None:
    """Checks drawn and best actions, and their log-probabilities."""
    model = subject.make_model()
    place = describe_place(type(model), "policy")
    inputs = subject.draw(model.get_input_specs(), _ROWS, seed=15)
    masks = split_masks(inputs)[1]
    if not masks:
        raise Failed(f"{describe_place(type(model), 'get_input_specs')}: it lacks the masks")
    actor = subject.make_actor(model)
    for exploit, kind in ((False, "drawn"), (True, "best")):
        prediction = actor.act(inputs, make_zeros(model.get_state_specs(), _ROWS), exploit)
        for leaf, sizes in subject.config.masks.items():
            actions = np.asarray(prediction.actions[leaf])
            illegal = ~find_legal(masks[MASK + leaf], actions, sizes).all(-1)
            if illegal.any():
                raise Failed(
                    f"{place}: {illegal.sum()} of {_ROWS} {kind} actions {leaf!r} are not legal in "
                    f"their masks, expected none; {_CURE}"
                )
        wrong = ~np.isfinite(prediction.log_prob)
        if wrong.any():
            raise Failed(
                f"{place}: the log-probability of a {kind} action is "
                f"{np.asarray(prediction.log_prob)[wrong][0]}, expected finite numbers; {_CURE}"
            )


def _check_update(subject: Subject) -> str:
    """Checks that costs and gradients of an update are finite."""
    try:
        policy = subject.make_learning(subject.optimizers)
        data = subject.make_data(subject.make_model(), 16)
    except NotApplicable as why:
        return f"actions only: {why}"
    from relaax_like.learn.updates import NotFiniteError

    try:
        policy.forward(policy.data_preprocess(data))
    except NotFiniteError as error:
        raise Failed(
            f"{subject.folder}: with masks, {error}; logits of actions that are not legal are "
            "minus infinity: compute with log_prob and entropy of the policy's distributions, and "
            "take the best of values from Model.restrict"
        ) from None
    return ""
