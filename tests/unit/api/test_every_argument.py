"""Every argument of the public functions and methods is used or refused: each has a check here, and one without fails.

A check is named after what it checks: `learn__callbacks` shows what `callbacks` of `learn` does. The keywords of the constructor,
of `from_preset` and of `load` are config keys and hyperparameters, which have tests of their own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

import rl_training
from helpers.envs import CounterEnv
from rl_training import DQN, PPO, Agent, agent_class, check_algorithm, check_env, load_agent
from rl_training import Callback as PublicCallback
from rl_training.data.sources import TransitionDataset
from rl_training.envs.wrappers import WRAPPERS
from rl_training.experiment import registry
from rl_training.experiment.registry import ALGORITHMS
from rl_training.policies.encoder_registry import ENCODERS
from rl_training.trainer import train, train_ppo
from rl_training.utils.errors import ConfigError, EnvCreationError, SpaceError, UserError

SMALL: dict[str, Any] = {"num_envs": 2, "num_steps": 16, "seed": 0, "device": "cpu"}
OBS = np.array([0.1, -0.2, 0.3, -0.4], np.float32)


def small(**settings: Any) -> Any:
    return PPO("CartPole-v1", **{**SMALL, **settings})


def quick_config(folder: Path, **values: Any) -> rl_training.TrainConfig:
    quiet = {"evaluation": {"every": 0}, "logging": {"console": "off", "tensorboard": False}}
    known = {"hyperparams": {"num_steps": 16}, "num_envs": 2, "total_timesteps": 32, "output_dir": str(folder)}
    return rl_training.TrainConfig(**{**quiet, **known, **values})


class Checks:
    """What is shown of each argument."""

    def init__env(self, folder: Path) -> None:
        assert small()._spaces != PPO("Acrobot-v1", **SMALL)._spaces

    def init__evaluation_env(self, folder: Path) -> None:
        with pytest.raises(ConfigError, match="an environment for evaluations goes with a dataset"):
            PPO("CartPole-v1", "CartPole-v1")

    def init__settings(self, folder: Path) -> None:
        assert small(gamma=0.5).algorithm.config.gamma == 0.5
        with pytest.raises(ConfigError, match="unknown setting 'gama'; did you mean 'gamma'"):
            small(gama=0.5)

    def from_preset__name(self, folder: Path) -> None:
        assert DQN.from_preset("dqn/cartpole").config.env_id == "CartPole-v1"
        with pytest.raises(ConfigError, match="no preset 'dqn/cartpol'"):
            DQN.from_preset("dqn/cartpol")

    def from_preset__settings(self, folder: Path) -> None:
        assert PPO.from_preset("ppo/cartpole", seed=9, gamma=0.5).config.hyperparams["gamma"] == 0.5

    def learn__total_timesteps(self, folder: Path) -> None:
        agent = small(total_timesteps=64)
        assert small(total_timesteps=64).learn(32).metrics["global_step"] == 32
        assert agent.learn().metrics["global_step"] == 64
        with pytest.raises(UserError, match="counts those too"):
            agent.learn(64)

    def learn__callbacks(self, folder: Path) -> None:
        class Stops(PublicCallback):
            def on_iteration_end(self, trainer: Any) -> None:
                trainer.stop("enough")

        assert small().learn(320, Stops()).stop_reason == "enough"

    def evaluate__num_episodes(self, folder: Path) -> None:
        assert small().evaluate(3).episodes == 3
        with pytest.raises(UserError, match="at least 1"):
            small().evaluate(0)

    def evaluate__env(self, folder: Path) -> None:
        limited = small().evaluate(3, env=lambda: gym.wrappers.TimeLimit(gym.make("CartPole-v1"), 2))
        assert limited.lengths == (2, 2, 2)

    def evaluate__deterministic(self, folder: Path) -> None:
        agent = small()
        assert agent.evaluate(5).returns != agent.evaluate(5, deterministic=False).returns

    def evaluate__num_envs(self, folder: Path) -> None:
        counts: list[int] = []

        class Counted(CounterEnv):
            def __init__(self) -> None:
                super().__init__(((3, "terminated"),))
                counts.append(1)

        agent = PPO(Counted, **SMALL)
        for count in (1, 4):
            counts.clear()
            agent.evaluate(4, num_envs=count)
            assert len(counts) == count

    def evaluate__seed(self, folder: Path) -> None:
        agent = small()
        assert agent.evaluate(5, seed=1).returns != agent.evaluate(5, seed=2).returns

    def record__path(self, folder: Path) -> None:
        assert small().record(folder / "a.mp4", 1).path.is_file()
        with pytest.raises(UserError, match=r"a video ends in \.mp4 or \.gif"):
            small().record(folder / "a.avi")

    def record__num_episodes(self, folder: Path) -> None:
        assert small().record(folder / "a.mp4", 2).result.episodes == 2

    def record__env(self, folder: Path) -> None:
        def make(render_mode: str | None = None) -> Any:
            return gym.wrappers.TimeLimit(gym.make("CartPole-v1", render_mode=render_mode), 2)

        assert small().record(folder / "a.mp4", 1, env=make).frames == 3

    def record__deterministic(self, folder: Path) -> None:
        agent = small()
        results = [agent.record(folder / "a.mp4", 3, deterministic=value).result for value in (True, False)]
        assert results[0].returns != results[1].returns

    def record__num_envs(self, folder: Path) -> None:
        agent = small()
        shorter, longer = (agent.record(folder / "a.mp4", 2, num_envs=count).frames for count in (2, 1))
        assert shorter < longer, "side by side"
        with pytest.raises(UserError, match="at most 9 environments side by side, got num_envs=10"):
            agent.record(folder / "a.mp4", 20, num_envs=10)

    def record__seed(self, folder: Path) -> None:
        agent = small()
        results = [agent.record(folder / "a.mp4", 3, seed=seed).result.returns for seed in (1, 2)]
        assert results[0] != results[1]

    def record__max_seconds(self, folder: Path) -> None:
        with pytest.warns(UserWarning, match=r"a\.mp4 was cut after 0\.1 s of video"):
            assert small().record(folder / "a.mp4", 1, max_seconds=0.1).frames == 5
        with pytest.raises(UserError, match="max_seconds must be above 0"):
            small().record(folder / "a.mp4", max_seconds=0)

    def predict__observation(self, folder: Path) -> None:
        with pytest.raises(SpaceError, match="does not fit"):
            small().predict(OBS[:3])
        agent = PPO("Pendulum-v1", **SMALL)
        assert not np.array_equal(agent.predict(OBS[:3])[0], agent.predict(-OBS[:3])[0])

    def predict__state(self, folder: Path) -> None:
        with pytest.raises(UserError, match="has no memory: pass state=None"):
            small().predict(OBS, state=torch.zeros(1))

    def predict__deterministic(self, folder: Path) -> None:
        agent = PPO("Pendulum-v1", **SMALL)
        assert not np.array_equal(agent.predict(OBS[:3])[0], agent.predict(OBS[:3], deterministic=False)[0])

    def predict__episode_start(self, folder: Path) -> None:
        with pytest.raises(UserError, match="episode_start has 3 flags for 1 observations"):
            small().predict(OBS, episode_start=[True, False, True])

    def predict__action_masks(self, folder: Path) -> None:
        agent = PPO("KeyRing-v0")
        assert [agent.predict([0, 0], action_masks=row)[0] for row in np.eye(100)[:3]] == [0, 1, 2]

    def save__path(self, folder: Path) -> None:
        assert small().save(folder / "here") == folder / "here" and (folder / "here").is_dir()

    def save__include_replay(self, folder: Path) -> None:
        agent = DQN("CartPole-v1", num_envs=2, buffer_size=100)
        agent.learn(20)
        assert "replay" in str(list(agent.save(folder / "a").iterdir()))
        assert "replay" not in str([path.name for path in agent.save(folder / "b", include_replay=False).iterdir()])

    def set_parameters__parameters(self, folder: Path) -> None:
        agent = small()
        agent.set_parameters({name: torch.zeros_like(value) for name, value in agent.get_parameters().items()})
        assert not any(value.any() for value in agent.get_parameters().values())

    def load__path(self, folder: Path) -> None:
        assert PPO.load(small().save(folder / "x")).config.seed == 0
        with pytest.raises(UserError):
            PPO.load(folder / "not_there")

    def load__env(self, folder: Path) -> None:
        path = small().save(folder / "x")
        assert PPO.load(path, env=lambda: gym.make("CartPole-v1")).config.env_id == "lambda"
        with pytest.raises(EnvCreationError, match="unknown environment"):
            PPO.load(path, env="NotThere-v0")

    def load__settings(self, folder: Path) -> None:
        path = small().save(folder / "x")
        assert PPO.load(path, gamma=0.5, num_envs=3).algorithm.config.gamma == 0.5
        with pytest.raises(ConfigError, match="unknown setting"):
            PPO.load(path, gama=0.5)

    def load_agent__path(self, folder: Path) -> None:
        assert type(load_agent(small().save(folder / "x"))) is PPO

    def load_agent__env(self, folder: Path) -> None:
        with pytest.raises(SpaceError, match="does not fit"):
            load_agent(small().save(folder / "x"), env="Acrobot-v1")

    def load_agent__settings(self, folder: Path) -> None:
        assert load_agent(small().save(folder / "x"), seed=4).config.seed == 4

    def agent_class__algo(self, folder: Path) -> None:
        assert agent_class("dqn") is DQN
        with pytest.raises(ConfigError, match="unknown algorithm 'dqnn'; did you mean 'dqn'"):
            agent_class("dqnn")

    def register_algorithm__algo(self, folder: Path) -> None:
        rl_training.register_algorithm("mine", registry.load("a2c"))
        assert agent_class("mine").algo == "mine"

    def register_algorithm__rule(self, folder: Path) -> None:
        with pytest.raises(ConfigError, match="an algorithm is a class derived from"):
            rl_training.register_algorithm("mine", int)  # type: ignore[arg-type]

    def register_algorithm__name(self, folder: Path) -> None:
        assert rl_training.register_algorithm("mine", registry.load("a2c"), name="Mine").__name__ == "Mine"

    def register_algorithm__summary(self, folder: Path) -> None:
        rl_training.register_algorithm("mine", registry.load("a2c"), summary="Of mine.")
        assert registry.algorithm_info("mine").summary == "Of mine."

    def register_algorithm__policy(self, folder: Path) -> None:
        rl_training.register_algorithm("mine", registry.load("a2c"), policy={"hidden_sizes": (3,)})
        assert agent_class("mine")("CartPole-v1").config.policy.hidden_sizes == (3,)

    def register_wrapper__name(self, folder: Path) -> None:
        rl_training.register_wrapper("Again", gym.wrappers.TimeAwareObservation)
        assert small(env={"wrappers": ["Again"]})._spaces.observation.shape == (5,)

    def register_wrapper__wrapper(self, folder: Path) -> None:
        with pytest.raises(ConfigError, match="must be a class derived from gymnasium.Wrapper"):
            rl_training.register_wrapper("Again", int)  # type: ignore[arg-type]

    def register_encoder__name(self, folder: Path) -> None:
        rl_training.register_encoder("Again", Summed)
        assert small(policy={"encoder": "Again"}).config.policy.encoder == "Again"

    def register_encoder__encoder(self, folder: Path) -> None:
        rl_training.register_encoder("Again", int)
        with pytest.raises(ConfigError, match="policy.encoder: Again cannot be made|Again must be a torch module"):
            small(policy={"encoder": "Again"})

    def check_algorithm__algo(self, folder: Path) -> None:
        assert check_algorithm("a2c", only=["refusals"]).algo == "a2c"

    def check_algorithm__total_timesteps(self, folder: Path) -> None:
        assert "train for longer" in str(check_algorithm("a2c", total_timesteps=1, only=["split_run"]))

    def check_algorithm__hyperparams(self, folder: Path) -> None:
        assert "did you mean 'gamma'" in str(check_algorithm("a2c", hyperparams={"gama": 1}, only=["same_seed"]))

    def check_algorithm__seed(self, folder: Path) -> None:
        assert "key 'seed': must be >= 0" in str(check_algorithm("a2c", seed=-1, only=["same_seed"]))

    def check_algorithm__device(self, folder: Path) -> None:
        with pytest.raises(ConfigError, match="cuda:99"):
            check_algorithm("a2c", device="cuda:99")

    def check_algorithm__only(self, folder: Path) -> None:
        assert [result.name for result in check_algorithm("a2c", only=["refusals"]).results] == ["refusals"]
        with pytest.raises(UserError, match="did you mean 'refusals'"):
            check_algorithm("a2c", only=["refusal"])

    def check_env__env(self, folder: Path) -> None:
        assert check_env("CartPole-v1", steps=30).passed and not check_env("NotThere-v0").passed

    def check_env__settings(self, folder: Path) -> None:
        assert not check_env("CartPole-v1", settings={"kwargs": {"not_there": 1}}, steps=30).passed

    def check_env__steps(self, folder: Path) -> None:
        with pytest.raises(UserError, match="at least 1"):
            check_env("CartPole-v1", steps=0)

    def check_env__seed(self, folder: Path) -> None:
        seeds: list[Any] = []

        class Seeded(CounterEnv):
            def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
                seeds.append(seed)
                return super().reset(seed=seed)

        found = []
        for seed in (1, 2):
            seeds.clear()
            check_env(Seeded, steps=10, seed=seed)
            found.append(list(seeds))
        assert found[0] != found[1]

    def train__cfg(self, folder: Path) -> None:
        assert train(quick_config(folder)).metrics["global_step"] == 32

    def train_ppo__cfg(self, folder: Path) -> None:
        assert train_ppo(quick_config(folder, algo="ppo")).run_dir.name.startswith("ppo__")

    def train_ppo__total_timesteps(self, folder: Path) -> None:
        assert train_ppo(quick_config(folder), total_timesteps=64).metrics["global_step"] == 64

    def train_ppo__num_envs(self, folder: Path) -> None:
        assert train_ppo(quick_config(folder), num_envs=4).metrics["global_step"] == 64

    def train_ppo__num_steps(self, folder: Path) -> None:
        assert train_ppo(quick_config(folder), num_steps=32).metrics["global_step"] == 64


class Summed(nn.Module):
    """An encoder: the sum of the observation."""

    def __init__(self, observation_space: spaces.Space[Any]):
        super().__init__()
        self.features = 1

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return obs.sum(-1, keepdim=True)


CHECKS = {name: check for name, check in vars(Checks).items() if "__" in name.strip("_")}


def public_arguments() -> Iterator[str]:
    methods = {name: method for name, method in vars(Agent).items() if not name.startswith("_")}
    functions: dict[str, Callable[..., Any]] = {"init": Agent.__init__, "train": train, "train_ppo": train_ppo}
    functions |= {name: getattr(Agent, name) for name, method in methods.items() if callable(getattr(Agent, name))}
    public = {name: getattr(rl_training, name) for name in dir(rl_training) if not name.startswith("_")}
    functions |= {name: thing for name, thing in public.items() if inspect.isfunction(thing)}
    for name, function in functions.items():
        yield from (f"{name}__{argument}" for argument in inspect.signature(function).parameters if argument != "self")


def test_every_argument_has_a_check() -> None:
    assert set(public_arguments()) == set(CHECKS), "a new argument needs a check that shows what it does"


@pytest.mark.parametrize("name", CHECKS)
def test_it_is_used_or_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for known in (ALGORITHMS, WRAPPERS, ENCODERS):
        monkeypatch.setattr(known, "things", dict(known.things))
    CHECKS[name](Checks(), tmp_path)


def test_the_environment_for_evaluations_beside_a_dataset_is_used() -> None:
    """`evaluation_env`, which needs an offline algorithm: its place is what the source is given."""
    from rl_training.experiment.run.env_source import EnvSource

    space = spaces.Box(0, 1, (1,))
    rows = np.zeros((2, 1), np.float32)
    data = TransitionDataset(
        space, space, obs=rows, actions=rows, rewards=rows[:, 0], next_obs=rows, terminated=rows[:, 0]
    )
    assert EnvSource("CartPole-v1", data).evaluation_envs(quick_config(Path()))(2).num_envs == 2
