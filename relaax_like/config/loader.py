"""Loads an experiment from its YAML file: fully validated before anything starts."""

import dataclasses
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from relaax_like.config.address import Address
from relaax_like.config.algorithm import AlgorithmConfig
from relaax_like.config.algorithm_folder import (
    find_algorithm,
    find_environment,
    load_config_class,
    resolve_path,
)
from relaax_like.config.aliases import get_aliases, get_key
from relaax_like.config.base import Settings
from relaax_like.config.base_learner import BaseLearnerConfig
from relaax_like.config.models import (
    MINARI,
    EnvironmentConfig,
    Experiment,
    LearnerConfig,
    MetricsServerConfig,
    ParameterServerConfig,
    RlxServerConfig,
    SecurityConfig,
    TopConfig,
    WandbConfig,
)
from relaax_like.config.places import describe_error, describe_place, find_folder
from relaax_like.config.plan import (
    Episodes,
    Offline,
    OnPolicy,
    Plan,
    Replay,
    find_placement,
    get_plan,
    learns_offline,
    name_plan,
)
from relaax_like.config.problems import Problems, describe_errors, describe_value
from relaax_like.config.run_folder import find_run_dir, fix_run_dir
from relaax_like.config.run_spaces import read_run_spaces
from relaax_like.config.yaml_document import Loc, YamlDocument, is_flag, read_yaml, write_yaml
from relaax_like.shipped import find_experiment_file
from relaax_like.wire.errors import ConfigError, InvalidInputError
from relaax_like.wire.spaces import Spaces

PARAMETER_SERVER = "relaax-parameter-server"
RLX_SERVER = "relaax-rlx-server"
METRICS_SERVER = "relaax-metrics-server"
WANDB = "wandb"
SECURITY = "security"
LEARNER = "learner"
ALGORITHM = "algorithm"
ENVIRONMENT = "environment"
SECTION_MODELS: dict[str, type[Settings]] = {
    PARAMETER_SERVER: ParameterServerConfig,
    RLX_SERVER: RlxServerConfig,
    METRICS_SERVER: MetricsServerConfig,
    WANDB: WandbConfig,
    SECURITY: SecurityConfig,
    LEARNER: LearnerConfig,
    ALGORITHM: AlgorithmConfig,  # the base class; the algorithm's folder has the actual one
    ENVIRONMENT: EnvironmentConfig,
}
SECTIONS = tuple(SECTION_MODELS)
# Rollouts that agents can be ahead of a replay table, by default.
_REPLAY_AHEAD = 8
_TOP_KEYS = tuple(TopConfig.model_fields)
_TLS_KEYS = ("tls_cert", "tls_key", "tls_ca")
# Older names of keys, read as the new ones: the original rlx server called it --timeout.
_RENAMED = {(RLX_SERVER, "timeout"): "session_timeout_sec"}

_log = logging.getLogger(__name__)
SettingsT = TypeVar("SettingsT", bound=Settings)


def load_experiment(
    path: str | Path, overrides: Sequence[str] = (), new_run: bool = False
) -> Experiment:
    """Reads and validates an experiment's file. Runs the `config.py` of its algorithm's folder.

    The paths `algorithm.path`, `environment.path`, `initial_values` and the files of `security` are
    relative to the file's folder; all others (`run_dir`, `checkpoint_dir`, `metrics_dir`,
    `learner.previous`, `learner.offline`, ...) are relative to the working directory.

    Args:
      path: the YAML file, or the name of a shipped experiment (`config.shipped`).
      overrides: "section.key=value" each, as for `--set`.
      new_run: if there is a `logdir`, `run_dir` is a new folder in it; False: the newest run's,
        and spaces that the file does not define are read from RUN/spaces.json.

    Raises:
      ConfigError: the file cannot be read; an override is not an assignment; the settings are wrong
        (one line per problem, all of them at once); there is no run in `logdir`; or spaces.json
        cannot be used, or does not fit the settings.
    """
    document = _read(path, overrides)
    experiment = _ExperimentLoader(document).load()
    logdir, run_name = document.data.get("logdir"), document.data.get("run_name")
    if logdir is not None:
        run_dir = find_run_dir(Path(logdir), run_name, export_experiment(experiment), new_run)
        experiment = _ExperimentLoader(_read(path, [*overrides, *fix_run_dir(run_dir)])).load()
    if experiment.algorithm.lacks_spaces and not new_run:
        found = read_run_spaces(experiment.run_dir)
        if found is not None:
            return add_spaces(experiment, *found)[0]
    return experiment


def add_spaces(
    experiment: Experiment, observation_spaces: Spaces, action_spaces: Spaces
) -> tuple[Experiment, list[str]]:
    """Completes the settings of an algorithm with the spaces of the environment.

    Args:
      experiment: one whose algorithm has `lacks_spaces`.
      observation_spaces: the environment's, leaf -> space.
      action_spaces: the same for actions.

    Returns:
      The complete experiment, and overrides with which its file yields the same experiment.

    Raises:
      ConfigError: the algorithm cannot use such spaces, or its settings contradict them.
      Exception: raised by the algorithm's code.
    """
    algorithm = experiment.algorithm
    try:
        keys = algorithm.describe_spaces(observation_spaces, action_spaces)
        data = algorithm.model_dump(mode="json", by_alias=True, exclude_unset=True) | keys
        complete = type(algorithm).model_validate_json(json.dumps(data))
        complete.validate_spaces(observation_spaces, action_spaces)
    except ValidationError as error:
        raise ConfigError(
            f"{experiment.file}: algorithm: the settings do not fit the environment's spaces: "
            f"{describe_errors(error)}"
        ) from None
    except InvalidInputError as error:
        raise ConfigError(f"{experiment.file}: algorithm: {error}") from None
    complete = complete.with_seed(algorithm.seed)
    overrides = [f"{ALGORITHM}.{key}={json.dumps(value)}" for key, value in keys.items()]
    return dataclasses.replace(experiment, algorithm=complete), overrides


def require_spaces(experiment: Experiment) -> None:
    """Checks that the settings define observations, actions, and mirror images if they are needed.

    Raises:
      ConfigError: the settings do not define one of them.
    """
    if experiment.algorithm.lacks_spaces:
        raise ConfigError(
            f"{experiment.file}: algorithm: observations, actions or their mirror images are not "
            "defined, and there is no environment to get them from; set state_size, image, "
            "num_states or observations, and num_actions, action_size or actions (with mirror also "
            "mirror_observation and mirror_action), as far as the algorithm has these keys, or add "
            "an `environment` section"
        )


def add_program(section: Any) -> None:
    """Adds the program to a section `environment` that names only an environment of Gymnasium."""
    if isinstance(section, dict) and section.get("env") and section.get("path") is None:
        section.setdefault("program", "OpenAI_Gym")


def _read(path: str | Path, overrides: Sequence[str]) -> YamlDocument:
    document = read_yaml(find_experiment_file(path))
    for flag in overrides:
        document.override(flag)
    return document


def dump_experiment(experiment: Experiment) -> str:
    """Returns the resolved experiment as YAML.

    A file with this text, loaded in the same working directory, gives the same settings.
    """
    return write_yaml(export_experiment(experiment))


def export_experiment(experiment: Experiment) -> dict[str, Any]:
    """Returns the resolved experiment as nested JSON types."""
    sections: list[tuple[str, Settings | None]] = [
        (PARAMETER_SERVER, experiment.parameter_server),
        (RLX_SERVER, experiment.rlx_server),
        (METRICS_SERVER, experiment.metrics_server),
        (WANDB, experiment.wandb),
        (SECURITY, experiment.security),
        (LEARNER, experiment.learner),
        (ALGORITHM, experiment.algorithm),
        (ENVIRONMENT, experiment.environment),
    ]
    data: dict[str, Any] = {"seed": experiment.seed, "run_dir": str(experiment.run_dir)}
    cache = experiment.compile_cache
    data["compile_cache"] = None if cache is None else str(cache)
    data.update((name, _dump_section(section)) for name, section in sections if section is not None)
    return data


def _dump_section(section: Settings) -> dict[str, Any]:
    data = section.model_dump(mode="json", by_alias=True)
    for name, field in type(section).model_fields.items():
        # A null that only repeats the default is omitted.
        if field.default is None and getattr(section, name) is None:
            data.pop(get_key(name, field), None)  # an excluded field is not there
    return data


class _ExperimentLoader:
    """Validates one document section by section, so that all problems are reported together."""

    def __init__(self, document: YamlDocument):
        self._document = document
        self._data = document.data
        self._base_dir = document.file.parent
        self._problems = Problems(document)

    def load(self) -> Experiment:
        self._problems.add_unknown_keys((), self._data, [*_TOP_KEYS, *SECTIONS])
        self._rename_keys()
        top = self._load_top()
        run_dir = top.run_dir if top else self._default_run_dir()
        parameter_server = self._load_parameter_server(run_dir)
        rlx_server = self._load_rlx_server(parameter_server)
        metrics_server = self._load_metrics_server(run_dir)
        wandb = self._load_section(WANDB, WandbConfig, {}) if WANDB in self._data else None
        security = self._load_security()
        learner = self._load_section(LEARNER, LearnerConfig, {})
        folder, algorithm = self._load_algorithm()
        is_joint = parameter_server is not None and parameter_server.combine.method == "sync"
        learner = self._place_learner(learner, algorithm, is_joint)
        program, environment = self._load_environment()
        servers = (parameter_server, rlx_server, metrics_server)
        if environment and rlx_server and "max_slots_per_client" not in rlx_server.model_fields_set:
            largest = max(rlx_server.max_slots_per_client, environment.slots)
            rlx_server = rlx_server.model_copy(update={"max_slots_per_client": largest})
        self._validate_binds([server.bind if server else None for server in servers])
        self._validate_clients(environment, rlx_server)
        self._problems.raise_if_any()
        # For everything that is None here, a problem has been added.
        assert top is not None
        assert parameter_server is not None
        assert rlx_server is not None
        assert security is not None
        assert learner is not None
        assert algorithm is not None
        assert folder is not None
        return Experiment(
            file=self._document.file,
            seed=top.seed,
            run_dir=top.run_dir,
            compile_cache=top.compile_cache,
            parameter_server=parameter_server,
            rlx_server=rlx_server,
            metrics_server=metrics_server,
            wandb=wandb,
            security=security,
            learner=learner,
            algorithm=algorithm.with_seed(top.seed),
            algorithm_folder=folder,
            environment=environment,
            environment_program=program,
        )

    # Sections.

    def _load_top(self) -> TopConfig | None:
        given = {key: self._data[key] for key in _TOP_KEYS if key in self._data}
        data = {k: v for k, v in given.items() if v is not None or k == "compile_cache"}
        if "logdir" in data and "run_dir" in data:
            self._problems.add(
                ("logdir",),
                "run_dir is set as well; set only one of them, or select one with `--set "
                "run_dir=null` or `--set logdir=null`",
            )
        if "run_name" in data and "logdir" not in data:
            self._problems.add(
                ("run_name",),
                "names a folder inside logdir, but logdir is not set; set logdir, or remove "
                "run_name",
            )
        return self._validate((), TopConfig, {"run_dir": str(self._default_run_dir()), **data})

    def _load_parameter_server(self, run_dir: Path) -> ParameterServerConfig | None:
        defaults = {
            "checkpoint_dir": str(run_dir / "checkpoints"),
            "metrics_dir": str(run_dir / "metrics"),
        }
        given = self._section_data(PARAMETER_SERVER).get("initial_values")
        file = resolve_path(self._base_dir / given) if isinstance(given, str) else None
        if file is not None and not os.path.isfile(file):  # Path's method raises other errors
            self._problems.add(
                (PARAMETER_SERVER, "initial_values"),
                f"{file}: no such file, or no access to it; correct the path, or remove the key",
            )
        section = self._load_section(PARAMETER_SERVER, ParameterServerConfig, defaults)
        return section and section.model_copy(update={"initial_values": file})

    def _load_rlx_server(
        self, parameter_server: ParameterServerConfig | None
    ) -> RlxServerConfig | None:
        defaults = {}
        if parameter_server is not None:
            defaults["parameter_server"] = str(parameter_server.bind.to_connect())
        return self._load_section(RLX_SERVER, RlxServerConfig, defaults)

    def _load_metrics_server(self, run_dir: Path) -> MetricsServerConfig | None:
        if METRICS_SERVER not in self._data:
            return None
        defaults = {"metrics_dir": str(run_dir / "metrics")}
        return self._load_section(METRICS_SERVER, MetricsServerConfig, defaults)

    def _load_security(self) -> SecurityConfig | None:
        section = self._load_section(SECURITY, SecurityConfig, {})
        if section is None:
            return None
        given = [key for key in _TLS_KEYS if getattr(section, key) is not None]
        for key in _TLS_KEYS if given else ():
            if key not in given:
                self._problems.add(
                    (SECURITY, key),
                    f"missing, but {given[0]} is set; TLS needs all of {', '.join(_TLS_KEYS)}: "
                    f"set it, or remove {' and '.join(given)}",
                )
        if section.tls_client_cert_required and not given:
            self._problems.add(
                (SECURITY, "tls_client_cert_required"),
                f"true, but TLS is off; set {', '.join(_TLS_KEYS)} as well, or set this to false",
            )
        paths = {
            key: resolve_path(self._base_dir / path)
            for key in (*_TLS_KEYS, "tokens_file", "token_file")
            if (path := getattr(section, key)) is not None
        }
        return section.model_copy(update=paths)

    def _load_algorithm(self) -> tuple[Path | None, AlgorithmConfig | None]:
        try:
            folder = self._find(ALGORITHM, "name", find_algorithm)
            model = load_config_class(folder) if folder else None
        except ConfigError as error:
            self._problems.add((ALGORITHM,), str(error))
            return None, None
        if folder is None or model is None:
            return None, None
        section = self._load_section(ALGORITHM, model, {})
        if section is None:
            return folder, None
        self._validate_optimizers(section)
        if section.path is None:
            return folder, section
        return folder, section.model_copy(update={"path": str(folder)})

    def _load_environment(self) -> tuple[Path | None, EnvironmentConfig | None]:
        if ENVIRONMENT not in self._data:
            return None, None
        add_program(self._section_data(ENVIRONMENT))
        program = self._find(ENVIRONMENT, "program", find_environment)
        section = self._load_section(ENVIRONMENT, EnvironmentConfig, {})
        if section is None or section.path is None or program is None:
            return program, section
        return program, section.model_copy(update={"path": str(program)})

    def _find(
        self, section: str, name_key: str, find: Callable[[str | Path, Path], Path]
    ) -> Path | None:
        """Finds the folder or program that a section names by exactly one of two keys."""
        data = self._section_data(section)
        given = [key for key in (name_key, "path") if data.get(key) is not None]
        if len(given) != 1:
            both = f"{' and '.join(given)} are both set"
            what = both if given else f"neither {name_key} nor path is set"
            built_in = f"{name_key} (a folder in {section}s/)"
            loc: Loc = (section, *given[1:])
            self._problems.add(loc, f"{what}; set either {built_in} or path (your own)")
            return None
        value = data[given[0]]
        if not isinstance(value, str) or not value:
            what = "a path" if given[0] == "path" else "a name"
            text = f"expected {what} as text, got {describe_value(value)}"
            self._problems.add((section, given[0]), text)
            return None
        try:
            if given[0] == name_key and ("/" in value or value.startswith(".")):
                raise ConfigError(f"{value!r} is a path, not a name; set path: {value} instead")
            return find(Path(value) if given[0] == "path" else value, self._base_dir)
        except ConfigError as error:
            self._problems.add((section, given[0]), str(error))
            return None

    # Contradictions.

    def _place_learner(
        self, learner: LearnerConfig | None, algorithm: AlgorithmConfig | None, is_joint: bool
    ) -> LearnerConfig | None:
        """Fills in the keys of the section `learner` that depend on the algorithm.

        Also makes its paths absolute. Returns None if the section is invalid, or there is no usable
        plan although the algorithm has one.

        Adds a problem for each key that contradicts the algorithm's plan or another key, and one if
        the code of the plan fails.

        Args:
          learner: its section; None: it is invalid.
          algorithm: its section.
          is_joint: whether several learners make each update together.
        """
        if learner is None or algorithm is None:
            return learner
        try:
            BaseLearnerConfig.model_validate({"hook": learner.hook})
        except ValidationError as error:
            self._problems.add_validation((LEARNER,), BaseLearnerConfig, error)
        try:
            plan = get_plan(algorithm)
        except Exception as error:  # from the code of the algorithm's folder
            owner = type(algorithm)
            what = describe_error(error, find_folder(owner), describe_place(owner, "plan"))
            self._problems.add((ALGORITHM,), f"plan: {what}")
            return None
        place = "" if plan is None else describe_place(type(algorithm), "plan")
        if isinstance(plan, Mapping):
            self._validate_task_plans(place, plan)
        elif plan is not None and not isinstance(plan, Plan):
            self._problems.add(
                (ALGORITHM,),
                f"{place}: plan is {plan!r:.200}; expected OnPolicy, Episodes, Offline or Replay "
                "of relaax_like.config.plan, a mapping from task to plan, or None",
            )
            return None
        default = find_placement(plan) if learner.offline is None else "server"
        if is_joint and (learner.offline is not None or isinstance(plan, Offline)):
            self._problems.add(
                (PARAMETER_SERVER, "combine", "method"),
                "'sync' is for several learners, but a run that learns from recordings has only "
                "one; set it to fifo",
            )
            is_joint = False
        if is_joint:
            default = "agent"
        placement = learner.placement or default
        if is_joint and placement != "agent":
            self._problems.add(
                (LEARNER, "placement"),
                f"{placement!r}, but learners that make each update together "
                "(relaax-parameter-server.combine.method: sync) are beside their agents; set it to "
                "'agent', or combine.method to fifo",
            )
        if placement != "agent" and plan is None and learner.offline is None:
            self._problems.add(
                (LEARNER, "placement"),
                f"{placement!r}, but the algorithm declares no plan, which a learner there needs "
                "for its updates; set it to 'agent'",
            )
        if placement != "server" and isinstance(plan, Offline):
            self._problems.add(
                (LEARNER, "placement"),
                f"{placement!r}, but no agents play, because {place}: plan is Offline; set it to "
                "'server'",
            )
        if placement != "server" and learner.offline is not None:
            self._problems.add(
                (LEARNER, "placement"),
                f"{placement!r}, but no agents play in a run that learns from files "
                "(learner.offline); set it to 'server'",
            )
        if learner.target_eval_return is not None and not learner.eval_freq:
            self._problems.add(
                (LEARNER, "target_eval_return"),
                f"{learner.target_eval_return!r}, but there are no evaluations (learner.eval_freq "
                "is 0); set learner.eval_freq, or set this to null",
            )
        if placement != "agent" and learner.max_lag is not None:
            self._problems.add(
                (LEARNER, "max_lag"),
                f"{learner.max_lag!r}, but only learners beside agents (placement: agent) use this "
                "key; set it to null",
            )
        plans = list(plan.values()) if isinstance(plan, Mapping) else [plan]
        if learner.max_lag is not None and any(isinstance(one, Replay) for one in plans):
            self._problems.add(
                (LEARNER, "max_lag"),
                f"{learner.max_lag!r}, but a Replay plan learns from old steps; set it to null",
            )
        takes_holes = any(isinstance(one, OnPolicy) and not one.overlap for one in plans)
        if learner.max_segment_sec is not None and not takes_holes:
            self._problems.add(
                (LEARNER, "max_segment_sec"),
                f"{learner.max_segment_sec!r}, but only plans of kind OnPolicy can learn from "
                "rollouts that lack steps, and those with overlap cannot (this algorithm: "
                f"{name_plan(plan) or 'no plan'}); set it to null",
            )
        self._validate_offline(learner, algorithm)
        # Kept in the run's config.yaml, which can be read from any working directory.
        previous = learner.previous and learner.previous.absolute()
        offline = learner.offline and tuple(map(_make_absolute, learner.offline))
        ahead = learner.max_rollouts_ahead
        if ahead is None:  # an iteration of fixed size only has rollouts of the newest policy
            ahead = 1 if placement == "agent" and find_placement(plan) == "agent" else 0
            if all(isinstance(one, Replay) for one in plans):  # short rollouts of any policy
                ahead = _REPLAY_AHEAD
        return learner.model_copy(
            update={
                "placement": placement,
                "max_rollouts_ahead": ahead,
                "previous": previous,
                "offline": offline,
            }
        )

    def _validate_task_plans(self, place: str, plans: Mapping[str, Plan]) -> None:
        """Checks plans by task: all tasks learn in one place, from what the agents play."""
        if not plans:
            self._problems.add(
                (ALGORITHM,), f"{place}: plan is an empty mapping; add a plan for each task"
            )
        for task, plan in plans.items():
            if not isinstance(plan, OnPolicy | Episodes | Replay):
                self._problems.add(
                    (ALGORITHM,),
                    f"{place}: the plan of task {task!r} is {type(plan).__name__}, but with "
                    "several tasks each learns from its agents; expected OnPolicy, Episodes or "
                    "Replay",
                )

    def _validate_offline(self, learner: LearnerConfig, algorithm: AlgorithmConfig) -> None:
        if learner.offline is None:
            if isinstance(get_plan(algorithm), Offline):
                self._problems.add(
                    (LEARNER, "offline"),
                    "missing, but this algorithm only learns from recorded trajectories; name "
                    "a folder of them, as written by `relaax record` or by a run with "
                    "learner.collect_traj: relaax train FILE --offline FOLDER",
                )
            return
        if not learns_offline(algorithm):
            plan, which = get_plan(algorithm), ""
            if plan is not None:
                place = describe_place(type(algorithm), "plan")
                name = name_plan(plan)
                if isinstance(plan, Mapping):
                    name = "by task, but a recording has the rollouts of one task"
                which = f" ({place}: plan is {name})"
            self._problems.add(
                (LEARNER, "offline"),
                f"{', '.join(learner.offline)!r}, but this algorithm{which} only learns from what "
                "its agents play; remove the key, or use an algorithm that learns from recorded "
                "trajectories",
            )
        for key, none in (
            ("workers", 0),
            ("collect_traj", False),
            ("target_return", None),
            ("max_episodes", None),
        ):
            value = getattr(learner, key)
            if value != none:
                self._problems.add(
                    (LEARNER, key),
                    f"{json.dumps(value)}, but no training episodes are played in a run that "
                    f"learns from files (offline); set it to {json.dumps(none)}",
                )

    def _validate_optimizers(self, algorithm: AlgorithmConfig) -> None:
        try:
            _ = algorithm.optimizers
        except ValidationError as error:
            what = describe_errors(error)
            self._problems.add((ALGORITHM,), f"these keys do not make valid optimizers: {what}")
        except ValueError as error:
            self._problems.add((ALGORITHM,), f"these keys do not make valid optimizers: {error}")
        except Exception as error:  # from the code of the algorithm's folder
            owner = type(algorithm)
            place = describe_place(owner, "optimizers")
            what = describe_error(error, find_folder(owner), place)
            self._problems.add((ALGORITHM,), f"optimizers: {what}")

    def _validate_binds(self, binds: Sequence[Address | None]) -> None:
        servers = zip(SECTIONS, binds, strict=False)
        known = [(section, bind) for section, bind in servers if bind is not None]
        for index, (section, bind) in enumerate(known):
            for other, taken in known[:index]:
                if bind.collides_with(taken):
                    self._problems.add(
                        (section, "bind"),
                        f"{bind} is already used by {other}.bind ({taken}); choose another port",
                    )

    def _validate_clients(
        self, environment: EnvironmentConfig | None, rlx_server: RlxServerConfig | None
    ) -> None:
        if environment is None or rlx_server is None:
            return
        for key, wanted, limit, limit_key in (
            ("slots", environment.slots, rlx_server.max_slots_per_client, "max_slots_per_client"),
            ("clients", environment.clients, rlx_server.max_clients, "max_clients"),
        ):
            if wanted > limit:
                self._problems.add(
                    (ENVIRONMENT, key),
                    f"{wanted} is above {RLX_SERVER}.{limit_key} ({limit}); lower {key}, or "
                    f"raise {limit_key}",
                )

    # Parts.

    def _default_run_dir(self) -> Path:
        return Path("runs") / self._document.file.stem

    def _section_data(self, section: str) -> dict[str, Any]:
        data = self._data.get(section)
        return data if isinstance(data, dict) else {}

    def _load_section(
        self, section: str, model: type[SettingsT], defaults: dict[str, Any]
    ) -> SettingsT | None:
        data = self._data.get(section)
        if data is None:
            data = {}
        if not isinstance(data, dict):
            self._problems.add(
                (section,), f"expected a section of keys, got {describe_value(data)}"
            )
            return None
        self._use_aliases(section, model, data)
        return self._validate((section,), model, {**defaults, **data})

    def _validate(self, loc: Loc, model: type[SettingsT], data: dict[str, Any]) -> SettingsT | None:
        try:
            # Strict JSON mode is what YAML needs: lists for tuples, text for paths, integers for
            # floats; but never text for a number.
            return model.model_validate_json(json.dumps(data))
        except ValidationError as error:
            self._problems.add_validation(loc, model, error)
        return None

    def _use_aliases(self, section: str, model: type[Settings], data: dict[str, Any]) -> None:
        """Replaces each accepted spelling of a key by the canonical one."""
        for name, field in model.model_fields.items():
            spellings = [get_key(name, field), *get_aliases(name, field)]
            self._merge_spellings(section, data, spellings)

    def _rename_keys(self) -> None:
        for (section, old), new in _RENAMED.items():
            data = self._section_data(section)
            if old in data:
                place = self._document.place((section, old))
                _log.warning("%s: %s.%s is deprecated; use %s", place, section, old, new)
                self._merge_spellings(section, data, [new, old])

    def _merge_spellings(self, section: str, data: dict[str, Any], spellings: list[str]) -> None:
        """Moves the value of a key to the first of its spellings; a flag overrides the file."""
        given = {name: self._document.place((section, name)) for name in spellings if name in data}
        if not given:
            return
        kept, *others = [name for name in given if is_flag(given[name])] or given
        for other in others:
            self._problems.add(
                (section, other), f"another spelling of {kept}, which is also set; keep one of them"
            )
        value = data[kept]
        for name in given:
            del data[name]
        data[spellings[0]] = value
        self._document.places[(section, spellings[0])] = given[kept]


def _make_absolute(source: str) -> str:
    """Returns a source of `learner.offline` that is valid in any working directory."""
    prefix = MINARI if source.startswith(MINARI) else ""
    path = Path(source.removeprefix(prefix))
    # An id of a data set is not a path.
    return source if prefix and not os.path.isdir(path) else f"{prefix}{path.absolute()}"
