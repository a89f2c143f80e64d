"""An agent: an algorithm, its environments and its training run behind four verbs: learn, evaluate, predict, save."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from gymnasium.vector import VectorEnv

from rl_training.algorithms.base import Algorithm
from rl_training.api.settings import SettingsSignature, config_for, hyperparameters, with_settings
from rl_training.data.sources import TransitionDataset
from rl_training.envs.factory import EnvLike
from rl_training.execution.batches import count_of
from rl_training.experiment import registry
from rl_training.experiment.checkpoint.replay_segments import saved_replay
from rl_training.experiment.checkpoint.snapshot import (
    Spaces,
    check_policy_fits,
    config_of,
    restore,
    spaces_of,
    take_snapshot,
)
from rl_training.experiment.checkpoint.store import Checkpoint, write_checkpoint
from rl_training.experiment.config.loader import resolve
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.experiment.run.build import NO_ENV, EnvSource, build_algorithm, complete_config, select_device
from rl_training.experiment.run.run_dir import make_run_dir
from rl_training.experiment.run.runner import open_checkpoint
from rl_training.experiment.run.session import TrainingSession, TrainResult
from rl_training.policies.policy import ActingState, Policy, restarted
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.collector import obs_to_torch
from rl_training.runtime.evaluator import EvaluationResult, Evaluator
from rl_training.utils.errors import ConfigError, SpaceError, UserError
from rl_training.utils.seeding import derive_seed
from rl_training.utils.spaces import ActionAdapter


class Agent:
    """Base of the public algorithm classes.

    `PPO("CartPole-v1", seed=0, learning_rate=3e-4)`: the environment is an id, a callable or a Gymnasium (vector) env; keywords are
    the algorithm's hyperparameters or the keys of TrainConfig. `PPO(TrainConfig(...))` and `PPO.from_preset("ppo/cartpole")`
    take a whole config.

    A run directory is written when `output_dir` is given or the agent was made from a config or preset; otherwise training
    happens in memory, silently and without evaluations unless asked for.
    """

    algo: ClassVar[str]
    _envs: VectorEnv[Any, Any, Any] | None
    __signature__ = SettingsSignature()

    def __init__(
        self, env: EnvLike | TrainConfig | TransitionDataset, evaluation_env: EnvLike | None = None, /, **settings: Any
    ):
        """`evaluation_env` is for offline algorithms, which learn from a dataset."""
        if evaluation_env is not None and not isinstance(env, TransitionDataset):
            raise ConfigError(
                "an environment for evaluations goes with a dataset; otherwise evaluations use the first one"
            )
        if isinstance(env, TrainConfig):
            if env.algo != self.algo:
                raise ConfigError(f"the config is for algorithm {env.algo!r}, not {self.algo!r}")
            config, source, write_run = with_settings(env, self.algo, settings), EnvSource(), True
        else:
            dataset = env if isinstance(env, TransitionDataset) else None
            named: EnvLike = (evaluation_env or NO_ENV) if isinstance(env, TransitionDataset) else env
            source = EnvSource(None if isinstance(named, str) else named, dataset)
            config = config_for(self.algo, named, source, settings)
            write_run = settings.get("output_dir") is not None
        self._setup(config, source, write_run=write_run)
        self._envs = source.training_envs(self.config)
        self._build(Spaces.of(source.dataset if self._envs is None else self._envs))

    def _setup(self, config: TrainConfig, source: EnvSource, *, write_run: bool) -> None:
        self.config, self._hyperparams = complete_config(config)
        self._env_source, self._write_run = source, write_run
        self._device = select_device(config.device)
        self._envs = None
        self._session: TrainingSession | None = None
        self._pending: Checkpoint | None = None
        self._predictions = torch.Generator(device=self._device).manual_seed(derive_seed(config.seed, "predict"))

    def _build(self, env_spaces: Spaces) -> None:
        self._spaces = env_spaces
        self.algorithm: Algorithm[Any, Any] = build_algorithm(
            self.config, self._hyperparams, env_spaces.observation, env_spaces.action, self._device
        )
        self._adapter = ActionAdapter(env_spaces.action)

    @classmethod
    def from_preset(cls, name: str, **settings: Any) -> Self:
        """An agent for a preset such as "ppo/cartpole", with settings on top."""
        return cls(resolve(name).config, **settings)

    @property
    def policy(self) -> Policy:
        return self.algorithm.policy

    @property
    def num_timesteps(self) -> int:
        """Environment steps trained so far."""
        if self._session is not None:
            return self._session.trainer.global_step
        return int(self._pending.groups["runtime"]["global_step"]) if self._pending is not None else 0

    def learn(self, total_timesteps: int | None = None, callbacks: Sequence[Callback] = ()) -> TrainResult:
        """Trains until the agent has taken `total_timesteps` environment steps in all (the config's number by default).

        A later call with a larger number continues where the last one stopped, and so does a loaded agent.
        """
        total = self.config.total_timesteps if total_timesteps is None else total_timesteps
        if total <= self.num_timesteps:
            raise UserError(
                f"the agent has trained for {self.num_timesteps:,} steps already, and total_timesteps={total:,} counts those "
                f"too: ask for more, e.g. learn(total_timesteps={self.num_timesteps + total:,})."
            )
        self.config = dataclasses.replace(self.config, total_timesteps=total)
        session = self._session_for(callbacks)
        return session.train()

    def _session_for(self, callbacks: Sequence[Callback]) -> TrainingSession:
        if self._session is not None:
            self._session.extend(self.config, callbacks)
            return self._session
        session = TrainingSession(
            self.config,
            self.algorithm,
            self._training_envs(),
            self._env_source,
            run_dir=make_run_dir(self.config) if self._write_run else None,
            callbacks=callbacks,
        )
        if self._pending is not None:
            session.resume(self._pending)
        self._session, self._pending = session, None
        return session

    def _training_envs(self) -> VectorEnv[Any, Any, Any] | None:
        if self._envs is None:
            self._envs = self._env_source.training_envs(self.config)
        return self._envs

    def evaluate(
        self, num_episodes: int = 20, *, deterministic: bool = True, num_envs: int = 5, seed: int | None = None
    ) -> EvaluationResult:
        """Plays complete episodes in environments of its own; training is not disturbed."""
        if num_episodes < 1:
            raise UserError(f"num_episodes must be at least 1, got {num_episodes}")
        evaluator = Evaluator(
            self._env_source.evaluation_envs(self.config),
            num_envs=num_envs,
            seed=derive_seed(self.config.seed if seed is None else seed, "evaluate"),
            device=self._device,
        )
        try:
            return evaluator.evaluate(self.policy, num_episodes, deterministic=deterministic)
        finally:
            evaluator.close()

    def predict(
        self, observation: Any, state: ActingState = None, deterministic: bool = True, episode_start: Any = None
    ) -> tuple[Any, ActingState]:
        """The action for one observation, or a batch of actions for a batch of them, in the environment's own form.

        The second value is what the policy remembers, to be given as `state` with the next observation; None for a policy
        without a memory. `episode_start`, a flag or one for each observation, says where an episode begins, so that the state of
        the one before is forgotten.
        """
        batch, single = _as_batch(observation, self._spaces.observation)
        obs = obs_to_torch(batch, self._device)
        initial = self.policy.initial_state(count_of(obs))
        if initial is None and state is not None:
            raise UserError(f"{type(self).__name__} has no memory: pass state=None")
        state = initial if state is None else state
        if episode_start is not None:
            starts = torch.as_tensor(np.asarray(episode_start, dtype=bool)).reshape(-1).expand(count_of(obs))
            state = restarted(state, initial, starts)
        training = self.policy.training
        self.policy.train(False)
        try:
            actions, state = self.policy.act(obs, state, generator=self._predictions, deterministic=deterministic)
        finally:
            self.policy.train(training)
        env_actions = self._adapter.to_env(actions.cpu().numpy())
        return (env_actions[0] if single else env_actions), state

    def save(self, path: str | Path) -> Path:
        """Writes the whole agent (weights, normalisers, optimiser, training state) to a folder."""
        if self._session is not None:
            groups, info = self._session.snapshot()
        else:
            groups, info = take_snapshot(self.config, self.algorithm, self._spaces, None)
            if self._pending is not None:
                groups["runtime"] = self._pending.groups["runtime"]
                if "replay" in self._pending.groups:
                    groups["replay"] = saved_replay(self._pending)
        write_checkpoint(Path(path), groups, info)
        return Path(path)

    @classmethod
    def load(cls, path: str | Path, env: EnvLike | TransitionDataset | None = None, **settings: Any) -> Self:
        """An agent from a folder that `save` wrote, from a run, or from one of its checkpoints. Runs no code from the files.

        No environment is made until learn() or evaluate() needs one; give `env` if the agent was not trained on a registered id,
        or the dataset that an offline algorithm goes on with.
        """
        checkpoint, notes = open_checkpoint(path)
        for note in notes:
            warnings.warn(note, stacklevel=2)
        return cls._from_checkpoint(checkpoint, env, settings)

    @classmethod
    def _from_checkpoint(
        cls, checkpoint: Checkpoint, env: EnvLike | TransitionDataset | None, settings: Mapping[str, Any]
    ) -> Self:
        config = with_settings(config_of(checkpoint, cls.algo), cls.algo, settings)
        agent = cls.__new__(cls)
        source = EnvSource(dataset=env) if isinstance(env, TransitionDataset) else EnvSource(env)
        agent._setup(config, source, write_run="output_dir" in settings)
        env_spaces = spaces_of(checkpoint)
        check_policy_fits(checkpoint, agent.config, agent._hyperparams, env_spaces)
        agent._build(env_spaces)
        restore(checkpoint, agent.algorithm, None)
        agent._pending = checkpoint if "runtime" in checkpoint.groups else None
        return agent

    def __repr__(self) -> str:
        """Algorithm, environment, steps trained, device, and every hyperparameter that is not the algorithm's default."""
        defaults = {setting.name: setting.default for setting in hyperparameters(self.algo)}
        shown = {"device": str(self._device), "num_envs": self.config.num_envs, "seed": self.config.seed}
        shown |= {key: value for key, value in vars(self._hyperparams).items() if value != defaults[key]}
        settings = "".join(f", {key}={value!r}" for key, value in shown.items())
        return f"<{type(self).__name__} on {self.config.env_id}, {self.num_timesteps:,} steps trained{settings}>"

    def close(self) -> None:
        """Closes the training environments."""
        if self._envs is not None:
            self._envs.close()
            self._envs = None


def load_agent(path: str | Path, env: EnvLike | TransitionDataset | None = None, **settings: Any) -> Agent:
    """Like `PPO.load`, for whatever algorithm the checkpoint is of."""
    checkpoint, notes = open_checkpoint(path)
    for note in notes:
        warnings.warn(note, stacklevel=2)
    return agent_of(checkpoint, env, **settings)


def agent_of(checkpoint: Checkpoint, env: EnvLike | TransitionDataset | None = None, **settings: Any) -> Agent:
    """The agent in a checkpoint that has been read."""
    return agent_class(config_of(checkpoint).algo)._from_checkpoint(checkpoint, env, settings)


def agent_class(algo: str) -> type[Agent]:
    """The public class of an algorithm, ours or a registered one, by its id."""
    return _make_class(registry.algorithm_info(algo))


def register_algorithm(
    algo: str,
    rule: type[Algorithm[Any, Any]] | str,
    *,
    name: str | None = None,
    summary: str | None = None,
    policy: Mapping[str, Any] | None = None,
) -> type[Agent]:
    """Makes an algorithm known under the id `algo`, to configs, the command line and checkpoints. Returns its public class.

    `rule` is the class of the update rule, derived from OnPolicyAlgorithm or OffPolicyAlgorithm, or the text "module:Class",
    which is imported when it is needed. `name` is that of the public class (the rule's, without "Algorithm", by default), `summary`
    a line for listings (by default the first of the rule's docstring), `policy` holds defaults for the `policy` section.
    """
    info = registry.describe_algorithm(algo, rule, name=name, summary=summary, policy=policy)
    registry.ALGORITHMS.register(algo, info)
    return agent_class(algo)


@functools.cache
def _make_class(info: registry.AlgorithmInfo) -> type[Agent]:
    module = "rl_training" if info.id in registry.BUILT_IN else str(info).partition(":")[0]
    doc = f"{info.summary}\n\n{Agent.__doc__}"
    return type(info.name, (Agent,), {"algo": info.id, "__doc__": doc, "__module__": module})


def _as_batch(observation: Any, space: Any) -> tuple[Any, bool]:
    """(batch, whether it was a single observation); a wrong shape is the caller's mistake and is named."""
    if isinstance(observation, Mapping):
        if not hasattr(space, "spaces") or set(observation) != set(space.spaces):
            raise SpaceError(f"the observation has keys {sorted(observation)}, the agent was trained on {space}")
        parts = {key: _as_batch(observation[key], sub) for key, sub in space.spaces.items()}
        singles = {single for _, single in parts.values()}
        if len(singles) != 1:
            raise SpaceError("some entries of the observation are batched and some are not")
        return {key: batch for key, (batch, _) in parts.items()}, singles.pop()
    try:
        array = np.asarray(observation, dtype=getattr(space, "dtype", None))
    except (TypeError, ValueError) as error:
        raise SpaceError(f"the observation is not a number array that fits {space}: {error}") from error
    shape = getattr(space, "shape", None)
    if array.shape == shape:
        return array[None], True
    if shape is not None and array.shape[1:] == shape and array.ndim == len(shape) + 1:
        return array, False
    raise SpaceError(f"an observation of shape {array.shape} does not fit {space}; a batch has shape (B, *{shape})")
