"""`env.wrappers`: which names and arguments are accepted, what the wrappers do, and how honestly they come back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from helpers.envs import CounterEnv
from helpers.registered import forgetting, install
from rl_training import register_wrapper
from rl_training.config import EnvConfig, EvaluationConfig, TrainConfig
from rl_training.envs.factory import EnvFactory, make_vector_env
from rl_training.experiment.config.loader import load_config
from rl_training.utils.errors import ConfigError, EnvCreationError

STACK = {"name": "FrameStackObservation", "stack_size": 3}


class Scale(gym.RewardWrapper[Any, Any]):
    def __init__(self, env: gym.Env[Any, Any], factor: float, more: float = 0.0):
        super().__init__(env)
        self.factor, self.more = factor, more

    def reward(self, reward: Any) -> Any:
        return reward * self.factor + self.more


class EpisodeCount(gym.ObservationWrapper[Any, Any, Any]):
    """Remembers something from one episode to the next, and shows it only from the third step of an episode on."""

    def __init__(self, env: gym.Env[Any, Any]):
        super().__init__(env)
        self.episodes = self.steps = 0

    def reset(self, **kwargs: Any) -> Any:
        self.episodes, self.steps = self.episodes + 1, 0
        return super().reset(**kwargs)

    def observation(self, observation: Any) -> Any:
        self.steps += 1
        return observation + (self.episodes if self.steps > 3 else 0)


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    with forgetting():
        yield


def make(*wrappers: Any, env_id: str = "CartPole-v1", custom: Any = None, **env: Any) -> Any:
    config = TrainConfig(env_id=env_id, num_envs=2, env=EnvConfig(wrappers=list(wrappers), **env))
    return EnvFactory.of(config, custom)()


class TestNames:
    def test_text_and_mappings_become_mappings(self) -> None:
        env = EnvConfig(wrappers=["FlattenObservation", STACK])
        assert env.wrappers == [{"name": "FlattenObservation"}, STACK]
        again = TrainConfig(**TrainConfig(env=env).to_dict())
        assert again.env.wrappers == env.wrappers

    @pytest.mark.parametrize(
        ("wrapper", "message"),
        [
            (
                "FlatenObservation",
                r"\[0\].name': unknown wrapper 'FlatenObservation'; did you mean 'FlattenObservation'",
            ),
            ("Nothing", "(?s)unknown wrapper 'Nothing'.*register_wrapper.*--import"),
            ("vector", "unknown wrapper 'vector'"),
            ("gymnasium.wrappers.FlattenObservation", "a config imports nothing, .* got 'gymnasium.wrappers.Flat"),
            ("os:system", "a config imports nothing"),
            ("Autoreset", "Autoreset is not for training: env.autoreset"),
            ("NumpyToTorch", "NumpyToTorch is not for training: observations and actions stay NumPy arrays"),
            ({"stack_size": 3}, r"'wrappers\[0\]': a wrapper needs its name"),
            ({"name": 3}, "a wrapper needs its name"),
            (3, r"wrappers\[0\]': expected text or mapping, got 3"),
        ],
    )
    def test_other_names_are_refused(self, wrapper: Any, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            EnvConfig(wrappers=[wrapper])
        with pytest.raises(ConfigError, match=message):
            EvaluationConfig(wrappers=[wrapper])

    @pytest.mark.parametrize(
        ("wrapper", "message"),
        [
            (
                {**STACK, "stack_sise": 3},
                r"\[0\].stack_sise': FrameStackObservation has no argument 'stack_sise'; did you mean",
            ),
            ({"name": "FlattenObservation", "x": 1}, "FlattenObservation has no argument 'x'$"),
            ({"name": "ClipReward", "env": 1}, "ClipReward has no argument 'env'; it takes min_reward, max_reward"),
            ("FrameStackObservation", "FrameStackObservation needs its argument 'stack_size'"),
            ("TransformReward", "TransformReward takes a function as 'func', which a config cannot hold"),
            ({"name": "RecordVideo", "video_folder": "x", "step_trigger": "y"}, "takes a function as 'step_trigger'"),
        ],
    )
    def test_arguments_are_those_of_the_constructor(self, wrapper: Any, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            EnvConfig(wrappers=[wrapper])

    def test_an_error_names_the_line_of_the_entry(self, tmp_path: Path) -> None:
        path = tmp_path / "x.yaml"
        text = "env:\n  wrappers:\n    - FlattenObservation\n    - name: ClipReward\n      min_rewar: 1\n"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(
            ConfigError, match=r"x.yaml:5: key 'env.wrappers\[1\].min_rewar': ClipReward has no argument"
        ):
            load_config(path)
        path.write_text("evaluation: {wrappers:\n  [FlattenObservation,\n  Flatten]}\n", encoding="utf-8")
        with pytest.raises(
            ConfigError, match=r"x.yaml:3: key 'evaluation.wrappers\[1\].name': unknown wrapper 'Flatten'"
        ):
            load_config(path)

    @pytest.mark.parametrize("backend", ["native", "tensor"])
    def test_backends_that_step_all_at_once_refuse(self, backend: Any) -> None:
        with pytest.raises(ConfigError, match=f"'wrappers': {backend} environments .* use sync or async"):
            EnvConfig(backend=backend, wrappers=["FlattenObservation"])

    def test_native_evaluations_refuse_too(self) -> None:
        with pytest.raises(ConfigError, match=r"evaluation.wrappers': 'env.backend' is native"):
            TrainConfig(env={"backend": "native"}, evaluation={"wrappers": ["FlattenObservation"]})  # type: ignore[arg-type]


class TestRegistration:
    def test_a_registered_wrapper_has_its_name(self) -> None:
        with pytest.raises(ConfigError, match="unknown wrapper 'Scale'"):
            EnvConfig(wrappers=["Scale"])
        register_wrapper("Scale", Scale)
        env = make({"name": "Scale", "factor": 3.0})
        env.reset(seed=0)
        assert env.step(0)[1] == 3.0

    def test_only_wrappers_and_no_name_of_gymnasiums(self) -> None:
        with pytest.raises(ConfigError, match="must be a class derived from gymnasium.Wrapper, not <class 'dict'>"):
            register_wrapper("Scale", dict)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="'ClipReward' is registered already: gymnasium.wrappers:ClipReward"):
            register_wrapper("ClipReward", Scale)

    def test_an_installed_package_brings_wrappers_along(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "packed_wrappers.py").write_text(
            "import gymnasium\nclass Twice(gymnasium.RewardWrapper):\n    def reward(self, reward):\n        return 2 * reward\n",
            encoding="utf-8",
        )
        monkeypatch.syspath_prepend(tmp_path)
        install(tmp_path, {"axiomrl.wrappers": {"Twice": "packed_wrappers:Twice"}})
        env = make("Twice")
        env.reset(seed=0)
        assert env.step(0)[1] == 2.0


class TestApplication:
    def test_the_first_is_innermost(self) -> None:
        register_wrapper("Scale", Scale)
        double, plus_one = {"name": "Scale", "factor": 2.0}, {"name": "Scale", "factor": 1.0, "more": 1.0}
        for wrappers, reward in (((double, plus_one), 3.0), ((plus_one, double), 4.0)):
            env = make(*wrappers)
            env.reset(seed=0)
            assert env.step(0)[1] == reward

    def test_ids_and_callables_with_their_time_limit_inside(self) -> None:
        for env_id, custom in (("CartPole-v1", None), ("counter", CounterEnv)):
            env = make({"name": "RepeatAction", "num_repeats": 2}, env_id=env_id, custom=custom, max_episode_steps=4)
            env.reset(seed=0)
            assert env.step(0)[3] is False and env.step(0)[3] is True, "two steps of two are four"

    @pytest.mark.parametrize("backend", ["sync", "async"])
    def test_vector_environments_have_the_wrapped_spaces(self, backend: Any) -> None:
        register_wrapper("Scale", Scale)
        wrappers: list[Any] = [STACK, {"name": "Scale", "factor": 5.0}]
        config = TrainConfig(num_envs=2, env=EnvConfig(backend=backend, wrappers=wrappers))
        envs = make_vector_env(config)
        assert envs.single_observation_space.shape == (3, 4)
        envs.reset(seed=0)
        assert envs.step(np.zeros(2, np.int64))[1].tolist() == [5.0, 5.0]
        envs.close()

    def test_lists_become_what_wrappers_expect(self) -> None:
        env = make(
            {"name": "ReshapeObservation", "shape": [3, 1]},
            {"name": "RescaleAction", "min_action": [-1.0], "max_action": [1.0]},
            env_id="Pendulum-v1",
        )
        assert env.observation_space.shape == (3, 1) and env.action_space.high.tolist() == [1.0]

    def test_a_wrapper_that_does_not_fit_the_environment_is_named(self) -> None:
        with pytest.raises(
            EnvCreationError, match="the wrapper GrayscaleObservation does not fit this environment: Val"
        ):
            make("GrayscaleObservation")


class TestState:
    """After some episodes and steps, in a fresh process's environment."""

    def restored(
        self, *wrappers: Any, episodes: int = 2, steps: int = 3, env_id: str = "Pendulum-v1"
    ) -> tuple[Any, Any, bool]:
        env = make(*wrappers, env_id=env_id, max_episode_steps=8)
        rng = np.random.default_rng(0)
        env.reset(seed=1)
        for _ in range(episodes):
            while not any(env.step(rng.uniform(-2, 2, 1).astype(np.float32))[2:4]):
                pass
            env.reset()
        for _ in range(steps):
            env.step(rng.uniform(-2, 2, 1).astype(np.float32))
        fresh = make(*wrappers, env_id=env_id, max_episode_steps=8)
        _, problem = fresh.restore_state(env.export_state(), 9)
        return env, fresh, problem is None

    @pytest.mark.parametrize("steps", [0, 3])
    @pytest.mark.parametrize(
        "wrapper",
        [
            "TimeAwareObservation",
            STACK,
            "RecordEpisodeStatistics",
            {"name": "DelayObservation", "delay": 2},
            {"name": "StickyAction", "repeat_action_probability": 0.5},
            {"name": "ClipReward", "min_reward": -1.0},
            {"name": "RescaleAction", "min_action": -2.0, "max_action": 2.0},
            {"name": "TimeLimit", "max_episode_steps": 5},
        ],
        ids=str,
    )
    def test_what_a_replay_brings_back_goes_on_exactly(self, wrapper: Any, steps: int) -> None:
        env, fresh, exact = self.restored(wrapper, steps=steps)
        assert exact
        for action in np.random.default_rng(1).uniform(-2, 2, (12, 1)).astype(np.float32):
            one, two = env.step(action), fresh.step(action)
            assert np.array_equal(one[0], two[0]) and one[1:4] == two[1:4]
            if one[2] or one[3]:
                assert np.array_equal(env.reset()[0], fresh.reset()[0])

    @pytest.mark.parametrize("steps", [0, 3])
    @pytest.mark.parametrize("wrapper", ["NormalizeObservation", "NormalizeReward"])
    def test_statistics_over_episodes_are_not_claimed_to_be_back(self, wrapper: str, steps: int) -> None:
        assert not self.restored(wrapper, steps=steps)[2]
        assert not self.restored(wrapper, STACK, steps=steps)[2], "also below other wrappers"
        assert self.restored(wrapper, episodes=0, steps=steps)[2], "the first episode is all there was"

    def test_what_a_wrapper_hides_comes_back(self) -> None:
        register_wrapper("EpisodeCount", EpisodeCount)
        env, fresh, exact = self.restored("EpisodeCount", steps=0)
        assert env.export_state()["return"] == fresh.export_state()["return"] == 0.0, "nothing shows yet"
        assert exact
        for _ in range(5):
            action = np.zeros(1, dtype=np.float32)
            assert env.step(action)[0].tobytes() == fresh.step(action)[0].tobytes()

    def test_a_wrapper_that_cannot_be_looked_into_is_not_exact(self) -> None:
        class Opaque(Scale):
            def __init__(self, env: gym.Env[Any, Any]):
                super().__init__(env, 1.0)
                self.secret = (number for number in range(3))

        register_wrapper("Opaque", Opaque)
        assert not self.restored("Opaque")[2]
        assert self.restored({"name": "TimeLimit", "max_episode_steps": 5})[2]
