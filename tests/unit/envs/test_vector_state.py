"""Environment state goes through a checkpoint and comes back bit for bit, or is honestly reported as lost."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from helpers.envs import CounterEnv, DictCounterEnv, GlobalCounterEnv, OsRandomEnv, RandomWalkEnv, SelfExportingEnv
from helpers.tools import through_codec
from rl_training.envs.contract import EnvStepper, StepRecord
from rl_training.envs.factory import make_vector_env
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.utils.trees import differing_paths

MODES = ["same_step", "next_step", "disabled"]


def stepper_for(env_id: str, *, custom: Any = None, num_envs: int = 2, **env: Any) -> EnvStepper:
    cfg = TrainConfig(env_id=env_id, num_envs=num_envs, env=env)
    return EnvStepper(make_vector_env(cfg, custom=custom))


def actions_for(stepper: EnvStepper, steps: int) -> list[Any]:
    space = stepper.envs.action_space
    space.seed(11)
    return [space.sample() for _ in range(steps)]


def facts(record: StepRecord) -> list[Any]:
    return [record.obs, record.rewards, record.next_obs, record.terminated, record.truncated, record.valid]


def assert_restores_exactly(first: EnvStepper, second: EnvStepper, *, at_end: bool, steps: int = 300) -> None:
    """Runs `first`, saves it, goes on; `second`, restored from the saved state, must live through the same."""
    try:
        actions = iter(actions_for(first, 600 + steps))
        first.reset(seed=7)
        for index in range(600):
            record = first.step(next(actions))
            if index >= 30 and (not at_end or (record.terminated | record.truncated).any()):
                break
        else:
            pytest.fail("no episode ended")
        saved = through_codec(first.state_dict())
        second.load_state_dict(saved, fallback_seed=1)
        assert second.resume_grade == "exact"
        assert differing_paths(through_codec(second.state_dict()), saved) == []
        ended = 0
        for step, action in zip(range(steps), actions):
            expected, found = first.step(action), second.step(action)
            assert differing_paths(facts(found), facts(expected)) == [], f"step {step} after the restore"
            ended += int((expected.terminated | expected.truncated).sum())
        assert ended > 0, "the comparison must go across an episode's end"
    finally:
        first.close()
        second.close()


CASES: dict[str, dict[str, Any]] = {
    "CartPole-v1": {},
    "Pendulum-v1": {"max_episode_steps": 40},
    "Acrobot-v1": {"max_episode_steps": 40},
    "MountainCar-v0": {"max_episode_steps": 40},
    "LunarLander-v3": {},
    "Hopper-v5": {},
}


@pytest.mark.parametrize("at_end", [False, True], ids=["midway", "at an episode's end"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env_id", CASES)
def test_gymnasium_envs_come_back_exactly(env_id: str, mode: str, at_end: bool) -> None:
    first, second = (stepper_for(env_id, autoreset=mode, **CASES[env_id]) for _ in range(2))
    assert_restores_exactly(first, second, at_end=at_end, steps=300 if env_id != "Hopper-v5" else 120)


@pytest.mark.parametrize("at_end", [False, True], ids=["midway", "at an episode's end"])
@pytest.mark.parametrize("mode", MODES)
def test_async_envs_come_back_exactly(mode: str, at_end: bool) -> None:
    first, second = (stepper_for("CartPole-v1", backend="async", autoreset=mode) for _ in range(2))
    assert_restores_exactly(first, second, at_end=at_end)


@pytest.mark.parametrize("at_end", [False, True], ids=["midway", "at an episode's end"])
@pytest.mark.parametrize("env_id", ["CartPole-v0", "CartPole-v1"], ids=["Gymnasium's", "ours"])
def test_native_cartpole_comes_back_exactly(env_id: str, at_end: bool) -> None:
    first, second = (stepper_for(env_id, backend="native", num_envs=3) for _ in range(2))
    assert_restores_exactly(first, second, at_end=at_end)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [RandomWalkEnv, lambda: DictCounterEnv(((7, "truncated"),))])
def test_custom_envs_come_back_exactly(make: Any, mode: str) -> None:
    first, second = (stepper_for("custom", custom=make, autoreset=mode) for _ in range(2))
    assert_restores_exactly(first, second, at_end=True, steps=60)


@pytest.mark.parametrize("at_end", [False, True], ids=["midway", "at an episode's end"])
@pytest.mark.parametrize("mode", MODES)
def test_an_env_that_exports_its_state_is_not_replayed(mode: str, at_end: bool) -> None:
    first, second = (stepper_for("custom", custom=SelfExportingEnv, autoreset=mode) for _ in range(2))
    first.reset(seed=0)
    for action in actions_for(first, 8):
        first.step(action)
    saved = through_codec(first.state_dict())
    assert [sorted(env) for env in saved["envs"]["envs"]] == [
        ["attributes", "done", "elapsed", "generator", "observation", "own", "return"]
    ] * 2
    stepped = next(SelfExportingEnv.walks)
    second.load_state_dict(saved, fallback_seed=1)
    assert next(SelfExportingEnv.walks) == stepped + 1, "restoring took no environment step"
    assert_restores_exactly(
        *(stepper_for("custom", custom=SelfExportingEnv, autoreset=mode) for _ in range(2)), at_end=at_end, steps=60
    )


def test_an_exported_state_keeps_the_time_limit() -> None:
    first, second = (stepper_for("custom", custom=SelfExportingEnv, max_episode_steps=4) for _ in range(2))
    first.reset(seed=0)
    for action in actions_for(first, 2):
        first.step(action)
    second.load_state_dict(through_codec(first.state_dict()), fallback_seed=1)
    assert second.resume_grade == "exact"
    truncated = [bool(second.step(action).truncated.all()) for action in actions_for(second, 2)]
    assert truncated == [False, True], "two of the four steps were left"


@pytest.mark.parametrize("make", [OsRandomEnv, GlobalCounterEnv])
def test_hidden_randomness_is_never_graded_exact(make: Any) -> None:
    first, second = (stepper_for("custom", custom=make) for _ in range(2))
    first.reset(seed=7)
    for action in actions_for(first, 5):
        first.step(action)
    second.load_state_dict(through_codec(first.state_dict()), fallback_seed=1)
    assert second.resume_grade == "episode-boundary"
    assert second.obs[:, 0].tolist() == [0.0, 0.0], "fresh episodes"
    assert second.step(np.zeros(2, dtype=np.int64)).valid.all()


def test_a_number_that_outlives_an_episode_comes_back() -> None:
    # The counter's episode number is neither in the generator nor in the actions since the reset.
    first, second = (stepper_for("custom", custom=lambda: CounterEnv(((3, "terminated"),))) for _ in range(2))
    assert_restores_exactly(first, second, at_end=False, steps=20)


def test_one_inexact_env_makes_all_start_fresh_episodes() -> None:
    def mixed(index: int) -> Any:
        return OsRandomEnv() if index else RandomWalkEnv()

    def make() -> EnvStepper:
        from rl_training.envs.factory import EnvFactory

        factories = [EnvFactory("mixed", custom=lambda index=index: mixed(index)) for index in range(2)]
        return EnvStepper(
            SyncVectorEnv(factories, autoreset_mode=AutoresetMode.SAME_STEP, observation_mode="different")
        )

    first, second = make(), make()
    first.reset(seed=7)
    for _ in range(4):
        first.step(np.zeros(2, dtype=np.int64))
    second.load_state_dict(through_codec(first.state_dict()), fallback_seed=1)
    assert second.resume_grade == "episode-boundary"
    counts = second.envs.envs[0].unwrapped.count, second.envs.envs[1].unwrapped.count
    assert counts == (0, 0)


def test_another_number_of_envs_is_an_episode_boundary() -> None:
    first, second = stepper_for("CartPole-v1", num_envs=2), stepper_for("CartPole-v1", num_envs=3)
    first.reset(seed=0)
    second.load_state_dict(through_codec(first.state_dict()), fallback_seed=1)
    assert second.resume_grade == "episode-boundary"
    assert second.obs.shape == (3, 4)


def test_fresh_episodes_after_a_failed_restore_depend_on_the_fallback_seed() -> None:
    first = stepper_for("CartPole-v1", num_envs=2)
    first.reset(seed=0)
    saved = through_codec(first.state_dict())
    found = []
    for seed in (1, 1, 2):
        second = stepper_for("CartPole-v1", num_envs=3)
        second.load_state_dict(saved, fallback_seed=seed)
        found.append(second.obs.tobytes())
    assert found[0] == found[1] != found[2]


class UnknownNativeEnv(VectorEnv[Any, Any, Any]):
    """A native vector env that says nothing about its state: CartPole's, under another name."""

    def __new__(cls) -> Any:
        base = type(gym.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point").unwrapped)
        return type("Unknown", (base,), {})(2)


def test_an_unknown_native_env_is_an_episode_boundary() -> None:
    first, second = EnvStepper(UnknownNativeEnv()), EnvStepper(UnknownNativeEnv())
    first.reset(seed=0)
    saved = through_codec(first.state_dict())
    assert saved["envs"] is None
    second.load_state_dict(saved, fallback_seed=1)
    assert second.resume_grade == "episode-boundary"
    assert not np.array_equal(second.obs, first.obs)


class ForgetfulVectorEnv:
    """Makes a native env with get_state and set_state; a forgetful one loses what it is given."""

    def __new__(cls, forgetful: bool) -> Any:
        base = type(gym.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point").unwrapped)

        def get_state(self: Any) -> Any:
            generator = dict(self.np_random.bit_generator.state)
            return {"state": self.state.copy(), "steps": self.steps.copy(), "generator": generator}

        def set_state(self: Any, state: Any) -> None:
            if not forgetful:
                self.state, self.steps = state["state"].copy(), state["steps"].copy()
                self.np_random.bit_generator.state = state["generator"]

        return type("Exporting", (base,), {"get_state": get_state, "set_state": set_state})(2)


@pytest.mark.parametrize(("forgetful", "grade"), [(False, "exact"), (True, "episode-boundary")])
def test_a_native_env_with_its_own_export_is_checked_too(forgetful: bool, grade: str) -> None:
    first, second = EnvStepper(ForgetfulVectorEnv(forgetful)), EnvStepper(ForgetfulVectorEnv(forgetful))
    first.reset(seed=0)
    actions = actions_for(first, 20)
    for action in actions[:5]:
        first.step(action)
    second.load_state_dict(through_codec(first.state_dict()), fallback_seed=1)
    assert second.resume_grade == grade
    if grade == "exact":
        for action in actions[5:]:
            assert differing_paths(facts(second.step(action)), facts(first.step(action))) == []
