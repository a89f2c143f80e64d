"""What is given to an agent is used as it is said, or refused: environments, their arguments, settings beside them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from helpers.envs import CounterEnv
from rl_training import DQN, PPO, load_agent
from rl_training.utils.errors import ConfigError, EnvCreationError, SpaceError, UserError

ONE_ROLLOUT: dict[str, Any] = {"num_steps": 8, "seed": 0}


class Uncopyable(CounterEnv):
    """An environment with something in it that cannot be copied, as simulators have."""

    def __init__(self, length: int = 5):
        super().__init__(((length, "terminated"),))
        self.connection = threading.Lock()


class Sized(CounterEnv):
    """Episodes as long as its argument says."""

    def __init__(self, length: int = 3):
        super().__init__(((length, "terminated"),))


def vector_env(count: int = 3) -> SyncVectorEnv:
    return SyncVectorEnv([Sized] * count, autoreset_mode=AutoresetMode.SAME_STEP)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return PPO("CartPole-v1", num_envs=2, **ONE_ROLLOUT).save(tmp_path / "agent")


@pytest.mark.parametrize("load", [PPO.load, load_agent])
class TestLoad:
    def test_another_id_is_used(self, load: Any, saved: Path) -> None:
        agent = load(saved, env="CartPole-v0")
        assert agent.config.env_id == "CartPole-v0"
        assert agent.learn(total_timesteps=16).resume_grade is None
        assert max(agent.evaluate(num_episodes=2).lengths) <= 200

    def test_one_with_other_spaces_is_refused_with_both(self, load: Any, saved: Path) -> None:
        with pytest.raises(
            SpaceError, match=r"(?s)MountainCar-v0 does not fit.*Box.*\(2,\).*made for.*Box.*\(4,\)"
        ) as error:
            load(saved, env="MountainCar-v0")
        assert "observation space" in str(error.value)
        with pytest.raises(SpaceError, match="action space"):
            load(saved, env=lambda: gym.wrappers.TransformAction(gym.make("CartPole-v1"), int, gym.spaces.Discrete(3)))

    def test_an_unknown_id_is_refused_at_once(self, load: Any, saved: Path) -> None:
        with pytest.raises(EnvCreationError, match="did you mean CartPole"):
            load(saved, env="Cartpole-v1")
        with pytest.raises(EnvCreationError, match="not int"):
            load(saved, env=3)

    def test_a_callable_an_object_or_a_vector_env_is_used(self, load: Any, saved: Path) -> None:
        made = []

        def make() -> gym.Env[Any, Any]:
            made.append(gym.make("CartPole-v1"))
            return made[-1]

        load(saved, env=make).learn(total_timesteps=16)
        assert len(made) == 3, "one to compare the spaces, two to train in"
        env = gym.make("CartPole-v1")
        agent = load(saved, env=env, num_envs=1)
        agent.learn(total_timesteps=8)
        assert agent._envs.envs[0].unwrapped is env.unwrapped
        envs = gym.make_vec("CartPole-v1", 4, vectorization_mode="sync")
        agent = load(saved, env=envs)
        assert agent.config.num_envs == 4 and agent._training_envs() is envs
        with pytest.raises(ConfigError, match="num_envs is 3, but the vector environment object that was given has 4"):
            load(saved, env=envs, num_envs=3)

    def test_an_agent_that_finds_other_spaces_later_does_not_train(self, load: Any, tmp_path: Path) -> None:
        agent = PPO(gym.wrappers.TimeAwareObservation(gym.make("CartPole-v1")), **ONE_ROLLOUT)
        loaded = load(agent.save(tmp_path / "wrapped"))
        with pytest.raises(SpaceError, match="does not fit"):
            loaded.learn(total_timesteps=8)


class TestArguments:
    @pytest.mark.parametrize("env", [Sized, lambda length: Sized(length)], ids=["class", "function"])
    def test_kwargs_reach_a_callable(self, env: Any) -> None:
        agent = PPO(env, env={"kwargs": {"length": 7}}, num_envs=2, **ONE_ROLLOUT)
        assert agent.evaluate(num_episodes=2).lengths == (7, 7)
        assert agent._envs.envs[0].unwrapped.script == ((7, "terminated"),)
        assert agent.config.env.kwargs == {"length": 7}

    def test_kwargs_it_does_not_take_are_refused(self) -> None:
        with pytest.raises(EnvCreationError, match="Sized has no argument 'lenght'; did you mean 'length'"):
            PPO(Sized, env={"kwargs": {"lenght": 7}})
        with pytest.raises(EnvCreationError, match="lambda has no argument 'length'; it takes none"):
            PPO(lambda: Sized(), env={"kwargs": {"length": 7}})

    def test_kwargs_cannot_reach_an_object(self) -> None:
        with pytest.raises(EnvCreationError, match="env.kwargs cannot reach Sized.*PPO\\(Sized, env="):
            PPO(Sized(), env={"kwargs": {"length": 7}})
        with pytest.raises(ConfigError, match="env.renew makes a new environment .* Sized was given as an object"):
            PPO(Sized(), env={"renew": True})

    def test_a_limit_and_wrappers_go_around_an_object(self) -> None:
        settings = {"max_episode_steps": 2, "wrappers": ["TimeAwareObservation"]}
        agent = PPO(Sized(9), env=settings, **ONE_ROLLOUT)
        assert agent.evaluate(num_episodes=2).lengths == (2, 2)
        assert agent._spaces.observation.shape == (3,)


class TestVectorEnvs:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"num_envs": 8}, "num_envs is 8, but the vector environment object that was given has 3"),
            ({"env": {"max_episode_steps": 5}}, "env.max_episode_steps is 5"),
            ({"env": {"backend": "async"}}, "env.backend is 'async'"),
            ({"env": {"backend": "async", "restart_workers": 1}}, "env.backend is 'async'"),
            ({"env": {"autoreset": "next_step"}}, "env.autoreset is 'next_step'"),
            ({"env": {"kwargs": {"length": 3}}}, "env.kwargs is"),
            ({"env": {"wrappers": ["TimeAwareObservation"]}}, "env.wrappers is"),
            ({"env": {"renew": True}}, "env.renew is True"),
            ({"evaluation": {"every": 100}}, "cannot be copied for evaluation"),
        ],
    )
    def test_what_cannot_apply_is_refused(self, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(UserError, match=message):
            PPO(vector_env(), **settings)

    def test_the_config_records_what_is_true(self, tmp_path: Path) -> None:
        agent = PPO(
            vector_env(), num_envs=3, output_dir=str(tmp_path), env={"normalize_observations": True}, **ONE_ROLLOUT
        )
        config = agent.config
        assert (config.num_envs, config.env.backend, config.env.autoreset) == (3, "sync", "same_step")
        assert config.evaluation.every == 0 and config.env.normalize_observations
        agent.learn(total_timesteps=24)
        envs = SyncVectorEnv([Sized], autoreset_mode=AutoresetMode.NEXT_STEP)
        assert PPO(envs, **ONE_ROLLOUT).config.env.autoreset == "next_step"
        assert PPO(gym.make_vec("CartPole-v1", 2), **ONE_ROLLOUT).config.env.backend == "native"


class TestObjects:
    def test_one_environment_is_the_default_and_is_the_object(self) -> None:
        for cls in (PPO, DQN):
            env = Uncopyable()
            agent = cls(env, seed=0)
            assert agent.config.num_envs == 1 and agent._envs.envs[0].unwrapped is env

    def test_it_need_not_be_copyable(self) -> None:
        env = Uncopyable()
        agent = PPO(env, **ONE_ROLLOUT)
        agent.learn(total_timesteps=16)
        assert env.episode > 0
        with pytest.raises(EnvCreationError, match=r"(?s)Uncopyable cannot be copied.*evaluate\(env="):
            agent.evaluate()
        assert agent.evaluate(num_episodes=3, env=Uncopyable(4)).lengths == (4, 4, 4)

    @pytest.mark.parametrize("settings", [{"num_envs": 2}, {"evaluation": {"every": 8}}, {"env": {"backend": "async"}}])
    def test_where_copies_are_needed_that_is_said_before_anything_happens(self, settings: dict[str, Any]) -> None:
        with pytest.raises(EnvCreationError, match=r"(?s)cannot be copied \(TypeError.*PPO\(MyEnv\)"):
            PPO(Uncopyable(), **settings)


class TestEvaluateElsewhere:
    @pytest.fixture
    def agent(self) -> PPO:
        return PPO(Sized, env={"kwargs": {"length": 6}}, num_envs=2, **ONE_ROLLOUT)

    def test_in_any_kind_of_environment(self, agent: PPO) -> None:
        assert agent.evaluate(num_episodes=2).lengths == (6, 6)
        assert agent.evaluate(num_episodes=2, env=lambda: Sized(4)).lengths == (4, 4)
        assert agent.evaluate(num_episodes=2, env=Sized).lengths == (6, 6), "of the same name, so with its arguments"
        assert agent.evaluate(num_episodes=7, env=vector_env()).lengths == (3,) * 7
        assert agent.evaluate(num_episodes=2, env=vector_env()).lengths == (3, 3), "fewer than environments"
        cartpole = PPO("CartPole-v1", num_envs=1, **ONE_ROLLOUT)
        assert cartpole.evaluate(num_episodes=1, env="CartPole-v0").episodes == 1

    def test_an_object_is_played_in_itself_and_left_open(self, agent: PPO) -> None:
        class Closing(Sized):
            closed = False

            def close(self) -> None:
                self.closed = True

        env = Closing(4)
        assert agent.evaluate(num_episodes=3, env=env).lengths == (4, 4, 4)
        assert env.episode > 0 and not env.closed

    def test_what_does_not_fit_is_refused(self, agent: PPO) -> None:
        with pytest.raises(SpaceError, match="CartPole-v1 does not fit this agent"):
            agent.evaluate(env="CartPole-v1")
        with pytest.raises(EnvCreationError, match="unknown environment"):
            agent.evaluate(env="NotThere-v0")
        with pytest.raises(UserError, match="num_envs is 2, but the vector environment has 3"):
            agent.evaluate(env=vector_env(), num_envs=2)
        with pytest.raises(UserError, match="must be at least 1"):
            agent.evaluate(num_envs=0)

    def test_training_is_not_disturbed(self, agent: PPO) -> None:
        agent.learn(total_timesteps=16)
        before = agent.get_parameters()
        agent.evaluate(num_episodes=2, env=vector_env())
        after = agent.get_parameters()
        assert all(np.array_equal(before[name], after[name]) for name in before)
