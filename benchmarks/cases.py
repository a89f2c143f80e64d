"""What is measured: the work of each case, the same for every library, and who cannot do it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.ratios import Kind

Work = dict[str, Any]


@dataclass(frozen=True)
class Metric:
    """One number of a measurement."""

    name: str
    unit: str
    kind: Kind = "rate"


@dataclass(frozen=True)
class Case:
    """One piece of work and the numbers it yields."""

    name: str
    kind: str
    """The function of a peer script that does it."""
    metrics: tuple[Metric, ...]
    work: Mapping[str, Any] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)
    """What `--quick` changes of the work."""
    in_quick: bool = True
    """Whether `--quick` measures the case without being asked for it."""
    threads: tuple[int, ...] = (1,)
    """Numbers of torch threads that are tried; each library's best counts."""

    def work_for(self, *, quick: bool) -> Work:
        return {"kind": self.kind, **self.work, **(self.quick if quick else {})}


STEPS_PER_SECOND = (Metric("steps_per_second", "steps/s"),)


def _training(name: str, work: Work, quick: Work, *, in_quick: bool = True, threads: tuple[int, ...] = (1,)) -> Case:
    work = {"max_seconds": 30, **work}
    return Case(name, work["algo"], STEPS_PER_SECOND, work, quick, in_quick, threads)


PPO = {
    "algo": "ppo",
    "hidden": [64, 64],
    "activation": "tanh",
    "lr": 2.5e-4,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip": 0.2,
    "ent_coef": 0.0,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
}
PPO_CARTPOLE = {**PPO, "env": "CartPole-v1", "num_envs": 8, "num_steps": 128, "epochs": 4, "minibatch": 256}
PPO_HALFCHEETAH = {**PPO, "env": "HalfCheetah-v5", "num_envs": 1, "num_steps": 2048, "epochs": 10, "minibatch": 64}

OFF_POLICY = {"num_envs": 1, "gamma": 0.99, "learning_starts": 1_000}
DQN_CARTPOLE = {
    **OFF_POLICY,
    "algo": "dqn",
    "env": "CartPole-v1",
    "hidden": [120, 84],
    "activation": "relu",
    "lr": 2.5e-4,
    "batch": 128,
    "buffer": 10_000,
    "target_every": 500,
    "epsilon": 0.05,
    "max_grad_norm": 10.0,
}
ACTOR_CRITIC = {**OFF_POLICY, "hidden": [256, 256], "activation": "relu", "lr": 3e-4, "batch": 256, "tau": 0.005}
SAC = {**ACTOR_CRITIC, "algo": "sac"}
TD3 = {
    **ACTOR_CRITIC,
    "algo": "td3",
    "policy_delay": 2,
    "target_noise": 0.2,
    "target_noise_clip": 0.5,
    "exploration_noise": 0.1,
}
PENDULUM = {"env": "Pendulum-v1", "buffer": 200_000, "warmup": 1_200, "timed": 2_000}
HALFCHEETAH = {"env": "HalfCheetah-v5", "buffer": 1_000_000, "warmup": 1_200, "timed": 2_000}
# Tasks that nothing here was tuned on, with Stable-Baselines3's default settings.
PPO_WALKER2D = {
    **PPO,
    "env": "Walker2d-v5",
    "lr": 3e-4,
    "num_envs": 4,
    "num_steps": 512,
    "epochs": 10,
    "minibatch": 64,
}
PPO_ACROBOT = {
    **PPO,
    "env": "Acrobot-v1",
    "lr": 3e-4,
    "hidden": [128, 128],
    "num_envs": 16,
    "num_steps": 64,
    "epochs": 10,
    "minibatch": 64,
}
A2C_ACROBOT = {
    "algo": "a2c",
    "env": "Acrobot-v1",
    "hidden": [64, 64],
    "activation": "tanh",
    "lr": 7e-4,
    "gamma": 0.99,
    "num_envs": 16,
    "num_steps": 5,
    "gae_lambda": 1.0,
    "ent_coef": 0.0,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
}
DQN_MOUNTAINCAR = {
    **OFF_POLICY,
    "algo": "dqn",
    "env": "MountainCar-v0",
    "hidden": [64, 64],
    "activation": "relu",
    "lr": 1e-4,
    "batch": 32,
    "buffer": 1_000_000,
    "train_frequency": 4,
    "target_every": 10_000,
    "epsilon": 0.05,
    "max_grad_norm": 10.0,
}
MILLION = {"buffer": 1_000_000, "warmup": 1_200, "timed": 2_000}
SAC_HOPPER = {**SAC, **MILLION, "env": "Hopper-v5", "hidden": [400, 300]}
TD3_WALKER2D = {**TD3, **MILLION, "env": "Walker2d-v5"}
SAC_ANT = {**SAC, **MILLION, "env": "Ant-v5"}

SHORT = {"learning_starts": 256, "warmup": 400, "timed": 500, "max_seconds": 8}

REPLAY = {"obs": 17, "action": 6, "capacity": 1_000_000, "filled": 200_000, "batch": 256}

SHAPES = {"17 floats, 6 actions": [17, 6], "4 floats, discrete": [4, None]}
"""(floats of an observation, floats of an action or None for a discrete one)."""

CASES: tuple[Case, ...] = (
    _training(
        "ppo-cartpole",
        {**PPO_CARTPOLE, "warmup": 8_192, "timed": 98_304},
        {"warmup": 2_048, "timed": 8_192, "max_seconds": 8},
    ),
    _training(
        "ppo-halfcheetah",
        {**PPO_HALFCHEETAH, "warmup": 4_096, "timed": 12_288},
        {"warmup": 2_048, "timed": 4_096, "max_seconds": 8},
        in_quick=False,
    ),
    _training("dqn-cartpole", {**DQN_CARTPOLE, "warmup": 1_500, "timed": 6_000}, {**SHORT, "timed": 2_000}),
    _training("sac-pendulum", {**SAC, **PENDULUM}, SHORT, threads=(1, 2)),
    _training("td3-pendulum", {**TD3, **PENDULUM}, SHORT, threads=(1, 2), in_quick=False),
    _training("sac-halfcheetah", {**SAC, **HALFCHEETAH}, SHORT, threads=(1, 2), in_quick=False),
    _training("td3-halfcheetah", {**TD3, **HALFCHEETAH}, SHORT, threads=(1, 2), in_quick=False),
    _training("ppo-walker2d", {**PPO_WALKER2D, "warmup": 4_096, "timed": 8_192}, {}, in_quick=False),
    _training("ppo-acrobot", {**PPO_ACROBOT, "warmup": 3_072, "timed": 20_480}, {}, in_quick=False),
    _training("a2c-acrobot", {**A2C_ACROBOT, "warmup": 4_000, "timed": 40_000}, {}, in_quick=False),
    _training("dqn-mountaincar", {**DQN_MOUNTAINCAR, "warmup": 2_000, "timed": 20_000}, {}, in_quick=False),
    _training("sac-hopper", SAC_HOPPER, SHORT, in_quick=False),
    _training("td3-walker2d", TD3_WALKER2D, SHORT, in_quick=False),
    _training("sac-ant", SAC_ANT, SHORT, in_quick=False),
    Case(
        "replay-sample",
        "replay_sample",
        (Metric("batches_per_second", "batches/s"),),
        {**REPLAY, "repeats": 3_000},
        {"filled": 50_000, "repeats": 1_000},
    ),
    Case(
        "replay-memory",
        "replay_memory",
        tuple(Metric(name, "bytes/step", "bytes") for name in SHAPES),
        {"shapes": SHAPES, "capacity": 200_000},
        {"capacity": 20_000},
    ),
    Case(
        "gae",
        "gae",
        (Metric("calls_per_second", "calls/s"),),
        {"steps": 2048, "envs": 64, "gamma": 0.99, "gae_lambda": 0.95, "repeats": 50},
        {"repeats": 10},
    ),
    # Ours writes checksums, waits until the disk has the data, and checks it on loading; the peers do none of that.
    Case(
        "checkpoint",
        "checkpoint",
        tuple(Metric(name, "s", "seconds") for name in ("first_save", "second_save", "load")),
        {**REPLAY, "filled": 1_000_000, "new_steps": 10_000},
        {"capacity": 100_000, "filled": 100_000},
        in_quick=False,
    ),
    Case("import", "import_library", (Metric("seconds", "s", "seconds"),)),
    Case("start-up", "startup", (Metric("seconds", "s", "seconds"),), PPO_CARTPOLE),
)

UNTUNED = (
    "ppo-walker2d",
    "ppo-acrobot",
    "a2c-acrobot",
    "dqn-mountaincar",
    "sac-hopper",
    "td3-walker2d",
    "sac-ant",
)
"""Cases that nothing here was tuned on; `--cases untuned` means these."""

PEERS = ("sb3", "tianshou", "torchrl", "d3rlpy", "sample_factory", "rllib")

_OFF_POLICY = tuple(case.name for case in CASES if case.kind in ("dqn", "sac", "td3"))
_PPO = tuple(case.name for case in CASES if case.kind == "ppo")
_REPLAY = ("replay-sample", "replay-memory", "checkpoint")


def _not_measured() -> dict[tuple[str, str], str]:
    reasons = {
        ("d3rlpy", "replay-memory"): "keeps lists of small objects, whose size its arrays do not tell",
        ("sample_factory", "ppo-halfcheetah"): "needs gymnasium < 1.0, which has no HalfCheetah-v5",
        ("sample_factory", "ppo-walker2d"): "needs gymnasium < 1.0, which has no Walker2d-v5",
    }
    reasons |= {(peer, "a2c-acrobot"): "its script here has no A2C" for peer in PEERS if peer != "sb3"}
    reasons |= {("d3rlpy", case): "has no PPO" for case in (*_PPO, "gae", "start-up")}
    reasons |= {("sample_factory", case): "has no off-policy algorithms" for case in (*_OFF_POLICY, *_REPLAY)}
    reasons |= {("rllib", case): "no longer has TD3" for case in _OFF_POLICY if case.startswith("td3-")}
    reasons |= {("rllib", case): "its buffer holds episodes that connectors turn into batches" for case in _REPLAY}
    return reasons


NOT_MEASURED = _not_measured()
"""(library, case): why it is left out."""


def find_case(name: str) -> Case:
    """The case called `name`; ValueError if there is none."""
    for case in CASES:
        if case.name == name:
            return case
    raise ValueError(f"no case {name!r}; there are {', '.join(case.name for case in CASES)}")
