"""How Atari games are played: two published protocols, and every part of them as a setting of its own."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal

from rl_training.utils.coerce import FieldError, check_fields
from rl_training.utils.fields import Needs, Range

PREFIX = "ALE/"
"""What the ids of Atari games begin with."""

_PROTOCOLS: dict[str, dict[str, Any]] = {
    "machado": {"sticky_actions": 0.25, "full_actions": True, "noop_max": 0, "fire": False, "life_loss": False},
    "classic": {"sticky_actions": 0.0, "full_actions": False, "noop_max": 30, "fire": True, "life_loss": True},
}


@dataclass
class AtariConfig:
    """How an Atari game is played and seen. What is not given follows from the protocol."""

    protocol: Literal["machado", "classic", "none"] = "machado"
    """`machado`: as in Machado et al. 2018 (arXiv 1709.06009): sticky actions, all 18 actions, lives mean nothing. `classic`: as
    in the tables of DQN, Rainbow and PPO: no-op starts, FIRE pressed, the game's own actions, a lost life ends the value. `none`:
    the bare environment of ale-py; no other key then means anything."""
    sticky_actions: Annotated[float, Range(ge=0, lt=1)] | None = None
    """Probability with which each frame repeats the action of the one before; machado 0.25, classic 0."""
    full_actions: bool | None = None
    """All 18 actions instead of those that the game uses; machado true, classic false."""
    noop_max: Annotated[int, Range(ge=0)] | None = None
    """An episode starts with 1 to this many frames of doing nothing; machado 0 (none), classic 30."""
    fire: bool | None = None
    """Press FIRE at the start of an episode and after each lost life, in games that have it; machado false, classic true."""
    life_loss: bool | None = None
    """Nothing after a lost life counts for the learner, though the game goes on: values are not bootstrapped over it. Episodes
    and their statistics end with the game; machado false, classic true."""
    frame_skip: Annotated[int, Range(ge=1)] = 4
    """Frames for which each action is held."""
    max_pool: Annotated[bool, Needs("frame_skip", above=1)] = True
    """Show the brighter of the last two frames, pixel by pixel: many games draw objects in every other frame only."""
    grayscale: bool = True
    """Show brightness instead of colours."""
    screen_size: Annotated[int, Range(ge=8, le=256)] = 84
    """Rows and columns of what is shown."""
    frame_stack: Annotated[int, Range(ge=1, le=16)] = 4
    """Newest frames shown together."""
    max_frames: Annotated[int, Range(ge=1)] = 108_000
    """Frames after which an episode is truncated: half an hour of play."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.protocol == "none":
            plain = {field.name: field.default for field in fields(self) if field.name != "protocol"}
            for name, default in plain.items():
                if getattr(self, name) != default:
                    raise FieldError(
                        name, "protocol is none: the game is not preprocessed, and nothing else can be set"
                    )
            return
        for name, value in _PROTOCOLS[self.protocol].items():
            if getattr(self, name) is None:
                setattr(self, name, value)

    @property
    def text(self) -> str:
        """The protocol and what differs from it, for results and reports."""
        if self.protocol == "none":
            return "none"
        plain = AtariConfig(self.protocol)
        own = [field.name for field in fields(self) if getattr(self, field.name) != getattr(plain, field.name)]
        return ", ".join([self.protocol, *(f"{name}={getattr(self, name)}" for name in own)])


def atari_settings(env_id: str, given: AtariConfig | None) -> AtariConfig | None:
    """How the game of that id is played: as given, otherwise by the default protocol; None for an environment that is no game."""
    if not env_id.startswith(PREFIX):
        if given is not None and given.protocol != "none":
            raise FieldError("env.atari", f"{env_id!r} is no Atari game; those have ids like ALE/Pong-v5. Leave it out")
        return None
    return AtariConfig() if given is None else replace(given)
