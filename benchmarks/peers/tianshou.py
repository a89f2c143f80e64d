"""Tianshou 2 through its procedural API: collectors, trainers, progress bar, TensorBoard logger with its own intervals."""

# Libraries are imported inside the functions, because import time is one of the measurements.
from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.peers.common import (
    Measured,
    Result,
    Watch,
    Work,
    gae_inputs,
    main,
    seconds_of,
    timed,
    timed_calls,
    transitions,
    watch_for,
)


def import_library(work: Work) -> Result:
    def load() -> None:
        from tianshou.algorithm.modelfree.ppo import PPO  # noqa: F401
        from tianshou.data import Collector  # noqa: F401
        from tianshou.trainer import OnPolicyTrainerParams  # noqa: F401

    return {"values": {"seconds": seconds_of(load)}}


def _envs(work: Work) -> Any:
    import gymnasium
    from tianshou.env import DummyVectorEnv

    envs = DummyVectorEnv([lambda: gymnasium.make(work["env"]) for _ in range(work["num_envs"])])
    envs.seed(0)
    return envs


def _sizes(work: Work) -> tuple[Any, Any, Any, Any]:
    import gymnasium

    env = gymnasium.make(work["env"])
    observations, actions = env.observation_space, env.action_space
    return observations.shape, getattr(actions, "shape", None) or actions.n, actions, getattr(actions, "high", [1.0])[0]


def _net(work: Work, state_shape: Any, action_shape: Any = 0, **more: Any) -> Any:
    from tianshou.utils.net.common import Net
    from torch import nn

    activation = {"tanh": nn.Tanh, "relu": nn.ReLU}[work["activation"]]
    return Net(
        state_shape=state_shape,
        action_shape=action_shape,
        hidden_sizes=list(work["hidden"]),
        activation=activation,
        **more,
    )


def _adam(work: Work, **more: Any) -> Any:
    from tianshou.algorithm.optim import AdamOptimizerFactory

    return AdamOptimizerFactory(lr=work["lr"], **more)


def _run(watch: Watch, algorithm: Any, params: Any, collector: Any, before: int = 0, **settings: Any) -> Result:
    """Trains; `before` are the steps taken already, which the trainer does not count."""
    from tianshou.utils import TensorboardLogger
    from torch.utils.tensorboard import SummaryWriter

    def tick(epoch: int, steps: int) -> None:  # called before each collection
        if watch.tick(before + steps):
            raise Measured

    with tempfile.TemporaryDirectory() as folder:
        settings |= {"training_collector": collector, "training_fn": tick, "max_epochs": 1_000_000}
        logger = TensorboardLogger(SummaryWriter(folder))
        with contextlib.suppress(Measured):
            algorithm.run_training(params(logger=logger, epoch_num_steps=50_000, **settings))
    return watch.result()


def ppo(work: Work) -> Result:
    watch = watch_for(work)
    import torch
    from tianshou.algorithm.modelfree.ppo import PPO
    from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.trainer import OnPolicyTrainerParams
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
    from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

    def gaussian(loc_scale: tuple[Any, Any]) -> Any:
        return torch.distributions.Independent(torch.distributions.Normal(*loc_scale), 1)

    state, action, space, _ = _sizes(work)
    body, value_body = _net(work, state), _net(work, state)
    if isinstance(action, tuple):
        actor = ContinuousActorProbabilistic(preprocess_net=body, action_shape=action, unbounded=True)
        critic = ContinuousCritic(preprocess_net=value_body)
        policy = ProbabilisticActorPolicy(
            actor=actor,
            dist_fn=gaussian,
            action_space=space,
            action_scaling=True,
            action_bound_method="clip",
        )
    else:
        actor = DiscreteActor(preprocess_net=body, action_shape=action, softmax_output=False)
        critic = DiscreteCritic(preprocess_net=value_body)
        policy = ProbabilisticActorPolicy(
            actor=actor,
            dist_fn=lambda logits: torch.distributions.Categorical(logits=logits),
            action_space=space,
            action_scaling=False,
            action_bound_method=None,
        )
    frames = work["num_envs"] * work["num_steps"]
    algorithm = PPO(
        policy=policy,
        critic=critic,
        optim=_adam(work, eps=1e-5),
        eps_clip=work["clip"],
        vf_coef=work["vf_coef"],
        ent_coef=work["ent_coef"],
        max_grad_norm=work["max_grad_norm"],
        gae_lambda=work["gae_lambda"],
        gamma=work["gamma"],
        max_batchsize=frames,
    )
    return _run(
        watch,
        algorithm,
        OnPolicyTrainerParams,
        Collector(algorithm, _envs(work), VectorReplayBuffer(frames, work["num_envs"])),
        collection_step_num_env_steps=frames,
        batch_size=work["minibatch"],
        update_step_num_repetitions=work["epochs"],
    )


def _off_policy(work: Work, watch: Watch, algorithm: Any) -> Result:
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.trainer import OffPolicyTrainerParams

    buffer = VectorReplayBuffer(work["buffer"], work["num_envs"])
    collector = Collector(algorithm, _envs(work), buffer, exploration_noise=True)
    collector.reset()
    collector.collect(n_step=work["learning_starts"], random=True)
    return _run(
        watch,
        algorithm,
        OffPolicyTrainerParams,
        collector,
        work["learning_starts"],
        collection_step_num_env_steps=work["num_envs"],
        update_step_num_gradient_steps_per_sample=1.0,
        batch_size=work["batch"],
    )


def dqn(work: Work) -> Result:
    watch = watch_for(work)
    from tianshou.algorithm.modelfree.dqn import DQN, DiscreteQLearningPolicy

    state, action, space, _ = _sizes(work)
    policy = DiscreteQLearningPolicy(model=_net(work, state, action), action_space=space, eps_training=work["epsilon"])
    algorithm = DQN(
        policy=policy,
        optim=_adam(work),
        gamma=work["gamma"],
        target_update_freq=work["target_every"],
        is_double=False,
        huber_loss_delta=1.0,
    )
    return _off_policy(work, watch, algorithm)


def _critics(work: Work, state: Any, action: Any) -> dict[str, Any]:
    from tianshou.utils.net.continuous import ContinuousCritic

    def critic() -> Any:
        return ContinuousCritic(preprocess_net=_net(work, state, action, concat=True))

    return {"critic": critic(), "critic_optim": _adam(work), "critic2": critic(), "critic2_optim": _adam(work)}


def sac(work: Work) -> Result:
    watch = watch_for(work)
    import numpy as np
    from tianshou.algorithm.modelfree.sac import SAC, AutoAlpha, SACPolicy
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic

    state, action, space, _ = _sizes(work)
    actor = ContinuousActorProbabilistic(
        preprocess_net=_net(work, state), action_shape=action, unbounded=True, conditioned_sigma=True
    )
    algorithm = SAC(
        policy=SACPolicy(actor=actor, action_space=space),
        policy_optim=_adam(work),
        **_critics(work, state, action),
        tau=work["tau"],
        gamma=work["gamma"],
        alpha=AutoAlpha(-float(np.prod(action)), 0.0, _adam(work)),
    )
    return _off_policy(work, watch, algorithm)


def td3(work: Work) -> Result:
    watch = watch_for(work)
    from tianshou.algorithm.modelfree.ddpg import ContinuousDeterministicPolicy
    from tianshou.algorithm.modelfree.td3 import TD3
    from tianshou.exploration import GaussianNoise
    from tianshou.utils.net.continuous import ContinuousActorDeterministic

    state, action, space, high = _sizes(work)
    actor = ContinuousActorDeterministic(preprocess_net=_net(work, state), action_shape=action, max_action=high)
    policy = ContinuousDeterministicPolicy(
        actor=actor, action_space=space, exploration_noise=GaussianNoise(sigma=work["exploration_noise"])
    )
    algorithm = TD3(
        policy=policy,
        policy_optim=_adam(work),
        **_critics(work, state, action),
        tau=work["tau"],
        gamma=work["gamma"],
        policy_noise=work["target_noise"],
        noise_clip=work["target_noise_clip"],
        update_actor_freq=work["policy_delay"],
    )
    return _off_policy(work, watch, algorithm)


def _buffer(work: Work, steps: int, num_envs: int = 1) -> Any:
    """A buffer that holds `steps` transitions, made at once: adding them one by one takes minutes."""
    import numpy as np
    from tianshou.data import ReplayBuffer

    columns = zip(*transitions(work, steps // num_envs, num_envs), strict=True)
    obs, act, rew, obs_next, truncated = (np.concatenate(column) for column in columns)
    return ReplayBuffer.from_data(obs, act, rew, np.zeros_like(truncated), truncated, truncated, obs_next)


def replay_sample(work: Work) -> Result:
    from tianshou.data import to_torch

    buffer = _buffer(work, work["filled"])

    def sample() -> None:  # tensors of what an update uses, as its algorithms make them from the arrays
        batch, _ = buffer.sample(work["batch"])
        for key in ("obs", "act", "rew", "obs_next", "terminated"):
            to_torch(batch[key])

    return {"values": {"batches_per_second": timed_calls(sample, work["repeats"])}}


def replay_memory(work: Work) -> Result:
    import numpy as np
    from tianshou.data import Batch, ReplayBuffer

    values = {}
    for name, (obs, action) in work["shapes"].items():
        buffer = ReplayBuffer(work["capacity"])
        state = np.zeros(obs, np.float32)
        act = np.int64(0) if action is None else np.zeros(action, np.float32)
        # The first transition makes it allocate everything.
        buffer.add(Batch(obs=state, act=act, rew=0.0, terminated=False, truncated=False, obs_next=state, info={}))
        arrays = [value for value in buffer._meta.values() if isinstance(value, np.ndarray)]
        values[name] = sum(array.nbytes for array in arrays) / work["capacity"]
    return {"values": values}


def gae(work: Work) -> Result:
    import numpy as np
    from tianshou.algorithm.algorithm_base import _gae

    # One environment after the other in a row, as in its buffer. Values after an end are masked beforehand.
    data = gae_inputs(work)
    next_values = np.concatenate([data["values"][1:], data["last_values"][None]]) * ~data["ended"]
    data["ended"][-1] = True
    values, following, rewards, ended = (
        array.T.reshape(-1) for array in (data["values"], next_values, data["rewards"], data["ended"])
    )
    rate = timed_calls(
        lambda: _gae(values, following, rewards, ended, work["gamma"], work["gae_lambda"]), work["repeats"]
    )
    return {"values": {"calls_per_second": rate}}


def checkpoint(work: Work) -> Result:
    from tianshou.data import ReplayBuffer

    buffer = _buffer(work, work["filled"], 10)
    with tempfile.TemporaryDirectory() as folder:
        # It has no incremental save and its file must not exist, so the second save is another full one.
        first = seconds_of(lambda: buffer.save_hdf5(str(Path(folder) / "1.hdf5")))
        second = seconds_of(lambda: buffer.save_hdf5(str(Path(folder) / "2.hdf5")))
        load, loaded = timed(lambda: ReplayBuffer.load_hdf5(str(Path(folder) / "2.hdf5")))
        assert len(loaded) == work["filled"]
    return {"values": {"first_save": first, "second_save": second, "load": load}}


if __name__ == "__main__":
    functions = [import_library, ppo, dqn, sac, td3, replay_sample, replay_memory, gae, checkpoint]
    main({**{function.__name__: function for function in functions}, "startup": ppo})
