"""Stable-Baselines3: Monitor and DummyVecEnv as `make_vec_env` gives them, the default logger printing to the console."""

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
    evaluated,
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
        from stable_baselines3 import PPO  # noqa: F401

    return {"values": {"seconds": seconds_of(load)}}


def _learn(work: Work, watch: Watch, make: Callable[..., Any], **settings: Any) -> Result:
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    class Ticks(BaseCallback):
        done = False

        def _on_rollout_start(self) -> None:  # after the update of the iteration before
            self.done = watch.tick(self.num_timesteps)

        def _on_step(self) -> bool:
            return not self.done

    env = make_vec_env(work["env"], n_envs=work["num_envs"], seed=work.get("seed", 0))
    activation = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}[work["activation"]]
    policy_kwargs = {"net_arch": list(work["hidden"]), "activation_fn": activation}
    model = make(
        "MlpPolicy",
        env,
        learning_rate=work["lr"],
        gamma=work["gamma"],
        policy_kwargs=policy_kwargs,
        verbose=1,
        device="cpu",
        seed=work.get("seed", 0),
        **settings,
    )
    if "total" in work:
        model.learn(total_timesteps=work["total"])
        return evaluated(work, lambda obs: model.predict(obs, deterministic=True)[0])
    model.learn(total_timesteps=10_000_000, callback=Ticks())
    return watch.result()


def defaults(work: Work) -> Result:
    """A run with the library's own defaults."""
    import stable_baselines3
    from stable_baselines3.common.monitor import Monitor

    from benchmarks.peers.tasks import make_task

    env = Monitor(make_task(work["env"]))
    model = getattr(stable_baselines3, work["algo"])("MlpPolicy", env, seed=work["seed"], device="cpu")
    seconds = seconds_of(lambda: model.learn(total_timesteps=work["steps"]))
    result = evaluated(work, lambda obs: model.predict(obs, deterministic=True)[0])
    return {"values": {**result["values"], "seconds": seconds}}


def ppo(work: Work) -> Result:
    watch = watch_for(work)
    from stable_baselines3 import PPO

    return _learn(
        work,
        watch,
        PPO,
        n_steps=work["num_steps"],
        batch_size=work["minibatch"],
        n_epochs=work["epochs"],
        gae_lambda=work["gae_lambda"],
        clip_range=work["clip"],
        ent_coef=work["ent_coef"],
        vf_coef=work["vf_coef"],
        max_grad_norm=work["max_grad_norm"],
    )


def a2c(work: Work) -> Result:
    watch = watch_for(work)
    from stable_baselines3 import A2C

    return _learn(
        work,
        watch,
        A2C,
        n_steps=work["num_steps"],
        gae_lambda=work["gae_lambda"],
        ent_coef=work["ent_coef"],
        vf_coef=work["vf_coef"],
        max_grad_norm=work["max_grad_norm"],
    )


def _replay(work: Work) -> dict[str, Any]:
    return {
        "buffer_size": work["buffer"],
        "batch_size": work["batch"],
        "learning_starts": work["learning_starts"],
        "train_freq": work.get("train_frequency", 1),
        "gradient_steps": 1,
    }


def dqn(work: Work) -> Result:
    watch = watch_for(work)
    from stable_baselines3 import DQN

    return _learn(
        work,
        watch,
        DQN,
        **_replay(work),
        target_update_interval=work["target_every"],
        exploration_initial_eps=work["epsilon"],
        exploration_final_eps=work["epsilon"],
        max_grad_norm=work["max_grad_norm"],
    )


def sac(work: Work) -> Result:
    watch = watch_for(work)
    from stable_baselines3 import SAC

    return _learn(work, watch, SAC, **_replay(work), tau=work["tau"])


def td3(work: Work) -> Result:
    watch = watch_for(work)
    import gymnasium
    import numpy as np
    from stable_baselines3 import TD3
    from stable_baselines3.common.noise import NormalActionNoise

    size = gymnasium.make(work["env"]).action_space.shape
    return _learn(
        work,
        watch,
        TD3,
        **_replay(work),
        tau=work["tau"],
        policy_delay=work["policy_delay"],
        target_policy_noise=work["target_noise"],
        target_noise_clip=work["target_noise_clip"],
        action_noise=NormalActionNoise(np.zeros(size), np.full(size, work["exploration_noise"])),
    )


def _buffer(obs: int, action: int | None, capacity: int, num_envs: int = 1) -> Any:
    import numpy as np
    from gymnasium import spaces
    from stable_baselines3.common.buffers import ReplayBuffer

    space = spaces.Box(-np.inf, np.inf, (obs,), np.float32)
    actions = spaces.Discrete(2) if action is None else spaces.Box(-1, 1, (action,), np.float32)
    return ReplayBuffer(capacity, space, actions, device="cpu", n_envs=num_envs)


def _fill(buffer: Any, work: Work, steps: int) -> None:
    for obs, action, reward, next_obs, truncated in transitions(work, steps // buffer.n_envs, buffer.n_envs):
        infos = [{"TimeLimit.truncated": bool(cut)} for cut in truncated]
        buffer.add(obs, next_obs, action, reward, truncated, infos)


def replay_sample(work: Work) -> Result:
    buffer = _buffer(work["obs"], work["action"], work["capacity"])
    _fill(buffer, work, work["filled"])
    rate = timed_calls(lambda: buffer.sample(work["batch"]), work["repeats"])
    return {"values": {"batches_per_second": rate}}


def replay_memory(work: Work) -> Result:
    import numpy as np

    values = {}
    for name, (obs, action) in work["shapes"].items():
        arrays = [
            value for value in vars(_buffer(obs, action, work["capacity"])).values() if isinstance(value, np.ndarray)
        ]
        values[name] = sum(array.nbytes for array in arrays) / work["capacity"]
    return {"values": values}


def gae(work: Work) -> Result:
    import numpy as np
    import torch
    from gymnasium import spaces
    from stable_baselines3.common.buffers import RolloutBuffer

    data = gae_inputs(work)
    box = spaces.Box(-1, 1, (1,), np.float32)
    buffer = RolloutBuffer(
        work["steps"],
        box,
        box,
        device="cpu",
        gae_lambda=work["gae_lambda"],
        gamma=work["gamma"],
        n_envs=work["envs"],
    )
    buffer.rewards[:], buffer.values[:] = data["rewards"], data["values"]
    buffer.episode_starts[1:] = data["ended"][:-1]
    last_values, dones = torch.from_numpy(data["last_values"]), data["ended"][-1]
    rate = timed_calls(lambda: buffer.compute_returns_and_advantage(last_values, dones), work["repeats"])
    return {"values": {"calls_per_second": rate}}


def checkpoint(work: Work) -> Result:
    from stable_baselines3.common.save_util import load_from_pkl, save_to_pkl

    buffer = _buffer(work["obs"], work["action"], work["capacity"], num_envs=10)
    _fill(buffer, work, work["filled"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "replay.pkl"  # what model.save_replay_buffer and model.load_replay_buffer do
        first = seconds_of(lambda: save_to_pkl(path, buffer))
        _fill(buffer, work, work["new_steps"])
        second = seconds_of(lambda: save_to_pkl(path, buffer))
        load, loaded = timed(lambda: load_from_pkl(path))
        assert loaded.size() * loaded.n_envs == work["filled"]
    return {"values": {"first_save": first, "second_save": second, "load": load}}


if __name__ == "__main__":
    functions = [import_library, defaults, ppo, a2c, dqn, sac, td3, replay_sample, replay_memory, gae, checkpoint]
    main({**{function.__name__: function for function in functions}, "startup": ppo})
