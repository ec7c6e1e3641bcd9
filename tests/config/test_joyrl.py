"""docs/joyrl.md: the keys that it names are there. covers J15"""

import re

from support.cluster import ROOT

from relaax_like.config.algorithm import AlgorithmConfig
from relaax_like.config.algorithm_folder import find_algorithm, load_config_class
from relaax_like.config.models import (
    EnvironmentConfig,
    LearnerConfig,
    ParameterServerConfig,
    RlxServerConfig,
    TopConfig,
)

SECTIONS = {
    "learner": [LearnerConfig],
    "environment": [EnvironmentConfig],
    "relaax-parameter-server": [ParameterServerConfig],
    "relaax-rlx-server": [RlxServerConfig],
    # rollout_steps is an algorithm's own.
    "algorithm": [AlgorithmConfig, load_config_class(find_algorithm("ppo"))],
}
# All that JoyRL's GeneralConfig has, and what its code reads beside it.
THEIRS = (
    *("mode", "seed", "max_episode", "max_step", "n_interactors", "n_learners", "share_buffer"),
    *("exps_trucation_size", "is_learner_async", "online_eval", "online_eval_episode"),
    *("model_save_fre", "load_checkpoint", "load_path", "load_model_step", "reward_threshold"),
    *("reward_threshold_limit", "interact_summary_fre", "policy_summary_fre", "collect_traj"),
    *("device", "env_name", "algo_name"),
)


def test_each_key_that_is_named_is_one_of_ours_and_none_of_theirs_is_left_out() -> None:
    text = (ROOT / "docs" / "joyrl.md").read_text()
    named = re.findall(rf"`({'|'.join(SECTIONS)})\.(\w+)[`:]", text)
    assert len(named) > 20
    unknown = [
        (section, key)
        for section, key in named
        if not any(key in model.model_fields for model in SECTIONS[section])
    ]
    assert unknown == []
    assert {"seed", "run_dir", "logdir"} <= set(TopConfig.model_fields)
    missing = [key for key in THEIRS if not re.search(rf"^\| .*`{key}[`:][^|]*\|", text, re.M)]
    assert missing == []
