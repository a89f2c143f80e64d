"""Collecting while learning: the same numbers whatever the timing, who acted is remembered, and nothing is lost or left running."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.envs import ConstantRewardEnv, RandomWalkEnv
from helpers.tools import through_codec
from rl_training import A2C, PPO
from rl_training.algorithms.exploration import SamplingExplorer
from rl_training.contrib import RecurrentPPO
from rl_training.experiment import registry
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.experiment.run.build import complete_config
from rl_training.runtime.callbacks import Callback
from rl_training.utils.errors import ConfigError, EnvFailure, LearnerError, NonFiniteError
from rl_training.utils.trees import differing_paths

IGNORED = ("runtime.timer", "runtime.resume_count")
NORMALIZED = {"normalize_observations": True, "normalize_rewards": True}


def make_agent(cls: Any = PPO, make: Any = RandomWalkEnv, **settings: Any) -> Any:
    defaults: dict[str, Any] = {"num_envs": 2, "num_steps": 10, "seed": 3, "overlap": True}
    return cls(make, **{**defaults, **settings})


def state_of(agent: Any) -> Any:
    return through_codec(agent._session.snapshot()[0])


class Sees(Callback):
    """The policy, the rollout and the metrics at the end of each iteration."""

    def __init__(self) -> None:
        self.policies: list[Any] = []
        self.logprobs: list[Any] = []
        self.metrics: list[dict[str, float]] = []
        self.waiting: list[bool] = []

    def on_iteration_end(self, trainer: Any) -> None:
        rollout = trainer.collector.buffer
        self.policies.append(copy.deepcopy(trainer.algorithm.policy))
        self.logprobs.append(
            (rollout.flat_obs().clone(), rollout.actions.flatten(0, 1).clone(), rollout.logprobs.clone())
        )
        self.metrics.append({name: float(value) for name, value in trainer.metrics.items()})
        self.waiting.append(trainer.state_dict()["waiting"] is not None)


def test_every_rollout_is_learned_from_once_and_one_update_late() -> None:
    agent, sees = make_agent(num_minibatches=1, learning_rate={"start": 1.0, "end": 0.0}), Sees()
    agent.learn(total_timesteps=80, callbacks=[sees])
    # Rollouts of 20 steps: nothing to learn from in the first iteration, and two rollouts in the last.
    assert sees.waiting == [True, True, True, False]
    # Progress at the start of the rollout that was learned from: 0, ¼, and at the end ¾, after ½ in the same iteration.
    assert sees.metrics[0] == {}
    assert [metrics["learning_rate"] for metrics in sees.metrics[1:]] == pytest.approx([1.0, 0.75, 0.25])


@pytest.mark.parametrize("backend", ["sync", "tensor"])
def test_log_probabilities_are_those_of_the_policy_that_acted(backend: str) -> None:
    settings: dict[str, Any] = {"env": {"backend": backend, **NORMALIZED}, "learning_rate": 0.1}
    agent, sees = make_agent(make="CartPole-v1", **settings), Sees()
    start = copy.deepcopy(agent.policy)
    agent.learn(total_timesteps=100, callbacks=[sees])
    # The copy is made when an iteration begins: of the first policy twice, because the first iteration learns nothing.
    acted = [start, *sees.policies[:-1]]
    for policy, (obs, actions, logprobs) in zip(acted, sees.logprobs, strict=True):
        with torch.no_grad():
            torch.testing.assert_close(policy.distribution(obs).log_prob(actions), logprobs.flatten())
    obs, actions, logprobs = sees.logprobs[3]
    assert not torch.allclose(sees.policies[3].distribution(obs).log_prob(actions), logprobs.flatten()), (
        "it has moved on"
    )


@pytest.mark.parametrize("cls", [PPO, A2C])
def test_two_processes_compute_what_one_would(cls: Any) -> None:
    """The same by hand, one after the other: act with a copy of before the update, then learn from the rollout before."""
    settings: dict[str, Any] = {"env": NORMALIZED, "total_timesteps": 100}
    agent, other = make_agent(cls, **settings), make_agent(cls, **settings)
    agent.learn()
    trainer = other._session_for(()).trainer
    collector, algorithm = trainer.collector, trainer.algorithm
    rollouts = [collector.buffer, trainer._overlap._learner._spec.make_buffer()]
    collector.reset()
    for number in range(5):
        acting = copy.deepcopy(algorithm.policy)
        if number > 0:
            algorithm.update(rollouts[(number - 1) % 2], (number - 1) / 5)
        collector.policy, collector.buffer = acting, rollouts[number % 2]
        collector._explorer = SamplingExplorer(acting, algorithm.executor)
        rollout, steps = collector.collect()
        assert steps == 20
        with torch.no_grad():
            rollout.logprobs = (
                acting.distribution(rollout.flat_obs()).log_prob(rollout.actions.flatten(0, 1)).view(10, 2)
            )
        rollout.has_logprobs = True
    algorithm.update(rollouts[4 % 2], 4 / 5)
    expected, actual = (dict(one.policy.state_dict()) for one in (other, agent))
    assert differing_paths(expected, actual) == []


@pytest.mark.parametrize("cls", [PPO, A2C, RecurrentPPO])
@pytest.mark.parametrize("env", [{"autoreset": "next_step"}, {"backend": "native"}, {"backend": "tensor"}])
def test_a_split_run_equals_the_whole_run(cls: Any, env: dict[str, Any]) -> None:
    settings: dict[str, Any] = {
        "make": RandomWalkEnv if "autoreset" in env else "CartPole-v1",
        "total_timesteps": 120,
        "env": {**env, **NORMALIZED, "max_episode_steps": 4},  # so that the rollout that waits has final observations
        "evaluation": {"every": 40, "episodes": 2},
    }
    whole = make_agent(cls, **settings)
    whole.learn()

    class Saves(Callback):
        state: Any = None

        def on_iteration_end(self, trainer: Any) -> None:
            if trainer.iterations == 3:
                self.state = {
                    "policy": through_codec(dict(first.policy.state_dict())),
                    "algorithm": through_codec(first.algorithm.state_dict()),
                    "runtime": through_codec(trainer.state_dict()),
                }

    first, saves = make_agent(cls, **settings), Saves()
    first.learn(callbacks=[saves])
    assert saves.state["runtime"]["waiting"]["final_obs"] is not None
    second = make_agent(cls, **settings)
    second.policy.load_state_dict(saves.state["policy"])
    second.algorithm.load_state_dict(saves.state["algorithm"])
    session = second._session_for(())
    session.trainer.load_state_dict(saves.state["runtime"])
    session.train()
    assert differing_paths(state_of(second), state_of(whole), ignore=IGNORED) == []


def test_a_stopped_run_keeps_the_rollout_for_when_it_goes_on() -> None:
    class Stops(Callback):
        def on_iteration_end(self, trainer: Any) -> None:
            if trainer.iterations == 3:
                trainer.stop("enough")

    whole, stopped = make_agent(), make_agent()
    whole.learn(total_timesteps=120)
    stopped.learn(total_timesteps=120, callbacks=[Stops()])
    assert state_of(stopped)["runtime"]["waiting"] is not None
    stopped.learn(total_timesteps=120)
    assert differing_paths(state_of(stopped), state_of(whole), ignore=IGNORED) == []


def test_environments_may_use_the_process_wide_generators() -> None:
    class Draws(RandomWalkEnv):
        def step(self, action: Any) -> Any:
            self.position += float(np.random.normal() + torch.randn(()))  # noqa: NPY002
            return super().step(action)

    states = []
    for _ in range(2):
        agent = make_agent(make=Draws)
        agent.learn(total_timesteps=200)
        states.append(state_of(agent))
    assert differing_paths(*states, ignore=IGNORED) == []


def learner_of(agent: Any) -> subprocess.Popen[bytes]:
    """The process that learns, or learned."""
    process = agent._session.trainer._overlap._learner._process
    assert isinstance(process, subprocess.Popen)
    return process


def test_a_loss_that_is_not_finite_is_reported_as_ever() -> None:
    class Explodes(ConstantRewardEnv):
        steps = 0

        def step(self, action: Any) -> Any:
            obs, reward, *rest = super().step(action)
            Explodes.steps += 1
            return obs, reward if Explodes.steps < 90 else 1e38, *rest

    agent = make_agent(make=Explodes)
    with pytest.raises(NonFiniteError, match="became NaN or infinite"):
        agent.learn(total_timesteps=2_000)
    assert learner_of(agent).returncode is not None


@pytest.mark.parametrize(
    ("error", "reported"), [(RuntimeError("the simulator broke"), EnvFailure), (KeyboardInterrupt(), KeyboardInterrupt)]
)
def test_an_error_while_collecting_is_reported_as_ever(error: BaseException, reported: type[BaseException]) -> None:
    class Breaks(RandomWalkEnv):
        steps = 0

        def step(self, action: Any) -> Any:
            Breaks.steps += 1
            if Breaks.steps == 90:
                raise error
            return super().step(action)

    agent = make_agent(make=Breaks)
    with pytest.raises(reported):
        agent.learn(total_timesteps=2_000)
    assert learner_of(agent).returncode is not None


def test_no_process_is_left_when_training_ends() -> None:
    agent = make_agent()
    agent.learn(total_timesteps=60)
    assert learner_of(agent).returncode is not None


def test_a_learner_that_dies_is_named() -> None:
    class Kills(Callback):
        def on_iteration_end(self, trainer: Any) -> None:
            if trainer.iterations == 3:
                learner_of(agent).kill()

    agent = make_agent()
    with pytest.raises(LearnerError, match="was killed by SIGKILL.*\\n.*checkpoint can be resumed"):
        agent.learn(total_timesteps=2_000, callbacks=[Kills()])


def test_an_error_of_the_algorithm_says_where_it_comes_from() -> None:
    class Spoils(Callback):
        def on_iteration_end(self, trainer: Any) -> None:
            trainer._overlap._learner._outbox.put(("no rollout", 0.0))

    with pytest.raises(TypeError) as caught:
        make_agent().learn(total_timesteps=2_000, callbacks=[Spoils()])
    assert "In the process that learns" in caught.value.__notes__[0] and "load_state_dict" in caught.value.__notes__[0]


def test_a_message_that_cannot_be_read_is_an_error_too() -> None:
    class Spoils(Callback):
        def on_iteration_end(self, trainer: Any) -> None:
            trainer._overlap._learner._connection.send_bytes(b"cno_such_module\nThing\n.")

    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        make_agent().learn(total_timesteps=2_000, callbacks=[Spoils()])


def test_an_algorithm_of_the_users_script_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.load("ppo"), "__module__", "__main__")
    with pytest.raises(ConfigError, match="Move the class into a module"):
        complete_config(TrainConfig(algo="ppo", overlap=True, device="cpu"))


def test_messages_may_be_larger_than_a_pipe_holds() -> None:
    """Both processes send such a message at the same time, and neither may wait for the other."""
    agent = make_agent(num_steps=6_000, num_minibatches=4, update_epochs=1, policy={"hidden_sizes": [512, 512]})
    agent.learn(total_timesteps=36_000)
    assert agent._session.trainer.iterations == 3


def test_a_script_needs_no_guard_around_its_main_part(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from rl_training import PPO\n"
        "agent = PPO('CartPole-v1', num_envs=2, num_steps=8, overlap=True)\n"
        "agent.learn(total_timesteps=48)\n"
        "print('done')\n"
    )
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "done"), done.stderr


def test_an_algorithm_that_cannot_overlap_says_so() -> None:
    with pytest.raises(ConfigError, match="overlap is not for TRPO"):
        complete_config(TrainConfig(algo="trpo", overlap=True))
