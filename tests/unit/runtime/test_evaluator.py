"""Evaluations: complete episodes, a fair share for each environment, and no trace left in the training."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from helpers import hiding_envs
from helpers.envs import ConstantRewardEnv, CounterEnv, RandomWalkEnv
from rl_training import PPO
from rl_training.envs.factory import EnvFactory
from rl_training.policies.actor_critic import ActorCritic
from rl_training.policies.policy_config import PolicyConfig
from rl_training.policies.spec import PolicySpec
from rl_training.runtime.evaluator import EvaluationResult, Evaluator, bootstrap_interval
from rl_training.utils.global_random import global_rng_state
from rl_training.utils.trees import differing_paths

MODES = list(AutoresetMode)


def policy_for(n_actions: int = 3, **kwargs: Any) -> ActorCritic:
    torch.manual_seed(0)
    observations = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    return ActorCritic(PolicySpec(observations, spaces.Discrete(n_actions), PolicyConfig(hidden_sizes=(4,)), **kwargs))


def evaluator_for(make: Any, *, num_envs: int = 3, mode: AutoresetMode = AutoresetMode.SAME_STEP) -> Evaluator:
    def make_envs(count: int) -> Any:
        return SyncVectorEnv([EnvFactory("test", custom=make)] * count, autoreset_mode=mode)

    return Evaluator(make_envs, num_envs=num_envs, seed=0, device=torch.device("cpu"))


class LengthByIndex:
    """Makes environments of which the first has episodes of one step, the second of ten, and so on."""

    def __init__(self, *lengths: int):
        self.lengths = itertools.cycle(lengths)

    def __call__(self) -> Any:
        return ConstantRewardEnv(1.0, ((next(self.lengths), "truncated"),))


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_short_episodes_get_no_advantage(mode: AutoresetMode) -> None:
    evaluator = evaluator_for(LengthByIndex(1, 10, 50), mode=mode)
    result = evaluator.evaluate(policy_for(), 6, deterministic=True)
    # The first to finish would have been six episodes of one step.
    assert result.lengths == (1, 1, 10, 10, 50, 50)
    assert result.returns == (1.0, 1.0, 10.0, 10.0, 50.0, 50.0)
    assert result.mean == 122 / 6 and result.mean_length == 122 / 6 and result.episodes == 6


def test_a_number_that_does_not_divide_is_shared_out_beforehand() -> None:
    evaluator = evaluator_for(LengthByIndex(5, 2, 3))
    assert evaluator.evaluate(policy_for(), 4, deterministic=True).lengths == (5, 5, 2, 3)
    assert evaluator_for(LengthByIndex(5, 2, 3)).evaluate(policy_for(), 2, deterministic=True).lengths == (5, 2)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("deterministic", [True, False])
def test_the_same_call_gives_the_same_result(mode: AutoresetMode, deterministic: bool) -> None:
    evaluator, policy = evaluator_for(RandomWalkEnv, mode=mode), policy_for()
    first = evaluator.evaluate(policy, 7, deterministic=deterministic, stream=3)
    assert evaluator.evaluate(policy, 7, deterministic=deterministic, stream=3) == first
    assert evaluator_for(RandomWalkEnv, mode=mode).evaluate(policy, 7, deterministic=deterministic, stream=3) == first
    assert evaluator.evaluate(policy, 7, deterministic=deterministic, stream=4).lengths != first.lengths
    assert first.deterministic is deterministic


class ActionSum(CounterEnv):
    """The reward is the action."""

    def step(self, action: Any) -> Any:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, float(action), terminated, truncated, info


def test_deterministic_takes_the_mode_and_stochastic_samples() -> None:
    policy = policy_for()
    with torch.no_grad():
        policy.action_head.linear.bias.copy_(torch.tensor([0.0, 0.5, 0.4]))
        policy.action_head.linear.weight.zero_()
    evaluator = evaluator_for(lambda: ActionSum(((20, "terminated"),)))
    assert evaluator.evaluate(policy, 3, deterministic=True).returns == (20.0, 20.0, 20.0)
    assert len(set(evaluator.evaluate(policy, 3, deterministic=False).returns)) > 1


def test_nothing_of_the_policy_or_the_global_generators_changes() -> None:
    policy = policy_for(normalize_observations=True)
    policy.encoder.normalizer.update(torch.tensor([[1.0, 2.0], [3.0, 5.0]]))
    before, generators = {k: v.clone() for k, v in policy.state_dict().items()}, global_rng_state()

    class Draws(RandomWalkEnv):
        def step(self, action: Any) -> Any:
            np.random.random()  # noqa: NPY002 - what a careless environment does
            torch.rand(())
            return super().step(action)

    policy.train(True)
    evaluator_for(Draws).evaluate(policy, 4, deterministic=False)
    assert policy.training
    assert differing_paths(policy.state_dict(), before) == []
    assert differing_paths(global_rng_state(), generators) == []


def test_training_with_and_without_evaluations_gives_the_same_weights() -> None:
    weights = []
    for every in (0, 64):
        agent = PPO(
            RandomWalkEnv,
            seed=1,
            num_envs=2,
            num_steps=16,
            total_timesteps=256,
            evaluation={"every": every, "episodes": 3, "deterministic": False},
            env={"normalize_observations": True, "normalize_rewards": True},
        )
        result = agent.learn()
        assert (result.evaluation is not None) is (every > 0)
        weights.append({**agent.policy.state_dict(), "optimizer": agent.algorithm.state_dict()})
    assert differing_paths(*weights) == []


def test_the_numbers_of_a_result() -> None:
    result = EvaluationResult.from_episodes([1.0, 3.0], [4, 6], deterministic=True)
    assert (result.mean, result.std, result.mean_length, result.episodes) == (2.0, 1.0, 5.0, 2)
    # Resampling two values gives the means 1, 2 and 3 with chances 1/4, 1/2 and 1/4.
    assert (result.ci_low, result.ci_high) == (1.0, 3.0)
    assert result.to_dict()["returns"] == (1.0, 3.0)
    assert bootstrap_interval(np.array([5.0])) == (5.0, 5.0)
    low, high = bootstrap_interval(np.arange(100.0))
    assert 42 < low < 46 and 53 < high < 57  # 49.5 ± 1.96 · 28.9 / 10
    assert bootstrap_interval(np.arange(100.0)) == (low, high)


def test_fewer_episodes_than_before_make_fewer_environments() -> None:
    made = []

    def make_envs(count: int) -> Any:
        made.append(count)
        return SyncVectorEnv([EnvFactory("test", custom=RandomWalkEnv)] * count, autoreset_mode=AutoresetMode.SAME_STEP)

    evaluator = Evaluator(make_envs, num_envs=4, seed=0, device=torch.device("cpu"))
    for episodes in (8, 4, 2, 2):
        assert evaluator.evaluate(policy_for(), episodes, deterministic=True).episodes == episodes
    assert made == [4, 2]


class Succeeds(CounterEnv):
    """Episodes of three steps; those with an odd number say that they succeeded, in their last info."""

    WORD = "is_success"

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {self.WORD: terminated and self.episode % 2 == 1}


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("word", ["is_success", "success"])
def test_the_share_of_episodes_that_succeed(mode: AutoresetMode, word: str) -> None:
    class Env(Succeeds):
        WORD = word

    evaluator = evaluator_for(lambda: Env(((3, "terminated"),)), num_envs=2, mode=mode)
    # Episodes 0 to 3 of the first environment and 0 to 2 of the second: three of seven have an odd number.
    assert evaluator.evaluate(policy_for(), 7, deterministic=True).success_rate == 3 / 7
    assert evaluator.evaluate(policy_for(), 2, deterministic=True).success_rate == 0.0


@pytest.mark.parametrize("said", [None, "yes", {"door": True}, np.array([1.0, 0.0])], ids=str)
def test_no_share_where_episodes_do_not_say(said: Any) -> None:
    class Env(CounterEnv):
        def step(self, action: Any) -> Any:
            obs, reward, terminated, truncated, _ = super().step(action)
            return obs, reward, terminated, truncated, {} if said is None else {"success": said}

    result = evaluator_for(lambda: Env(((2, "truncated"),))).evaluate(policy_for(), 3, deterministic=True)
    assert result.success_rate is None and result.lengths == (2, 2, 2)


@pytest.mark.parametrize(
    ("make", "made"),
    [(RandomWalkEnv, 2), (hiding_envs.OldWorld, 4), (hiding_envs.EpisodeSeeds, 4), (hiding_envs.Diary, 4)],
)
def test_evaluations_know_nothing_of_earlier_ones(make: Any, made: int) -> None:
    # A run that was never stopped has played the first evaluation in its environments; a resumed one has not.
    count = itertools.count()

    def counted() -> Any:
        next(count)
        return make()

    evaluator = evaluator_for(counted, num_envs=2)
    results = [evaluator.evaluate(policy_for(), 5, deterministic=True, stream=stream).returns for stream in (1, 2)]
    assert next(count) == made, "new environments only where a reset does not clear the old ones"
    assert evaluator_for(make, num_envs=2).evaluate(policy_for(), 5, deterministic=True, stream=2).returns == results[1]
    assert make is hiding_envs.EpisodeSeeds or results[0] != results[1], "that one does not listen to seeds"
