"""No invalid action is ever taken: whole runs in environments that raise on one, resumed, evaluated, and asked by hand."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from helpers import masked_envs
from helpers.masked_envs import PickyEnv, PickyMultiEnv
from rl_training import DQN, PPO, TrainConfig, agent_class
from rl_training.envs.builtin.goal_tasks import BitFlip
from rl_training.experiment.proof.resume import verify_resume
from rl_training.experiment.run.build import complete_config
from rl_training.utils.action_masks import ActionMask
from rl_training.utils.errors import UserError

OFF_POLICY: dict[str, Any] = {"learning_starts": 20, "batch_size": 16, "train_frequency": 2, "buffer_size": 200}
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"num_steps": 16, "num_minibatches": 2, "update_epochs": 2},
    "recurrent_ppo": {"num_steps": 16, "num_minibatches": 2, "update_epochs": 2, "sequence_length": 8, "core_size": 8},
    "a2c": {"num_steps": 8},
    "trpo": {"num_steps": 16, "critic_minibatches": 2, "critic_epochs": 2},
    **dict.fromkeys(("dqn", "double_dqn", "dueling_dqn", "noisy_dqn", "prioritized_dqn", "nstep_dqn"), OFF_POLICY),
    **dict.fromkeys(("c51", "qr_dqn", "iqn", "rainbow", "discrete_sac"), OFF_POLICY),
}
MULTI = ("ppo", "recurrent_ppo", "a2c", "trpo")


def make(algo: str, task: Any, /, **settings: Any) -> Any:
    device = {"device": "cpu", "policy": {"hidden_sizes": [8, 8]}}
    return agent_class(algo)(task, seed=3, **{**device, "num_envs": 2, **SETTINGS[algo], **settings})


def weights(agent: Any) -> dict[str, Any]:
    return {name: value.tolist() for name, value in agent.get_parameters().items()}


@pytest.mark.parametrize("algo", SETTINGS)
def test_every_algorithm_takes_valid_actions_only(algo: str) -> None:
    """In training, with random and exploring actions, and in evaluation, greedy and by samples; else the environment raises."""
    agent = make(algo, lambda: PickyEnv("info", start=1))
    agent.learn(160)
    for deterministic in (True, False):
        assert agent.evaluate(6, deterministic=deterministic).episodes == 6
    assert all(torch.isfinite(torch.as_tensor(value)).all() for value in agent.get_parameters().values())


@pytest.mark.parametrize("form", ["method", "info", "observation"])
@pytest.mark.parametrize("algo", MULTI)
def test_several_choices_at_once(algo: str, form: str) -> None:
    agent = make(algo, lambda: PickyMultiEnv(form, parts=True, start=2), env={"normalize_observations": True})
    agent.learn(96)
    assert agent.evaluate(4).episodes == 4


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_the_form_of_the_mask_changes_nothing(algo: str) -> None:
    runs = []
    for form in ("method", "info", "observation"):
        agent = make(algo, lambda form=form: PickyEnv(form))
        agent.learn(96)
        runs.append(weights(agent))
    assert runs[0] == runs[1] == runs[2]


@pytest.mark.parametrize("autoreset", ["same_step", "next_step", "disabled"])
@pytest.mark.parametrize("algo", ["ppo", "recurrent_ppo", "rainbow"])
def test_every_way_to_reset(algo: str, autoreset: str) -> None:
    make(algo, lambda: PickyEnv("method"), env={"autoreset": autoreset}).learn(120)


@pytest.mark.parametrize("storage", ["ram", "disk"])
def test_munchausen_with_prioritised_n_step_replay(storage: str) -> None:
    settings = {"munchausen": True, "n_step": 3, "prioritized": True, "replay_storage": storage}
    make("dqn", lambda: PickyEnv("info"), **settings).learn(120)


@pytest.mark.parametrize("algo", ["ppo", "recurrent_ppo", "dqn", "discrete_sac"])
def test_recorded_steps_are_those_as_written(algo: str) -> None:
    ends = []
    for execution in ("auto", "eager"):
        agent = make(algo, lambda: PickyEnv("info"), execution=execution)
        agent.learn(96)
        ends.append(agent.get_parameters())
    for name, value in ends[0].items():
        torch.testing.assert_close(
            value, ends[1][name], rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("algo", SETTINGS)
def test_masked_steps_are_recorded(algo: str, caplog: pytest.LogCaptureFixture) -> None:
    """What cannot be recorded is said once in the log."""
    with caplog.at_level("WARNING", logger="rl_training.execution"):
        make(algo, lambda: PickyEnv("info")).learn(96)
    assert caplog.messages == []


@pytest.mark.parametrize("backend", ["sync", "async"])
@pytest.mark.parametrize("algo", ["ppo", "rainbow", "discrete_sac"])
def test_a_resumed_run_ends_like_one_never_stopped(algo: str, backend: str, tmp_path: Path) -> None:
    def env() -> gym.Env[Any, Any]:
        return PickyEnv("method")

    # Without schedules, which the first call of learn would run through to their end.
    fixed = {"learning_rate": 1e-3, "per_beta": 0.5} if algo == "rainbow" else {}
    whole = make(algo, env, env={"backend": backend}, **fixed)
    whole.learn(192)
    first = make(algo, env, env={"backend": backend}, **fixed)
    first.learn(96)
    first.save(tmp_path / "half")
    first.close()
    second = type(first).load(tmp_path / "half", env=env)
    second.learn(192)
    assert weights(second) == weights(whole)
    assert second._session.trainer.collector.stepper.resume_grade == "exact"
    whole.close()
    second.close()


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_killed_and_resumed_it_ends_the_same(algo: str, tmp_path: Path) -> None:
    config = TrainConfig(
        algo=algo,
        env_id="KeyRing-v0",
        total_timesteps=6_000,
        num_envs=2,
        hyperparams={} if algo == "ppo" else {"buffer_size": 5_000, "train_frequency": 8},
        env={"kwargs": {"masks": "info"}},  # type: ignore[arg-type]
        checkpoint={"every": 1_000},  # type: ignore[arg-type]
        evaluation={"every": 2_500, "episodes": 3},  # type: ignore[arg-type]
        logging={"tensorboard": False},  # type: ignore[arg-type]
    )
    report = verify_resume(complete_config(config)[0], tmp_path, kills=1, rng=random.Random(0))
    assert report.differences == () and set(report.grades) == {"exact"}


def test_learning_in_a_second_process_knows_masks_too() -> None:
    agent = make("ppo", lambda: PickyEnv("method"), overlap=True)
    agent.learn(128)
    agent.close()


class TestPredict:
    def played(self, agent: Any, env: PickyEnv, *, apart: bool, deterministic: bool) -> None:
        """Some episodes with what `predict` says; the environment raises on what is not valid."""
        for episode in range(5):
            obs, info = env.reset(seed=episode)
            done = False
            while not done:
                told = None
                if apart:
                    told = env.action_masks() if env.form == "method" else info["action_mask"]
                action, _ = agent.predict(obs, deterministic=deterministic, action_masks=told)
                obs, _, terminated, truncated, info = env.step(action)
                done = terminated or truncated

    @pytest.mark.parametrize("deterministic", [True, False])
    @pytest.mark.parametrize("algo", SETTINGS)
    def test_it_takes_what_the_environment_gives(self, algo: str, deterministic: bool) -> None:
        kinds = (PickyEnv, PickyMultiEnv) if algo in MULTI else (PickyEnv,)
        for kind in kinds:
            parts = kind is PickyMultiEnv
            apart = make(algo, lambda kind=kind, parts=parts: kind("method", parts))
            for form in ("method", "info"):
                self.played(apart, kind(form, parts), apart=True, deterministic=deterministic)
            within = make(algo, lambda kind=kind, parts=parts: kind("observation", parts))
            self.played(within, kind("observation", parts), apart=False, deterministic=deterministic)

    def test_a_batch_of_observations_has_a_batch_of_masks(self) -> None:
        agent = make("ppo", lambda: PickyEnv("method"))
        masks = np.eye(6, dtype=bool)
        actions, _ = agent.predict(np.zeros((6, 3), np.float32), action_masks=masks)
        assert actions.tolist() == [0, 1, 2, 3, 4, 5]
        multi = make("ppo", lambda: PickyMultiEnv("method"))
        masks = [([1, 0, 0], [0, 1], [0, 0, 0, 1]), np.array([0, 0, 1, 1, 0, 1, 0, 0, 0])]
        actions, _ = multi.predict(np.zeros((2, 3), np.float32), action_masks=masks)
        assert actions.tolist() == [[0, 1, 3], [2, 0, 0]]

    def test_a_loaded_agent_knows_masks_without_an_environment(self, tmp_path: Path) -> None:
        agent = make("dqn", lambda: PickyEnv("info"))
        agent.save(tmp_path / "agent")
        loaded = DQN.load(tmp_path / "agent")
        action, _ = loaded.predict(np.zeros(3, np.float32), action_masks=[0, 0, 0, 0, 1, 0])
        assert action == 4

    def test_without_masks_a_warning_says_what_that_means(self) -> None:
        agent = make("ppo", lambda: PickyEnv("method"))
        with pytest.warns(UserWarning, match="every action counts as valid") as warned:
            agent.predict(np.zeros(3, np.float32))
        assert warned[0].filename == __file__
        inner = {"observation": np.zeros(3, np.float32), "action_mask": np.eye(6)[2]}
        assert agent.predict(inner)[0] == 2, "the form that training has is understood as well"

    def test_what_does_not_fit_is_refused(self) -> None:
        agent = make("ppo", lambda: PickyEnv("method"))
        obs = np.zeros(3, np.float32)
        for masks, message in (
            (np.ones(5), "for 6 actions"),
            (np.zeros(6), "no action is valid for observation 0"),
            (np.ones((2, 6)), "do not fit"),
        ):
            with pytest.raises(UserError, match=message):
                agent.predict(obs, action_masks=masks)
        with pytest.raises(UserError, match="2 action masks for 3 observations"):
            agent.predict(np.zeros((3, 3), np.float32), action_masks=np.ones((2, 6)))
        within = make("ppo", lambda: PickyEnv("observation"))
        with pytest.raises(UserError, match="has an entry 'action_mask' already"):
            within.predict({"seen": obs, "action_mask": np.ones(6)}, action_masks=np.ones(6))
        with pytest.raises(UserError, match="environment without action masks"):
            PPO("CartPole-v1").predict(np.zeros(4, np.float32), action_masks=np.ones(2))


@pytest.mark.parametrize(("algo", "steps"), [("ppo", 20_000), ("dqn", 14_000)])
def test_the_presets_solve_the_key_ring_and_not_without_masks(algo: str, steps: int) -> None:
    scores = {}
    for masks in (True, False):
        settings = {"env": {"action_masks": masks}, "evaluation": {"every": 0}, "logging": {"console": "off"}}
        agent = agent_class(algo).from_preset(f"{algo}/keyring", seed=1, output_dir=None, device="cpu", **settings)
        agent.learn(steps)
        scores[masks] = agent.evaluate(30).mean
    # The best there is, 5 doors in 5 steps, is 1 − 0.9 · 5 / 25.
    assert scores[True] == pytest.approx(0.82, abs=0.03) and scores[False] == 0.0


def test_the_command_line_evaluates_with_masks(tmp_path: Path) -> None:
    """In a process of its own, with the environment from a module, which raises on an invalid action."""
    module = tmp_path / "picky.py"
    folder = Path(masked_envs.__file__).resolve().parent
    module.write_text(
        f"import sys\nsys.path.insert(0, {str(folder)!r})\nimport gymnasium\nfrom masked_envs import PickyEnv\n"
        "gymnasium.register('Picky-v0', entry_point=PickyEnv)\n"
    )
    axiomrl = [sys.executable, "-m", "rl_training.cli"]
    options = ["--import", str(module)]
    train = ["train", "--algo", "ppo", "--env", "Picky-v0", "--total-timesteps", "300", "--output-dir", str(tmp_path)]
    small = ["--set", "hyperparams.num_steps=32", "--set", "evaluation.episodes=2"]
    subprocess.run([*axiomrl, *train, *small, *options], check=True, capture_output=True)
    (run,) = tmp_path.glob("ppo__*")
    done = subprocess.run(
        [*axiomrl, "eval", str(run), "--episodes", "5", "--json", *options], check=True, capture_output=True, text=True
    )
    assert json.loads(done.stdout)["episodes"] == 5


def test_random_actions_before_learning_are_valid_and_uniform() -> None:
    agent = make("dqn", lambda: PickyEnv("info"), learning_starts=400, buffer_size=1_000)
    agent.learn(400)
    batch = agent.replay_buffer.sample(2_000)
    masks = batch.obs["action_mask"].numpy()
    assert ActionMask((6,)).allowed(masks, batch.actions.numpy()).all()
    pairs = masks.sum(axis=1) == 2
    first = masks[pairs].argmax(axis=1) == batch.actions.numpy()[pairs]
    assert first.mean() == pytest.approx(0.5, abs=0.12)


class NotTwice(BitFlip):
    """The bit that was flipped last may not be flipped back at once."""

    last: int | None = None

    def reset(self, **options: Any) -> Any:
        self.last = None
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        assert action != self.last, "flipped twice"
        self.last = int(action)
        return super().step(action)

    def action_masks(self) -> Any:
        return np.arange(self.bits) != (-1 if self.last is None else self.last)


def test_hindsight_keeps_the_masks() -> None:
    agent = make("dqn", NotTwice, hindsight=0.8, n_step=2)
    agent.learn(160)
    batch = agent.replay_buffer.sample(200)
    # The next mask rules out what was done last; after two steps that is not the batch's own action.
    assert set(batch.next_obs["action_mask"].sum(dim=1).tolist()) <= {7, 8}
    assert ActionMask((8,)).allowed(batch.obs["action_mask"].numpy(), batch.actions.numpy()).all()
    assert agent.evaluate(3).episodes == 3
