"""Checkpoints that are formally sound (right checksums) but were made by hand to do harm: each is refused, nothing is run."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from rl_training import PPO
from rl_training.experiment.checkpoint.store import read_checkpoint, write_checkpoint
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.experiment.run.runner import resume_run, start_run
from rl_training.utils.errors import AxiomError, CheckpointError


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    agent = PPO("CartPole-v1", num_envs=2, num_steps=8)
    agent.learn(total_timesteps=32)
    return read_checkpoint(agent.save(tmp_path_factory.mktemp("model") / "agent"))


def _set(path, value):
    """An edit of (groups, info) at a dotted path; a callable value gets the old one."""

    def edit(groups, info):
        tree = {"groups": groups, "info": info}
        *parents, last = path.split("/")
        for key in parents:
            tree = tree[key]
        tree[last] = value(tree[last]) if callable(value) else value

    return edit


def _delete(path):
    def edit(groups, info):
        tree = {"groups": groups, "info": info}
        *parents, last = path.split("/")
        for key in parents:
            tree = tree[key]
        del tree[last]

    return edit


WEIGHT = "groups/policy/weights/actor_body.0.weight"
CORPUS = {
    "weight of another dtype": _set(WEIGHT, lambda weight: weight.double()),
    "weight of another shape": _set(WEIGHT, lambda weight: weight[:1]),
    "weight that is text": _set(WEIGHT, "print('run me')"),
    "weight that is missing": _delete(WEIGHT),
    "weight too many": _set("groups/policy/weights/extra", torch.zeros(1)),
    "weights that are a list": _set("groups/policy/weights", [1, 2, 3]),
    "no policy": _delete("groups/policy"),
    "policy that is a number": _set("groups/policy", 7),
    "space of an unknown type": _set("groups/policy/observation_space/type", "os.system"),
    "space without bounds": _delete("groups/policy/observation_space/low"),
    "space of absurd size": _set("groups/policy/observation_space", {"type": "Discrete", "n": 2**40, "start": 0}),
    "action space of absurd size": _set("groups/policy/action_space", {"type": "Discrete", "n": 2**50, "start": 0}),
    "network of absurd size": _set("info/config/policy/hidden_sizes", [10**9, 10**9]),
    "network without end": _set("info/config/policy/hidden_sizes", [8] * 5000),
    "env id that names a module": _set("info/config/env_id", "os:system"),
    "unknown algorithm": _set("info/config/algo", "../../evil"),
    "unknown config key": _set("info/config/run_this", "rm"),
    "config that is a list": _set("info/config", [1]),
    "no config": _delete("info/config"),
    "unknown hyperparameter": _set("info/config/hyperparams/hook", "os.system"),
    "moments of another shape": _set("groups/algorithm/optimizers/policy/moments/mean", torch.zeros(3)),
    "moments that are text": _set("groups/algorithm/optimizers/policy/moments/mean", "os.system"),
    "learning rate that is text": _set("groups/algorithm/optimizers/policy/learning_rates", ["fast"]),
    "learning rates that are too many": _set("groups/algorithm/optimizers/policy/learning_rates", [1e-3] * 5),
    "optimiser of another name": _set("groups/algorithm/optimizers", {"other": {}}),
    "moments that are not there": _set("groups/algorithm/optimizers/policy/moments", {"momentum": torch.zeros(2)}),
    "generator state that is garbage": _set("groups/algorithm/generator", torch.zeros(3, dtype=torch.uint8)),
    "no algorithm": _delete("groups/algorithm"),
}


@pytest.mark.parametrize("name", CORPUS)
def test_loading_refuses_with_a_clear_error(name, saved, tmp_path):
    groups, info = copy.deepcopy(saved.groups), copy.deepcopy(saved.info)
    CORPUS[name](groups, info)
    write_checkpoint(tmp_path / "evil", groups, info)
    with pytest.raises(AxiomError) as refusal:
        PPO.load(tmp_path / "evil")
    assert 10 < len(str(refusal.value)) < 1000


RUNTIME_CORPUS = {
    "counter that is text": _set("groups/runtime/global_step", "many"),
    "no counter": _delete("groups/runtime/iterations"),
    "generator state that is garbage": _set("groups/runtime/collector/generator", torch.zeros(2, dtype=torch.uint8)),
    "global generator of another kind": _set("groups/runtime/global_random/numpy/name", "os.system"),
    "statistics that are text": _set("groups/runtime/collector/statistics/running_returns", "x"),
    "no environments": _delete("groups/runtime/collector/envs/obs"),
    "environment kind unknown": _set("groups/runtime/collector/envs/envs/kind", "shell"),
    "actions that are no actions": _set(
        "groups/runtime/collector/envs/envs/envs",
        lambda envs: [{**env, "actions": np.full((5,), 10**6)} for env in envs],
    ),
}


@pytest.mark.parametrize("name", RUNTIME_CORPUS)
def test_resuming_refuses_or_starts_fresh_episodes_but_claims_nothing(name, tmp_path):
    result = start_run(
        TrainConfig(
            num_envs=2,
            total_timesteps=32,
            output_dir=tmp_path,
            hyperparams={"num_steps": 8},
            evaluation={"every": 0},
            logging={"console": "off", "tensorboard": False},
        )
    )
    assert result.run_dir is not None and result.checkpoint_path is not None
    checkpoint = read_checkpoint(result.checkpoint_path)
    groups, info = copy.deepcopy(checkpoint.groups), copy.deepcopy(checkpoint.info)
    RUNTIME_CORPUS[name](groups, info)
    write_checkpoint(Path(result.checkpoint_path), groups, info)
    try:
        resumed = resume_run(result.run_dir, total_timesteps=64)
    except CheckpointError as refusal:
        assert "does not fit this run" in str(refusal)
    else:
        assert resumed.resume_grade == "episode-boundary"
