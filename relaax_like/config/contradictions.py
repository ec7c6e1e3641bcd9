"""Keys that contradict each other, or the algorithm's plan, although each of them is valid."""

from collections.abc import Iterator, Mapping
from typing import Any

from relaax_like.config.models import (
    ENVIRONMENT,
    LEARNER,
    METRICS_SERVER,
    PARAMETER_SERVER,
    RLX_SERVER,
    SECURITY,
    TLS_KEYS,
    Experiment,
    LearnerConfig,
    SecurityConfig,
)
from relaax_like.config.plan import Offline, Plan, list_plans, name_plan
from relaax_like.config.problems import describe_value
from relaax_like.config.yaml_document import Loc

# Path of a key, and what is wrong with it.
Contradiction = tuple[Loc, str]
Plans = Plan | Mapping[str, Plan] | None
# Whether a key of the section learner is wrong if it is set, the key, why, and the value instead.
_Rule = tuple[bool, str, str, str]


def find_learner_contradictions(
    learner: LearnerConfig, plan: Plans, place: str, is_joint: bool
) -> Iterator[Contradiction]:
    """Yields what contradicts the algorithm's plan, or another key, in the section `learner`.

    Args:
      learner: the section, with its placement.
      plan: the algorithm's.
      place: where it is defined.
      is_joint: whether several learners make each update together.
    """
    has_table = any(one.has_table for one in list_plans(plan))
    takes_holes = any(one.takes_gaps for one in list_plans(plan))
    kind = str(name_plan(plan) or "no plan")
    offline_place = place if isinstance(plan, Offline) else ""
    for is_wrong, key, why, cure in (
        *_rule_placement(learner, plan is None, offline_place, is_joint),
        *_rule_keys(learner, kind, has_table, takes_holes),
    ):
        value = getattr(learner, key)
        if is_wrong and value != LearnerConfig.model_fields[key].default:
            yield (LEARNER, key), f"{describe_value(value)}, but {why}; set it to {cure}"
    if learner.offline is None and isinstance(plan, Offline):
        yield (
            (LEARNER, "offline"),
            "missing, but this algorithm only learns from recorded trajectories; name a folder of "
            "them, as written by `relaax record` or by a run with learner.collect_traj: relaax "
            "train FILE --offline FOLDER",
        )
    if learner.offline is not None and not (isinstance(plan, Plan) and plan.offline):
        if isinstance(plan, Mapping):
            kind = "by name, but a recording has the rollouts of one Algorithm"
        which = "" if plan is None else f" ({place}: plan is {kind})"
        yield (
            (LEARNER, "offline"),
            f"{', '.join(learner.offline)!r}, but this algorithm{which} only learns from what its "
            "agents play; remove the key, or use an algorithm that learns from recorded "
            "trajectories",
        )


def _rule_placement(
    learner: LearnerConfig, lacks_plan: bool, offline_place: str, is_joint: bool
) -> tuple[_Rule, ...]:
    is_recorded = learner.offline is not None
    in_agent, in_server = learner.placement == "agent", learner.placement == "server"
    return (
        (
            is_joint and not in_agent,
            "placement",
            "learners that make each update together (relaax-parameter-server.combine.method: "
            "sync) are beside their agents",
            "'agent', or combine.method to fifo",
        ),
        (
            not in_agent and lacks_plan and not is_recorded,
            "placement",
            "the algorithm declares no plan, which a learner there needs for its updates",
            "'agent'",
        ),
        (
            not in_server and bool(offline_place),
            "placement",
            f"no agents play, because {offline_place}: plan is Offline",
            "'server'",
        ),
        (
            not in_server and is_recorded,
            "placement",
            "no agents play in a run that learns from files (learner.offline)",
            "'server'",
        ),
        (
            not in_agent,
            "max_lag",
            "only learners beside agents (placement: agent) use this key",
            "null",
        ),
    )


def _rule_keys(
    learner: LearnerConfig, kind: str, has_table: bool, takes_holes: bool
) -> tuple[_Rule, ...]:
    is_recorded = learner.offline is not None
    no_episodes = "no training episodes are played in a run that learns from files (offline)"
    return (
        (
            not learner.eval_freq,
            "target_eval_return",
            "there are no evaluations (learner.eval_freq is 0)",
            "null, or set learner.eval_freq",
        ),
        (
            has_table,
            "max_lag",
            "a Replay plan learns from old steps",
            "null",
        ),
        (
            not takes_holes,
            "max_segment_sec",
            "only plans of kind OnPolicy can learn from rollouts that lack steps, and those with "
            f"overlap cannot (this algorithm: {kind})",
            "null",
        ),
        (is_recorded, "workers", no_episodes, "0"),
        (is_recorded, "collect_traj", no_episodes, "false"),
        (is_recorded, "target_return", no_episodes, "null"),
        (is_recorded, "max_episodes", no_episodes, "null"),
    )


def find_plan_mistakes(plan: Any) -> Iterator[str]:
    """Yields what is wrong with something that is no plan, or with plans by name."""
    if not isinstance(plan, Mapping):
        yield (
            f"plan is {plan!r:.200}; expected OnPolicy, Episodes, Offline or Replay of "
            "relaax_like.config.plan, a mapping from name to plan, or None"
        )
        return
    if not plan:
        yield "plan is an empty mapping; add a plan for each Algorithm"
    for name, one in plan.items():
        if not isinstance(one, Plan) or isinstance(one, Offline):
            yield (
                f"the plan of {name!r} is {type(one).__name__}, but with several Algorithms each "
                "learns from its agents; expected OnPolicy, Episodes or Replay"
            )


def find_security_contradictions(section: SecurityConfig) -> Iterator[Contradiction]:
    """Yields the keys that TLS needs and does not have."""
    given = [key for key in TLS_KEYS if getattr(section, key) is not None]
    for key in TLS_KEYS if given else ():
        if key not in given:
            yield (
                (SECURITY, key),
                f"missing, but {given[0]} is set; TLS needs all of {', '.join(TLS_KEYS)}: set it, "
                f"or remove {' and '.join(given)}",
            )
    if section.tls_client_cert_required and not given:
        yield (
            (SECURITY, "tls_client_cert_required"),
            f"true, but TLS is off; set {', '.join(TLS_KEYS)} as well, or set this to false",
        )


def find_server_contradictions(sections: Mapping[str, Any]) -> Iterator[Contradiction]:
    """Yields servers on one port, and clients of the environment above the rlx server's limits.

    Args:
      sections: name -> section, or None.
    """
    binds = {
        name: section.bind
        for name, section in sections.items()
        if name.startswith("relaax-") and section is not None
    }
    for number, (name, bind) in enumerate(binds.items()):
        for other in list(binds)[:number]:
            if bind.collides_with(binds[other]):
                yield (
                    (name, "bind"),
                    f"{bind} is already used by {other}.bind ({binds[other]}); choose another port",
                )
    server, environment = sections.get(RLX_SERVER), sections.get(ENVIRONMENT)
    limits = {"slots": "max_slots_per_client", "clients": "max_clients"}
    for key, limit_key in limits.items() if server and environment else ():
        wanted, limit = getattr(environment, key), getattr(server, limit_key)
        if wanted > limit:
            yield (
                (ENVIRONMENT, key),
                f"{wanted} is above {RLX_SERVER}.{limit_key} ({limit}); lower {key}, or raise "
                f"{limit_key}",
            )


def find_policy_contradictions(experiment: Experiment) -> Iterator[Contradiction]:
    """Yields what only runs of one policy support yet.

    Args:
      experiment: has policies.
    """
    server = experiment.parameter_server
    for loc, value in (
        ((PARAMETER_SERVER, "mirror_url"), server.mirror_url),
        ((PARAMETER_SERVER, "prometheus_bind"), server.prometheus_bind),
        ((METRICS_SERVER,), experiment.metrics_server),
    ):
        if value is not None:
            yield loc, "each policy needs its own; remove it, and set keys in `policies`"
    for name, policy in experiment.policies.items():
        learner = policy.experiment.learner
        for key in ("offline", "workers", "eval_freq", "target_eval_return", "placement"):
            value, default = getattr(learner, key), LearnerConfig.model_fields[key].default
            if value not in (default, "agent", "server"):
                why = "this needs a run of one policy; remove it"
                yield ("policies", name, LEARNER, key), f"{describe_value(value)}, but {why}"


JOINT_ALONE: Contradiction = (
    (PARAMETER_SERVER, "combine", "method"),
    "'sync' is for several learners, but a run that learns from recordings has only one; set it to "
    "fifo",
)
