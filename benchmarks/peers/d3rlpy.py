"""d3rlpy: online training with `fit_online`, its progress bar, timers and file logger."""

# Libraries are imported inside the functions, because import time is one of the measurements.
from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.peers.common import (
    EPISODE,
    Measured,
    Result,
    Watch,
    Work,
    main,
    seconds_of,
    timed,
    timed_calls,
    transitions,
    watch_for,
)


def import_library(work: Work) -> Result:
    def load() -> None:
        import d3rlpy  # noqa: F401

    return {"values": {"seconds": seconds_of(load)}}


def _encoder(work: Work) -> Any:
    from d3rlpy.models.encoders import VectorEncoderFactory

    return VectorEncoderFactory(hidden_units=list(work["hidden"]), activation=work["activation"])


def _fit(work: Work, watch: Watch, algorithm: Any, explorer: Any = None) -> Result:
    import gymnasium
    from d3rlpy.dataset import create_fifo_replay_buffer
    from d3rlpy.logging import FileAdapterFactory

    def tick(_: Any, epoch: int, steps: int) -> None:  # called after each update
        if watch.tick(steps):
            raise Measured

    env = gymnasium.make(work["env"])
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(Measured):
        algorithm.fit_online(
            env,
            create_fifo_replay_buffer(work["buffer"], env=env),
            explorer,
            n_steps=10_000_000,
            update_start_step=work["learning_starts"],
            random_steps=work["learning_starts"],
            save_interval=1_000_000,  # no checkpoints
            logger_adapter=FileAdapterFactory(root_dir=folder),
            callback=tick,
        )
    return watch.result()


def dqn(work: Work) -> Result:
    watch = watch_for(work)
    from d3rlpy.algos import ConstantEpsilonGreedy, DQNConfig

    config = DQNConfig(
        batch_size=work["batch"],
        learning_rate=work["lr"],
        gamma=work["gamma"],
        encoder_factory=_encoder(work),
        target_update_interval=work["target_every"],
    )
    return _fit(work, watch, config.create(device="cpu:0"), ConstantEpsilonGreedy(work["epsilon"]))


def _actor_critic(work: Work) -> dict[str, Any]:
    return {
        "batch_size": work["batch"],
        "gamma": work["gamma"],
        "tau": work["tau"],
        "actor_learning_rate": work["lr"],
        "critic_learning_rate": work["lr"],
        "actor_encoder_factory": _encoder(work),
        "critic_encoder_factory": _encoder(work),
    }


def sac(work: Work) -> Result:
    watch = watch_for(work)
    from d3rlpy.algos import SACConfig

    config = SACConfig(temp_learning_rate=work["lr"], **_actor_critic(work))
    return _fit(work, watch, config.create(device="cpu:0"))


def td3(work: Work) -> Result:
    watch = watch_for(work)
    from d3rlpy.algos import NormalNoise, TD3Config

    config = TD3Config(
        target_smoothing_sigma=work["target_noise"],
        target_smoothing_clip=work["target_noise_clip"],
        update_actor_interval=work["policy_delay"],
        **_actor_critic(work),
    )
    return _fit(work, watch, config.create(device="cpu:0"), NormalNoise(std=work["exploration_noise"]))


def _episode(work: Work, seed: int) -> Any:
    """An episode of a thousand transitions."""
    import numpy as np
    from d3rlpy.dataset import Episode

    columns = list(zip(*transitions(work, EPISODE, seed=seed), strict=True))
    obs, actions, rewards = (np.concatenate(column) for column in columns[:3])
    return Episode(obs, actions, rewards[:, None], terminated=False)


def _buffer(work: Work, steps: int) -> Any:
    from d3rlpy.dataset import FIFOBuffer, ReplayBuffer

    episodes = [_episode(work, seed) for seed in range(steps // EPISODE)]
    return ReplayBuffer(FIFOBuffer(work["capacity"]), episodes=episodes)


def replay_sample(work: Work) -> Result:
    from d3rlpy.torch_utility import TorchMiniBatch

    buffer = _buffer(work, work["filled"])

    def sample() -> None:
        batch = buffer.sample_transition_batch(work["batch"])
        TorchMiniBatch.from_batch(batch, gamma=0.99, compute_returns_to_go=False, device="cpu:0")

    # A hundred times slower than the others: fewer repeats are enough.
    return {"values": {"batches_per_second": timed_calls(sample, max(20, work["repeats"] // 20))}}


def checkpoint(work: Work) -> Result:
    from d3rlpy.dataset import InfiniteBuffer, ReplayBuffer

    buffer = _buffer(work, work["filled"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "buffer.h5"

        def save() -> None:
            with path.open("w+b") as file:
                buffer.dump(file)

        def load() -> Any:
            with path.open("rb") as file:
                return ReplayBuffer.load(file, InfiniteBuffer())

        first = seconds_of(save)
        for seed in range(work["new_steps"] // EPISODE):
            buffer.append_episode(_episode(work, 10_000 + seed))
        second = seconds_of(save)
        load_seconds, loaded = timed(load)
    # A truncated episode of a thousand steps has one transition less: the observation after its last step is not stored.
    assert loaded.transition_count >= 0.99 * work["filled"]
    return {"values": {"first_save": first, "second_save": second, "load": load_seconds}}


if __name__ == "__main__":
    functions = [import_library, dqn, sac, td3, replay_sample, checkpoint]
    main({function.__name__: function for function in functions})
