"""Settings of the training environments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from rl_training.envs.atari_config import AtariConfig
from rl_training.envs.wrappers import checked_wrappers
from rl_training.utils.coerce import FieldError, check_fields
from rl_training.utils.fields import Range


@dataclass
class EnvConfig:
    """How the environments are made and run."""

    backend: Literal["sync", "async", "native", "tensor"] = "sync"
    """`sync` steps the environments in turn, `async` gives each a process, `native` uses the vector version
    that the environment brings along, `tensor` steps all of them at once on the run's `device` (CartPole-v1, Pendulum-v1,
    Acrobot-v1, MountainCar-v0, MountainCarContinuous-v0; evaluations use Gymnasium's own)."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments passed to `gymnasium.make`."""
    autoreset: Literal["same_step", "next_step", "disabled"] = "same_step"
    """When a finished environment is reset (`sync` and `async`; the other backends have their own mode)."""
    max_episode_steps: Annotated[int, Range(ge=1)] | None = None
    """Steps after which an episode is truncated; null keeps the environment's own limit."""
    wrappers: list[str | dict[str, Any]] = field(default_factory=list)
    """Gymnasium's or registered wrappers around each environment, innermost first, with their arguments:
    `[{name: FrameStackObservation, stack_size: 4}, FlattenObservation]` (`sync` and `async`). Two are ours:
    `{name: SelectObservations, indices: [0, 2]}` hides all other numbers of a flat observation."""
    renew: bool = False
    """Make a new environment for every episode, and seed it. A resume is then exact although a reset does not clear everything (a
    simulator lives on) or takes a seed from the clock. It costs the time of making one (`sync` and `async`)."""
    action_masks: bool | Literal["auto"] = "auto"
    """Which actions are valid: `auto` looks for an entry `action_mask` of Dict observations, a method `action_masks()`, or an
    `action_mask` in the infos, and rules out the others everywhere. `true` refuses an environment without; `false` does not look,
    and such an entry is then an observation like any other."""
    normalize_observations: bool = False
    """Shift and scale observations by their running mean and standard deviation."""
    normalize_rewards: bool = False
    """Scale rewards by the running standard deviation of the discounted return."""
    clip_rewards: bool | None = None
    """Learn from the sign of each reward, −1, 0 or 1; statistics and evaluations keep the true ones. By default only in Atari
    games."""
    atari: AtariConfig | None = None
    """How Atari games (ids that begin with ALE/) are played; null for any other environment."""
    workers: Annotated[int, Range(ge=1)] | None = None
    """Processes that share the environments of the `async` backend; null gives each environment its own. As many as there are cores
    are fastest where a step takes no longer than a message, as in Atari games."""
    restart_workers: Annotated[int, Range(ge=0)] = 0
    """How many dead `async` workers may be restarted before the run fails."""

    @property
    def stacked_frames(self) -> int:
        """How many consecutive frames each observation is known to hold, the newest last, so that replay need keep each only once;
        1 where nothing says so."""
        if self.wrappers:
            outermost = dict(self.wrappers[-1]) if isinstance(self.wrappers[-1], dict) else {}
            rebuilt = outermost.get("padding_type", "reset") == "reset"
            return int(outermost["stack_size"]) if outermost.get("name") == "FrameStackObservation" and rebuilt else 1
        return self.atari.frame_stack if self.atari is not None and self.atari.protocol != "none" else 1

    def __post_init__(self) -> None:
        check_fields(self)
        self.wrappers = [*checked_wrappers(self.wrappers, "wrappers")]
        if self.wrappers and self.backend in ("native", "tensor"):
            raise FieldError(
                "wrappers", f"{self.backend} environments step all at once and take no wrappers; use sync or async"
            )
        if self.clip_rewards and self.normalize_rewards:
            raise FieldError("clip_rewards", "and normalize_rewards scale rewards in two ways: choose one")
        if self.autoreset != "same_step" and self.backend in ("native", "tensor"):
            raise FieldError(
                "autoreset", f"{self.backend} environments reset in their own way; leave it out, or use sync or async"
            )
        if self.renew and self.backend in ("native", "tensor"):
            raise FieldError("renew", f"{self.backend} environments are one object; leave it out, or use sync or async")
        if self.workers is not None and self.backend != "async":
            raise FieldError("workers", f"only the async backend has workers, and 'backend' is {self.backend}")
        if self.action_masks is True and self.backend == "tensor":
            raise FieldError("action_masks", "no tensor environment has masks; leave it out, or use sync or async")
        if self.restart_workers and self.backend != "async":
            raise FieldError("restart_workers", f"only the async backend has workers, and 'backend' is {self.backend}")
