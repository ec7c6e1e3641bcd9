"""Which keys a job can have. The walk over all models finds a new key that nobody has judged."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import BaseModel
from support.jobs import make_config

from relaax_like.config import algorithm_folder
from relaax_like.config.algorithm_folder import load_config_class
from relaax_like.config.base import IN_JOBS, Settings
from relaax_like.config.job_keys import (
    find_refused_keys,
    make_job_config,
    name_environment,
    validate_job_config,
)
from relaax_like.config.job_names import is_name
from relaax_like.config.loader import load_experiment
from relaax_like.config.models import SECTION_MODELS, TopConfig
from relaax_like.shipped import (
    ALGORITHMS,
    ENVIRONMENTS,
    get_shipped_folder,
    list_experiments,
)
from relaax_like.wire.errors import ConfigError

# Every key, of all models, that a job cannot have. A new key of type text, path, address or JSON is
# refused until it is marked; then it leaves or enters this list, by a decision.
REFUSED = {
    "": ["run_dir", "logdir", "run_name", "compile_cache"],
    "relaax-parameter-server": [
        "bind",
        "checkpoint_dir",
        "mirror_url",
        "metrics_dir",
        "initial_values",
        "prometheus_bind",
    ],
    "relaax-rlx-server": ["bind", "parameter_server", "allowed_origins"],
    "relaax-metrics-server": ["bind", "metrics_dir"],
    "wandb": ["project", "group", "name"],
    "security": ["tls_cert", "tls_key", "tls_ca", "tokens_file", "token_file"],
    "learner": ["bind", "advertise", "offline", "previous", "hook"],
    "algorithm": ["path"],
    "environment": ["path", "args"],
}
MARKED = {"name", "program", "env", "masks", "achieved", "desired"}


def list_algorithms() -> Iterator[type[BaseModel]]:
    for file in sorted(get_shipped_folder(ALGORITHMS).glob("*/config.py")):
        yield load_config_class(file.parent)


def find_models(model: type[BaseModel]) -> set[type[BaseModel]]:
    """Returns all models that a model contains, however deep, and itself."""
    found = {model}
    waiting: list[object] = [field.annotation for field in model.model_fields.values()]
    while waiting:
        one = waiting.pop()
        if isinstance(one, type) and issubclass(one, BaseModel) and one not in found:
            found.add(one)
            waiting += [field.annotation for field in one.model_fields.values()]
        waiting += getattr(one, "__args__", ())
    return found


def test_the_refused_keys_of_all_models_are_these() -> None:
    models = {"": TopConfig, **SECTION_MODELS}
    assert {name: find_refused_keys(model) for name, model in models.items()} == REFUSED
    for model in list_algorithms():
        prior = ["prior"] if "prior" in model.model_fields else []  # folders
        assert find_refused_keys(model) == ["path", *prior], model.__module__


def test_only_these_keys_of_all_models_are_marked_as_names() -> None:
    models = [TopConfig, *SECTION_MODELS.values(), *list_algorithms()]
    inner = set().union(*map(find_models, models))
    assert len(inner) > 20
    marked = {
        name
        for model in inner
        for name, field in model.model_fields.items()
        if IN_JOBS in field.metadata
    }
    assert marked == MARKED


def test_a_new_key_that_is_a_path_or_a_secret_is_refused_by_default() -> None:
    class Inner(Settings):
        password: str = ""

    class New(Settings):
        key_file: Path | None = None
        secret: str | None = None
        urls: tuple[str, ...] = ()
        inner: Inner = Inner()
        number: int = 0
        name: Annotated[str, IN_JOBS] = ""

    assert find_refused_keys(New) == ["key_file", "secret", "urls", "inner"]


@pytest.mark.parametrize("name", ["ppo", "sac", "a2c/recall", "bit_flip", "dqn", "a2c"])
def test_shipped_experiments_are_jobs_and_mean_the_same(tmp_path: Path, name: str) -> None:
    config = make_job_config(name)
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(config))
    job, shipped = load_experiment(file), load_experiment(name)
    assert job.algorithm == shipped.algorithm
    assert job.environment == shipped.environment
    assert job.learner == shipped.learner
    assert job.seed == shipped.seed
    assert str(shipped.run_dir) not in json.dumps(config)


def test_every_shipped_experiment_is_a_job_unless_it_needs_files_or_a_program() -> None:
    refused = {}
    for name, file in list_experiments().items():
        try:
            validate_job_config(make_job_config(file))
        except ConfigError as error:
            refused[name] = str(error)
    for name, problem in refused.items():
        assert re.search(r"learner\.offline|environment\.program", problem), (name, problem)
    assert len(refused) < len(list_experiments()) / 2


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("learner.previous=/etc", "learner.previous"),
        ("learner.offline=/etc", "learner.offline"),
        ("learner.hook={load_ckpt_before_run: /etc/x}", "learner.hook.load_ckpt_before_run"),
        ("environment.args={rom: /etc/x}", "environment.args.rom"),
        ("environment.env='os:system:x'", "environment.env"),
        ("environment.env='../os:x'", "environment.env"),
        ("environment.env=':x'", "environment.env"),
        ("environment.env=../x", "environment.env"),
        ("relaax-parameter-server.mirror_url=s3://b", "relaax-parameter-server.mirror_url"),
        ("relaax-parameter-server.initial_values=x.npz", "relaax-parameter-server.initial_values"),
        ("relaax-parameter-server.prometheus_bind=':7003'", "prometheus_bind"),
        ("security.token_file=token", "security"),
        ("wandb.project=mine", "wandb"),
        ("algorithm.hindsight={achieved: /etc}", "algorithm.hindsight.achieved"),
        ("algorithm.name=null", "algorithm.name"),
        ("environment=null", "environment.program"),
    ],
)
def test_a_key_that_names_a_place_or_a_secret_is_refused_by_name(override: str, key: str) -> None:
    with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
        make_job_config(
            "sac", [override, *(["algorithm.path=x"] if "name=null" in override else [])]
        )


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ([], "OpenAI_Gym"),
        (["environment={env: X-v0}"], "OpenAI_Gym"),
        (["environment.args={x: 1}"], "OpenAI_Gym"),
        (["environment.env='a_b.c:X-v0'"], "module-a_b.c"),
        (["environment.env='os:X-v0'", "environment.args={x: 1}"], "module-os-args"),
        (["environment.env='OpenAI_Gym:X-v0'"], "module-OpenAI_Gym"),
    ],
)
def test_a_module_of_environments_is_what_slaves_must_allow(
    overrides: list[str], name: str
) -> None:
    assert name_environment(make_job_config("sac", overrides)) == name


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ([], "expected an object"),
        ({**make_config(), "run_dir": "/x"}, "run_dir"),
        ({**make_config(), "security": {}}, "security"),
        ({**make_config(), "other": 1}, "other"),
        ({**make_config(), "seed": "x"}, "seed"),
        ({**make_config(), "learner": 3}, "learner"),
        ({**make_config(), "learner": {"workers": "many"}}, "learner.workers"),
        (
            {**make_config(), "relaax-parameter-server": None},
            "parameter-server: expected a section",
        ),
        ({**make_config(), "learner": {"nothing": 1}}, "learner.nothing: unknown key"),
        ({**make_config(), "algorithm": {"name": "/etc"}}, "algorithm.name"),
        ({**make_config(), "algorithm": {"name": "algorithms/sac"}}, "algorithm.name"),
        ({**make_config(), "algorithm": {"name": "nothing"}}, "unknown algorithm"),
        ({**make_config(), "algorithm": {"path": "/x"}}, "algorithm.name"),
        ({**make_config(), "environment": {"program": "environments/memory"}}, "cannot use a path"),
        ({**make_config(), "environment": {"program": "nothing"}}, "unknown environment"),
        ({**make_config(), "environment": {"path": "x"}}, "environment.program"),
    ],
)
def test_a_received_config_is_checked(config: object, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        validate_job_config(config)


@pytest.mark.parametrize("name", ["a", "_a", "a.b-c_d", "x" * 100, "x" * 101, "a+b", ".a", "-a"])
@pytest.mark.parametrize("folder", ["algorithms", "environments"])
def test_a_job_can_name_what_slaves_can_offer_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, name: str
) -> None:
    shipped = {one: get_shipped_folder(one) for one in (ALGORITHMS, ENVIRONMENTS)}
    source = shipped[folder] / {"algorithms": "ppo", "environments": "OpenAI_Gym"}[folder]
    (tmp_path / name).symlink_to(source)
    monkeypatch.setattr(
        algorithm_folder, "get_shipped_folder", lambda kind: {**shipped, folder: tmp_path}[kind]
    )
    section, key = {
        "algorithms": ("algorithm", "name"),
        "environments": ("environment", "program"),
    }[folder]
    config = make_config()
    config[section][key] = name
    if is_name(name):
        validate_job_config(config)
    else:
        with pytest.raises(
            ConfigError, match=rf"{section}\.{key}: .* that slaves have, 1 to 100 c"
        ):
            validate_job_config(config)


def test_all_wrong_values_of_a_received_config_are_named() -> None:
    learner = {"eval_freq": True, "workers": -1}
    server = {"checkpoints_to_keep": 0}
    config = {**make_config(), "relaax-parameter-server": server, "learner": learner}
    with pytest.raises(ConfigError) as caught:
        validate_job_config(config)
    assert str(caught.value).splitlines() == [
        "config: relaax-parameter-server.checkpoints_to_keep: expected 1 or more, got 0",
        "config: learner.eval_freq: expected an integer, got true",
        "config: learner.workers: expected 0 or more, got -1",
    ]


def test_numbers_as_arguments_of_an_environment_are_accepted() -> None:
    config = make_job_config("sac", ["environment.args={g: 9.5, flags: [true, 1]}"])
    assert config["environment"]["args"] == {"g": 9.5, "flags": [True, 1]}
