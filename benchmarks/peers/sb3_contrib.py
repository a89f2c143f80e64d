"""sb3-contrib, for the masks only: MaskablePPO on its own example."""

from __future__ import annotations

from benchmarks.peers.common import Result, Work, main, masked_return, seconds_of


def masks(work: Work) -> Result:
    from sb3_contrib import MaskablePPO
    from sb3_contrib.common.envs import InvalidActionEnvDiscrete
    from stable_baselines3.common.monitor import Monitor

    model = MaskablePPO(
        "MlpPolicy",
        Monitor(InvalidActionEnvDiscrete(**work["env"])),
        n_steps=work["num_steps"],
        batch_size=work["minibatch"],
        n_epochs=work["epochs"],
        learning_rate=work["lr"],
        gamma=work["gamma"],
        gae_lambda=work["gae_lambda"],
        policy_kwargs={"net_arch": work["hidden"]},
        seed=work["seed"],
        device="cpu",
    )
    seconds = seconds_of(lambda: model.learn(total_timesteps=work["steps"], use_masking=work["masks"]))

    def act(obs: object, mask: object) -> object:
        return model.predict(obs, deterministic=True, action_masks=mask)[0]

    return {"values": {"mean_return": masked_return(work, act), "seconds": seconds}}


if __name__ == "__main__":
    main({"masks": masks})
