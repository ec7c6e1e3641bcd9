"""Experiments: what is filled in, what is refused, and with which words. Covers R16, R23, R24."""

import dataclasses
import logging
from pathlib import Path
from typing import Any

import pytest

from relaax_like.config.address import Address
from relaax_like.config.algorithm_folder import find_environment
from relaax_like.config.loader import dump_experiment, load_experiment
from relaax_like.config.models import Experiment
from relaax_like.wire.errors import ConfigError

MINIMAL = "algorithm: {path: my_algorithm}\n"


@pytest.fixture
def write(tmp_path: Path, algorithm_folder: Path) -> Any:
    """Writes an experiment's file beside the user's algorithm."""

    def write_file(text: str) -> Path:
        path = tmp_path / "cartpole.yaml"
        path.write_text(text)
        return path

    return write_file


def _problems(path: Path, *overrides: str) -> list[str]:
    """Returns the lines of the error, with the folder cut off."""
    with pytest.raises(ConfigError) as caught:
        load_experiment(path, overrides)
    return [line.replace(f"{path.parent}/", "") for line in str(caught.value).splitlines()]


def test_defaults_are_filled_in(write: Any, algorithm_folder: Path) -> None:
    experiment = load_experiment(write(MINIMAL))
    assert experiment.seed == 0
    assert experiment.run_dir == Path("runs/cartpole")
    assert experiment.parameter_server.bind == Address("localhost", 7000)
    assert experiment.parameter_server.checkpoint_dir == Path("runs/cartpole/checkpoints")
    assert experiment.parameter_server.metrics_dir == Path("runs/cartpole/metrics")
    assert experiment.parameter_server.checkpoint_time_interval == 60
    assert experiment.rlx_server.bind == Address("localhost", 7001)
    assert experiment.rlx_server.parameter_server == Address("localhost", 7000)
    assert experiment.rlx_server.session_timeout_sec is None
    assert experiment.metrics_server is None
    assert experiment.environment is None
    assert experiment.environment_program is None
    assert experiment.algorithm_folder == algorithm_folder.resolve()
    assert experiment.algorithm.max_global_step == 10**8
    assert experiment.optimizers["default"].learning_rate == 1e-3


def test_defaults_follow_other_keys(write: Any) -> None:
    text = MINIMAL + "run_dir: out\nrelaax-parameter-server: {bind: '0.0.0.0:7100'}\n"
    experiment = load_experiment(write(text + "relaax-metrics-server:\n"))
    assert experiment.parameter_server.checkpoint_dir == Path("out/checkpoints")
    assert experiment.rlx_server.parameter_server == Address("127.0.0.1", 7100)
    assert experiment.metrics_server is not None
    assert experiment.metrics_server.metrics_dir == Path("out/metrics")
    assert experiment.metrics_server.bind == Address("localhost", 7002)


TUTORIAL = """---
relaax-parameter-server:
  --bind: localhost:7000
  --checkpoint-dir: checkpoints/pg_cartpole
  --checkpoint-time-interval: 30
  --checkpoint-global-step-interval: 1e5
  --metrics-dir: metrics_pg_cartpole
  --log-level: debug

relaax-rlx-server:
  --bind: 0.0.0.0:7001
  --parameter-server: localhost:7000
  --timeout: 1200
  --log-level: WARNING

algorithm:
  path: ./my_algorithm
  action_size: 1                  # action size for the given environment (CartPole-v0)
  state_size:  4                  # size of the input observation (flattened)
  hidden_layer_size: 10           # size of the hidden layer for simple FC-NN
  max_global_step: 1e8            # amount of maximum global steps to pass through the training
  learning_rate: 1e-2
  rewards_gamma: 0.99
"""


def test_tutorial_file_with_dashed_keys_loads(
    write: Any, caplog: pytest.LogCaptureFixture
) -> None:  # covers R16, R23, R24, R27
    with caplog.at_level(logging.WARNING):
        experiment = load_experiment(write(TUTORIAL))
    assert "cartpole.yaml:3: --bind is deprecated; use bind" in caplog.text
    server = experiment.parameter_server
    assert server.checkpoint_dir == Path("checkpoints/pg_cartpole")
    assert server.metrics_dir == Path("metrics_pg_cartpole")
    assert (server.checkpoint_time_interval, server.checkpoint_global_step_interval) == (30, 10**5)
    assert server.log_level == "DEBUG"
    assert experiment.rlx_server.bind == Address("0.0.0.0", 7001)
    assert experiment.rlx_server.session_timeout_sec == 1200
    algorithm: Any = experiment.algorithm
    assert (algorithm.layer_size, algorithm.GAMMA) == (10, 0.99)
    assert (algorithm.action_size, algorithm.state_size) == (1, 4)
    assert (algorithm.max_global_step, algorithm.learning_rate) == (10**8, 0.01)
    assert type(algorithm.max_global_step) is int


def test_tutorial_defaults(write: Any) -> None:  # covers R16
    algorithm: Any = load_experiment(write(MINIMAL)).algorithm
    assert (algorithm.layer_size, algorithm.GAMMA) == (200, 0.99)


@pytest.mark.parametrize(
    ("text", "key", "want"),
    [
        ("learning_rate: 1", "learning_rate", 1.0),
        ("max_global_step: 1e6", "max_global_step", 10**6),
        ("hidden_sizes: [8, 1e1]", "hidden_sizes", (8, 10)),
        ("size_or_sizes: 3", "size_or_sizes", 3),
        ("size_or_sizes: [3, 4]", "size_or_sizes", (3, 4)),
        ("layer_size: 7", "layer_size", 7),
    ],
)
def test_value_is_accepted(write: Any, text: str, key: str, want: Any) -> None:
    experiment = load_experiment(write(f"algorithm:\n  path: my_algorithm\n  {text}\n"))
    value = getattr(experiment.algorithm, key)
    assert value == want
    assert type(value) is type(want)


# Name -> lines of the algorithm section, and what is said about its third line of the file.
_BAD_VALUES = {
    "misspelt key": (
        "learning_rat: 1",
        "learning_rat: unknown key; did you mean learning_rate? (known: name, path, "
        "max_global_step, observation_history, masks, learning_rate, hidden_layer_size, "
        "rewards_gamma, "
        "action_size, state_size, hidden_sizes, size_or_sizes)",
    ),
    "text for a number": ("learning_rate: fast", "learning_rate: expected a number, got 'fast'"),
    "quoted number": ("learning_rate: '1'", "learning_rate: expected a number, got '1'"),
    "true for a number": ("learning_rate: true", "learning_rate: expected a number, got true"),
    "NaN": ("learning_rate: .nan", "learning_rate: expected a finite number, got nan"),
    "infinity": ("learning_rate: .inf", "learning_rate: expected a finite number, got inf"),
    "negative": ("learning_rate: -1", "learning_rate: expected 0 or more, got -1"),
    "null": ("learning_rate:", "learning_rate: expected a number, got null"),
    "half for an integer": ("state_size: 1.5", "state_size: expected an integer, got 1.5"),
    "float for an integer": ("state_size: 4.0", "state_size: expected an integer, got 4.0"),
    "true for an integer": ("state_size: true", "state_size: expected an integer, got true"),
    "zero": ("max_global_step: 0", "max_global_step: expected 1 or more, got 0"),
    "section for a number": (
        "state_size: {a: 1}",
        "state_size: expected an integer, got a section",
    ),
    "number for a list": ("hidden_sizes: 3", "hidden_sizes: expected a list, got 3"),
    "text in a list": ("hidden_sizes: [1, a]", "hidden_sizes.1: expected an integer, got 'a'"),
    "text for a union": (
        "size_or_sizes: x",
        "size_or_sizes: expected an integer or a list, got 'x'",
    ),
    "field name instead of alias": (
        "layer_size: 0",
        "hidden_layer_size: expected 1 or more, got 0",
    ),
    "field name and alias": (
        "layer_size: 1\n  hidden_layer_size: 2",
        "layer_size: another spelling of hidden_layer_size, which is also set; keep one of them",
    ),
}


@pytest.mark.parametrize(("text", "want"), _BAD_VALUES.values(), ids=_BAD_VALUES.keys())
def test_bad_value_names_file_line_key_and_cure(write: Any, text: str, want: str) -> None:
    path = write(f"algorithm:\n  path: my_algorithm\n  {text}\n")
    assert _problems(path)[0] == f"cartpole.yaml:3: algorithm.{want}"


_BAD_FILES = {
    "unknown section": (
        "algoritm: {}\n" + MINIMAL,
        "cartpole.yaml:1: algoritm: unknown key; did you mean algorithm? (known: seed, run_dir, "
        "logdir, run_name, compile_cache, "
        "relaax-parameter-server, relaax-rlx-server, relaax-metrics-server, wandb, security, "
        "learner, algorithm, environment)",
    ),
    "project that wandb refuses": (
        MINIMAL + "wandb: {project: a/b}\n",
        "cartpole.yaml:2: wandb.project: expected a name without / \\ # ? % or :, got 'a/b'",
    ),
    "section that is a number": (
        MINIMAL + "learner: 3\n",
        "cartpole.yaml:2: learner: expected a section of keys, got 3",
    ),
    "no algorithm": (
        "seed: 1\n",
        "cartpole.yaml: algorithm: neither name nor path is set; set either name (a folder in "
        "algorithms/) or path (your own)",
    ),
    "name and path": (
        "algorithm:\n  name: a\n  path: b\n",
        "cartpole.yaml:3: algorithm.path: name and path are both set; set either name (a folder in "
        "algorithms/) or path (your own)",
    ),
    "name that is a path": (
        "algorithm:\n  name: ./my_algorithm\n",
        "cartpole.yaml:2: algorithm.name: './my_algorithm' is a path, not a name; set path: "
        "./my_algorithm instead",
    ),
    "name that is a number": (
        "algorithm: {name: 3}\n",
        "cartpole.yaml:1: algorithm.name: expected a name as text, got 3",
    ),
    "program and path": (
        MINIMAL + "environment: {program: a, path: b}\n",
        "cartpole.yaml:2: environment.path: program and path are both set; set either "
        "program (a folder in environments/) or path (your own)",
    ),
    "an action that is taken no time": (  # covers F15
        MINIMAL + "environment:\n  path: my_algorithm/config.py\n  action_repeat: 0\n",
        "cartpole.yaml:4: environment.action_repeat: expected 1 or more, got 0",
    ),
    "negative seed": (MINIMAL + "seed: -1\n", "cartpole.yaml:2: seed: expected 0 or more, got -1"),
    "learner of its own without a plan": (
        MINIMAL + "learner:\n  placement: standalone\n",
        "cartpole.yaml:3: learner.placement: 'standalone', but the algorithm declares no plan, "
        "which a learner there needs for its updates; set it to 'agent'",
    ),
    "a hook that is no section": (
        MINIMAL + "learner:\n  hook:\n    foo: 3\n",
        "cartpole.yaml:3: learner.hook: foo: expected a section with type and position, got 3; "
        "only the shorthands load_ckpt_before_run, save_ckpt_after_iter, save_ckpt_after_run, "
        "log_show_after_iter, log_reduce_after_iter have other values",
    ),
    "unknown placement": (
        MINIMAL + "learner:\n  placement: moon\n",
        "cartpole.yaml:3: learner.placement: expected 'agent', 'server' or 'standalone', got "
        "'moon'",
    ),
    "learner where the algorithm has none": (
        MINIMAL + "learner:\n  placement: server\n",
        "cartpole.yaml:3: learner.placement: 'server', but the algorithm declares no plan, "
        "which a learner there needs for its updates; set it to 'agent'",
    ),
    "bad address": (
        MINIMAL + "relaax-rlx-server:\n  bind: localhost:seven\n",
        "cartpole.yaml:3: relaax-rlx-server.bind: 'localhost:seven': ':seven' after the host is "
        "not a colon and a port of at most five digits; "
        "expected host:port, such as localhost:7001 or [::1]:7001 (port 0, only to listen: any "
        "free port)",
    ),
    "address that is a number": (
        MINIMAL + "relaax-rlx-server:\n  bind: 7001\n",
        "cartpole.yaml:3: relaax-rlx-server.bind: expected an address such as localhost:7001, "
        "got 7001",
    ),
    "two servers on one port": (
        MINIMAL + "relaax-rlx-server:\n  bind: 0.0.0.0:7000\n",
        "cartpole.yaml:3: relaax-rlx-server.bind: 0.0.0.0:7000 is already used by "
        "relaax-parameter-server.bind (localhost:7000); choose another port",
    ),
    "metrics server on the rlx server's port": (
        MINIMAL + "relaax-metrics-server:\n  bind: 127.0.0.1:7001\n",
        "cartpole.yaml:3: relaax-metrics-server.bind: 127.0.0.1:7001 is already used by "
        "relaax-rlx-server.bind (localhost:7001); choose another port",
    ),
    "unknown optimizer key": (
        MINIMAL + "relaax-parameter-server:\n  optimizers:\n    actor:\n      learning_rat: 1\n",
        "cartpole.yaml:5: relaax-parameter-server.optimizers.actor.learning_rat: unknown key; did "
        "you mean learning_rate? (known: name, learning_rate, schedule, learning_rate_end, "
        "schedule_env_steps, beta1, beta2, epsilon, adam_epsilon, momentum, rho, weight_decay)",
    ),
    "optimizer that contradicts itself": (
        MINIMAL + "relaax-parameter-server:\n  optimizers:\n    actor: {schedule: linear}\n",
        "cartpole.yaml:4: relaax-parameter-server.optimizers.actor: schedule: linear also "
        "needs learning_rate_end and schedule_env_steps; set learning_rate_end and "
        "schedule_env_steps, or set schedule: constant",
    ),
    "duplicate key": (
        MINIMAL + "seed: 1\nseed: 2\n",
        "cartpole.yaml:3: seed: duplicate key, first set at cartpole.yaml:2; remove one of them",
    ),
}


@pytest.mark.parametrize(("text", "want"), _BAD_FILES.values(), ids=_BAD_FILES.keys())
def test_bad_file_is_one_line(write: Any, text: str, want: str) -> None:
    assert _problems(write(text)) == [want]


def test_many_slots_raise_the_rlx_server_s_limit_unless_it_is_set(
    write: Any, tmp_path: Path
) -> None:
    (tmp_path / "main").touch()
    for slots, limit in ((5000, 5000), (8, 4096)):
        text = MINIMAL + f"environment: {{path: main, slots: {slots}}}\n"
        assert load_experiment(write(text)).rlx_server.max_slots_per_client == limit


def test_an_environment_s_name_alone_is_one_of_gymnasium(write: Any) -> None:
    experiment = load_experiment(write(MINIMAL + "environment: {env: CartPole-v1}\n"))
    assert experiment.environment is not None
    assert experiment.environment.program == "OpenAI_Gym"
    assert experiment.environment_program == find_environment("OpenAI_Gym")


def test_slots_and_clients_above_the_rlx_servers_limits_are_refused(
    write: Any, tmp_path: Path
) -> None:
    (tmp_path / "main").touch()
    server = "relaax-rlx-server: {max_slots_per_client: 4, max_clients: 2}\n"
    environment = "environment: {path: main, slots: 5, clients: 3}\n"
    assert _problems(write(MINIMAL + server + environment)) == [
        "cartpole.yaml:3: environment.slots: 5 is above relaax-rlx-server.max_slots_per_client "
        "(4); lower slots, or raise max_slots_per_client",
        "cartpole.yaml:3: environment.clients: 3 is above relaax-rlx-server.max_clients (2); "
        "lower clients, or raise max_clients",
    ]


def test_missing_initial_values_are_named_and_present_ones_made_absolute(
    write: Any, tmp_path: Path
) -> None:
    path = write(MINIMAL + "relaax-parameter-server:\n  initial_values: start.npz\n")
    assert _problems(path) == [
        "cartpole.yaml:3: relaax-parameter-server.initial_values: start.npz: no such file, or "
        "no access to it; correct the path, or remove the key"
    ]
    (tmp_path / "start.npz").touch()
    server = load_experiment(path).parameter_server
    assert server.initial_values == (tmp_path / "start.npz").resolve()


def test_all_problems_come_out_together_in_the_order_of_lines(write: Any) -> None:
    path = write(
        "seed: x\n"
        "relaax-parameter-server:\n"
        "  bind: nowhere:0x1\n"
        "  checkpoints_to_keep: 0\n"
        "relaax-rlx-server:\n"
        "  max_client: 3\n"
        "algorithm:\n"
        "  path: my_algorithm\n"
        "  learning_rate: '1'\n"
        "environment:\n"
        "  path: nothing\n"
        "  limit: 0\n"
        "seed: 3\n"
    )
    lines = _problems(path, "learner.target_episodes=many", "relaax-rlx-server.nothing=1")
    places = [line.split(": ")[0] for line in lines]
    assert places == [
        *(f"cartpole.yaml:{line}" for line in (1, 3, 4, 6, 9, 11, 12, 13)),
        *("--set relaax-rlx-server.nothing=1", "--set learner.target_episodes=many"),
    ]


def test_broken_algorithm_folder_does_not_hide_other_problems(
    write: Any, algorithm_folder: Path
) -> None:
    (algorithm_folder / "config.py").write_text("import nothing_of_this_name\n")
    lines = _problems(write("seed: x\n" + MINIMAL))
    assert lines == [
        "cartpole.yaml:1: seed: expected an integer, got 'x'",
        "cartpole.yaml:2: algorithm: my_algorithm/config.py:1: ModuleNotFoundError: No module "
        "named 'nothing_of_this_name'",
    ]


@pytest.mark.parametrize(
    ("plan", "want"),
    [
        (
            "OnPolicy(rollout_steps=self.state_size, batch_size=8)",
            "ValueError: OnPolicy: batch_size is 8, but without rollouts the size of an "
            "iteration is not known; set rollouts, or batch_size=0",
        ),
        ("Replay(capacity=9, batch_size=1, burn_in_steps=2)", "ValueError: Replay: burn_in"),
        (
            "Replay(capacity=9, batch_size=1, priority_exponent=1.5)",
            "ValueError: Replay: priority_exponent is 1.5, expected 0 to 1",
        ),
        (
            "Replay(capacity=9, batch_size=1, n_step=3, hindsight=object())",
            "ValueError: Replay: hindsight works with n_step=1, got 3",
        ),
        (
            "Replay(capacity=9, batch_size=3, balance_rewards=True)",
            "ValueError: Replay: batch_size is 3, but balance_rewards needs two halves",
        ),
        (
            "Replay(capacity=9, batch_size=2, balance_rewards=True, n_step=2)",
            "ValueError: Replay: balance_rewards chooses steps by their own rewards, and cannot be "
            "combined with n_step=2",
        ),
        ("OnPolicy(rollout_steps=4, epochs=0)", "ValueError: OnPolicy: epochs is 0, expected 1 or"),
        (
            "Replay(capacity=1, batch_size=1)",
            "ValueError: Replay: capacity is 1, expected 2 or",
        ),
        ("Replay(capacity=9, batch_size=1, n_step=0)", "ValueError: Replay: n_step is 0, exp"),
        (
            "Replay(capacity=9, batch_size=1, updates_per_step=0.0)",
            "ValueError: Replay: updates_per_step is 0.0, expected a number above 0",
        ),
        (
            "Offline(batch_size=4, discount=1.5)",
            "ValueError: Offline: discount is 1.5, expected 0 to 1",
        ),
        ("Episodes(discount=float('nan'))", "ValueError: Episodes: discount is nan, expected 0 to"),
        ("OnPolicy(steps=8)", "TypeError: OnPolicy.__init__() got an unexpected keyword"),
        ("OnPolicy(rollout_steps=self.nothing)", "object has no attribute 'nothing'"),
    ],
)
def test_a_plan_that_fails_does_not_hide_other_problems(
    write: Any, algorithm_folder: Path, plan: str, want: str
) -> None:
    file = algorithm_folder / "config.py"
    file.write_text(
        f"{file.read_text()}\n"
        "    @property\n"
        "    def plan(self):\n"
        "        from relaax_like.config.plan import Episodes, Offline, OnPolicy, Replay\n"
        f"        return {plan}\n"
    )
    first, second = _problems(write("seed: x\n" + MINIMAL))
    assert first == "cartpole.yaml:1: seed: expected an integer, got 'x'"
    line = len(file.read_text().splitlines())
    assert second.startswith(f"cartpole.yaml:2: algorithm: plan: my_algorithm/config.py:{line}: ")
    assert want in second


def test_optimizers_that_fail_are_a_problem_with_the_line(
    write: Any, algorithm_folder: Path
) -> None:
    file = algorithm_folder / "config.py"
    file.write_text(
        f"{file.read_text()}\n"
        "    @property\n"
        "    def optimizers(self):\n"
        "        return {'default': OptimizerConfig()}\n"
    )
    [problem] = _problems(write(MINIMAL))
    line = len(file.read_text().splitlines())
    place = f"cartpole.yaml:1: algorithm: optimizers: my_algorithm/config.py:{line}: "
    assert problem.startswith(f"{place}NameError: ")


def test_overrides_win_and_are_read_as_yaml(write: Any) -> None:
    path = write("algorithm:\n  path: my_algorithm\n  learning_rate: bad\n  hidden_layer_size: 5\n")
    overrides = [
        "algorithm.learning_rate=3e-4",
        "algorithm.layer_size=6",
        "algorithm.hidden_sizes=[1, 2]",
        "learner.target_return=195",
        "relaax-parameter-server.checkpoint_time_interval=null",
        "relaax-rlx-server.bind=localhost:0",
        "relaax-parameter-server.optimizers.actor.learning_rate=0.5",
        "seed=7",
    ]
    experiment = load_experiment(path, overrides)
    algorithm: Any = experiment.algorithm
    assert algorithm.learning_rate == 3e-4
    assert algorithm.layer_size == 6
    assert algorithm.hidden_sizes == (1, 2)
    assert experiment.learner.target_return == 195
    assert experiment.parameter_server.checkpoint_time_interval is None
    assert experiment.rlx_server.bind.port == 0
    assert experiment.optimizers["actor"].learning_rate == 0.5
    assert experiment.seed == 7


@pytest.mark.parametrize("text", ["[::1]:7011", "'[::1]:7011'", " [::1]:7011 "])
def test_an_ipv6_address_needs_no_quotes_in_a_flag(write: Any, text: str) -> None:
    experiment = load_experiment(write(MINIMAL), [f"relaax-rlx-server.bind={text}"])
    assert experiment.rlx_server.bind == Address("::1", 7011)


@pytest.mark.parametrize(
    ("flag", "want"),
    [
        ("seed", "--set seed: expected KEY=VALUE"),
        ("=3", "--set =3: expected KEY=VALUE"),
        ("algorithm..x=3", "--set algorithm..x=3: expected KEY=VALUE"),
        ("seed=[", "--set seed=[: not valid YAML"),
        ("seed.x=1", "--set seed.x=1: seed is '1', expected a section"),
        ("sed=1", "--set sed=1: sed: unknown key; did you mean seed?"),
        ("algorithm.learning_rat=1", "--set algorithm.learning_rat=1: algorithm.learning_rat: unk"),
        ("algorithm=3", "--set algorithm=3: algorithm: neither name nor path is set; set either"),
        ("learner={a: 1, a: 2}", "--set learner={a: 1, a: 2}: learner.a: duplicate key"),
    ],
)
def test_bad_override_is_named(write: Any, flag: str, want: str) -> None:
    assert any(line.startswith(want) for line in _problems(write(MINIMAL + "seed: 1\n"), flag))


_FULL = """
seed: 5
run_dir: out/run
relaax-parameter-server:
  bind: '[::1]:7100'
  checkpoint_time_interval: null
  checkpoint_global_step_interval: 1e6
  initial_values: start.npz
  optimizers:
    default: {name: sgd, learning_rate: 1e-2, schedule: linear, learning_rate_end: 0,
              schedule_env_steps: 1e6}
relaax-rlx-server:
  session_timeout_sec: 3.5
  score_lines: false
relaax-metrics-server:
  bind: localhost:7200
wandb: {project: cart pole, group: seeds}
learner: {target_return: 195}
algorithm:
  path: my_algorithm
  hidden_layer_size: 17
  learning_rate: 1e-7
  hidden_sizes: []
environment:
  path: my_algorithm/defaults.py
  env: CartPole-v0
  action_repeat: 4
  random_steps: 3
  limit: 800
  args: {text: "1e-2", number: 1e-2, list: [1, null, true], nested: {no: "no"}}
"""


def test_dumped_experiment_loads_as_the_same(write: Any, tmp_path: Path) -> None:
    (tmp_path / "start.npz").touch()
    experiment = load_experiment(write(_FULL))
    saved = tmp_path / "elsewhere" / "config.yaml"
    saved.parent.mkdir()
    saved.write_text(dump_experiment(experiment))
    again = load_experiment(saved)
    assert dataclasses.replace(again, file=experiment.file) == experiment
    assert again.environment is not None
    assert again.environment.args["text"] == "1e-2"
    assert again.environment.action_repeat == 4
    assert again.wandb is not None
    assert (again.wandb.project, again.wandb.group, again.wandb.name) == (
        "cart pole",
        "seeds",
        None,
    )
    assert "hidden_layer_size: 17" in saved.read_text()
    assert "  layer_size:" not in saved.read_text()


def test_minimal_experiment_survives_dumping(write: Any, tmp_path: Path) -> None:
    experiment = load_experiment(write(MINIMAL))
    saved = tmp_path / "config.yaml"
    saved.write_text(dump_experiment(experiment))
    assert dataclasses.replace(load_experiment(saved), file=experiment.file) == experiment


def test_experiment_cannot_be_changed(write: Any) -> None:
    experiment: Experiment = load_experiment(write(MINIMAL))
    with pytest.raises(dataclasses.FrozenInstanceError):
        experiment.seed = 1  # type: ignore[misc]
    with pytest.raises(ValueError, match="frozen"):
        experiment.learner.target_episodes = 1


def test_a_limit_is_shown_with_all_its_digits() -> None:
    want = "max_message_bytes: expected 1073741824 or less, got 1073741825"
    with pytest.raises(ConfigError, match=want):
        load_experiment("ppo", ["relaax-rlx-server.max_message_bytes=1073741825"])


@pytest.mark.parametrize("name", ["dqn", "sac", "policy_gradient/policy_gradient"])
def test_more_actions_than_a_space_can_have_are_refused_by_the_name_of_the_key(name: str) -> None:
    want = "algorithm.num_actions: expected 2147483648 or less, got 2147483649"
    with pytest.raises(ConfigError, match=want):
        load_experiment(name, ["algorithm.num_actions=2147483649"])
