"""Atari games: what is seen frame by frame beside Gymnasium's wrappers, lives, limits, and exact restoring."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from rl_training.config import TrainConfig
from rl_training.envs.atari_config import AtariConfig
from rl_training.envs.contract import EnvStepper
from rl_training.envs.factory import EnvFactory, make_vector_env
from rl_training.utils.errors import ConfigError, EnvCreationError

ale_py = pytest.importorskip("ale_py")


def game(name: str = "Breakout", **atari: Any) -> Any:
    return EnvFactory.of(TrainConfig(env_id=f"ALE/{name}-v5", env={"atari": atari}))()


@pytest.mark.parametrize("name", ["Breakout", "Pong"])
@pytest.mark.parametrize("sticky", [0.0, 0.25])
def test_frames_are_those_of_gymnasiums_wrappers(name: str, sticky: float) -> None:
    gym.register_envs(ale_py)
    bare = gym.make(f"ALE/{name}-v5", frameskip=1, repeat_action_probability=sticky, full_action_space=False)
    theirs = FrameStackObservation(AtariPreprocessing(bare, noop_max=30), 4, padding_type="reset")
    ours = game(name, protocol="classic", sticky_actions=sticky, fire=False)
    rng = np.random.default_rng(0)
    for episode in range(2):
        seed = 7 if episode == 0 else None
        expected, _ = theirs.reset(seed=seed)
        seen, our_info = ours.reset(seed=seed)
        lives = our_info["lives"]
        assert np.array_equal(seen, expected)
        for _ in range(150):
            action = int(rng.integers(ours.action_space.n))
            expected, reward, terminated, truncated, info = theirs.step(action)
            seen, our_reward, our_terminated, our_truncated, our_info = ours.step(action)
            assert (our_reward, our_terminated, our_truncated) == (reward, terminated, truncated)
            if terminated:  # theirs shows an older screen where a frame skip ends early
                break
            assert np.array_equal(seen, expected)
            lives = our_info.get("lives", lives)
            assert lives == info["lives"]


def test_the_protocols() -> None:
    machado, classic = AtariConfig(), AtariConfig("classic")
    assert (machado.sticky_actions, machado.full_actions, machado.noop_max, machado.fire, machado.life_loss) == (
        0.25,
        True,
        0,
        False,
        False,
    )
    assert (classic.sticky_actions, classic.full_actions, classic.noop_max, classic.fire, classic.life_loss) == (
        0.0,
        False,
        30,
        True,
        True,
    )
    assert classic.text == "classic" and AtariConfig("classic", noop_max=5).text == "classic, noop_max=5"
    assert game(protocol="machado").action_space.n == 18 and game(protocol="classic").action_space.n == 4


@pytest.mark.parametrize(
    ("changed", "other"),
    [
        ({"frame_skip": 2}, None),
        ({"max_pool": False}, None),
        ({"noop_max": 0}, None),
        ({"fire": False}, None),
        ({"sticky_actions": 0.9}, None),
        ({"grayscale": False}, (4, 84, 84, 3)),
        ({"screen_size": 64}, (4, 64, 64)),
        ({"frame_stack": 2}, (2, 84, 84)),
    ],
)
def test_every_setting_changes_what_is_seen(changed: dict[str, Any], other: Any) -> None:
    def played(**atari: Any) -> Any:
        env = game("SpaceInvaders", protocol="classic", **atari)
        seen = [env.reset(seed=3)[0]]
        seen += [env.step(action)[0] for action in [1, 2, 3, 0] * 10]
        return np.stack(seen)

    plain, set_ = played(), played(**changed)
    assert set_.shape[1:] == (other or (4, 84, 84))
    assert other is not None or not np.array_equal(plain, set_)


def test_an_episode_is_truncated_at_the_frame_limit_with_its_last_screen() -> None:
    env = game("Pong", protocol="classic", noop_max=0, fire=False, max_frames=42)
    env.reset(seed=0)
    ends = [env.step(0)[2:4] for _ in range(11)]
    assert ends == [(False, False)] * 10 + [(False, True)], "10 whole frame skips, and one of two frames"
    fresh = game("Pong", protocol="classic", noop_max=0, fire=False, frame_skip=1)
    fresh.reset(seed=0)
    for _ in range(42):
        last = fresh.step(0)[0][-1]
    assert np.array_equal(env.unwrapped._stack[-1], last)


def test_a_lost_life_ends_the_value_and_not_the_episode() -> None:
    config = TrainConfig(env_id="ALE/Breakout-v5", num_envs=2, env={"atari": {"protocol": "classic"}})
    stepper = EnvStepper(make_vector_env(config))
    stepper.reset(0)
    lost, ended = 0, 0
    for _ in range(400):
        record = stepper.step(np.zeros(2, np.int64))  # no-ops: the ball is served, and missed
        ended += int((record.terminated | record.truncated).sum())
        if record.bootstrap_ends is not None:
            lost += int(record.bootstrap_ends.sum())
            assert not (record.bootstrap_ends & record.terminated).any()
    assert ended >= 2 and lost == 4 * ended + (lost - 4 * ended) and lost >= 4 * ended, (
        "four lives before the fifth ends it"
    )


def test_without_life_loss_nothing_is_said() -> None:
    env = game("Breakout", protocol="classic", life_loss=False)
    env.reset(seed=0)
    infos = [env.step(0)[4] for _ in range(150)]
    assert any("lives" in info for info in infos) and not any("bootstrap_ends" in info for info in infos)


@pytest.mark.parametrize("name", ["Pong", "Breakout", "SpaceInvaders", "Seaquest", "BeamRider", "MsPacman"])
def test_a_game_comes_back_to_the_bit(name: str) -> None:
    env, rng = game(name), np.random.default_rng(1)
    env.reset(seed=1)
    for _ in range(60):
        env.step(int(rng.integers(env.action_space.n)))
    state = env.export_state()
    actions = rng.integers(env.action_space.n, size=100)
    other = game(name)
    _, problem = other.restore_state(state, 0)
    assert problem is None
    for action in actions:
        a, b = env.step(int(action)), other.step(int(action))
        assert np.array_equal(a[0], b[0]) and a[1:] == b[1:]
        if a[2] or a[3]:
            assert np.array_equal(env.reset()[0], other.reset()[0])


@pytest.mark.parametrize("name", ["Qbert", "Tetris"])
def test_games_that_cannot_be_restored_say_so(name: str) -> None:
    env = game(name)
    env.reset(seed=0)
    _, problem = game(name).restore_state(env.export_state(), 0)
    assert problem is not None and "does not save the whole state" in problem


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="no Atari game"):
        TrainConfig(env_id="CartPole-v1", env={"atari": {"protocol": "classic"}})
    with pytest.raises(ConfigError, match="protocol is none"):
        TrainConfig(env_id="ALE/Pong-v5", env={"atari": {"protocol": "none", "frame_skip": 2}})
    with pytest.raises(ConfigError, match="max_pool.*means nothing while frame_skip is 1"):
        TrainConfig(env_id="ALE/Pong-v5", env={"atari": {"frame_skip": 1, "max_pool": False}})
    with pytest.raises(EnvCreationError, match=r"env.kwargs.frameskip.*frame_skip"):
        EnvFactory.of(TrainConfig(env_id="ALE/Pong-v5", env={"kwargs": {"frameskip": 2}}))()
    with pytest.raises(EnvCreationError, match="max_frames"):
        EnvFactory.of(TrainConfig(env_id="ALE/Pong-v5", env={"max_episode_steps": 20}))()
    with pytest.raises(ConfigError, match="use sync or async"):
        TrainConfig(env_id="ALE/Pong-v5", env={"backend": "native"})
    with pytest.raises(EnvCreationError, match="old name: use 'ALE/Hong-v5'"):
        EnvFactory.of(TrainConfig(env_id="HongNoFrameskip-v4"))()


def test_mode_and_difficulty_reach_the_game() -> None:
    def first(**kwargs: Any) -> Any:
        env = EnvFactory.of(TrainConfig(env_id="ALE/Pong-v5", env={"kwargs": kwargs}))()
        env.reset(seed=0)
        return np.stack([env.step(2)[0] for _ in range(60)])

    assert not np.array_equal(first(), first(mode=1))


def test_rewards_are_clipped_by_default_in_games_alone() -> None:
    assert TrainConfig(env_id="ALE/Pong-v5").env.clip_rewards is True
    assert TrainConfig(env_id="ALE/Pong-v5", env={"clip_rewards": False}).env.clip_rewards is False
    assert TrainConfig(env_id="ALE/Pong-v5", env={"normalize_rewards": True}).env.clip_rewards is False
    assert TrainConfig().env.clip_rewards is False
    assert TrainConfig(env_id="ALE/Pong-v5", env={"atari": {"protocol": "none"}}).env.clip_rewards is False
