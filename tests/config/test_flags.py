"""Keys of an experiment as flags. covers U26"""

import pytest

from relaax_like.config.keys import flags_to_overrides
from relaax_like.config.loader import load_experiment
from relaax_like.wire.errors import ConfigError

FILE = """
algorithm: {name: ppo, num_actions: 2}
environment: {program: OpenAI_Gym, env: CartPole-v1}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "ppo.yaml"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        ([], []),
        (["--learning-rate", "1e-4"], ["algorithm.learning_rate=1e-4"]),
        (["--a-lr", "1e-4"], ["algorithm.learning_rate=1e-4"]),
        (
            ["--a_lr=1e-4", "--eval-freq", "5"],
            ["algorithm.learning_rate=1e-4", "learner.eval_freq=5"],
        ),
        (
            ["--wandb-project", "p", "--wandb-name=first"],
            ["wandb.project=p", "wandb.name=first"],
        ),
        (
            ["--timesteps", "1e6", "--env-name", "CartPole-v1"],
            ["algorithm.max_global_step=1e6", "environment.env=CartPole-v1"],
        ),
        (["--save-freq", "-1", "--seed=3"], ["learner.save_freq=-1", "seed=3"]),
        (
            ["--shared-network", "--slots", "4"],
            ["algorithm.shared_network=true", "environment.slots=4"],
        ),
    ],
    ids=str,
)
def test_flags_become_overrides_of_the_section_that_has_the_key(file, arguments, want):
    overrides = flags_to_overrides(file, arguments)
    assert overrides == want
    load_experiment(file, overrides)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--learning-rte", "1"], "did you mean --learning-rate?"),
        (
            ["--a-lr", "1", "--learning-rate", "2"],
            "--learning-rate: another spelling of --a-lr, which is also set; keep one of them",
        ),
        (["--layers", "64,64"], "use --set algorithm.network.layers='[64, 64]'"),
        (["--arch", "lstm"], "use --set algorithm.network.layers='[64, {lstm: 64}]'"),
        (["--bogus"], "--bogus: neither an option of this command, nor a top-level key"),
        (["--checkpoint-dir", "there"], "for keys of other sections, use --set SECTION.KEY=VALUE"),
        (["stray"], "'stray': unexpected argument"),
        (["--"], "'--': unexpected argument"),
    ],
    ids=str,
)
def test_what_is_no_flag_is_refused_by_name(file, arguments, words):
    with pytest.raises(ConfigError) as caught:
        flags_to_overrides(file, arguments)
    assert words in str(caught.value)


@pytest.mark.parametrize("text", ["seed: 1\n", "algorithm: {kl: 1}\n", "algorithm: 3\n"])
def test_a_file_without_an_algorithm_is_refused(tmp_path, text):
    path = tmp_path / "none.yaml"
    path.write_text(text)
    with pytest.raises(
        ConfigError, match=r"none\.yaml: algorithm: neither name nor path is set in"
    ):
        flags_to_overrides(path, ["--kl", "1"])
