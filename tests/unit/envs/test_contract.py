"""Every backend and autoreset mode gives the same transitions and the same advantages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from helpers.envs import CounterEnv, DictCounterEnv
from helpers.tensor_counters import tensor_counters
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.envs.async_env import AsyncEnvs
from rl_training.envs.contract import EnvStepper, StepRecord
from rl_training.envs.factory import EnvFactory
from rl_training.utils.errors import UserError

MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]
SCRIPTS = (
    ((2, "terminated"), (3, "truncated"), (1, "both")),
    ((3, "truncated"), (4, "terminated")),
)


def make_envs(backend: str, mode: AutoresetMode, *makers: Callable[[], gym.Env[Any, Any]]) -> VectorEnv[Any, Any, Any]:
    factories = [EnvFactory("counter", custom=maker) for maker in makers]
    if backend == "async":
        return AsyncEnvs(factories, mode)
    if backend == "async without shared memory":
        return AsyncEnvs(factories, mode, restart_workers=1)
    if backend == "async, two workers":
        return AsyncEnvs(factories, mode, workers=2)
    if backend == "sync without copies":
        return SyncVectorEnv(factories, copy=False, autoreset_mode=mode)
    return SyncVectorEnv(factories, autoreset_mode=mode)


def policy(obs: Any) -> Any:
    """Depends on the observation only, so that the extra call of NEXT_STEP shifts no action."""
    return (obs[:, 0] + obs[:, 1]).astype(np.int64) % 3


def play(stepper: EnvStepper, steps: int) -> list[StepRecord]:
    stepper.reset(seed=0)
    return [stepper.step(policy(stepper.obs)) for _ in range(steps)]


def transitions(records: list[StepRecord], env: int) -> list[tuple[Any, ...]]:
    """(obs, action, reward, next_obs, terminated, truncated) of the valid steps of one environment."""
    return [
        (
            tuple(record.obs[env].tolist()),
            int(record.actions[env]),
            float(record.rewards[env]),
            tuple(record.next_obs[env].tolist()),
            bool(record.terminated[env]),
            bool(record.truncated[env]),
        )
        for record in records
        if record.valid[env]
    ]


# The observation is (count, episode), the action (count + episode) mod 3, the reward the count after the step.
EXPECTED_ENV_0 = [
    ((0, 0), 0, 1.0, (1, 0), False, False),
    ((1, 0), 1, 2.0, (2, 0), True, False),
    ((0, 1), 1, 1.0, (1, 1), False, False),
    ((1, 1), 2, 2.0, (2, 1), False, False),
    ((2, 1), 0, 3.0, (3, 1), False, True),
    ((0, 2), 2, 1.0, (1, 2), True, False),  # terminated and truncated at once: nothing to bootstrap from
    ((0, 3), 0, 1.0, (1, 3), False, False),
]
EXPECTED_ENV_1 = [
    ((0, 0), 0, 1.0, (1, 0), False, False),
    ((1, 0), 1, 2.0, (2, 0), False, False),
    ((2, 0), 2, 3.0, (3, 0), False, True),
    ((0, 1), 1, 1.0, (1, 1), False, False),
    ((1, 1), 2, 2.0, (2, 1), False, False),
    ((2, 1), 0, 3.0, (3, 1), False, False),
    ((3, 1), 1, 4.0, (4, 1), True, False),
]
# With V(obs) = count, γ = λ = 1/2: δ = r + V'/2 − V (V' = 0 when terminated), A = δ + A'/4 within an episode.
#   env 0, episode of 2, terminated:        δ = 1.5, 2 − 1 = 1           A = 1.5 + 1/4, 1
#   env 0, episode of 3, truncated:         δ = 1.5, 2, 3 + 1.5 − 2      A = 1.5 + 2.625/4, 2 + 2.5/4, 2.5
#   env 0, episode of 1, both:              δ = 1 (no bootstrap)         A = 1
#   env 0, first step of the next episode:  δ = 1 + V(1)/2 − 0           A = 1.5 (the rollout ends here)
#   env 1, episode of 3, truncated:         as above
#   env 1, episode of 4, terminated:        δ = 1.5, 2, 2.5, 4 − 3 = 1   A = 1.5 + 2.6875/4, 2 + 2.75/4, 2.5 + 1/4, 1
EXPECTED_GAE = (
    [1.75, 1.0, 2.15625, 2.625, 2.5, 1.0, 1.5],
    [2.15625, 2.625, 2.5, 2.171875, 2.6875, 2.75, 1.0],
)

BACKENDS = ["sync", "sync without copies", "async", "async without shared memory", "async, two workers"]


CASES = [(backend, mode) for backend in BACKENDS for mode in MODES] + [("tensor", AutoresetMode.SAME_STEP)]


def scripted(backend: str, mode: AutoresetMode) -> EnvStepper:
    if backend == "tensor":
        return EnvStepper(tensor_counters(*SCRIPTS))
    return EnvStepper(make_envs(backend, mode, *(partial(CounterEnv, script) for script in SCRIPTS)))


@pytest.mark.parametrize(("backend", "mode"), CASES, ids=str)
def test_same_transitions_in_every_mode_and_backend(backend: str, mode: AutoresetMode) -> None:
    stepper = scripted(backend, mode)
    try:
        # NEXT_STEP spends one call per episode on the reset: env 0 ends three episodes here.
        records = play(stepper, 10 if mode is AutoresetMode.NEXT_STEP else 7)
    finally:
        stepper.close()
    assert transitions(records, 0) == EXPECTED_ENV_0
    assert transitions(records, 1)[:7] == EXPECTED_ENV_1
    if mode is AutoresetMode.NEXT_STEP:
        assert [bool(r.valid[0]) for r in records] == [True, True, False, True, True, True, False, True, False, True]
        assert [bool(r.valid[1]) for r in records] == [True, True, True, False, True, True, True, True, False, True]
        assert all(r.rewards[env] == 0.0 for r in records for env in (0, 1) if not r.valid[env])
    else:
        assert all(r.valid.all() for r in records)


@pytest.mark.parametrize(("backend", "mode"), CASES, ids=str)
def test_same_hand_computed_gae(backend: str, mode: AutoresetMode) -> None:
    stepper = scripted(backend, mode)
    steps = 10 if mode is AutoresetMode.NEXT_STEP else 7
    buffer = RolloutBuffer(steps, 2, (2,), (), action_dtype=torch.int64)
    try:
        for record in play(stepper, steps):
            buffer.add(
                obs=torch.from_numpy(record.obs),
                actions=torch.from_numpy(record.actions),
                rewards=torch.from_numpy(record.rewards),
                terminated=torch.from_numpy(record.terminated),
                truncated=torch.from_numpy(record.truncated),
                valid=torch.from_numpy(record.valid),
                next_obs=torch.from_numpy(record.next_obs),
            )
        last_value = torch.from_numpy(stepper.obs[:, 0])
    finally:
        stepper.close()
    buffer.values = buffer.obs[..., 0].clone()
    final_obs, index = buffer.final_obs()
    buffer.final_values.view(-1)[index] = final_obs[:, 0]
    buffer.compute_returns_and_advantages(last_value, gamma=0.5, gae_lambda=0.5)
    for env in (0, 1):
        advantages = buffer.advantages[:, env][buffer.valid[:, env]].tolist()
        assert advantages[:7] == EXPECTED_GAE[env]
    assert buffer.advantages[~buffer.valid].tolist() == [0.0] * int((~buffer.valid).sum())


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("backend", ["sync", "async"])
def test_dict_observations(backend: str, mode: AutoresetMode) -> None:
    envs = make_envs(backend, mode, *[partial(DictCounterEnv, ((2, "truncated"), (1, "terminated")))] * 2)
    stepper = EnvStepper(envs)
    try:
        stepper.reset(seed=3)
        seen = []
        for _ in range(8):
            record = stepper.step(np.zeros(2, dtype=np.int64))
            if record.valid[1]:
                now, after = record.obs, record.next_obs
                seen.append(
                    (
                        now["count"][1, 0],
                        now["parity"][1],
                        after["count"][1, 0],
                        after["parity"][1],
                        record.truncated[1],
                    )
                )
    finally:
        stepper.close()
    assert seen[:4] == [(0, 0, 1, 1, False), (1, 1, 2, 0, True), (0, 0, 1, 1, False), (0, 0, 1, 1, False)]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_time_limit_truncates_with_the_true_last_observation(mode: AutoresetMode) -> None:
    factory = EnvFactory("counter", max_episode_steps=2, custom=CounterEnv)
    stepper = EnvStepper(SyncVectorEnv([factory], autoreset_mode=mode))
    records = play(stepper, 3)
    assert [r[3:] for r in transitions(records, 0)][:2] == [((1, 0), False, False), ((2, 0), False, True)]


def test_records_do_not_change_afterwards() -> None:
    # A vector env that hands out its own buffer (copy=False) must not rewrite history.
    stepper = EnvStepper(make_envs("sync without copies", AutoresetMode.SAME_STEP, CounterEnv))
    first, second = play(stepper, 2)
    assert (first.obs.tolist(), first.next_obs.tolist()) == ([[0, 0]], [[1, 0]])
    assert (second.obs.tolist(), second.next_obs.tolist()) == ([[1, 0]], [[2, 0]])


class FakeVectorEnv(VectorEnv[Any, Any, Any]):
    """A native vector env with as little as possible, ending an episode at its second step."""

    def __init__(self, metadata: dict[str, Any]):
        self.metadata, self.num_envs = metadata, 1
        self.single_observation_space, self.single_action_space = spaces.Box(0, 9, (1,)), spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, 1)
        self.action_space = batch_space(self.single_action_space, 1)
        self.seeds: list[Any] = []

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.seeds.append(seed)
        self.count = 0
        return np.zeros((1, 1), np.float32), {}

    def step(self, actions: Any) -> Any:
        self.count += 1
        obs, ended = np.full((1, 1), self.count, np.float32), np.array([self.count == 2])
        return obs, np.ones(1), ended, np.array([False]), {}


@pytest.mark.parametrize("metadata", [{}, {"autoreset_mode": None}, {"autoreset_mode": "SameStep"}])
def test_a_missing_autoreset_mode_is_an_error(metadata: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="does not say how it resets.*\n.*autoreset_mode"):
        EnvStepper(FakeVectorEnv(metadata))


def test_same_step_without_the_final_observation_is_an_error() -> None:
    stepper = EnvStepper(FakeVectorEnv({"autoreset_mode": AutoresetMode.SAME_STEP}))
    stepper.reset(seed=0)
    stepper.step(np.zeros(1, dtype=np.int64))
    with pytest.raises(UserError, match="final_obs"):
        stepper.step(np.zeros(1, dtype=np.int64))


def test_a_native_vector_env_gets_one_seed_and_others_one_each() -> None:
    native = FakeVectorEnv({"autoreset_mode": AutoresetMode.NEXT_STEP})
    EnvStepper(native).reset(seed=5)
    assert len(native.seeds) == 1 and isinstance(native.seeds[0], int)
    envs = gym.make_vec("CartPole-v1", 3, vectorization_mode="sync")
    first = EnvStepper(envs).reset(seed=5)
    assert len({row.tobytes() for row in first}) == 3, "each environment has a stream of its own"
