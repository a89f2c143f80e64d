"""The state tree of a run, and what it takes to put it back: the content of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from torch import Tensor, nn

from rl_training.algorithms.base import Algorithm
from rl_training.experiment import registry
from rl_training.experiment.checkpoint.replay_segments import saved_replay
from rl_training.experiment.checkpoint.schema import check_algorithm, check_replay, check_runtime
from rl_training.experiment.checkpoint.store import Checkpoint
from rl_training.experiment.config.stored import stored_config
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.policies.policy import Policy
from rl_training.policies.spec import PolicySpec
from rl_training.runtime.trainer import BaseTrainer, OffPolicyTrainer
from rl_training.utils.errors import AxiomError, CheckpointError, ConfigError, UserError
from rl_training.utils.global_random import preserved_global_rng
from rl_training.utils.printable import quoted
from rl_training.utils.spaces import space_from_tree, space_to_tree

RESUME_IGNORES = ("runtime.timer", "runtime.resume_count")
"""Paths in the groups that differ between a resumed and a whole run by nature: wall-clock time, the count of resumes."""

REPLAY_LEFT_OUT = "replay_left_out"
"""In a checkpoint's info: it was saved without the replay buffer that its training had."""

REPLAY_LEFT_OUT_NOTE = (
    "this agent was saved without its replay buffer (include_replay=False): training goes on with an empty one, "
    "and will not be what it would have been"
)


@dataclass(frozen=True)
class Spaces:
    """The spaces of one environment, or of a dataset."""

    observation: spaces.Space[Any]
    action: spaces.Space[Any]

    @classmethod
    def of(cls, described: Any) -> Spaces:
        """Those of a vector environment, or of a dataset."""
        if isinstance(described, VectorEnv):
            return cls(described.single_observation_space, described.single_action_space)
        return cls(described.observation_space, described.action_space)


def take_snapshot(
    config: TrainConfig, algorithm: Algorithm[Any, Any], env_spaces: Spaces, trainer: BaseTrainer | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(groups, info) for `write_checkpoint`: policy, algorithm and, once there is one, the running trainer.

    Replayed experience is not in it: a run keeps it in segments (`ReplaySegments`), a saved agent in a group of its own.
    """
    groups: dict[str, Any] = {
        "policy": {
            "weights": dict(algorithm.policy.state_dict()),
            "observation_space": space_to_tree(env_spaces.observation),
            "action_space": space_to_tree(env_spaces.action),
        },
        "algorithm": algorithm.state_dict(),
    }
    if trainer is not None:
        groups["runtime"] = trainer.state_dict()
    return groups, {"algo": config.algo, "config": config.to_dict()}


def config_of(checkpoint: Checkpoint, expected_algo: str | None = None) -> TrainConfig:
    """The config a checkpoint was made with, checked like any other; a checkpoint of another algorithm is the user's mistake."""
    algo, values = checkpoint.info.get("algo"), checkpoint.info.get("config")
    if expected_algo is not None and algo != expected_algo:
        raise UserError(
            f"checkpoint {checkpoint.path} is of algorithm {quoted(algo)}, not {expected_algo!r}: load it with that one's class."
        )
    if not isinstance(values, dict):
        raise CheckpointError(f"checkpoint {checkpoint.path} holds no config")
    for name, group in checkpoint.groups.items():
        if not isinstance(group, dict):
            raise CheckpointError(f"checkpoint {checkpoint.path}: its part {name!r} is {quoted(group)}, not a state")
    try:
        config = stored_config(values)
    except (ConfigError, TypeError) as error:
        raise CheckpointError(f"checkpoint {checkpoint.path}: its config is not valid: {error}") from error
    if config.algo != algo:
        raise CheckpointError(
            f"checkpoint {checkpoint.path}: its config is for {config.algo!r}, the rest for {quoted(algo)}"
        )
    return config


def spaces_of(checkpoint: Checkpoint) -> Spaces:
    policy = checkpoint.groups.get("policy")
    if not isinstance(policy, dict) or not {"observation_space", "action_space", "weights"} <= policy.keys():
        raise CheckpointError(f"checkpoint {checkpoint.path} holds no policy")
    return Spaces(space_from_tree(policy["observation_space"]), space_from_tree(policy["action_space"]))


def meta_policy(config: TrainConfig, hyperparams: Any, env_spaces: Spaces) -> Policy:
    """The policy that config and spaces describe, on torch's meta device: it has shapes and no numbers, and costs nothing, however
    absurd its sizes."""
    with torch.device("meta"), preserved_global_rng():
        spec = PolicySpec(
            env_spaces.observation,
            env_spaces.action,
            config.policy,
            normalize_observations=config.env.normalize_observations,
            normalize_rewards=config.env.normalize_rewards,
        )
        policy: Policy = registry.load(config.algo).make_policy(spec, hyperparams)
        return policy


def check_policy_fits(checkpoint: Checkpoint, config: TrainConfig, hyperparams: Any, env_spaces: Spaces) -> None:
    """Compares the saved weights with the policy that config and spaces describe, before any memory is taken for it."""
    registry.load(config.algo).check_spaces(env_spaces.observation, env_spaces.action)
    try:
        check_weights(meta_policy(config, hyperparams, env_spaces), checkpoint.groups["policy"]["weights"])
    except Exception as error:  # whatever a hand-made checkpoint can provoke while a policy is built from it
        raise CheckpointError(f"checkpoint {checkpoint.path} does not fit its own config: {error}") from error


def restore(checkpoint: Checkpoint, algorithm: Algorithm[Any, Any], trainer: BaseTrainer | None) -> None:
    """Puts a checkpoint's state into freshly built parts; whatever does not fit is a CheckpointError.

    The whole state is compared with the parts' own before the first of them is touched.
    """
    try:
        weights, groups = checkpoint.groups["policy"]["weights"], checkpoint.groups
        check_weights(algorithm.policy, weights)
        check_algorithm(groups["algorithm"], algorithm)
        replay = None
        if trainer is not None:
            check_runtime(groups["runtime"], trainer)
            if isinstance(trainer, OffPolicyTrainer) and not checkpoint.info.get(REPLAY_LEFT_OUT):
                replay = saved_replay(checkpoint)
                check_replay(replay, trainer.collector.buffer, trainer.collector.adapter)
        algorithm.policy.load_state_dict(dict(weights))
        algorithm.load_state_dict(groups["algorithm"])
        if trainer is not None:
            trainer.load_state_dict(groups["runtime"])
            if trainer.replay is not None and replay is not None:
                trainer.replay.load_state_dict(replay)
                if trainer.resume_grade != "exact":
                    trainer.replay.cut_episodes()  # the next step belongs to a fresh episode
    except CheckpointError as error:
        raise CheckpointError(f"checkpoint {checkpoint.path} does not fit this run: {error}") from error
    except AxiomError:
        raise
    except Exception as error:  # a part of somebody else's making may raise anything at a state it did not expect
        raise CheckpointError(f"checkpoint {checkpoint.path} does not fit this run: {quoted(error, 300)}") from error


def check_weights(module: nn.Module, weights: Mapping[str, Any]) -> None:
    """Names, shapes and dtypes must be exactly the module's; torch itself would cast silently."""
    expected = module.state_dict()
    if not isinstance(weights, Mapping) or set(weights) != set(expected):
        difference = sorted(set(expected) ^ set(weights))[:3] if isinstance(weights, Mapping) else "no mapping"
        raise CheckpointError(f"the saved weights have other names than the policy: {difference}")
    for name, target in expected.items():
        value = weights[name]
        if not isinstance(value, Tensor) or value.shape != target.shape or value.dtype != target.dtype:
            found = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise CheckpointError(
                f"saved weight {name!r} is {found}, the policy has {target.dtype} {tuple(target.shape)}"
            )
