"""From a config to the parts of a run: algorithm and trainer."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.on_policy import OnPolicyAlgorithm
from rl_training.data.hindsight import HindsightReplayBuffer
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.data.sources import ReplaySource
from rl_training.envs.contract import EnvStepper
from rl_training.experiment import registry
from rl_training.experiment.checkpoint.snapshot import Spaces
from rl_training.experiment.config.loader import ResolvedConfig, build_dataclass, preset_names
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.experiment.run.device import select_device
from rl_training.experiment.run.env_source import EnvSource
from rl_training.experiment.run.memory import check_environments, check_networks, memory_named
from rl_training.policies.policy_config import PolicyConfig
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.collector import ReplayCollector
from rl_training.runtime.learner import LearnerSpec
from rl_training.runtime.overlap import Overlap
from rl_training.runtime.tensor_collector import rollout_collector
from rl_training.runtime.throughput import StageTimer
from rl_training.runtime.trainer import BaseTrainer, OfflineTrainer, OffPolicyTrainer, OnPolicyTrainer
from rl_training.utils.action_masks import visible_space
from rl_training.utils.coerce import FieldError, check_idle, working_values
from rl_training.utils.errors import ConfigError
from rl_training.utils.images import flattened_planes, image_entries
from rl_training.utils.seeding import derive_seed
from rl_training.utils.spaces import ActionAdapter, obs_layout, space_name


def complete_config(source: TrainConfig | ResolvedConfig) -> tuple[TrainConfig, Any]:
    """The config with every hyperparameter written out that means something beside the others, and the hyperparameters as the
    algorithm's own dataclass."""
    config = source.config if isinstance(source, ResolvedConfig) else source
    locate: Callable[[str], str | None] = source.locate if isinstance(source, ResolvedConfig) else lambda key: None
    info = registry.algorithm_info(config.algo, locate("algo"))
    algorithm_class = registry.load(config.algo)
    try:
        hyperparams = build_dataclass(algorithm_class.config_class, config.hyperparams, "hyperparams", locate)
    except ConfigError as error:
        chosen = locate("algo")
        if chosen is None or ":" in chosen or str(error).startswith(chosen):
            raise  # the algorithm stands in the same file, or the setting on the same command line
        presets = [name for name in preset_names() if name.startswith(f"{config.algo}/")]
        raise ConfigError(
            f"{error}\nThat setting was written for another algorithm. Start from a config for {config.algo} instead"
            + (f", such as the presets {', '.join(presets)}." if presets else ".")
        ) from error
    check_environments(config)
    hyperparams = algorithm_class.with_derived_defaults(hyperparams, config.hyperparams, config.num_envs)
    algorithm_class.check_config(hyperparams, config.num_envs)
    if config.overlap:
        _check_overlap(config, algorithm_class, locate("overlap"))
    if config.precision != "float32":
        _check_precision(config, algorithm_class, locate("precision"))
    for key in algorithm_class.unused_policy_keys:
        if getattr(config.policy, key) != getattr(PolicyConfig(), key):
            place = locate(f"policy.{key}")
            raise ConfigError(
                f"{place + ': ' if place else ''}policy.{key} means nothing to {info.name}: leave it out."
            )
    return replace(config, hyperparams=working_values(hyperparams)), hyperparams


def _check_overlap(config: TrainConfig, algorithm_class: type[Algorithm[Any, Any]], place: str | None) -> None:
    prefix, name = f"{place}: " if place else "", registry.algorithm_info(config.algo).name
    if not algorithm_class.can_overlap:
        raise ConfigError(
            f"{prefix}overlap is not for {name}, only for PPO, A2C and off-policy algorithms. Leave it out."
        )
    if issubclass(algorithm_class, OnPolicyAlgorithm) and select_device(config.device).type != "cpu":
        raise ConfigError(
            f"{prefix}overlap keeps two cores of a CPU busy, and this run uses a GPU. Set device: cpu, or leave it out."
        )
    if issubclass(algorithm_class, OnPolicyAlgorithm) and algorithm_class.__module__ == "__main__":
        raise ConfigError(
            f"{prefix}overlap learns in a second process, which cannot see {name} in your script. "
            "Move the class into a module and import it from there."
        )


def _check_precision(config: TrainConfig, algorithm_class: type[Algorithm[Any, Any]], place: str | None) -> None:
    prefix, device = f"{place}: " if place else "", select_device(config.device).type
    if not algorithm_class.other_precisions:
        name = registry.algorithm_info(config.algo).name
        raise ConfigError(f"{prefix}{name} computes in float32 only: leave out precision.")
    if config.precision == "tf32" and device != "cuda":
        raise ConfigError(
            f"{prefix}precision: tf32 is for NVIDIA GPUs, and this run uses the device {device}. Leave it out."
        )


def build_algorithm(
    config: TrainConfig,
    hyperparams: Any,
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    device: torch.device,
) -> Algorithm[Any, Any]:
    """The algorithm with its fresh policy; unsupported spaces are refused here."""
    algorithm_class = registry.load(config.algo)
    algorithm_class.check_spaces(observation_space, action_space)
    ActionAdapter(action_space)  # refuses bounds that no policy can act in
    _check_policy(config, action_space)
    _check_observed(hyperparams, observation_space)
    if config.policy.encoder == "auto" and (planes := flattened_planes(observation_space)):
        names = ", ".join(f"entry {key!r}" if key else f"{observation_space}" for key in planes)
        warnings.warn(
            f"observations are flattened although they have rows and columns: {names}. Images are Boxes of uint8, or of floats "
            "between 0 and 1; say policy.encoder: flatten if it is meant, or give an encoder of your own.",
            stacklevel=2,
        )
    if config.env.normalize_rewards and not algorithm_class.normalizes_rewards:
        name = registry.algorithm_info(config.algo).name
        raise ConfigError(f"env.normalize_rewards is not for {name}: rewards in its replay buffer would change scale.")
    check_networks(config, hyperparams, Spaces(observation_space, action_space), device)
    with memory_named("the networks were made"):
        return _algorithm_maker(algorithm_class, config, hyperparams, observation_space, action_space, device=device)()


def _check_policy(config: TrainConfig, action_space: spaces.Space[Any]) -> None:
    """Raises FieldError for a setting of the policy that nothing would read."""
    policy, usual = config.policy, build_dataclass(PolicyConfig, registry.algorithm_info(config.algo).policy)
    try:
        check_idle(policy, usual, {"the action space": space_name(action_space)})
    except FieldError as error:
        raise FieldError(f"policy.{error.key}", error.problem) from None
    all_given = policy.actor_hidden_sizes is not None and policy.critic_hidden_sizes is not None
    if all_given and policy.hidden_sizes not in (usual.hidden_sizes, PolicyConfig().hidden_sizes):
        raise FieldError(
            "policy.hidden_sizes",
            "means nothing while actor_hidden_sizes and critic_hidden_sizes are both given: leave one of the three out",
        )


def _check_observed(hyperparams: Any, observation_space: spaces.Space[Any]) -> None:
    """Raises FieldError for a hyperparameter that means nothing with these observations."""
    observed = "images" if image_entries(visible_space(observation_space)) else "numbers"
    try:
        check_idle(hyperparams, None, {"the observations": observed})
    except FieldError as error:
        raise FieldError(f"hyperparams.{error.key}", error.problem) from None


def _algorithm_maker(
    algorithm_class: type[Algorithm[Any, Any]],
    config: TrainConfig,
    hyperparams: Any,
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    *,
    device: torch.device,
) -> Callable[[], Algorithm[Any, Any]]:
    return partial(
        algorithm_class,
        observation_space,
        action_space,
        hyperparams,
        config.policy,
        normalize_observations=config.env.normalize_observations,
        normalize_rewards=config.env.normalize_rewards,
        seed=config.seed,
        device=device,
        execution=config.execution,
        check_execution_every=config.check_execution_every,
        precision=config.precision,
    )


def build_trainer(
    config: TrainConfig,
    algorithm: Algorithm[Any, Any],
    envs: VectorEnv[Any, Any, Any] | None,
    env_source: EnvSource,
    callbacks: Sequence[Callback],
    scratch: Path,
) -> BaseTrainer:
    """The training loop the registry names for this algorithm. `scratch` is a folder for data that need not outlive the run."""
    kind = registry.algorithm_info(config.algo).trainer
    with memory_named("the buffers were made"):
        return _TRAINERS[kind](_Parts(config, algorithm, envs, env_source, callbacks, scratch))


@dataclass(frozen=True)
class _Parts:
    """What a training loop is built from."""

    config: TrainConfig
    algorithm: Any
    envs: Any
    """None for a run without environments."""
    env_source: EnvSource
    callbacks: Sequence[Callback]
    scratch: Path


def _buffer_layout(envs: VectorEnv[Any, Any, Any]) -> dict[str, Any]:
    """Shapes and dtypes of what a buffer stores of each step."""
    obs_shape, obs_dtype = obs_layout(envs.single_observation_space)
    adapter = ActionAdapter(envs.single_action_space)
    return {
        "obs_shape": obs_shape,
        "action_shape": adapter.shape,
        "obs_dtype": _torch_dtypes(obs_dtype),
        "action_dtype": _torch_dtypes(adapter.dtype),
    }


def _build_on_policy(parts: _Parts) -> OnPolicyTrainer:
    config, algorithm, stepper = parts.config, parts.algorithm, EnvStepper(parts.envs)
    make_buffer = partial(
        RolloutBuffer,
        algorithm.config.num_steps,
        stepper.num_envs,
        **_buffer_layout(parts.envs),
        device=algorithm.device,
    )
    collector = rollout_collector(
        stepper,
        algorithm.policy,
        make_buffer(),
        seed=config.seed,
        device=algorithm.device,
        timer=StageTimer(),
        executor=algorithm.executor,
        clip_rewards=bool(config.env.clip_rewards),
    )
    overlap = None
    if config.overlap:
        make_replica = _algorithm_maker(
            type(algorithm),
            config,
            algorithm.config,
            parts.envs.single_observation_space,
            parts.envs.single_action_space,
            device=algorithm.device,
        )
        overlap = Overlap(algorithm, collector, LearnerSpec(make_replica, make_buffer))
    return OnPolicyTrainer(algorithm, collector, config.total_timesteps, parts.callbacks, overlap=overlap)


def _build_off_policy(parts: _Parts) -> OffPolicyTrainer:
    config, algorithm, stepper = parts.config, parts.algorithm, EnvStepper(parts.envs)
    hyperparams = algorithm.config
    make_buffer: Callable[..., ReplayBuffer] = ReplayBuffer
    if hyperparams.hindsight > 0:
        if config.env.clip_rewards:
            raise ConfigError(
                "env.clip_rewards: hindsight asks the environment for the rewards of other goals, which would not be clipped. "
                "Leave one of the two out."
            )
        goals = parts.env_source.goal_rules(config)
        make_buffer = partial(
            HindsightReplayBuffer, hindsight=hyperparams.hindsight, reward=goals.reward, terminated=goals.terminated
        )
    buffer = make_buffer(
        hyperparams.buffer_size,
        stepper.num_envs,
        **_buffer_layout(parts.envs),
        device=algorithm.device if hyperparams.replay_storage == "device" else "cpu",
        seed=derive_seed(config.seed, "replay"),
        n_step=hyperparams.n_step,
        gamma=hyperparams.gamma,
        reward_scale=hyperparams.reward_scale,
        prioritization=hyperparams.prioritization,
        frame_stack=config.env.stacked_frames,
        folder=parts.scratch if hyperparams.replay_storage == "disk" else None,
    )
    collector = ReplayCollector(
        stepper,
        algorithm,
        buffer,
        seed=config.seed,
        device=algorithm.device,
        timer=StageTimer(),
        clip_rewards=bool(config.env.clip_rewards),
    )
    source = ReplaySource(buffer, hyperparams.per_beta)
    return OffPolicyTrainer(
        algorithm, collector, source, config.total_timesteps, parts.callbacks, overlap=config.overlap
    )


def _build_offline(parts: _Parts) -> OfflineTrainer:
    config, dataset = parts.config, parts.env_source.dataset
    assert dataset is not None, "training_envs refuses an offline algorithm without one"
    return OfflineTrainer(parts.algorithm, dataset, config.total_timesteps, parts.callbacks, seed=config.seed)


_TRAINERS: dict[str, Callable[..., BaseTrainer]] = {
    "on_policy": _build_on_policy,
    "off_policy": _build_off_policy,
    "offline": _build_offline,
}


def _torch_dtypes(names: Any) -> Any:
    if isinstance(names, dict):
        return {key: _torch_dtypes(name) for key, name in names.items()}
    return getattr(torch, names)
