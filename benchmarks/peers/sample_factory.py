"""Sample Factory: synchronous PPO in one process, with its TensorBoard summaries and episode statistics."""

# Libraries are imported inside the functions, because import time is one of the measurements.
from __future__ import annotations

import tempfile
from typing import Any

from benchmarks.peers.common import Result, Work, gae_inputs, main, seconds_of, timed_calls, watch_for


def import_library(work: Work) -> Result:
    def load() -> None:
        from sample_factory.train import make_runner  # noqa: F401

    return {"values": {"seconds": seconds_of(load)}}


def _arguments(work: Work, folder: str) -> list[str]:
    frames = work["num_envs"] * work["num_steps"]
    settings: dict[str, Any] = {
        "env": work["env"],
        "experiment": "bench",
        "train_dir": folder,
        "device": "cpu",
        "seed": 0,
        "serial_mode": True,
        "async_rl": False,
        "num_workers": 1,
        "num_envs_per_worker": work["num_envs"],
        "worker_num_splits": 1,
        "decorrelate_experience_max_seconds": 0,
        "decorrelate_envs_on_one_worker": False,
        "rollout": work["num_steps"],
        "batch_size": work["minibatch"],
        "num_batches_per_epoch": frames // work["minibatch"],
        "num_epochs": work["epochs"],
        "learning_rate": work["lr"],
        "gamma": work["gamma"],
        "gae_lambda": work["gae_lambda"],
        "ppo_clip_ratio": work["clip"],
        "ppo_clip_value": 1e6,
        "value_loss_coeff": work["vf_coef"],
        "exploration_loss": "entropy",
        "exploration_loss_coeff": work["ent_coef"],
        "max_grad_norm": work["max_grad_norm"],
        "with_vtrace": False,
        "normalize_input": False,
        "normalize_returns": False,
        "use_rnn": False,
        "actor_critic_share_weights": False,
        "nonlinearity": work["activation"],
        "adaptive_stddev": False,
        "save_every_sec": 1_000_000,  # no checkpoints
        "train_for_env_steps": 1_000_000_000,
        "with_wandb": False,
    }
    return [f"--{name}={value}" for name, value in settings.items()] + [
        "--encoder_mlp_layers",
        *(str(size) for size in work["hidden"]),
    ]


def make_env(name: str, cfg: Any, env_config: Any, render_mode: Any = None) -> Any:
    """At module level, because it is sent to a process that looks at the spaces."""
    import gymnasium

    return gymnasium.make(name)


def ppo(work: Work) -> Result:
    watch = watch_for(work)
    from sample_factory.algo.runners.runner import AlgoObserver
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import make_runner

    class Ticks(AlgoObserver):
        def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:
            if watch.tick(sum(runner.env_steps.values())):
                runner.cfg.train_for_env_steps = 1  # enough: it ends by its own rule

    register_env(work["env"], make_env)
    with tempfile.TemporaryDirectory() as folder:
        arguments = _arguments(work, folder)
        parser, _ = parse_sf_args(arguments)
        _, runner = make_runner(parse_full_cfg(parser, arguments))
        runner.register_observer(Ticks())
        runner.init()
        runner.run()
    return watch.result()


def gae(work: Work) -> Result:
    import torch
    from sample_factory.algo.utils.rl_utils import gae_advantages

    data = {name: torch.from_numpy(array) for name, array in gae_inputs(work).items()}
    # Its layout is (E, T), with the last values appended.
    values = torch.cat([data["values"], data["last_values"][None]]).T.contiguous()
    rewards, ended = data["rewards"].T.contiguous(), data["ended"].T.contiguous()
    valid = torch.ones_like(values, dtype=torch.bool)
    rate = timed_calls(
        lambda: gae_advantages(rewards, ended, values, valid, work["gamma"], work["gae_lambda"]), work["repeats"]
    )
    return {"values": {"calls_per_second": rate}}


if __name__ == "__main__":
    functions = [import_library, ppo, gae]
    main({**{function.__name__: function for function in functions}, "startup": ppo})
