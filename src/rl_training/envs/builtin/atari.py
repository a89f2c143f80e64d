"""Atari games on the Arcade Learning Environment, preprocessed as `AtariConfig` says, with all of their state exportable.

Written on the emulator itself: ale-py's vector environment cannot be saved, restarts whole games where a life is lost, and does not
show the last screen of a frame skip that ends early (docs/atari.md has what was measured).
"""

from __future__ import annotations

from typing import Any

import ale_py
import cv2
import gymnasium as gym
import numpy as np
from ale_py import roms
from gymnasium import spaces
from gymnasium.utils import seeding

from rl_training.envs.atari_config import AtariConfig
from rl_training.envs.bootstrap_ends import BOOTSTRAP_ENDS
from rl_training.utils.errors import EnvCreationError
from rl_training.utils.spaces import Array

NOT_RESTORED = {"qbert": "0.12", "tetris": "0.12"}
"""Games whose saved state does not bring everything back, and the releases of ale-py in which that was seen."""


class AtariGame(gym.Env[Array, int]):
    """One game. Observations: (frame_stack, size, size) bytes, the newest frame last; in colour (frame_stack, size, size, 3)."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 60}

    def __init__(
        self,
        game: str,
        config: AtariConfig,
        *,
        mode: int | None = None,
        difficulty: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        """`mode` and `difficulty` are the game's own switches."""
        self.game, self._mode, self._difficulty = game, mode, difficulty
        self.render_mode = render_mode
        self._skip, self._pools, self._noops = (
            config.frame_skip,
            config.max_pool and config.frame_skip > 1,
            config.noop_max or 0,
        )
        self._life_loss, self._max_frames = bool(config.life_loss), config.max_frames
        self.max_episode_steps = -(-config.max_frames // config.frame_skip)
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.ale = ale_py.ALEInterface()
        self.ale.setFloat("repeat_action_probability", float(config.sticky_actions or 0.0))
        self._load()
        self._actions = self.ale.getLegalActionSet() if config.full_actions else self.ale.getMinimalActionSet()
        # FIRE and then the third action, as Baselines' wrapper starts games that wait for it.
        has_fire = len(self._actions) >= 3 and self._actions[1] == ale_py.Action.FIRE
        self._openers = tuple(self._actions[1:3]) if config.fire and has_fire else ()
        self.action_space = spaces.Discrete(len(self._actions))  # type: ignore[assignment]
        size, colours = config.screen_size, () if config.grayscale else (3,)
        self._screen_shape = (*self.ale.getScreenDims(), *colours)
        self._read = self.ale.getScreenGrayscale if config.grayscale else self.ale.getScreenRGB
        self._size = (size, size)
        self._stack = np.zeros((config.frame_stack, size, size, *colours), np.uint8)
        self.observation_space = spaces.Box(0, 255, self._stack.shape, np.uint8)
        self._lives = self._frames = 0

    @property
    def not_restorable(self) -> str | None:
        """Why this game's state cannot be brought back, if it cannot."""
        if ale_py.__version__.startswith(NOT_RESTORED.get(self.game, "never")):
            return f"ale-py {ale_py.__version__} does not save the whole state of {self.game}"
        return None

    def _load(self) -> None:
        path = roms.get_rom_path(self.game)
        assert path is not None, "ale-py brings its games"
        self.ale.loadROM(path)
        if self._mode is not None:
            self.ale.setMode(self._mode)
        if self._difficulty is not None:
            self.ale.setDifficulty(self._difficulty)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:  # as ale-py's own environment does, so that the same seed begins the same game
            own, emulator = np.random.SeedSequence(seed).generate_state(2)
            self._np_random, _ = seeding.np_random(int(own))
            self.ale.setInt("random_seed", int(emulator.astype(np.int32)))
            self._load()
        self._begin()
        for _ in range(self.np_random.integers(1, self._noops + 1) if self._noops else 0):
            self._act(ale_py.Action.NOOP)
            if self.ale.game_over():
                self._begin()
        screen = self._screen()
        for action in self._openers:
            _, screen = self._play(action)
            if self.ale.game_over():
                self._begin()
                screen = self._screen()
        self._stack[:] = self._resized(screen)
        return self._stack.copy(), {"lives": self._lives}

    def _begin(self) -> None:
        self.ale.reset_game()
        self._frames, self._lives = 0, self.ale.lives()

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        reward, screen = self._play(self._actions[action])
        lives, self._lives = self._lives, self.ale.lives()
        terminated = self.ale.game_over(with_truncation=False)
        truncated = not terminated and self._frames >= self._max_frames
        info: dict[str, Any] = {}
        if self._lives != lives:
            info["lives"] = self._lives
        if self._lives < lives and not (terminated or truncated):
            for opener in self._openers:
                more, screen = self._play(opener)
                reward += more
            if self._life_loss:
                info[BOOTSTRAP_ENDS] = True
        self._stack[:-1] = self._stack[1:]
        self._stack[-1] = self._resized(screen)
        return self._stack.copy(), reward, terminated, truncated, info

    def _play(self, action: Any) -> tuple[float, Array]:
        """Holds the action for a frame skip, or less where the episode ends; (reward, what is then on the screen)."""
        reward, last = 0.0, self._skip - 1
        for frame in range(self._skip):
            reward += self._act(action)
            if self.ale.game_over() or self._frames >= self._max_frames:
                return reward, self._screen()
            if self._pools and frame == last - 1:
                before = self._screen()
        screen = self._screen()
        return reward, np.maximum(before, screen, out=screen) if self._pools else screen

    def _act(self, action: Any) -> float:
        self._frames += 1
        return float(self.ale.act(action))

    def _screen(self) -> Array:
        screen = np.empty(self._screen_shape, np.uint8)
        self._read(screen)
        return screen

    def _resized(self, screen: Array) -> Array:
        return cv2.resize(screen, self._size, interpolation=cv2.INTER_AREA)

    def render(self) -> Any:
        return self.ale.getScreenRGB()

    def get_state(self) -> dict[str, Any]:
        """Everything but NumPy's generator, as plain values."""
        emulator = self.ale.cloneState(include_rng=True).serialize()
        return {
            "emulator": np.frombuffer(emulator, dtype=np.uint8).copy(),
            "stack": self._stack.copy(),
            "lives": self._lives,
            "frames": self._frames,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self.ale.restoreState(ale_py.ALEState(state["emulator"].tobytes()))
        self._stack[:] = state["stack"]
        self._lives, self._frames = state["lives"], state["frames"]


def make_atari(env_id: str, config: AtariConfig, kwargs: dict[str, Any], max_episode_steps: int | None) -> AtariGame:
    """The game of an id such as ALE/Pong-v5."""
    spec = gym.spec(env_id)
    known = {"mode", "difficulty", "render_mode"}
    for name in kwargs:
        if name not in known:
            raise EnvCreationError(
                f"env.kwargs.{name}: of ale-py's arguments only {', '.join(sorted(known))} can be given where env.atari says how "
                "the game is played; its keys are sticky_actions, frame_skip, full_actions, ... (protocol: none has the bare game)"
            )
    if max_episode_steps is not None:
        raise EnvCreationError("env.max_episode_steps: an Atari game is limited by env.atari.max_frames. Leave it out.")
    env = AtariGame(spec.kwargs["game"], config, **kwargs)
    env.spec = spec
    return env
