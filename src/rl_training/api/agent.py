"""An agent: an algorithm, its environments and its training run behind four verbs: learn, evaluate, predict, save."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.off_policy import BatchAlgorithm
from rl_training.api.mistakes import missing_environment, named_mistakes, refuse_policy_name, unknown_attribute
from rl_training.api.observations import as_batch
from rl_training.api.playing import evaluator_in
from rl_training.api.settings import SettingsSignature, config_for, hyperparameters, with_settings
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.sources import TransitionDataset
from rl_training.envs.factory import EnvLike
from rl_training.execution.batches import count_of, tensors_of
from rl_training.experiment import registry
from rl_training.experiment.checkpoint.replay_segments import saved_replay
from rl_training.experiment.checkpoint.snapshot import (
    REPLAY_LEFT_OUT,
    REPLAY_LEFT_OUT_NOTE,
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
from rl_training.experiment.run.build import build_algorithm, complete_config
from rl_training.experiment.run.device import select_device
from rl_training.experiment.run.env_source import NO_ENV, EnvSource, check_fits
from rl_training.experiment.run.memory import check_buffers
from rl_training.experiment.run.run_dir import make_run_dir
from rl_training.experiment.run.runner import forget_envs, open_checkpoint
from rl_training.experiment.run.session import TrainingSession, TrainResult
from rl_training.experiment.run.signals import pass_on
from rl_training.policies.policy import ActingState, Policy, restarted
from rl_training.runtime.callbacks import Callback, checked_callbacks
from rl_training.runtime.collector import obs_to_torch
from rl_training.runtime.evaluator import EvaluationResult, Evaluator
from rl_training.runtime.video import Film, Recording
from rl_training.utils.errors import ConfigError, UserError
from rl_training.utils.seeding import derive_seed
from rl_training.utils.spaces import ActionAdapter
from rl_training.utils.video_file import check_video_path, require_encoder

_NO_FOLDER = (
    "videos go to a run's folder, and nothing is written without one: name it with output_dir='runs', or use record()."
)


class Agent:
    """Base of the public algorithm classes.

    `PPO("CartPole-v1", seed=0, learning_rate=3e-4)`: the environment is an id, a callable or a Gymnasium (vector) env; keywords are
    the algorithm's hyperparameters or the keys of TrainConfig. `PPO(TrainConfig(...))` and `PPO.from_preset("ppo/cartpole")`
    take a whole config.

    A run directory is written when `output_dir` is given or the agent was made from a config or preset (None turns that off);
    otherwise training happens in memory, silently and without evaluations unless asked for.
    """

    algo: ClassVar[str]
    _envs: VectorEnv[Any, Any, Any] | None
    __signature__ = SettingsSignature()

    def __init__(
        self,
        env: EnvLike | TrainConfig | TransitionDataset | None = None,
        evaluation_env: EnvLike | None = None,
        /,
        **settings: Any,
    ):
        """`evaluation_env` is for offline algorithms, which learn from a dataset."""
        refuse_policy_name(type(self).__name__, env)
        if env is None:
            raise UserError(missing_environment(type(self).__name__, settings))
        if evaluation_env is not None and not isinstance(env, TransitionDataset):
            raise ConfigError(
                "an environment for evaluations goes with a dataset; otherwise evaluations use the first one"
            )
        if isinstance(env, TrainConfig):
            if env.algo != self.algo:
                raise ConfigError(f"the config is for algorithm {env.algo!r}, not {self.algo!r}")
            config, source = with_settings(env, self.algo, settings), EnvSource()
            write_run = settings.get("output_dir", env.output_dir) is not None
        else:
            dataset = env if isinstance(env, TransitionDataset) else None
            named: EnvLike = (evaluation_env or NO_ENV) if isinstance(env, TransitionDataset) else env
            source = EnvSource(named, dataset)
            config = config_for(self.algo, source, settings)
            write_run = settings.get("output_dir") is not None
        if config.video.every > 0 and not write_run:
            raise ConfigError(_NO_FOLDER)
        self._setup(config, source, write_run=write_run)
        self._envs = source.training_envs(self.config)
        self._build(Spaces.of(source.dataset if self._envs is None else self._envs))
        check_buffers(self.config, self._hyperparams, self._spaces, self._device)

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

    @named_mistakes
    def learn(self, total_timesteps: int | None = None, callbacks: Callback | Sequence[Callback] = ()) -> TrainResult:
        """Trains until the agent has taken `total_timesteps` environment steps in all (the config's number by default).

        A later call with a larger number continues where the last one stopped, and so does a loaded agent. Ctrl-C finishes the
        iteration, saves where there is a run folder, and then raises KeyboardInterrupt; SIGTERM likewise, and then ends the
        process as it would have without the training, or calls the handler that you have set for it.
        """
        callbacks = checked_callbacks(callbacks)
        total = self.config.total_timesteps if total_timesteps is None else total_timesteps
        if total <= self.num_timesteps:
            raise UserError(
                f"the agent has trained for {self.num_timesteps:,} steps already, and total_timesteps={total:,} counts those "
                f"too: ask for more, e.g. learn(total_timesteps={self.num_timesteps + total:,})."
            )
        self.config = dataclasses.replace(self.config, total_timesteps=total)
        result = self._session_for(callbacks).train()
        pass_on(result.exit_code)
        return result

    def _session_for(self, callbacks: Sequence[Callback]) -> TrainingSession:
        if self._session is not None:
            self._session.extend(self.config, callbacks)
            return self._session
        check_buffers(self.config, self._hyperparams, self._spaces, self._device)
        if self._write_run:
            self._env_source.check_video(self.config)
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
            if self._pending.info.get(REPLAY_LEFT_OUT):
                warnings.warn(REPLAY_LEFT_OUT_NOTE, stacklevel=4)
        self._session, self._pending = session, None
        return session

    def _training_envs(self) -> VectorEnv[Any, Any, Any] | None:
        if self._envs is None:
            self._envs = self._env_source.training_envs(self.config)
            if self._envs is not None:
                self._check_fits(Spaces.of(self._envs), self.config.env_id)
        return self._envs

    def _check_fits(self, env_spaces: Spaces, name: str) -> None:
        offline = registry.algorithm_info(self.algo).trainer == "offline"
        check_fits(self._spaces, env_spaces, name, any_bounds=offline)

    @named_mistakes
    def evaluate(
        self,
        num_episodes: int = 20,
        *,
        env: EnvLike | None = None,
        deterministic: bool = True,
        num_envs: int | None = None,
        seed: int | None = None,
    ) -> EvaluationResult:
        """Plays complete episodes in environments of its own; training is not disturbed.

        `env` is another environment with the same spaces: an id, a callable, an env or a vector env. An object is itself played
        in, and left open. `num_envs` environments play side by side, 5 by default and 1 for an env object.
        """
        with self._evaluator(num_episodes, env, num_envs, seed) as evaluator:
            return evaluator.evaluate(self.policy, num_episodes, deterministic=deterministic)

    @named_mistakes
    def record(
        self,
        path: str | Path,
        num_episodes: int = 4,
        *,
        env: EnvLike | None = None,
        deterministic: bool = True,
        num_envs: int | None = None,
        seed: int | None = None,
        max_seconds: float = 120.0,
    ) -> Recording:
        """Plays the episodes of `evaluate` in environments that are drawn, and writes a video (.mp4 or .gif) of them side by side.

        `num_envs`, at most 9, are the views; one whose episodes are over keeps its last picture, dimmed. The video is cut after
        `max_seconds`, with a warning; the result is of complete episodes. Needs `pip install "axiomrl[video]"`.
        """
        path = Path(path).expanduser()
        require_encoder()
        check_video_path(path, "another path")
        if not max_seconds > 0:
            raise UserError(f"max_seconds must be above 0, got {max_seconds:g}")
        with (
            self._evaluator(num_episodes, env, num_envs, seed, film=True) as evaluator,
            Film(path, max_seconds=max_seconds) as film,
        ):
            result = evaluator.evaluate(self.policy, num_episodes, deterministic=deterministic, watch=film)
        recording = film.recording(result)
        if recording.note is not None:
            warnings.warn(recording.note, stacklevel=3)
        return recording

    def _evaluator(
        self, num_episodes: int, env: EnvLike | None, num_envs: int | None, seed: int | None, *, film: bool = False
    ) -> AbstractContextManager[Evaluator]:
        config, source = self.config, self._env_source
        seed = derive_seed(config.seed if seed is None else seed, "evaluate")
        return evaluator_in(
            env, source, config, num_episodes, num_envs, seed, self._device, fits=self._check_fits, film=film
        )

    @property
    def replay_buffer(self) -> ReplayBuffer:
        """What an off-policy agent has experienced and learns from; filled by `learn`, or beforehand by hand."""
        if registry.algorithm_info(self.algo).trainer != "off_policy":
            raise UserError(f"{type(self).__name__} learns from what it has just done, and has no replay buffer.")
        replay = self._session_for(()).trainer.replay if self._session is None else self._session.trainer.replay
        assert replay is not None
        return replay

    def get_parameters(self) -> dict[str, Tensor]:
        """Copies of all weights and statistics by name: the policy's, and those of target networks as `targets.NAME...`."""
        return {name: tensor.detach().clone() for name, tensor in self._parameters().items()}

    @named_mistakes
    def set_parameters(self, parameters: Mapping[str, Any]) -> None:
        """Replaces all weights by those of `get_parameters`, of this agent or another one of the same kind and size.

        Names and shapes must be exactly the same. The optimisers keep their own memory.
        """
        own = self._parameters()
        if set(parameters) != set(own):
            differing = ", ".join(sorted(set(parameters) ^ set(own))[:5])
            raise UserError(f"these are not the parameters of this agent; names that only one of them has: {differing}")
        values = {name: torch.as_tensor(value) for name, value in parameters.items()}
        for name, target in own.items():
            if values[name].shape != target.shape:
                raise UserError(
                    f"parameter {name!r} has the shape {tuple(values[name].shape)}, the agent's {tuple(target.shape)}"
                )
        with torch.no_grad():
            for name, target in own.items():
                target.copy_(values[name])

    def _parameters(self) -> dict[str, Tensor]:
        targets = self.algorithm.target_networks() if isinstance(self.algorithm, BatchAlgorithm) else {}
        found = dict(self.policy.state_dict())
        for name, network in targets.items():
            found |= {f"targets.{name}.{key}": tensor for key, tensor in network.state_dict().items()}
        return found

    @named_mistakes
    def predict(
        self,
        observation: Any,
        state: ActingState = None,
        deterministic: bool = True,
        episode_start: Any = None,
        *,
        action_masks: Any = None,
    ) -> tuple[Any, ActingState]:
        """The action for one observation, or a batch of actions for a batch of them, in the environment's own form.

        The second value is what the policy remembers, to be given as `state` with the next observation; None for a policy
        without a memory. `episode_start`, a flag or one for each observation, says where an episode begins, so that the state of
        the one before is forgotten. `action_masks` say which actions are valid, a mask for each observation, where the
        environment has such and they are no part of its observations.
        """
        batch, single = as_batch(observation, self._spaces.observation, action_masks)
        obs = obs_to_torch(batch, self._device)
        initial = self.policy.initial_state(count_of(obs))
        if initial is None and state is not None:
            raise UserError(f"{type(self).__name__} has no memory: pass state=None")
        state = initial if state is None else state
        if [part.shape for part in tensors_of(state)] != [part.shape for part in tensors_of(initial)]:
            raise UserError(
                f"state is not what predict returned for {count_of(obs)} observations: pass that on, or None at an episode's start"
            )
        if episode_start is not None:
            flags = torch.as_tensor(np.asarray(episode_start, dtype=bool)).reshape(-1)
            if len(flags) not in (1, count_of(obs)):
                raise UserError(f"episode_start has {len(flags)} flags for {count_of(obs)} observations")
            starts = flags.expand(count_of(obs))
            state = restarted(state, initial, starts)
        training = self.policy.training
        self.policy.train(False)
        try:
            actions, state = self.policy.act(obs, state, generator=self._predictions, deterministic=deterministic)
        finally:
            self.policy.train(training)
        env_actions = self._adapter.to_env(actions.cpu().numpy())
        return (env_actions[0] if single else env_actions), state

    @named_mistakes
    def save(self, path: str | Path, *, include_replay: bool = True) -> Path:
        """Writes the whole agent (weights, normalisers, optimiser, training state, replay buffer) to a folder.

        Without the replay buffer it is small. Training can then only go on with an empty one, which is not the same training.
        """
        path = Path(path).expanduser()
        if self._session is not None:
            groups, info = self._session.snapshot()
        else:
            groups, info = take_snapshot(self.config, self.algorithm, self._spaces, None)
            if self._pending is not None:
                groups["runtime"] = self._pending.groups["runtime"]
                if "replay" in self._pending.groups:
                    groups["replay"] = saved_replay(self._pending)
                elif self._pending.info.get(REPLAY_LEFT_OUT):
                    info[REPLAY_LEFT_OUT] = True
        if not include_replay and groups.pop("replay", None) is not None:
            info[REPLAY_LEFT_OUT] = True
        write_checkpoint(path, groups, info)
        return path

    @classmethod
    def load(cls, path: str | Path, env: EnvLike | TransitionDataset | None = None, **settings: Any) -> Self:
        """An agent from a folder that `save` wrote, from a run, or from one of its checkpoints. Runs no code from the files.

        No environment is made until learn() or evaluate() needs one; give `env` if the agent was not trained on a registered id,
        or the dataset that an offline algorithm goes on with.
        """
        return cls._from_checkpoint(_opened(path), env, settings)

    @classmethod
    def _from_checkpoint(
        cls, checkpoint: Checkpoint, env: EnvLike | TransitionDataset | None, settings: Mapping[str, Any]
    ) -> Self:
        source = EnvSource(dataset=env) if isinstance(env, TransitionDataset) else EnvSource(env)
        saved = config_of(checkpoint, cls.algo)
        config = with_settings(source.adopted(saved), cls.algo, settings)
        if "video" in settings and config.video.every > 0 and settings.get("output_dir") is None:
            raise ConfigError(_NO_FOLDER)
        if isinstance(env, str) and env != saved.env_id:
            forget_envs(checkpoint)  # another task, which begins with fresh episodes
        source.check(config)
        agent = cls.__new__(cls)
        agent._setup(config, source, write_run=settings.get("output_dir") is not None)
        env_spaces = spaces_of(checkpoint)
        check_policy_fits(checkpoint, agent.config, agent._hyperparams, env_spaces)
        agent._build(env_spaces)
        if source.given is not None:
            agent._check_fits(source.spaces(agent.config), config.env_id)
        restore(checkpoint, agent.algorithm, None)
        agent._pending = checkpoint if "runtime" in checkpoint.groups else None
        return agent

    if not TYPE_CHECKING:  # a type checker would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(unknown_attribute(type(self).__name__, name), name=name, obj=self)

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
    return agent_of(_opened(path), env, **settings)


def _opened(path: str | Path) -> Checkpoint:
    checkpoint, notes = open_checkpoint(Path(path).expanduser())
    for note in notes:
        warnings.warn(note, stacklevel=3)
    return checkpoint


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
