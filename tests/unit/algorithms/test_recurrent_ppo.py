"""Recurrent PPO: ratios of 1 before any step, bootstraps with the right memory, masks, settings, and a task that needs a memory."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

import rl_training.algorithms.ppo as ppo_module
from helpers.envs import CounterEnv, RandomWalkEnv
from rl_training.algorithms.ppo import ppo_loss
from rl_training.algorithms.recurrent_ppo import RecurrentPPOAlgorithm, RecurrentPPOConfig
from rl_training.contrib import RecurrentPPO
from rl_training.data.returns import gae
from rl_training.envs.builtin.synthetic import ACTION_SPACES, SyntheticEnv
from rl_training.policies.policy import restarted
from rl_training.utils.errors import ConfigError
from rl_training.utils.trees import differing_paths

SMALL: dict[str, Any] = {
    "seed": 3,
    "num_envs": 3,
    "num_steps": 16,
    "num_minibatches": 2,
    "update_epochs": 2,
    "core_size": 6,
    "policy": {"hidden_sizes": (8,)},
    "execution": "eager",
}


def make(environment: Any = RandomWalkEnv, **settings: Any) -> Any:
    return RecurrentPPO(environment, **{**SMALL, **settings})


def parts(agent: Any) -> tuple[Any, Any]:
    """The algorithm, and a collector in the midst of its episodes that has not learned yet."""
    trainer = agent._session_for(()).trainer
    trainer.collector.reset()
    trainer.collector.collect()
    return trainer.algorithm, trainer.collector


def watched_losses(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Tensor]]:
    calls: list[dict[str, Tensor]] = []

    def recording(minibatch: dict[str, Tensor], *args: Any) -> dict[str, Tensor]:
        calls.append({name: value.detach().clone() for name, value in minibatch.items()})
        return ppo_loss(minibatch, *args)

    monkeypatch.setattr(ppo_module, "ppo_loss", recording)
    return calls


ACTIONS = {name: found[0] for name, found in ACTION_SPACES.items()}


@pytest.mark.parametrize("sequence_length", [None, 5, 8])
@pytest.mark.parametrize("core", ["lstm", "gru"])
@pytest.mark.parametrize("actions", ACTIONS)
def test_before_any_step_log_probs_are_those_of_acting(
    monkeypatch: pytest.MonkeyPatch, actions: str, core: str, sequence_length: int | None
) -> None:
    """In every minibatch, wherever its sequences begin, and also those that the policy had when it acted."""
    space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    agent = make(
        lambda: SyntheticEnv(space, ACTIONS[actions], max_steps=7),
        core=core,
        sequence_length=sequence_length,
        learning_rate=0.0,
        env={"autoreset": "next_step", "normalize_observations": True},
    )
    algorithm, collector = parts(agent)
    policy = algorithm.policy
    said: list[Tensor] = []
    collector._explorer.act = lambda obs, state, **_: acted(obs, state)

    def acted(obs: Any, state: Any) -> Any:
        distribution = policy.distribution(obs, state)
        chosen = distribution.sample(collector.generator)
        said.append(distribution.log_prob(chosen).detach())
        return chosen, policy.act(obs, state, generator=collector.generator)[1]

    calls = watched_losses(monkeypatch)
    rollout, _ = collector.collect()
    assert rollout.dones.any() and not rollout.valid.all() and (rollout.initial_state != 0).any()
    algorithm.update(rollout, 0.0)
    torch.testing.assert_close(rollout.logprobs, torch.stack(said), atol=1e-6, rtol=0)
    assert len(calls) == 4
    for call in calls:
        valid = call["valid"]  # sequences of 5 are filled up, with steps that do not count
        torch.testing.assert_close(call["logprobs"][valid], call["old_logprobs"][valid], atol=1e-6, rtol=0)
        torch.testing.assert_close(call["new_values"][valid], call["values"][valid], atol=1e-6, rtol=0)
    assert sum(int(call["valid"].sum()) for call in calls) == 2 * int(rollout.valid.sum())


@pytest.mark.parametrize("autoreset", ["same_step", "next_step", "disabled"])
def test_bootstraps_have_the_memory_of_their_episode(autoreset: str) -> None:
    """Values of successors are computed here step by step, along the true episodes."""
    script = ((5, "truncated"), (3, "terminated"), (4, "truncated"), (7, "truncated"))
    agent = make(lambda: CounterEnv(script), env={"autoreset": autoreset}, num_envs=2)
    algorithm, collector = parts(agent)
    policy, stepper = algorithm.policy, collector.stepper
    seen: list[tuple[Tensor, Tensor]] = []
    act, step = policy.act, stepper.step

    def acting(obs: Any, state: Any, **how: Any) -> Any:
        actions, after = act(obs, state, **how)
        seen.append((policy.value(obs, state), after))
        return actions, after

    successors: list[Tensor] = []

    def stepping(actions: Any) -> Any:
        record = step(actions)
        next_obs = torch.from_numpy(np.asarray(record.next_obs, np.float32))
        successors.append(policy.value(next_obs, seen[-1][1]).detach())
        return record

    policy.act, stepper.step = acting, stepping
    collector._explorer._sample = lambda obs, state, random: policy.act(obs, state, generator=random)
    rollout, _ = collector.collect()
    policy.act, stepper.step = act, step
    assert rollout.truncated.any() and (rollout.dones & ~rollout.truncated).any()
    assert rollout.valid.all() == (autoreset != "next_step")

    algorithm._preprocess_batch(rollout)
    values = torch.stack([value for value, _ in seen]).detach()
    torch.testing.assert_close(rollout.values, values, atol=1e-5, rtol=1e-5)
    expected = gae(
        rollout.rewards,
        values,
        torch.stack(successors),
        rollout.dones & ~rollout.truncated,
        rollout.dones,
        rollout.valid,
        algorithm.config.gamma,
        algorithm.config.gae_lambda,
    )
    torch.testing.assert_close(rollout.advantages, expected, atol=1e-4, rtol=1e-5)
    # Negative control: without the memory the values of final observations are others.
    obs, index = rollout.final_obs()
    assert not torch.allclose(rollout.final_values.view(-1)[index], policy.value(obs), atol=1e-3)


def test_what_it_remembers_before_each_step_is_what_it_acted_on() -> None:
    algorithm, collector = parts(make(env={"autoreset": "next_step"}))
    given: list[Tensor] = []
    act = collector._explorer.act
    collector._explorer.act = lambda obs, state, **how: (given.append(state.clone()), act(obs, state, **how))[1]
    rollout, _ = collector.collect()
    algorithm._preprocess_batch(rollout)
    initial = algorithm.policy.initial_state(3)
    starts = rollout.starts()
    assert starts[1:].any() and not starts[0].any()
    for t, state in enumerate(given):
        torch.testing.assert_close(restarted(rollout.states[t], initial, starts[t]), state, atol=1e-6, rtol=0)
    after = restarted(rollout.states[-1], initial, rollout.ended()[-1])
    torch.testing.assert_close(after, collector.acting_state, atol=1e-6, rtol=0)


def test_invalid_steps_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for poison in (0.0, 1e6):
        agent = make(env={"autoreset": "next_step"})
        algorithm, collector = parts(agent)
        rollout, _ = collector.collect()
        assert not rollout.valid.all()
        rollout.rewards[~rollout.valid] = poison
        rollout.obs[~rollout.valid] = poison / 1e6
        algorithm.update(rollout, 0.0)
        results.append({name: value.clone() for name, value in algorithm.policy.state_dict().items()})
    assert differing_paths(*results) == []


def test_recomputed_advantages_leave_the_old_log_probs() -> None:
    results = {}
    for recompute in (False, True):
        algorithm, collector = parts(make(recompute_advantages=recompute, learning_rate=0.01))
        before = {name: value.clone() for name, value in algorithm.policy.state_dict().items()}
        rollout, _ = collector.collect()
        with torch.no_grad():
            expected = algorithm.log_probs_of(rollout)
        algorithm.update(rollout, 0.0)
        assert differing_paths(before, algorithm.policy.state_dict())
        torch.testing.assert_close(rollout.logprobs, expected, atol=1e-6, rtol=0)
        results[recompute] = rollout
    assert not torch.allclose(results[True].advantages, results[False].advantages)
    assert not torch.allclose(results[True].states, results[False].states), "states of the weights that learn on"


def test_recorded_updates_are_those_as_written() -> None:
    weights = []
    for execution in ("eager", "recorded"):  # which refuses to run anything as written
        agent = make(env={"autoreset": "next_step"}, execution=execution, sequence_length=5)
        agent.learn(total_timesteps=100)
        weights.append(agent.policy.state_dict())
        agent.close()
    for name, value in weights[0].items():
        torch.testing.assert_close(value, weights[1][name], atol=1e-4, rtol=1e-3)


def test_derived_defaults() -> None:
    def derived(num_envs: int, **given: Any) -> tuple[int, int | None, int]:
        config = RecurrentPPOAlgorithm.with_derived_defaults(RecurrentPPOConfig(**given), given, num_envs)
        RecurrentPPOAlgorithm.check_config(config, num_envs)
        return config.num_steps, config.sequence_length, config.num_minibatches

    usual = RecurrentPPOConfig().sequence_length
    assert usual is not None
    assert derived(8) == (128, usual, 8)
    assert derived(1) == (1024, usual, 8)
    assert derived(8, num_steps=8) == (8, 8, 1)
    assert derived(1, sequence_length=None) == (1024, None, 1), "one sequence cannot be shared out"
    assert derived(2, num_steps=1000, sequence_length=300) == (1000, 300, 8)


def test_settings_that_do_not_go_together() -> None:
    with pytest.raises(ConfigError, match="sequence_length is 9, but a rollout has only num_steps = 8"):
        make(num_steps=8, sequence_length=9)
    with pytest.raises(ConfigError, match="num_minibatches is 7, but a rollout has only 6 sequences of 8 steps"):
        make(sequence_length=8, num_minibatches=7)
    with pytest.raises(ConfigError, match=r"set hyperparams.shared_core: true"):
        make(policy={"shared": True})
    with pytest.raises(ConfigError, match="critic_learning_rate: with policy.shared"):
        make(policy={"shared": True}, shared_core=True, critic_learning_rate=1e-3)


class Recall(gym.Env[Any, Any]):
    """Shows a sign in the first step only, and pays for its repetition in the last."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.sign, self.steps = int(self.np_random.integers(2)), 0
        return np.array([2.0 * self.sign - 1.0], np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        ended = self.steps == 4
        return np.zeros(1, np.float32), float(ended and action == self.sign), ended, False, {}


@pytest.mark.parametrize("core", ["lstm", "gru"])
@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_it_learns_what_needs_a_memory(core: str, autoreset: str) -> None:
    agent = make(
        Recall,
        core=core,
        num_envs=8,
        num_steps=32,
        core_size=16,
        update_epochs=8,
        learning_rate=3e-3,
        execution="auto",
        env={"autoreset": autoreset},
    )
    agent.learn(total_timesteps=8_000)
    assert agent.evaluate(num_episodes=40).mean > 0.95, "guessing is right half of the time"
    agent.close()
