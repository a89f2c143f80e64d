"""AxiomRL through its ordinary API: a run folder, metrics.jsonl, TensorBoard, console lines and episode statistics all on."""

# Libraries are imported inside the functions, because import time is one of the measurements.
from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers.common import (
    COUNTING,
    Result,
    Work,
    evaluated,
    gae_inputs,
    main,
    masked_return,
    seconds_of,
    timed_calls,
    transitions,
    watch_for,
)


def import_library(work: Work) -> Result:
    def load() -> None:
        from rl_training import PPO  # noqa: F401  # loads torch and the whole agent

    return {"values": {"seconds": seconds_of(load)}}


def env_setting(work: Work) -> dict[str, Any]:
    """Several CartPoles step at once, as arrays."""
    return {"env": {"backend": "native"}} if work["env"] == "CartPole-v1" and work["num_envs"] > 1 else {}


def _count_steps(algorithm: Any) -> Callable[[], int]:
    """Counts the steps of the algorithm's optimisers, which are not torch's. Recorded updates do not call them."""
    count = 0

    def counted(step: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            return step(*args, **kwargs)

        return wrapper

    for optimizer in algorithm.optimizers().values():
        optimizer.step = counted(optimizer.step)
    return lambda: count


def defaults(work: Work) -> Result:
    """A run with the library's own defaults."""
    from functools import partial

    import rl_training
    from benchmarks.peers.tasks import make_task

    env = partial(make_task, work["env"])
    settings = {"seed": work["seed"], "device": "cpu", "evaluation": {"every": 0}}
    settings["env"] = {"action_masks": False}  # Taxi has masks, which the others do not know
    agent = getattr(rl_training, work["algo"])(env, total_timesteps=work["steps"], **settings)
    seconds = seconds_of(lambda: agent.learn(work["steps"]))
    result = evaluated(work, lambda obs: agent.predict(obs, deterministic=True)[0])
    return {"values": {**result["values"], "seconds": seconds}}


def masks(work: Work) -> Result:
    """Masked PPO on sb3-contrib's example; without masks if the work says so."""
    from sb3_contrib.common.envs import InvalidActionEnvDiscrete

    from rl_training import PPO

    agent = PPO(
        lambda: InvalidActionEnvDiscrete(**work["env"]),
        total_timesteps=work["steps"],
        num_envs=1,
        num_steps=work["num_steps"],
        num_minibatches=work["num_steps"] // work["minibatch"],
        update_epochs=work["epochs"],
        learning_rate=work["lr"],
        gamma=work["gamma"],
        gae_lambda=work["gae_lambda"],
        policy={"hidden_sizes": work["hidden"]},
        env={"action_masks": bool(work["masks"])},
        evaluation={"every": 0},
        seed=work["seed"],
        device="cpu",
    )
    seconds = seconds_of(lambda: agent.learn(work["steps"]))

    def act(obs: Any, mask: Any) -> Any:
        return agent.predict(obs, deterministic=True, action_masks=mask)[0]

    return {"values": {"mean_return": masked_return(work, act), "seconds": seconds}}


def _learn(work: Work, **hyperparams: Any) -> Result:
    watch = watch_for(work)
    import rl_training
    from rl_training import Callback, TrainConfig

    class Ticks(Callback):
        begin: dict[str, float] = {}
        end: dict[str, float] = {}

        def on_iteration_end(self, trainer: Any) -> None:
            watch.on_start = lambda: self.begin.update(trainer.timer.seconds)
            if watch.tick(trainer.global_step) and trainer.stop_reason is None:
                self.end.update(trainer.timer.seconds)
                trainer.stop("measured")

    ticks = Ticks()
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            algo=work["algo"],
            env_id=work["env"],
            num_envs=work["num_envs"],
            num_threads=work["threads"],
            total_timesteps=work.get("total", 10_000_000),
            seed=work.get("seed", 0),
            output_dir=folder,
            device="cpu",
            policy={"hidden_sizes": work["hidden"], "activation": work["activation"]},  # type: ignore[arg-type]
            hyperparams={"learning_rate": work["lr"], "gamma": work["gamma"], **hyperparams},
            evaluation={"every": 0},  # type: ignore[arg-type]
            checkpoint={"every": 0},  # type: ignore[arg-type]
            execution="eager" if COUNTING else "auto",
            **env_setting(work),
        )
        agent = getattr(rl_training, work["algo"].upper())(config)
        if COUNTING:
            watch.count_updates = _count_steps(agent.algorithm)
        if "total" in work:
            agent.learn()
            result = evaluated(work, lambda obs: agent.predict(obs, deterministic=True)[0])
            agent.close()
            return result
        agent.learn(callbacks=[ticks])
        agent.close()
    return watch.result(stages={name: ticks.end[name] - ticks.begin.get(name, 0.0) for name in ticks.end})


def ppo(work: Work) -> Result:
    return _learn(
        work,
        num_steps=work["num_steps"],
        update_epochs=work["epochs"],
        num_minibatches=work["num_envs"] * work["num_steps"] // work["minibatch"],
        gae_lambda=work["gae_lambda"],
        clip_coef=work["clip"],
        ent_coef=work["ent_coef"],
        vf_coef=work["vf_coef"],
        max_grad_norm=work["max_grad_norm"],
    )


def a2c(work: Work) -> Result:
    return _learn(
        work,
        optimizer="rmsprop",
        num_steps=work["num_steps"],
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
        "train_frequency": work.get("train_frequency", 1),
        "gradient_steps": 1,
    }


def dqn(work: Work) -> Result:
    return _learn(
        work,
        **_replay(work),
        target_update_interval=work["target_every"],
        epsilon=work["epsilon"],
        max_grad_norm=work["max_grad_norm"],
    )


def sac(work: Work) -> Result:
    return _learn(work, **_replay(work), tau=work["tau"])


def td3(work: Work) -> Result:
    return _learn(
        work,
        **_replay(work),
        tau=work["tau"],
        policy_delay=work["policy_delay"],
        target_noise=work["target_noise"],
        target_noise_clip=work["target_noise_clip"],
        exploration_noise=work["exploration_noise"],
    )


def _fill(buffer: Any, work: Work, steps: int) -> None:
    import torch

    num_envs = buffer.num_envs
    inside, valid = torch.zeros(num_envs, dtype=torch.bool), torch.ones(num_envs, dtype=torch.bool)
    for obs, actions, rewards, next_obs, truncated in transitions(work, steps // num_envs, num_envs):
        buffer.add(
            obs=torch.from_numpy(obs),
            actions=torch.from_numpy(actions),
            rewards=torch.from_numpy(rewards),
            next_obs=torch.from_numpy(next_obs),
            terminated=inside,
            truncated=torch.from_numpy(truncated),
            valid=valid,
        )


def replay_sample(work: Work) -> Result:
    from rl_training.data.replay_buffer import ReplayBuffer

    buffer = ReplayBuffer(work["capacity"], 1, (work["obs"],), (work["action"],))
    _fill(buffer, work, work["filled"])
    rate = timed_calls(lambda: buffer.sample(work["batch"]), work["repeats"])
    return {"values": {"batches_per_second": rate}}


def replay_memory(work: Work) -> Result:
    from benchmarks.replay_memory import our_bytes

    shapes = work["shapes"].items()
    return {"values": {name: our_bytes(obs, action, work["capacity"]) for name, (obs, action) in shapes}}


def gae(work: Work) -> Result:
    import torch

    from rl_training.data.returns import gae as advantages

    data = {name: torch.from_numpy(array) for name, array in gae_inputs(work).items()}
    rewards, values, ended = data["rewards"], data["values"], data["ended"]
    next_values = torch.cat([values[1:], data["last_values"][None]])
    valid = torch.ones_like(ended)
    rate = timed_calls(
        lambda: advantages(rewards, values, next_values, ended, ended, valid, work["gamma"], work["gae_lambda"]),
        work["repeats"],
    )
    return {"values": {"calls_per_second": rate}}


def checkpoint(work: Work) -> Result:
    from rl_training.data.replay_buffer import ReplayBuffer
    from rl_training.experiment.checkpoint.replay_segments import INFO, ReplaySegments, saved_replay
    from rl_training.experiment.checkpoint.store import CheckpointStore

    def make() -> ReplayBuffer:
        return ReplayBuffer(work["capacity"], 10, (work["obs"],), (work["action"],))

    buffer = make()
    _fill(buffer, work, work["filled"])
    with tempfile.TemporaryDirectory() as folder:
        store, segments = CheckpointStore(Path(folder), keep=3), ReplaySegments(Path(folder))

        def save(step: int) -> None:  # the replay part of a run's checkpoint, checksums and fsync included
            listed: Any = segments.save(buffer)
            store.save(step, {"replay": {"head": buffer.head_state()}}, {INFO: listed})

        first = seconds_of(lambda: save(1))
        _fill(buffer, work, work["new_steps"])
        second = seconds_of(lambda: save(2))
        loaded = make()
        load = seconds_of(lambda: loaded.load_state_dict(saved_replay(store.load_latest(verify=segments.verify)[0])))
        assert len(loaded) == work["filled"]
    return {"values": {"first_save": first, "second_save": second, "load": load}}


if __name__ == "__main__":
    functions = [
        import_library,
        defaults,
        masks,
        ppo,
        a2c,
        dqn,
        sac,
        td3,
        replay_sample,
        replay_memory,
        gae,
        checkpoint,
    ]
    main({**{function.__name__: function for function in functions}, "startup": ppo})
