"""What all algorithms share: guarded optimiser steps, space checks, optimiser state, metric means."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from helpers.rollouts import make_algorithm, make_rollout
from rl_training.algorithms.a2c import A2CAlgorithm
from rl_training.algorithms.base import MetricMeans
from rl_training.algorithms.ppo import PPOAlgorithm
from rl_training.execution.optimizers import StepReport
from rl_training.utils.errors import CheckpointError, SpaceError
from rl_training.utils.trees import differing_paths


@pytest.mark.parametrize(
    "observation, action, message",
    [
        (spaces.Tuple((spaces.Discrete(2),)), spaces.Discrete(2), "PPO does not support Tuple observation spaces"),
        (spaces.Discrete(2), spaces.Dict({"a": spaces.Discrete(2)}), "PPO does not support Dict action spaces"),
    ],
)
def test_undeclared_spaces_are_refused_with_what_would_work(observation: Any, action: Any, message: str) -> None:
    with pytest.raises(SpaceError, match=f"{message}(?s:.*)It supports: .*Discrete"):
        PPOAlgorithm.check_spaces(observation, action)
    with pytest.raises(SpaceError, match=message):
        PPOAlgorithm(observation, action, PPOAlgorithm.config_class())
    PPOAlgorithm.check_spaces(spaces.Box(-1, 1, (2,), np.float32), spaces.MultiBinary(2))


@pytest.mark.parametrize("algorithm_class", [PPOAlgorithm, A2CAlgorithm])
def test_state_dict_brings_optimiser_and_random_stream_back(algorithm_class: Any) -> None:
    trained = make_algorithm(algorithm_class, seed=1)
    trained.update(make_rollout(trained), 0.0)
    fresh = make_algorithm(algorithm_class, seed=2)
    fresh.policy.load_state_dict(trained.policy.state_dict())
    assert differing_paths(trained.state_dict(), fresh.state_dict()) != []
    fresh.load_state_dict(copy.deepcopy(trained.state_dict()))
    assert differing_paths(trained.state_dict(), fresh.state_dict()) == []
    for algorithm in (trained, fresh):
        algorithm.update(make_rollout(algorithm, seed=9), 0.0)
    assert differing_paths(trained.policy.state_dict(), fresh.policy.state_dict()) == []


def test_optimiser_state_that_does_not_fit_is_refused() -> None:
    algorithm = make_algorithm(A2CAlgorithm)
    algorithm.update(make_rollout(algorithm), 0.0)
    other_name = copy.deepcopy(algorithm.state_dict())
    other_name["optimizers"] = {"critic": other_name["optimizers"]["policy"]}
    with pytest.raises(CheckpointError, match=r"holds optimisers \['critic'\], expected \['policy'\]"):
        algorithm.load_state_dict(other_name)
    size = len(algorithm.optimizer.weights)
    for wrong in (torch.zeros(7), torch.zeros(size, dtype=torch.float64)):
        misfit = copy.deepcopy(algorithm.state_dict())
        misfit["optimizers"]["policy"]["moments"]["square"] = wrong
        with pytest.raises(CheckpointError, match="an optimiser's square is"):
            algorithm.load_state_dict(misfit)


def test_the_random_stream_and_first_weights_come_from_the_seed() -> None:
    one, same, other = (make_algorithm(PPOAlgorithm, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.generator.get_state(), same.generator.get_state())
    assert not torch.equal(one.generator.get_state(), other.generator.get_state())
    assert differing_paths(one.policy.state_dict(), same.policy.state_dict()) == []
    assert "actor_body.0.weight" in differing_paths(one.policy.state_dict(), other.policy.state_dict())


def test_metric_means() -> None:
    means = MetricMeans()
    reported = torch.tensor([1.0, 4.0])
    means.add(StepReport(("a", "b"), reported))
    reported.copy_(torch.tensor([2.0, 0.0]))  # as a recorded step does
    means.add(StepReport(("a", "b"), reported))
    result = means.means()
    assert {name: value.item() for name, value in result.items()} == {"a": 1.5, "b": 2.0}
    assert reported.tolist() == [2.0, 0.0], "the tensors handed in stay as they are"
    assert MetricMeans().means() == {}
