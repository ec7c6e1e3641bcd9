"""Loads an experiment from its YAML file: fully validated before anything starts."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from relaax_like.config.algorithm import AlgorithmConfig
from relaax_like.config.algorithm_folder import (
    find_algorithm,
    find_environment,
    load_config_class,
)
from relaax_like.config.base import Settings, get_key, get_spellings
from relaax_like.config.base_learner import BaseLearnerConfig
from relaax_like.config.contradictions import (
    JOINT_ALONE,
    Plans,
    find_learner_contradictions,
    find_plan_mistakes,
    find_policy_contradictions,
    find_security_contradictions,
    find_server_contradictions,
)
from relaax_like.config.models import (
    ALGORITHM,
    ENVIRONMENT,
    LEARNER,
    METRICS_SERVER,
    OPTIONAL,
    PARAMETER_SERVER,
    RLX_SERVER,
    SECTIONS,
    SECURITY,
    WANDB,
    EnvironmentConfig,
    Experiment,
    LearnerConfig,
    MetricsServerConfig,
    ParameterServerConfig,
    PolicyRun,
    RlxServerConfig,
    SecurityConfig,
    TopConfig,
    WandbConfig,
    to_attribute,
)
from relaax_like.config.places import describe_error, describe_place, find_folder
from relaax_like.config.plan import Offline, Plan, find_placement, get_plan, list_plans
from relaax_like.config.policies import (
    AGENTS,
    POLICIES,
    POLICY,
    TO_TRAIN,
    PoliciesConfig,
    make_shared,
    select_policy,
)
from relaax_like.config.problems import Problems, describe_errors, describe_value
from relaax_like.config.run_folder import find_run_dir, fix_run_dir
from relaax_like.config.run_spaces import read_run_spaces
from relaax_like.config.yaml_document import Loc, YamlDocument, is_flag, read_yaml, write_yaml
from relaax_like.shipped import find_experiment_file
from relaax_like.wire.errors import ConfigError, InvalidInputError
from relaax_like.wire.spaces import MASK, Spaces, split_masks

# Rollouts that agents can be ahead of a replay table, by default.
_REPLAY_AHEAD = 8
_TOP_KEYS = tuple(TopConfig.model_fields)
SettingsT = TypeVar("SettingsT", bound=Settings)


def load_experiment(
    path: str | Path,
    overrides: Sequence[str] = (),
    new_run: bool = False,
    several: bool = False,
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
      several: whether the file can have several policies, of which none is chosen.

    Raises:
      ConfigError: the file cannot be read; an override is not an assignment; the settings are wrong
        (one line per problem, all of them at once); there is no run in `logdir`; or spaces.json
        cannot be used, or does not fit the settings.
    """
    document = read_document(path, overrides)
    experiment = load_document(document)
    if experiment.policies and not several:
        raise ConfigError(
            f"{experiment.file}: policies: expected a run of one policy; set policy to one of "
            f"{', '.join(experiment.policies)} (--set policy=NAME), or name its folder, "
            f"{experiment.run_dir / POLICIES / 'NAME'}"
        )
    logdir, run_name = document.data.get("logdir"), document.data.get("run_name")
    if logdir is not None:
        run_dir = find_run_dir(Path(logdir), run_name, export_experiment(experiment), new_run)
        experiment = load_document(read_document(path, [*overrides, *fix_run_dir(run_dir)]))
    return experiment if new_run else _add_run_spaces(experiment)


def _add_run_spaces(experiment: Experiment) -> Experiment:
    """Completes an experiment, and those of its policies, with the spaces in their folders."""
    if experiment.policies:
        policies = {
            name: dataclasses.replace(policy, experiment=_add_run_spaces(policy.experiment))
            for name, policy in experiment.policies.items()
        }
        return dataclasses.replace(experiment, policies=policies)
    if experiment.algorithm.lacks_spaces:
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
        observation_spaces, masks = split_masks(observation_spaces)
        keys = algorithm.describe_spaces(observation_spaces, action_spaces)
        if masks:
            leaves = [name.removeprefix(MASK) for name in masks]
            keys["masks"] = {leaf: list(action_spaces[leaf].sizes) for leaf in leaves}
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


def read_document(path: str | Path, overrides: Sequence[str]) -> YamlDocument:
    """Reads an experiment's file with overrides; see `load_experiment`."""
    document = read_yaml(find_experiment_file(path))
    for flag in overrides:
        document.override(flag)
    return document


def load_document(document: YamlDocument) -> Experiment:
    """Validates the content of an experiment's file, in which aliases are replaced.

    Raises:
      ConfigError: the settings are wrong: one line per problem, all of them at once, but those of
        each of several policies by themselves.
    """
    if not document.data.keys() & {POLICIES, TO_TRAIN, POLICY}:
        return _ExperimentLoader(document).load()
    loader = _ExperimentLoader(make_shared(document))
    config, run_dir = loader.load_policies(document), loader.find_run_dir()
    experiments = {
        name: dataclasses.replace(
            _ExperimentLoader(select_policy(document, name, run_dir)).load(), policy=name
        )
        for name in ([config.policy] if config.policy else config.policies)
    }
    if config.policy:
        return experiments[config.policy]
    policies = {
        name: PolicyRun(
            agents=config.policies[name].agents,
            trains=name in (config.policies_to_train or config.policies),
            experiment=one,
        )
        for name, one in experiments.items()
    }
    shared = make_shared(document)
    shared.data[ALGORITHM] = select_policy(document, next(iter(policies)), run_dir).data[ALGORITHM]
    experiment = dataclasses.replace(_ExperimentLoader(shared).load(), policies=policies)
    for loc, text in find_policy_contradictions(experiment):
        problems = Problems(document)
        problems.add(loc, text)
        problems.raise_if_any()
    return experiment


def dump_experiment(experiment: Experiment) -> str:
    """Returns the resolved experiment as YAML.

    A file with this text, loaded in the same working directory, gives the same settings.
    """
    return write_yaml(export_experiment(experiment))


def export_experiment(experiment: Experiment) -> dict[str, Any]:
    """Returns the resolved experiment as nested JSON types."""
    data: dict[str, Any] = {"seed": experiment.seed, "run_dir": str(experiment.run_dir)}
    cache = experiment.compile_cache
    data["compile_cache"] = None if cache is None else str(cache)
    for name, section in experiment.sections.items():
        if section is not None:
            data[name] = _dump_section(section)
    if experiment.policies:
        data[POLICIES] = {name: _dump_policy(one) for name, one in experiment.policies.items()}
        data[TO_TRAIN] = [name for name, one in experiment.policies.items() if one.trains]
    return data


def _dump_policy(policy: PolicyRun) -> dict[str, Any]:
    own = policy.experiment
    data: dict[str, Any] = {AGENTS: list(policy.agents)}
    for name in (ALGORITHM, LEARNER, PARAMETER_SERVER):
        data[name] = export_experiment(own)[name]
    data[RLX_SERVER] = {"parameter_server": str(own.rlx_server.parameter_server)}
    server = data[PARAMETER_SERVER]
    for key, folder in (("checkpoint_dir", "checkpoints"), ("metrics_dir", "metrics")):
        if server[key] == str(own.run_dir / folder):  # the run can be moved
            del server[key]
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

    def load_policies(self, document: YamlDocument) -> PoliciesConfig:
        """Loads the keys of several policies, which the loader's own document does not have."""
        self._problems = Problems(document)
        data = {
            key: document.data[key] for key in (POLICIES, TO_TRAIN, POLICY) if key in document.data
        }
        config = self._validate((), PoliciesConfig, data)
        self._problems.raise_if_any()
        assert config is not None, "there were no problems"
        return config

    def find_run_dir(self) -> Path:
        """Returns the folder of the run; any one, if the top-level keys are wrong."""
        top = self._load_top()
        return top.run_dir if top else self._default_run_dir()

    def load(self) -> Experiment:
        self._problems.add_unknown_keys((), self._data, [*_TOP_KEYS, *SECTIONS])
        top = self._load_top()
        run_dir = top.run_dir if top else self._default_run_dir()
        metrics = {"metrics_dir": str(run_dir / "metrics")}
        snapshots = {"checkpoint_dir": str(run_dir / "checkpoints"), **metrics}
        server = self._load_section(PARAMETER_SERVER, ParameterServerConfig, snapshots)
        folder, algorithm = self._load_algorithm()
        program, environment = self._load_environment()
        sections: dict[str, Any] = {
            PARAMETER_SERVER: server,
            RLX_SERVER: self._load_rlx_server(server, environment),
            METRICS_SERVER: self._load_section(METRICS_SERVER, MetricsServerConfig, metrics),
            WANDB: self._load_section(WANDB, WandbConfig),
            SECURITY: self._load_security(),
            LEARNER: self._load_learner(algorithm, server),
            ALGORITHM: algorithm and algorithm.with_seed(top.seed if top else 0),
            ENVIRONMENT: environment,
        }
        for loc, text in find_server_contradictions(sections):
            self._problems.add(loc, text)
        self._problems.raise_if_any()
        # A problem has been added for each section that is missing, unless a run can lack it.
        assert top is not None
        assert folder is not None
        return Experiment(
            file=self._document.file,
            seed=top.seed,
            run_dir=top.run_dir,
            compile_cache=top.compile_cache,
            algorithm_folder=folder,
            environment_program=program,
            **{to_attribute(name): section for name, section in sections.items()},
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

    def _load_rlx_server(
        self, server: ParameterServerConfig | None, environment: EnvironmentConfig | None
    ) -> RlxServerConfig | None:
        defaults: dict[str, Any] = {}
        if server is not None:
            defaults["parameter_server"] = str(server.bind.to_connect())
        if environment is not None:
            limit = RlxServerConfig.model_fields["max_slots_per_client"].default
            defaults["max_slots_per_client"] = max(limit, environment.slots)
        return self._load_section(RLX_SERVER, RlxServerConfig, defaults)

    def _load_security(self) -> SecurityConfig | None:
        section = self._load_section(SECURITY, SecurityConfig)
        for loc, text in find_security_contradictions(section) if section else ():
            self._problems.add(loc, text)
        return section

    def _load_algorithm(self) -> tuple[Path | None, AlgorithmConfig | None]:
        try:
            folder = self._find(ALGORITHM, "name", find_algorithm)
            model = load_config_class(folder) if folder else None
        except ConfigError as error:
            self._problems.add((ALGORITHM,), str(error))
            return None, None
        if folder is None or model is None:
            return None, None
        section = self._load_section(ALGORITHM, model)
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
        section = self._load_section(ENVIRONMENT, EnvironmentConfig)
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

    # The learner.

    def _load_learner(
        self, algorithm: AlgorithmConfig | None, server: ParameterServerConfig | None
    ) -> LearnerConfig | None:
        """Loads the section `learner`, and fills in the keys that depend on the algorithm.

        Adds a problem for each key that contradicts the algorithm's plan or another key, and one if
        the code of the plan fails.
        """
        learner = self._load_section(LEARNER, LearnerConfig)
        if learner is None or algorithm is None:
            return None
        try:
            BaseLearnerConfig.model_validate({"hook": learner.hook})
        except ValidationError as error:
            self._problems.add_validation((LEARNER,), BaseLearnerConfig, error)
        owner = type(algorithm)
        place = describe_place(owner, "plan")
        try:
            plan = get_plan(algorithm)
        except Exception as error:  # from the code of the algorithm's folder
            what = describe_error(error, find_folder(owner), place)
            self._problems.add((ALGORITHM,), f"plan: {what}")
            return None
        if not isinstance(plan, Plan | None):
            for mistake in find_plan_mistakes(plan):
                self._problems.add((ALGORITHM,), f"{place}: {mistake}")
        if not isinstance(plan, Plan | Mapping | None):
            return None
        is_joint = server is not None and server.combine.method == "sync"
        if is_joint and (learner.offline is not None or isinstance(plan, Offline)):
            self._problems.add(*JOINT_ALONE)
            is_joint = False
        learner = _place_learner(learner, plan, is_joint)
        for loc, text in find_learner_contradictions(learner, plan, place, is_joint):
            self._problems.add(loc, text)
        return learner

    def _validate_optimizers(self, algorithm: AlgorithmConfig) -> None:
        try:
            _ = algorithm.optimizers
        except ValueError as error:
            what = describe_errors(error) if isinstance(error, ValidationError) else str(error)
            self._problems.add((ALGORITHM,), f"these keys do not make valid optimizers: {what}")
        except Exception as error:  # from the code of the algorithm's folder
            owner = type(algorithm)
            place = describe_place(owner, "optimizers")
            what = describe_error(error, find_folder(owner), place)
            self._problems.add((ALGORITHM,), f"optimizers: {what}")

    # Parts.

    def _default_run_dir(self) -> Path:
        return Path("runs") / self._document.file.stem

    def _section_data(self, section: str) -> dict[str, Any]:
        data = self._data.get(section)
        return data if isinstance(data, dict) else {}

    def _load_section(
        self, section: str, model: type[SettingsT], defaults: Mapping[str, Any] = {}
    ) -> SettingsT | None:
        if section in OPTIONAL and section not in self._data:
            return None
        data = self._data.get(section)
        if data is None:
            data = {}
        if not isinstance(data, dict):
            self._problems.add(
                (section,), f"expected a section of keys, got {describe_value(data)}"
            )
            return None
        for name, field in model.model_fields.items():
            self._merge_spellings(section, data, get_spellings(name, field))
        return self._validate((section,), model, {**defaults, **data})

    def _validate(self, loc: Loc, model: type[SettingsT], data: dict[str, Any]) -> SettingsT | None:
        try:
            # Strict JSON mode is what YAML needs: lists for tuples, text for paths, integers for
            # floats; but never text for a number.
            return model.model_validate_json(json.dumps(data), context=self._base_dir)
        except ValidationError as error:
            self._problems.add_validation(loc, model, error)
        return None

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


def _place_learner(learner: LearnerConfig, plan: Plans, is_joint: bool) -> LearnerConfig:
    """Fills in where the learner runs, and how far agents can be ahead of it."""
    found = find_placement(plan)
    placement = "agent" if is_joint else found if learner.offline is None else "server"
    placement = learner.placement or placement
    ahead = learner.max_rollouts_ahead
    if ahead is None:  # an iteration of fixed size only has rollouts of the newest policy
        ahead = 1 if placement == "agent" and found == "agent" else 0
        plans = list_plans(plan)
        if plans and all(one.has_table for one in plans):  # short rollouts of any policy
            ahead = _REPLAY_AHEAD
    return learner.model_copy(update={"placement": placement, "max_rollouts_ahead": ahead})
