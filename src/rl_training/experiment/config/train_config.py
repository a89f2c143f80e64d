"""`TrainConfig`: everything that describes one run, checked when it is built."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from rl_training.envs.atari_config import atari_settings
from rl_training.envs.env_config import EnvConfig
from rl_training.envs.wrappers import checked_wrappers
from rl_training.experiment.config.yaml_files import dump_yaml
from rl_training.experiment.registry import ALGORITHMS, NUM_ENVS
from rl_training.policies.policy_config import PolicyConfig, Precision, encoder_by_name
from rl_training.utils.coerce import FieldError, check_fields, plain_value
from rl_training.utils.fields import Check, Range


@dataclass
class EvaluationConfig:
    """Evaluations during training, on environments of their own."""

    every: Annotated[int, Range(ge=0)] = 10_000
    """Environment steps between evaluations; 0 turns them off."""
    episodes: Annotated[int, Range(ge=1, le=1_000_000)] = 10
    """Episodes per evaluation."""
    max_episode_steps: Annotated[int, Range(ge=1)] | None = None
    """Steps after which an episode of an evaluation is cut, which the result then says; null keeps the environment's own limit, and
    cuts after 27,000 steps where it has none."""
    num_envs: Annotated[int, Range(ge=1)] = 5
    """Environments that run these episodes side by side."""
    deterministic: bool = True
    """Take the most likely action instead of sampling one."""
    wrappers: list[str | dict[str, Any]] | None = None
    """Wrappers instead of `env.wrappers`, e.g. without one that changes rewards; null takes the same."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.wrappers is not None:
            self.wrappers = [*checked_wrappers(self.wrappers, "wrappers")]


@dataclass
class CheckpointConfig:
    """Checkpoints from which a run can be resumed."""

    every: Annotated[int, Range(ge=0)] = 20_000
    """Environment steps between checkpoints; 0 saves only at the start, at the end and at each new best evaluation."""
    keep: Annotated[int, Range(ge=1)] = 3
    """How many of the newest checkpoints stay on disk; the best and the latest always do."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass
class LoggingConfig:
    """What a run reports while it trains."""

    every: Annotated[int, Range(ge=0)] = 1_000
    """Environment steps between log lines; 0 logs each iteration."""
    tensorboard: bool = True
    """Write TensorBoard event files."""
    console: Literal["auto", "live", "plain", "off"] = "auto"
    """`live` is a panel, where there is a terminal or a notebook to draw it on; `plain` one line per report; `auto` is live on a
    terminal and plain elsewhere."""
    info_keys: tuple[str, ...] = ()
    """Keys of the environments' `info` whose numbers are averaged into the metrics `info/KEY`, such as `[speed, episode.r]`; not
    with `env.backend: tensor`, whose steps nobody sees."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass
class VideoConfig:
    """Videos of the policy while it is trained, in the run's folder `videos`; they need `pip install "axiomrl[video]"`."""

    every: Annotated[int, Range(ge=0)] = 0
    """Environment steps between videos, and one more at the end; 0 records none. What is learned is the same with and without."""
    episodes: Annotated[int, Range(ge=1, le=9)] = 4
    """Episodes of a video, played side by side in evaluation environments of its own."""
    keep: Annotated[int, Range(ge=1)] = 5
    """How many of the newest videos stay on disk."""
    max_seconds: Annotated[float, Range(gt=0)] = 60.0
    """Where a video is cut, in seconds of playing it."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass
class StoppingConfig:
    """Reasons to stop before `total_timesteps`."""

    reward: float | None = None
    """Stop when the mean return of an evaluation reaches this."""
    patience: Annotated[int, Range(ge=1)] | None = None
    """Stop after this many evaluations in a row without improvement."""
    max_seconds: Annotated[float, Range(gt=0)] | None = None
    """Stop after this much wall-clock time."""

    def __post_init__(self) -> None:
        check_fields(self)


def _algo_problem(algo: str) -> str | None:
    if re.fullmatch(r"[a-z][a-z0-9_]*", algo):
        return None
    return f"must be an algorithm id in snake case such as ppo or td3_bc, got {algo!r}"


def _env_id_problem(env_id: str) -> str | None:
    if not env_id:
        return "must be an environment id such as CartPole-v1, got ''"
    if ":" in env_id:
        # Gymnasium would import the part before the colon, and a config must not decide what code is loaded.
        module, _, name = env_id.partition(":")
        return (
            f"a config may not import code, so {env_id!r} is refused. Write {name!r}, and import the module "
            f"in Python first, or pass `--import {module or 'MODULE'}` on the command line"
        )
    return None


def _device_problem(device: str) -> str | None:
    if re.fullmatch(r"auto|cpu|mps|cuda(:[0-9]{1,3})?", device):
        return None
    return f"must be auto, cpu, cuda, cuda:N or mps, got {device!r}"


def _output_dir_problem(output_dir: str) -> str | None:
    if not output_dir or "\0" in output_dir:
        return f"must be a folder such as runs, got {output_dir!r}"
    return None


def with_policy_defaults(algo: object, policy: Mapping[str, Any] | None) -> Any:
    """The `policy` section with the algorithm's own defaults under what is given; an unknown algorithm has none."""
    info = ALGORITHMS.find(algo) if isinstance(algo, str) else None
    given = {key: encoder_by_name(value) if key == "encoder" else value for key, value in (policy or {}).items()}
    return {**(info.policy if info else {}), **given}


def with_default_num_envs(algo: object, num_envs: int | None) -> int:
    """The number of environments, by default the algorithm's own; an unknown algorithm is refused elsewhere."""
    if num_envs is not None:
        return num_envs
    info = ALGORITHMS.find(algo) if isinstance(algo, str) else None
    return info.num_envs if info else NUM_ENVS


@dataclass
class TrainConfig:
    """One training run.

    Sections may be given as mappings; lists become tuples and whole numbers floats where a field wants them.
    """

    algo: Annotated[str, Check(_algo_problem)] = "ppo"
    """Algorithm id."""
    env_id: Annotated[str, Check(_env_id_problem)] = "CartPole-v1"
    """Gymnasium environment id."""
    seed: Annotated[int, Range(ge=0, lt=2**32)] = 0
    """Seed of every random generator of the run."""
    total_timesteps: Annotated[int, Range(gt=0)] = 100_000
    """Environment steps to train for, counted over all environments."""
    num_envs: Annotated[int, Range(ge=1)] = field(default=None, metadata={"default": "8, off-policy 1"})  # type: ignore[assignment]
    """Environments stepped side by side. By default 8 for on-policy algorithms, which learn from what all of them did, and 1 for
    off-policy ones and for an environment object given in Python."""
    device: Annotated[str, Check(_device_problem)] = "auto"
    """Where the networks live: `auto`, `cpu`, `cuda`, `cuda:N` or `mps`."""
    num_threads: Annotated[int, Range(ge=1, le=256)] = 1
    """PyTorch's CPU threads; a fixed number, so that a run repeats bit for bit."""
    execution: Literal["auto", "eager", "recorded"] = "auto"
    """How updates and acting run. `eager`: as the code is written, with breakpoints, prints and hooks. `recorded`: recorded once
    and repeated, 1.5 to 2.5 times as fast; an error where that is not possible. `auto`: recorded, and as written where that is not
    possible, which the log then says."""
    check_execution_every: Annotated[int, Range(ge=0)] = 0
    """Compare every so many calls of each recording with a run as written, and stop with an error if they differ; 0 never does."""
    overlap: bool = False
    """Collect and learn at the same time; the policy that acts is then one update older, which changes the algorithm a little.
    PPO and A2C on a CPU collect each rollout while a second process learns from the one before; it pays where both take about
    the same time. Off-policy algorithms make the updates that are due once the next actions are chosen; it pays on a GPU,
    which learns while the environments step."""
    precision: Precision = "float32"
    """What updates compute in. `tf32`: matrix products with ten bits instead of 23, on NVIDIA GPUs. `bf16`: hidden layers in
    bfloat16; last layers, losses and weights stay in float32. Both pay with wide networks. Acting is always in float32."""
    output_dir: Annotated[str, Check(_output_dir_problem)] = "runs"
    """Folder in which the run directory is made."""
    hyperparams: dict[str, Any] = field(default_factory=dict)
    """The algorithm's own settings, checked by the algorithm."""
    policy: PolicyConfig = None  # type: ignore[assignment]  # replaced below by the algorithm's own defaults
    """The policy network; what is not given has the algorithm's own defaults."""
    env: EnvConfig = field(default_factory=EnvConfig)
    """The training environments."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """Evaluations during training."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """Checkpoints."""
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    """Reports."""
    stopping: StoppingConfig = field(default_factory=StoppingConfig)
    """Early stopping."""
    video: VideoConfig = field(default_factory=VideoConfig)
    """Videos during training."""

    def __post_init__(self) -> None:
        if self.policy is None or isinstance(self.policy, Mapping):
            self.policy = with_policy_defaults(self.algo, self.policy)
        self.num_envs = with_default_num_envs(self.algo, self.num_envs)
        check_fields(self)
        self._complete_atari()
        if self.env.workers is not None and self.env.workers > self.num_envs:
            raise FieldError("env.workers", f"is {self.env.workers}, more than num_envs, {self.num_envs}: lower it")
        if self.evaluation.wrappers and self.env.backend == "native":
            raise FieldError(
                "evaluation.wrappers", "'env.backend' is native, also in evaluations, and takes no wrappers"
            )
        if self.evaluation.every == 0:
            for name in ("reward", "patience"):
                if getattr(self.stopping, name) is not None:
                    raise FieldError(
                        f"stopping.{name}",
                        "needs evaluations, and 'evaluation.every' is 0 (off); set it above 0",
                    )

    def _complete_atari(self) -> None:
        """Writes out how a game is played, so that the run's config says so."""
        env = self.env
        atari = atari_settings(self.env_id, env.atari)
        played = atari is not None and atari.protocol != "none"
        if played and env.backend in ("native", "tensor"):
            raise FieldError("env.backend", f"Atari games have no {env.backend} version: use sync or async")
        clip = played if env.clip_rewards is None else env.clip_rewards
        clip = clip and not (env.clip_rewards is None and env.normalize_rewards)
        self.env = replace(env, atari=atari, clip_rewards=clip)

    @property
    def env_title(self) -> str:
        """The environment's id, and for a game how it is played: a score without that means nothing."""
        return self.env_id if self.env.atari is None else f"{self.env_id} ({self.env.atari.text} protocol)"

    def to_dict(self) -> dict[str, Any]:
        """Every setting as plain JSON and YAML values; `TrainConfig(**c.to_dict())` equals `c`."""
        return plain_value(self)

    def to_yaml(self) -> str:
        """The whole config as YAML that `load_config` reads back to an equal config."""
        return dump_yaml(self.to_dict())
