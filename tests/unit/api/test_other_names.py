"""Names of other libraries: each gets one message with ours, and the page lists all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl_training import DQN, PPO, SAC
from rl_training.api.mistakes import unknown_attribute
from rl_training.api.other_names import NAMES, SAME, right_name
from rl_training.api.settings import agent_settings
from rl_training.experiment.registry import BUILT_IN
from rl_training.utils.errors import ConfigError, UserError

PAGE = Path(__file__).parents[3] / "docs" / "from-sb3.md"


def test_the_page_lists_every_row() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    missing = [row.line for rows in NAMES.values() for row in rows if row.line not in lines]
    assert missing == []


def test_rows_that_say_the_same_are_names_of_ours() -> None:
    ours = {setting.name for algo in BUILT_IN for setting in agent_settings(algo)}
    for row in NAMES["constructor"]:
        if row.ours.startswith(SAME):
            assert row.theirs in ours, row
        else:
            assert row.family is not None or row.theirs not in ours - {"policy", "env"}, row


@pytest.mark.parametrize(
    ("cls", "name", "message"),
    [
        (PPO, "n_steps", "`num_steps`"),
        (SAC, "n_steps", "`n_step`"),
        (PPO, "batch_size", "`num_minibatches`.*num_steps . num_envs / batch_size"),
        (PPO, "n_epochs", "`update_epochs`"),
        (PPO, "clip_range", "`clip_coef`"),
        (PPO, "verbose", "`logging="),
        (PPO, "tensorboard_log", "`output_dir="),
        (PPO, "total_steps", "`total_timesteps`"),
        (PPO, "policy_kwargs", "`policy="),
        (DQN, "train_freq", "`train_frequency`"),
        (DQN, "exploration_fraction", "`epsilon="),
    ],
)
def test_a_setting_of_theirs_gets_ours(cls: Any, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown setting '{name}'. Instead: {message}"):
        cls("CartPole-v1", **{name: 1})


def test_every_setting_that_is_not_the_same_gets_a_message() -> None:
    for row in NAMES["constructor"]:
        if not row.ours.startswith(SAME) and row.theirs not in ("env", "policy"):
            assert right_name("constructor", row.theirs, row.family or "on_policy") == row.ours


def test_a_policy_by_name() -> None:
    for arguments in (("MlpPolicy", "CartPole-v1"), ("CnnPolicy",)):
        with pytest.raises(UserError, match=r'(?s)is not an environment.*Write PPO\("CartPole-v1"\)'):
            PPO(*arguments)


def test_an_environment_by_keyword() -> None:
    with pytest.raises(UserError, match=r'the first argument.*PPO\("CartPole-v1"\); `env` is the section of settings'):
        PPO(env="CartPole-v1")
    with pytest.raises(UserError, match=r"the first argument, without a name, such as DQN"):
        DQN()


def test_arguments_of_methods(tmp_path: Path) -> None:
    agent = PPO("CartPole-v1", num_envs=1)
    for call, message in [
        (lambda: agent.learn(total_steps=10), r"learn\(\) has no argument 'total_steps'. Instead: `total_timesteps`"),
        (lambda: agent.learn(10, callback=None), "Instead: `callbacks`"),
        (lambda: agent.learn(10, progress_bar=True), "console.: 'live'"),
        (lambda: agent.learn(10, callbak=None), "'callbak'; did you mean 'callbacks'"),
        (lambda: agent.evaluate(n_eval_episodes=3), "Instead: `num_episodes`"),
        (lambda: agent.predict(obs=1), "Instead: `observation`"),
        (lambda: agent.save("x", exclude=[]), "Instead: `include_replay=False`"),
        (lambda: agent.set_parameters(exact_match=True), "has no argument 'exact_match'"),
    ]:
        with pytest.raises(UserError, match=message):
            call()  # type: ignore[no-untyped-call]
    with pytest.raises(ConfigError, match="unknown setting 'custom_objects'. Instead: left out; settings are keywords"):
        PPO.load(agent.save(tmp_path / "x"), custom_objects={})


def test_methods_of_theirs() -> None:
    agent = PPO("CartPole-v1", num_envs=1)
    with pytest.raises(AttributeError, match=r"PPO has no attribute 'save_replay_buffer'. Instead: .*`save\(path\)`"):
        agent.save_replay_buffer("x")
    assert not hasattr(agent, "never_heard_of") and unknown_attribute("PPO", "x") == "PPO has no attribute 'x'"
