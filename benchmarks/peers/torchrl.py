"""TorchRL: loops written with its collectors, buffers and losses, as its documentation does; scalars go to TensorBoard."""

# Libraries are imported inside the functions, because import time is one of the measurements.
from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers.common import (
    Result,
    Watch,
    Work,
    gae_inputs,
    main,
    seconds_of,
    timed_calls,
    transitions,
    watch_for,
)

LOG_EVERY = 1_000
"""Environment steps between log entries of the off-policy loops."""


def import_library(work: Work) -> Result:
    def load() -> None:
        from torchrl.collectors import Collector  # noqa: F401
        from torchrl.data import TensorDictReplayBuffer  # noqa: F401
        from torchrl.envs import GymEnv  # noqa: F401
        from torchrl.objectives import ClipPPOLoss  # noqa: F401

    return {"values": {"seconds": seconds_of(load)}}


def _env(work: Work) -> Any:
    import gymnasium
    from torchrl.envs import Compose, DoubleToFloat, GymWrapper, RewardSum, StepCounter, TransformedEnv

    if work["num_envs"] == 1:
        base = gymnasium.make(work["env"])
    else:  # Gymnasium's vector environment: several times as fast here as TorchRL's own SerialEnv
        mode = {"autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED}
        base = gymnasium.make_vec(work["env"], num_envs=work["num_envs"], vectorization_mode="sync", vector_kwargs=mode)
    wrapped = GymWrapper(base, device="cpu", categorical_action_encoding=True)
    env = TransformedEnv(wrapped, Compose(DoubleToFloat(), RewardSum(), StepCounter()))
    env.set_seed(0)
    return env


def _mlp(work: Work, inputs: int, outputs: int) -> Any:
    from torch import nn
    from torchrl.modules import MLP

    activation = {"tanh": nn.Tanh, "relu": nn.ReLU}[work["activation"]]
    return MLP(in_features=inputs, out_features=outputs, num_cells=list(work["hidden"]), activation_class=activation)


class _Log:
    """Episode statistics and losses, written to TensorBoard."""

    def __init__(self, folder: str):
        from torchrl.record.loggers.tensorboard import TensorboardLogger

        self._logger = TensorboardLogger("bench", log_dir=folder)
        self._returns: list[float] = []

    def episodes(self, data: Any) -> None:
        done = data["next", "done"]
        if done.any():
            self._returns += data["next", "episode_reward"][done].tolist()

    def write(self, losses: Any, step: int) -> None:
        for name, value in losses.items():
            self._logger.log_scalar(f"train/{name}", float(value), step)
        if self._returns:
            self._logger.log_scalar("rollout/return", sum(self._returns) / len(self._returns), step)
            self._returns.clear()


def ppo(work: Work) -> Result:
    watch = watch_for(work)
    import torch
    from tensordict.nn import AddStateIndependentNormalScale, TensorDictModule
    from torch import nn
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, SamplerWithoutReplacement, TensorDictReplayBuffer
    from torchrl.modules import IndependentNormal, ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    env = _env(work)
    inputs, spec = env.observation_spec["observation"].shape[-1], env.full_action_spec_unbatched["action"]
    if work["env"].startswith("CartPole"):
        module = TensorDictModule(_mlp(work, inputs, 2), in_keys=["observation"], out_keys=["logits"])
        head = {"in_keys": ["logits"], "distribution_class": torch.distributions.Categorical}
    else:
        scale = AddStateIndependentNormalScale(spec.shape[-1])
        body = nn.Sequential(_mlp(work, inputs, spec.shape[-1]), scale)
        module = TensorDictModule(body, in_keys=["observation"], out_keys=["loc", "scale"])
        head = {"in_keys": ["loc", "scale"], "distribution_class": IndependentNormal}
    actor = ProbabilisticActor(module, spec=spec, return_log_prob=True, **head)
    critic = ValueOperator(_mlp(work, inputs, 1), in_keys=["observation"])
    advantages = GAE(gamma=work["gamma"], lmbda=work["gae_lambda"], value_network=critic, average_gae=False)
    loss_module = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=work["clip"],
        entropy_bonus=work["ent_coef"] > 0,
        critic_coeff=work["vf_coef"],
        loss_critic_type="l2",
        normalize_advantage=True,
    )
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=work["lr"], eps=1e-5)
    frames = work["num_envs"] * work["num_steps"]
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(frames), sampler=SamplerWithoutReplacement(), batch_size=work["minibatch"]
    )
    collector = Collector(env, actor, frames_per_batch=frames, total_frames=-1, device="cpu")
    steps = 0
    with tempfile.TemporaryDirectory() as folder:
        log = _Log(folder)
        for data in collector:
            log.episodes(data)
            with torch.no_grad():
                advantages(data)
            buffer.extend(data.reshape(-1))
            for _ in range(work["epochs"]):
                for batch in buffer:
                    losses = loss_module(batch)
                    loss = losses["loss_objective"] + losses["loss_critic"]
                    optimizer.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(loss_module.parameters(), work["max_grad_norm"])
                    optimizer.step()
            steps += data.numel()
            log.write(losses, steps)
            if watch.tick(steps):
                break
    return watch.result()


def _off_policy(work: Work, watch: Watch, env: Any, policy: Any, update: Callable[[Any, int], Any]) -> Result:
    """Collects one step at a time, remembers it and updates once; `update(batch, number)` returns the losses."""
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(work["buffer"]), batch_size=work["batch"])
    collector = Collector(
        env,
        policy,
        frames_per_batch=1,
        total_frames=-1,
        init_random_frames=work["learning_starts"],
        device="cpu",
    )
    steps = updates = 0
    losses: Any = {}
    with tempfile.TemporaryDirectory() as folder:
        log = _Log(folder)
        for data in collector:
            log.episodes(data)
            buffer.extend(data.reshape(-1))
            steps += data.numel()
            if steps >= work["learning_starts"]:
                losses, updates = update(buffer.sample(), updates), updates + 1
            if steps % LOG_EVERY == 0:
                log.write(losses, steps)
            if watch.tick(steps):
                break
    return watch.result()


def dqn(work: Work) -> Result:
    watch = watch_for(work)
    import torch
    from tensordict.nn import TensorDictSequential
    from torchrl.modules import EGreedyModule, QValueActor
    from torchrl.objectives import DQNLoss, HardUpdate

    env = _env(work)
    network = _mlp(work, env.observation_spec["observation"].shape[-1], 2)
    actor = QValueActor(network, in_keys=["observation"], spec=env.action_spec, action_space="categorical")
    epsilon = work["epsilon"]
    explore = EGreedyModule(env.action_spec, eps_init=epsilon, eps_end=epsilon, annealing_num_steps=1)
    loss_module = DQNLoss(actor, loss_function="smooth_l1", delay_value=True, action_space="categorical")
    loss_module.make_value_estimator(gamma=work["gamma"])
    target = HardUpdate(loss_module, value_network_update_interval=work["target_every"])
    parameters = list(loss_module.parameters())
    optimizer = torch.optim.Adam(parameters, lr=work["lr"])

    def update(batch: Any, number: int) -> Any:
        losses = loss_module(batch)
        optimizer.zero_grad()
        losses["loss"].backward()
        torch.nn.utils.clip_grad_norm_(parameters, work["max_grad_norm"])
        optimizer.step()
        target.step()
        return losses

    return _off_policy(work, watch, env, TensorDictSequential(actor, explore), update)


def _critic(work: Work, observations: int, actions: int) -> Any:
    from torchrl.modules import ValueOperator

    return ValueOperator(_mlp(work, observations + actions, 1), in_keys=["observation", "action"])


def _parameters(loss_module: Any, name: str) -> list[Any]:
    return list(getattr(loss_module, name).flatten_keys().values())


def sac(work: Work) -> Result:
    watch = watch_for(work)
    import torch
    from tensordict.nn import NormalParamExtractor, TensorDictModule
    from torch import nn
    from torchrl.modules import ProbabilisticActor, TanhNormal
    from torchrl.objectives import SACLoss, SoftUpdate

    env = _env(work)
    inputs, spec = env.observation_spec["observation"].shape[-1], env.action_spec
    actions = spec.shape[-1]
    body = nn.Sequential(_mlp(work, inputs, 2 * actions), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(body, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=spec,
        distribution_class=TanhNormal,
        distribution_kwargs={"low": spec.space.low, "high": spec.space.high},
    )
    loss_module = SACLoss(
        actor, _critic(work, inputs, actions), num_qvalue_nets=2, loss_function="l2", delay_qvalue=True
    )
    loss_module.make_value_estimator(gamma=work["gamma"])
    target = SoftUpdate(loss_module, tau=work["tau"])
    optimizers = [
        torch.optim.Adam(_parameters(loss_module, "actor_network_params"), lr=work["lr"]),
        torch.optim.Adam(_parameters(loss_module, "qvalue_network_params"), lr=work["lr"]),
        torch.optim.Adam([loss_module.log_alpha], lr=work["lr"]),
    ]

    def update(batch: Any, number: int) -> Any:
        losses = loss_module(batch)
        (losses["loss_actor"] + losses["loss_qvalue"] + losses["loss_alpha"]).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        target.step()
        return losses

    return _off_policy(work, watch, env, actor, update)


def td3(work: Work) -> Result:
    watch = watch_for(work)
    import torch
    from tensordict.nn import TensorDictModule, TensorDictSequential
    from torchrl.modules import AdditiveGaussianModule, TanhModule
    from torchrl.objectives import SoftUpdate, TD3Loss

    env = _env(work)
    inputs, spec = env.observation_spec["observation"].shape[-1], env.action_spec
    actions = spec.shape[-1]
    body = TensorDictModule(_mlp(work, inputs, actions), in_keys=["observation"], out_keys=["param"])
    bounds = TanhModule(in_keys=["param"], out_keys=["action"], low=spec.space.low, high=spec.space.high)
    actor = TensorDictSequential(body, bounds)
    noise = AdditiveGaussianModule(
        spec, sigma_init=work["exploration_noise"], sigma_end=work["exploration_noise"], annealing_num_steps=1
    )
    loss_module = TD3Loss(
        actor,
        _critic(work, inputs, actions),
        action_spec=spec,
        num_qvalue_nets=2,
        loss_function="l2",
        delay_actor=True,
        delay_qvalue=True,
        policy_noise=work["target_noise"],
        noise_clip=work["target_noise_clip"],
    )
    loss_module.make_value_estimator(gamma=work["gamma"])
    target = SoftUpdate(loss_module, tau=work["tau"])
    actor_optimizer = torch.optim.Adam(_parameters(loss_module, "actor_network_params"), lr=work["lr"])
    critic_optimizer = torch.optim.Adam(_parameters(loss_module, "qvalue_network_params"), lr=work["lr"])

    def step(optimizer: Any, loss: Any) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def update(batch: Any, number: int) -> Any:
        critic_loss, _ = loss_module.value_loss(batch)
        step(critic_optimizer, critic_loss)
        if number % work["policy_delay"]:
            actor_loss, _ = loss_module.actor_loss(batch)
            step(actor_optimizer, actor_loss)
            target.step()
        return {"critic": critic_loss.detach()}

    return _off_policy(work, watch, env, TensorDictSequential(actor, noise), update)


def _rows(work: Work, steps: int, num_envs: int = 1, seed: int = 0) -> Any:
    """`steps` transitions as one TensorDict."""
    import numpy as np
    import torch
    from tensordict import TensorDict

    columns = zip(*transitions(work, steps // num_envs, num_envs, seed), strict=True)
    obs, action, reward, next_obs, truncated = (torch.from_numpy(np.concatenate(column)) for column in columns)
    flags = {"truncated": truncated, "done": truncated, "terminated": torch.zeros_like(truncated)}
    following = {"observation": next_obs, "reward": reward[:, None], **{k: v[:, None] for k, v in flags.items()}}
    return TensorDict({"observation": obs, "action": action, "next": following}, batch_size=[len(obs)])


def _buffer(work: Work) -> Any:
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

    return TensorDictReplayBuffer(storage=LazyTensorStorage(work["capacity"]), batch_size=work["batch"])


def replay_sample(work: Work) -> Result:
    buffer = _buffer(work)
    buffer.extend(_rows(work, work["filled"]))
    return {"values": {"batches_per_second": timed_calls(buffer.sample, work["repeats"])}}


def replay_memory(work: Work) -> Result:
    values = {}
    for name, (obs, action) in work["shapes"].items():
        # A discrete action is one int64, and an action of two floats takes as much.
        shape = {"obs": obs, "action": 2 if action is None else action}
        buffer = _buffer({**shape, "capacity": work["capacity"], "batch": 1})
        buffer.extend(_rows(shape, work["capacity"]))
        values[name] = buffer.storage._storage.bytes() / work["capacity"]
    return {"values": values}


def gae(work: Work) -> Result:
    import torch
    from torchrl.objectives.value import functional

    # Its layout is (N, T, 1).
    data = {name: torch.from_numpy(array.T.copy())[..., None] for name, array in gae_inputs(work).items()}
    rewards, values, ended = data["rewards"], data["values"], data["ended"]
    next_values = torch.cat([values[:, 1:], data["last_values"][:, None]], dim=1)
    inputs = (work["gamma"], work["gae_lambda"], values, next_values, rewards, ended, ended)
    # It has two versions; the faster one counts.
    versions = (functional.vec_generalized_advantage_estimate, functional.generalized_advantage_estimate)
    rates = [timed_calls(lambda version=version: version(*inputs), work["repeats"]) for version in versions]
    return {"values": {"calls_per_second": max(rates)}, "rates": rates}


def checkpoint(work: Work) -> Result:
    buffer = _buffer(work)
    buffer.extend(_rows(work, work["filled"], 10))
    with tempfile.TemporaryDirectory() as folder:
        first = seconds_of(lambda: buffer.dumps(Path(folder) / "buffer"))
        buffer.extend(_rows(work, work["new_steps"], 10))
        second = seconds_of(lambda: buffer.dumps(Path(folder) / "buffer"))
        loaded = _buffer(work)
        load = seconds_of(lambda: loaded.loads(Path(folder) / "buffer"))
        assert len(loaded) == work["filled"]
    return {"values": {"first_save": first, "second_save": second, "load": load}}


if __name__ == "__main__":
    functions = [import_library, ppo, dqn, sac, td3, replay_sample, replay_memory, gae, checkpoint]
    main({**{function.__name__: function for function in functions}, "startup": ppo})
