"""Ray RLlib: its current API, environments and learner in the driver process, episode metrics and result dictionaries on."""

# Libraries are imported inside the functions, because import time is one of the measurements.
from __future__ import annotations

import os
from typing import Any

from benchmarks.peers.common import Result, Watch, Work, gae_inputs, main, seconds_of, timed_calls, watch_for

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def import_library(work: Work) -> Result:
    def load() -> None:
        from ray.rllib.algorithms.ppo import PPOConfig  # noqa: F401

    return {"values": {"seconds": seconds_of(load)}}


def _train(work: Work, watch: Watch, config: Any, fragment: int, **model: Any) -> Result:
    import ray
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        algorithm = (
            config.environment(work["env"])
            .env_runners(
                num_env_runners=0,
                num_envs_per_env_runner=work["num_envs"],
                rollout_fragment_length=fragment,
                batch_mode="truncate_episodes",
            )
            .learners(num_learners=0, num_gpus_per_learner=0)
            .rl_module(
                model_config=DefaultModelConfig(
                    fcnet_hiddens=list(work["hidden"]), fcnet_activation=work["activation"], **model
                )
            )
            .debugging(seed=0)
            .build_algo()
        )
        while True:
            result = algorithm.train()
            if watch.tick(int(result["num_env_steps_sampled_lifetime"])):
                return watch.result()
    finally:
        ray.shutdown()  # otherwise its server processes stay


def ppo(work: Work) -> Result:
    watch = watch_for(work)
    from ray.rllib.algorithms.ppo import PPOConfig

    config = PPOConfig().training(
        lr=work["lr"],
        gamma=work["gamma"],
        lambda_=work["gae_lambda"],
        clip_param=work["clip"],
        vf_clip_param=float("inf"),
        vf_loss_coeff=work["vf_coef"],
        entropy_coeff=work["ent_coef"],
        use_kl_loss=False,
        grad_clip=work["max_grad_norm"],
        grad_clip_by="global_norm",
        train_batch_size_per_learner=work["num_envs"] * work["num_steps"],
        minibatch_size=work["minibatch"],
        num_epochs=work["epochs"],
    )
    return _train(work, watch, config, work["num_steps"], vf_share_layers=False)


def _replay(work: Work) -> dict[str, Any]:
    return {
        "gamma": work["gamma"],
        "train_batch_size_per_learner": work["batch"],
        "num_steps_sampled_before_learning_starts": work["learning_starts"],
        "replay_buffer_config": {"type": "EpisodeReplayBuffer", "capacity": work["buffer"]},
        "n_step": 1,
    }


def dqn(work: Work) -> Result:
    watch = watch_for(work)
    from ray.rllib.algorithms.dqn import DQNConfig

    config = DQNConfig().training(
        lr=work["lr"],
        target_network_update_freq=work["target_every"],
        double_q=False,
        dueling=False,
        grad_clip=work["max_grad_norm"],
        grad_clip_by="global_norm",
        epsilon=work["epsilon"],
        td_error_loss_fn="huber",
        **_replay(work),
    )
    return _train(work, watch, config.reporting(min_sample_timesteps_per_iteration=100), 1, head_fcnet_hiddens=[])


def sac(work: Work) -> Result:
    watch = watch_for(work)
    from ray.rllib.algorithms.sac import SACConfig

    config = SACConfig().training(
        actor_lr=work["lr"],
        critic_lr=work["lr"],
        alpha_lr=work["lr"],
        tau=work["tau"],
        twin_q=True,
        target_entropy="auto",
        **_replay(work),
    )
    return _train(work, watch, config.reporting(min_sample_timesteps_per_iteration=50), 1, head_fcnet_hiddens=[])


def gae(work: Work) -> Result:
    import numpy as np
    from ray.rllib.utils.postprocessing.value_predictions import compute_value_targets

    data = gae_inputs(work)
    data["ended"][-1] = True
    # One environment after the other in a row, as its connector hands them over.
    values, rewards, ended = (data[name].T.reshape(-1) for name in ("values", "rewards", "ended"))
    terminated, truncated = ended.astype(np.float32), np.zeros(len(ended), np.float32)
    rate = timed_calls(
        lambda: compute_value_targets(values, rewards, terminated, truncated, work["gamma"], work["gae_lambda"]),
        work["repeats"],
    )
    return {"values": {"calls_per_second": rate}}


if __name__ == "__main__":
    functions = [import_library, ppo, dqn, sac, gae]
    main({**{function.__name__: function for function in functions}, "startup": ppo})
