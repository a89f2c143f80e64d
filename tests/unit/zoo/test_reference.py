"""Which runs have a reference: those with the very config of a shipped result, whatever the seed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rl_training.experiment.config.loader import resolve
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.experiment.run.build import complete_config
from rl_training.zoo.reference import find_reference, reference_of
from rl_training.zoo.result_files import shipped_results


def complete(preset: str, **overrides: Any) -> TrainConfig:
    return complete_config(resolve(preset, overrides))[0]


@pytest.mark.parametrize("result", shipped_results(), ids=lambda result: result.preset)
def test_a_run_of_a_measured_preset_has_its_result_as_reference(result: Any) -> None:
    reference = find_reference(complete(result.preset))
    assert reference is not None and reference.preset == result.preset
    assert (reference.last_mean, reference.last_interval) == (result.last_mean, result.last_interval)
    assert reference.last_scores == tuple(seed.last for seed in result.seeds)
    assert reference.curves == tuple(tuple(seed.curve) for seed in result.seeds)


def test_what_does_not_change_the_training_keeps_the_reference() -> None:
    config = complete("ppo/cartpole", seed=77, output_dir="elsewhere", device="cpu")
    config = replace(config, evaluation={"every": 5000, "episodes": 3}, logging={"console": "off"})
    assert find_reference(config) is not None


@pytest.mark.parametrize(
    "change",
    [
        {"hyperparams.learning_rate": 1e-3},
        {"hyperparams.max_grad_norm": 0.6},  # a hyperparameter that the preset does not name
        {"total_timesteps": 200_000},  # schedules follow the length
        {"num_envs": 16},
        {"policy.hidden_sizes": [32]},
        {"env.normalize_observations": True},
        {"evaluation.deterministic": False},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_changed_config_has_none(change: dict[str, Any]) -> None:
    assert find_reference(complete("ppo/cartpole", **change)) is None


def test_a_default_written_out_is_no_change() -> None:
    assert find_reference(complete("ppo/cartpole", **{"hyperparams.max_grad_norm": 0.5})) is not None


def test_an_environment_without_results_has_none() -> None:
    assert find_reference(complete("ppo/cartpole", env_id="CartPole-v0")) is None


def test_a_seed_without_evaluations_gives_its_score_but_no_curve() -> None:
    result = next(result for result in shipped_results() if result.preset == "ppo/cartpole")
    seeds = [replace(result.seeds[0], curve=[]), *result.seeds[1:]]
    reference = reference_of(replace(result, seeds=seeds))
    assert len(reference.last_scores) == len(seeds) and len(reference.curves) == len(seeds) - 1
