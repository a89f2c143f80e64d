"""Configs that earlier versions wrote keep their meaning, and lose what never meant anything."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from rl_training.algorithms.dqn import DQNConfig
from rl_training.experiment.config.stored import stored_config
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.experiment.run.build import complete_config
from rl_training.utils.errors import ConfigError


def test_settings_without_their_switch_are_left_out_of_what_a_program_wrote() -> None:
    written = {**asdict(DQNConfig()), "num_taus": 32, "v_min": -5.0, "gamma": 0.9}
    with pytest.raises(ConfigError, match="num_taus.*means nothing while distribution is none"):
        complete_config(TrainConfig(algo="dqn", hyperparams={"num_taus": 32}))
    config, hyperparams = complete_config(stored_config({"algo": "dqn", "hyperparams": written}))
    assert hyperparams.gamma == 0.9
    assert not {"num_taus", "v_min", "per_alpha", "munchausen_tau", "rmsprop_eps"} & config.hyperparams.keys()
    assert stored_config(config.to_dict()) == config, "what is written today is read as it is"


def test_a_temperature_had_the_learning_rate_of_the_actor() -> None:
    former = {"learning_rate": 1e-3, "actor_learning_rate": 3e-4}
    for algo in ("sac", "tqc"):
        _, hyperparams = complete_config(stored_config({"algo": algo, "hyperparams": former}))
        assert hyperparams.temperature_learning_rate == 3e-4
    assert complete_config(TrainConfig(algo="sac", hyperparams=former))[1].temperature_learning_rate is None
    complete_config(stored_config({"algo": "td3", "hyperparams": former}))  # has none


def test_keys_that_moved() -> None:
    former = {"algo": "crossq", "compile": True, "hyperparams": {"critic_hidden_sizes": [8]}, "policy": {}}
    assert stored_config(former).policy.critic_hidden_sizes == (8,)


NO_NUMBER = {"algo": "td3", "hyperparams": {"target_noise": "loud", "target_noise_clip": [1]}}


@pytest.mark.parametrize(
    "values", [{"algo": "nothing"}, {"algo": 3}, {"algo": "dqn", "hyperparams": 1}, {"seed": -1}, NO_NUMBER]
)
def test_what_is_no_config_is_refused_as_such(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        complete_config(stored_config(values))
