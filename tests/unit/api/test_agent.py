"""The public API as a user meets it."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

import rl_training
from helpers.envs import CounterEnv, DictCounterEnv, RandomWalkEnv
from helpers.tools import through_codec
from rl_training import A2C, PPO, TrainConfig, load_agent
from rl_training.config import load_config
from rl_training.utils.errors import ConfigError, EnvCreationError, SpaceError, UserError
from rl_training.utils.trees import differing_paths

SMALL: dict[str, Any] = {"num_envs": 2, "num_steps": 16, "total_timesteps": 64}
IGNORED = ("runtime.timer", "runtime.resume_count")


def small(env: Any = "CartPole-v1", /, cls: Any = PPO, **settings: Any) -> Any:
    return cls(env, **{**SMALL, "seed": 0, **settings})


def state_of(agent: Any) -> Any:
    return through_codec(agent._session.snapshot()[0])


class TestConstruction:
    def test_an_id_and_hyperparameters(self) -> None:
        agent = PPO("CartPole-v1", seed=0, learning_rate=3e-4)
        assert agent.config.env_id == "CartPole-v1"
        assert agent.algorithm.config.learning_rate == 3e-4
        assert agent.config.hyperparams["learning_rate"] == 3e-4
        assert agent.num_timesteps == 0

    def test_config_keys_hyperparams_and_sections_as_keywords(self) -> None:
        agent = PPO(
            "CartPole-v1",
            num_envs=3,
            hyperparams={"gamma": 0.9},
            num_steps=7,
            policy={"hidden_sizes": [8]},
            env={"normalize_observations": True},
        )
        assert (agent.config.num_envs, agent.algorithm.config.gamma, agent.algorithm.config.num_steps) == (3, 0.9, 7)
        assert agent.policy.actor_body[0].out_features == 8
        assert agent.policy.encoder.normalizer is not None

    @pytest.mark.parametrize("env", [CounterEnv, lambda: CounterEnv(), CounterEnv()], ids=["class", "lambda", "object"])
    def test_a_callable_or_an_object(self, env: Any) -> None:
        agent = small(env)
        assert agent.learn().metrics["global_step"] == 64
        assert agent.config.env_id in ("CounterEnv", "lambda")

    def test_an_env_object_is_trained_on_itself_but_not_evaluated_on(self) -> None:
        env = CounterEnv(((5, "terminated"),))
        agent = small(env, num_envs=1)
        agent.learn(total_timesteps=16)
        count, episode = env.count, env.episode
        assert episode == 3, "sixteen steps are three episodes and one step"
        assert agent.evaluate(num_episodes=3).lengths == (5, 5, 5)
        assert (env.count, env.episode) == (count, episode)

    def test_a_vector_env_object(self) -> None:
        envs = gym.make_vec("CartPole-v1", 3, vectorization_mode="sync")
        agent = PPO(envs, num_steps=8)
        assert agent.config.num_envs == 3
        assert agent.learn(total_timesteps=24).metrics["global_step"] <= 24
        with pytest.raises(EnvCreationError, match="cannot be copied for evaluation"):
            agent.evaluate()

    def test_a_train_config(self, tmp_path: Path) -> None:
        cfg = TrainConfig(env_id="CartPole-v1", seed=7, output_dir=str(tmp_path), hyperparams={"num_steps": 16})
        agent = PPO(cfg, gamma=0.5)
        assert (agent.config.seed, agent.algorithm.config.num_steps, agent.algorithm.config.gamma) == (7, 16, 0.5)
        with pytest.raises(ConfigError, match="for algorithm 'ppo', not 'a2c'"):
            A2C(cfg)

    def test_a_preset_with_settings_on_top(self) -> None:
        preset = PPO.from_preset("ppo/cartpole").config
        agent = PPO.from_preset("ppo/cartpole", seed=5, gamma=0.5, evaluation={"episodes": 3})
        assert (agent.config.env_id, agent.config.seed, agent.config.hyperparams["gamma"]) == ("CartPole-v1", 5, 0.5)
        assert agent.config.evaluation == dataclasses.replace(preset.evaluation, episodes=3)
        assert agent.config.hyperparams == {**preset.hyperparams, "gamma": 0.5}
        with pytest.raises(ConfigError, match="'a2c'"):
            PPO.from_preset("a2c/cartpole")

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"lerning_rate": 1e-3}, "unknown setting 'lerning_rate'.*learning_rate"),
            ({"num_env": 3}, "unknown setting 'num_env'.*num_envs"),
            ({"learning_rate": "fast"}, "learning_rate"),
            ({"gamma": 1.5}, "gamma"),
            ({"num_envs": 0}, "num_envs"),
            ({"seed": -1}, "seed"),
            ({"num_minibatches": 10_000}, "num_minibatches is 10000"),
            ({"evaluation": {"evry": 1}}, "evry.*every"),
            ({"device": "tpu"}, "device"),
        ],
    )
    def test_mistakes_in_settings_are_named(self, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            PPO("CartPole-v1", **settings)

    def test_mistakes_in_the_environment_are_named(self) -> None:
        with pytest.raises(EnvCreationError, match="did you mean CartPole-v1"):
            PPO("Cartpole-v1")
        with pytest.raises(EnvCreationError, match="not int"):
            PPO(3)

        class DictActions(CounterEnv):
            def __init__(self) -> None:
                super().__init__()
                self.action_space = spaces.Dict({"a": spaces.Discrete(2)})

        with pytest.raises(SpaceError, match="does not support Dict action spaces"):
            PPO(DictActions)


class TestLearn:
    def test_in_memory_training_writes_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
    ) -> None:
        monkeypatch.chdir(tmp_path)
        result = small().learn()
        assert list(tmp_path.iterdir()) == []
        assert result.run_dir is None and result.checkpoint_path is None and result.evaluation is None
        out, err = capfd.readouterr()
        assert (out, err) == ("", "")

    def test_output_dir_makes_a_run(self, tmp_path: Path) -> None:
        result = small(output_dir=str(tmp_path), logging={"console": "off"}, evaluation={"episodes": 1}).learn()
        assert result.run_dir.parent == tmp_path
        assert result.checkpoint_path == result.run_dir / "checkpoints" / "step_000000064"
        assert result.evaluation is not None

    def test_the_total_counts_earlier_calls(self) -> None:
        agent = small()
        agent.learn(total_timesteps=64)
        with pytest.raises(UserError, match=r"trained for 64 steps already.*learn\(total_timesteps=128\)"):
            agent.learn(total_timesteps=64)
        agent.learn(total_timesteps=96)
        assert agent.num_timesteps == 96

    def test_seeds_decide_everything(self) -> None:
        agents = [small(seed=seed) for seed in (1, 1, 2)]
        for agent in agents:
            agent.learn()
        same, _, other = (dict(agent.policy.state_dict()) for agent in agents)
        assert differing_paths(state_of(agents[0]), state_of(agents[1]), ignore=IGNORED) == []
        assert differing_paths(same, other) != []

    def test_a_second_call_keeps_the_run_directory_current(self, tmp_path: Path) -> None:
        agent = small(output_dir=str(tmp_path), logging={"console": "off"}, evaluation={"every": 0})
        first = agent.learn(total_timesteps=32)
        second = agent.learn(total_timesteps=64)
        assert second.run_dir == first.run_dir
        assert load_config(second.run_dir / "config.yaml").total_timesteps == 64


class TestPredict:
    def test_one_observation_or_a_batch(self) -> None:
        agent = small()
        batch = np.random.default_rng(0).normal(size=(5, 4))
        actions, state = agent.predict(batch)
        assert state is None and actions.shape == (5,) and actions.dtype == np.int64
        singles = [agent.predict(row)[0] for row in batch]
        assert actions.tolist() == [int(action) for action in singles]
        assert all(agent._spaces.action.contains(action) for action in singles)
        assert agent.predict(batch.tolist())[0].tolist() == actions.tolist(), "lists will do"

    def test_stochastic_actions_vary_and_deterministic_ones_do_not(self) -> None:
        agent = small()
        obs = np.zeros(4, dtype=np.float32)
        assert len({int(agent.predict(obs)[0]) for _ in range(20)}) == 1
        assert len({int(agent.predict(obs, deterministic=False)[0]) for _ in range(40)}) == 2

    def test_box_actions_come_in_the_environments_scale(self) -> None:
        agent = small("Pendulum-v1")
        actions, _ = agent.predict(np.zeros((50, 3), np.float32), deterministic=False)
        assert actions.shape == (50, 1) and actions.dtype == np.float32
        assert np.abs(actions).max() <= 2.0 and np.abs(actions).max() > 1.0

    def test_dict_observations(self) -> None:
        agent = small(DictCounterEnv)
        single, _ = agent.predict({"count": np.array([3.0]), "parity": 1})
        batch, _ = agent.predict({"count": np.full((4, 1), 3.0), "parity": np.ones(4, dtype=np.int64)})
        assert np.shape(single) == () and batch.tolist() == [int(single)] * 4

    @pytest.mark.parametrize("shape", [(), (3,), (5, 3), (2, 5, 4), (4, 1)])
    def test_a_wrong_shape_is_named(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(SpaceError, match=r"an observation of shape .* does not fit"):
            small().predict(np.zeros(shape))

    @pytest.mark.parametrize(
        "observation",
        [
            {"count": np.zeros(1)},
            {"count": np.zeros(1), "parity": 0, "more": 1},
            {"count": np.zeros((2, 1)), "parity": 0},
            np.zeros(2),
        ],
        ids=["missing", "unknown", "half batched", "array"],
    )
    def test_wrong_dict_observations_are_named(self, observation: Any) -> None:
        with pytest.raises(SpaceError):
            small(DictCounterEnv).predict(observation)

    def test_a_mapping_for_a_box_and_a_state_without_a_memory(self) -> None:
        with pytest.raises(SpaceError, match="keys"):
            small().predict({"count": np.zeros(4)})
        with pytest.raises(UserError, match="has no memory: pass state=None"):
            small().predict(np.zeros(4), state=np.zeros(3))

    def test_predicting_changes_no_training(self) -> None:
        quiet, asked = small(), small()
        for agent in (quiet, asked):
            agent.learn(total_timesteps=32)
        asked.predict(np.zeros((3, 4)), deterministic=False)
        asked.evaluate(num_episodes=2, deterministic=False)
        for agent in (quiet, asked):
            agent.learn(total_timesteps=64)
        assert differing_paths(state_of(quiet), state_of(asked), ignore=IGNORED) == []


class TestEvaluate:
    def test_same_call_same_result(self) -> None:
        agent = small()
        first = agent.evaluate(num_episodes=4, deterministic=False)
        assert first.episodes == 4 and agent.evaluate(num_episodes=4, deterministic=False) == first
        assert agent.evaluate(num_episodes=4, deterministic=False, seed=9) != first
        with pytest.raises(UserError, match="num_episodes"):
            agent.evaluate(num_episodes=0)


class TestSaveAndLoad:
    def test_the_loaded_agent_predicts_the_same(self, tmp_path: Path) -> None:
        agent = small("Pendulum-v1", env={"normalize_observations": True})
        agent.learn()
        agent.save(tmp_path / "agent")
        loaded = PPO.load(tmp_path / "agent")
        batch = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
        assert np.array_equal(loaded.predict(batch)[0], agent.predict(batch)[0])
        assert loaded.num_timesteps == 64 and loaded.config == agent.config
        assert loaded.evaluate(3) == agent.evaluate(3)

    @pytest.mark.parametrize("cls", [PPO, A2C])
    def test_a_loaded_agent_continues_exactly(self, cls: Any, tmp_path: Path) -> None:
        # A constant rate: a schedule follows the total, which the first call does not know.
        whole, half = (small(cls=cls, learning_rate=1e-3) for _ in range(2))
        whole.learn(total_timesteps=128)
        half.learn(total_timesteps=64)
        half.save(tmp_path / "half")
        loaded = cls.load(str(tmp_path / "half"))
        result = loaded.learn(total_timesteps=128)
        assert result.resume_grade == "exact"
        assert differing_paths(state_of(loaded), state_of(whole), ignore=IGNORED) == []

    def test_saving_a_loaded_agent_keeps_the_training_state(self, tmp_path: Path) -> None:
        whole, half = small(), small()
        whole.learn(total_timesteps=128)
        half.learn(total_timesteps=64)
        half.save(tmp_path / "one")
        PPO.load(tmp_path / "one").save(tmp_path / "two")
        again = PPO.load(tmp_path / "two")
        again.learn(total_timesteps=128)
        assert differing_paths(state_of(again), state_of(whole), ignore=IGNORED) == []

    def test_an_untrained_agent_can_be_saved_and_trained_after_loading(self, tmp_path: Path) -> None:
        agent = small()
        agent.save(tmp_path / "fresh")
        loaded = PPO.load(tmp_path / "fresh")
        assert loaded.num_timesteps == 0
        agent.learn()
        loaded.learn()
        assert differing_paths(state_of(agent), state_of(loaded), ignore=IGNORED) == []

    def test_loading_makes_no_environment(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        small().save(tmp_path / "agent")

        def forbidden(*args: Any, **kwargs: Any) -> Any:
            raise AssertionError("an environment was made")

        monkeypatch.setattr(gym, "make", forbidden)
        monkeypatch.setattr(gym, "make_vec", forbidden)
        assert PPO.load(tmp_path / "agent").predict(np.zeros(4))[0] in (0, 1)

    def test_a_custom_environment_is_given_again(self, tmp_path: Path) -> None:
        agent = small(RandomWalkEnv)
        agent.learn()
        agent.save(tmp_path / "agent")
        loaded = PPO.load(tmp_path / "agent", env=RandomWalkEnv)
        assert loaded.learn(total_timesteps=96).resume_grade == "exact"
        with pytest.raises(EnvCreationError, match="RandomWalkEnv"):
            PPO.load(tmp_path / "agent").learn(total_timesteps=96)

    def test_another_number_of_environments(self, tmp_path: Path) -> None:
        agent = small()
        agent.learn()
        agent.save(tmp_path / "agent")
        loaded = PPO.load(tmp_path / "agent", num_envs=5)
        result = loaded.learn(total_timesteps=200)
        assert result.resume_grade == "episode-boundary"
        assert result.metrics["global_step"] == 64 + 2 * 80

    def test_a_checkpoint_of_another_algorithm(self, tmp_path: Path) -> None:
        small().save(tmp_path / "agent")
        with pytest.raises(UserError, match="is of algorithm 'ppo', not 'a2c'"):
            A2C.load(tmp_path / "agent")
        assert isinstance(load_agent(tmp_path / "agent"), PPO)

    def test_a_path_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="does not exist"):
            PPO.load(tmp_path / "nothing")

    def test_a_run_folder_and_its_checkpoints_can_be_loaded(self, tmp_path: Path) -> None:
        agent = small(output_dir=str(tmp_path), logging={"console": "off"}, evaluation={"every": 0})
        result = agent.learn()
        for path in (result.run_dir, result.checkpoint_path, result.run_dir / "checkpoints" / "latest"):
            loaded = PPO.load(path)
            assert differing_paths(dict(loaded.policy.state_dict()), dict(agent.policy.state_dict())) == []
        first = PPO.load(result.run_dir / "checkpoints" / "step_000000000")
        assert first.num_timesteps == 0

    def test_saving_over_an_old_one(self, tmp_path: Path) -> None:
        agent = small()
        agent.save(tmp_path / "agent")
        agent.learn()
        agent.save(tmp_path / "agent")
        assert PPO.load(tmp_path / "agent").num_timesteps == 64


class TestPublicSurface:
    def test_one_class_under_three_names(self) -> None:
        from rl_training import algorithms, core

        assert rl_training.PPO is core.PPO is algorithms.PPO is PPO
        assert rl_training.A2C is core.A2C
        assert {"PPO", "A2C"} <= set(core.__all__)
        assert (PPO.__name__, PPO.__module__) == ("PPO", "rl_training")
        for module in (rl_training, core, algorithms):
            with pytest.raises(AttributeError, match="no attribute 'PPPO'"):
                module.PPPO

    def test_short_paths(self, tmp_path: Path) -> None:
        from rl_training.config import TrainConfig as ShortConfig
        from rl_training.envs import make_vector_env
        from rl_training.experiment.config.train_config import TrainConfig as LongConfig
        from rl_training.runs import make_run_dir

        assert ShortConfig is LongConfig is rl_training.TrainConfig
        cfg = ShortConfig(algo="ppo", env_id="CartPole-v1", seed=7, output_dir=str(tmp_path))
        assert make_run_dir(cfg).name.startswith("ppo__CartPole-v1__seed7__")
        envs = make_vector_env(cfg, num_envs=4)
        assert isinstance(envs, SyncVectorEnv) and envs.num_envs == 4

    def test_the_rollout_buffer(self) -> None:
        from rl_training.data.rollout_buffer import RolloutBuffer

        buffer = RolloutBuffer(3, 2, (4,), (1,))
        assert list(inspect.signature(RolloutBuffer).parameters)[:4] == [
            "num_steps",
            "num_envs",
            "obs_shape",
            "action_shape",
        ]
        assert buffer.obs.shape == (3, 2, 4) and buffer.actions.shape == (3, 2, 1)
        for name in ("logprobs", "rewards", "dones", "values", "advantages", "returns"):
            assert getattr(buffer, name).shape == (3, 2), name
        # Written to directly, as a user of the short path does: 1 + γ·1 + γ²·1 with γ = 1/2, no values, λ = 1.
        buffer.rewards.fill_(1.0)
        buffer.dones[2] = True
        buffer.compute_returns_and_advantages(torch.full((2,), 99.0), gamma=0.5, gae_lambda=1.0)
        assert buffer.returns.tolist() == [[1.75, 1.75], [1.5, 1.5], [1.0, 1.0]]

    def test_the_ppo_loss(self) -> None:
        from rl_training.algorithms.ppo import ppo_loss

        batch = {
            "logprobs": torch.log(torch.tensor([1.5, 0.5])),
            "old_logprobs": torch.zeros(2),
            "advantages": torch.tensor([1.0, -1.0]),
            "returns": torch.tensor([1.0, 2.0]),
            "values": torch.zeros(2),
            "new_values": torch.tensor([0.0, 0.0]),
            "entropy": torch.tensor([0.4, 0.6]),
        }
        losses = ppo_loss(batch, 0.2, 0.1, 0.5)
        # policy: −mean(min(1.5, 1.2), min(−0.5, −0.8)) = −0.2; value: ½ · mean(1, 4) = 1.25; entropy 0.5.
        assert losses["policy_loss"].item() == pytest.approx(-0.2)
        assert losses["value_loss"].item() == pytest.approx(1.25)
        assert losses["entropy_loss"].item() == pytest.approx(0.5)
        assert losses["loss"].item() == pytest.approx(-0.2 - 0.05 + 0.625)

    def test_train_ppo(self, tmp_path: Path) -> None:
        from rl_training.trainer import train_ppo

        cfg = TrainConfig(
            algo="ppo",
            env_id="CartPole-v1",
            seed=7,
            output_dir=str(tmp_path),
            evaluation={"every": 0},  # type: ignore[arg-type]
            logging={"console": "off", "tensorboard": False},  # type: ignore[arg-type]
        )
        result = train_ppo(cfg, total_timesteps=64, num_envs=2, num_steps=16)
        assert result.metrics["global_step"] == 64
        assert result.checkpoint_path.is_dir()
        assert PPO.load(result.checkpoint_path).config.hyperparams["num_steps"] == 16


def test_a_run_does_not_import_torchs_compiler(tmp_path: Path) -> None:
    code = (
        "import sys; from rl_training import SAC, TrainConfig;"
        f"config = TrainConfig(algo='sac', env_id='Pendulum-v1', total_timesteps=32, output_dir={str(tmp_path)!r},"
        "  hyperparams={'learning_starts': 16, 'batch_size': 4}, evaluation={'every': 0});"
        "SAC(config).learn(); print({'torch._dynamo', 'torch._inductor'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
