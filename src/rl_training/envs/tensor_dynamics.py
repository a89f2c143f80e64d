"""The equations of Gymnasium's classic control tasks on batches of states, in Gymnasium's order of operations.

Shapes: N environments, S numbers of state. Everything is tensor arithmetic without a question to the device (no `.item()`, no
`if tensor`), so that a step can be recorded as a CUDA graph. The fields of a class are the arguments that Gymnasium's own takes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.utils.coerce import check_fields

Transition = tuple[Tensor, Tensor, Tensor]
"""States (N, S), rewards (N,) and terminated (N,) bool after a step."""


@dataclass(frozen=True)
class Dynamics(ABC):
    """One task as functions of a batch of states."""

    state_size: ClassVar[int]
    """S."""
    observation_space: ClassVar[spaces.Box]
    """Space of one observation, float32."""
    action_space: ClassVar[spaces.Discrete | spaces.Box]
    """Space of one action."""

    def __post_init__(self) -> None:
        check_fields(self)

    @abstractmethod
    def initial(self, states: Tensor, generator: torch.Generator) -> Tensor:
        """Freshly drawn first states (N, S), of the shape, dtype and device of `states`."""

    @abstractmethod
    def step(self, states: Tensor, actions: Tensor) -> Transition:
        """What follows from actions in the task's own form: (N,) int64, or (N, d) float for Box."""

    def observe(self, states: Tensor) -> Tensor:
        """Observations (N, ...) float32, which share no memory with the states."""
        return states.to(torch.float32, copy=True)


def _box(high: list[float]) -> spaces.Box:
    bounds = np.array(high, dtype=np.float32)
    return spaces.Box(-bounds, bounds, dtype=np.float32)


@dataclass(frozen=True)
class CartPole(Dynamics):
    """State: position, velocity, angle, angular velocity (Barto, Sutton and Anderson 1983)."""

    sutton_barto_reward: bool = False

    GRAVITY, POLE_MASS, TOTAL_MASS, HALF_LENGTH, FORCE, TAU = 9.8, 0.1, 1.1, 0.5, 10.0, 0.02
    POSITION_LIMIT, ANGLE_LIMIT = 2.4, 12 * 2 * math.pi / 360

    state_size = 4
    observation_space = _box([POSITION_LIMIT * 2, np.inf, ANGLE_LIMIT * 2, np.inf])
    action_space = spaces.Discrete(2)

    def initial(self, states: Tensor, generator: torch.Generator) -> Tensor:
        return torch.empty_like(states).uniform_(-0.05, 0.05, generator=generator)

    def step(self, states: Tensor, actions: Tensor) -> Transition:
        _, velocity, angle, spin = states.unbind(-1)
        cos, sin = angle.cos(), angle.sin()
        force = actions * (2 * self.FORCE) - self.FORCE
        pole = self.POLE_MASS * self.HALF_LENGTH
        push = (force + pole * spin.square() * sin) / self.TOTAL_MASS
        spin_rate = (self.GRAVITY * sin - cos * push) / (
            self.HALF_LENGTH * (4.0 / 3.0 - self.POLE_MASS * cos.square() / self.TOTAL_MASS)
        )
        acceleration = push - pole * spin_rate * cos / self.TOTAL_MASS
        # Explicit Euler: every number moves by its old rate.
        rates = torch.stack((velocity, acceleration, spin, spin_rate), dim=-1)
        states = states + self.TAU * rates
        fallen = (states[:, 0].abs() > self.POSITION_LIMIT) | (states[:, 2].abs() > self.ANGLE_LIMIT)
        if self.sutton_barto_reward:
            return states, -fallen.to(states.dtype), fallen
        return states, torch.ones_like(cos), fallen


@dataclass(frozen=True)
class Pendulum(Dynamics):
    """State: angle from upright, angular velocity. Never terminates."""

    g: float = 10.0

    MASS, LENGTH, STEP, MAX_SPIN, MAX_TORQUE = 1.0, 1.0, 0.05, 8.0, 2.0

    state_size = 2
    observation_space = _box([1.0, 1.0, MAX_SPIN])
    action_space = spaces.Box(-MAX_TORQUE, MAX_TORQUE, (1,), np.float32)

    def initial(self, states: Tensor, generator: torch.Generator) -> Tensor:
        fresh = torch.empty_like(states)
        fresh[:, 0].uniform_(-math.pi, math.pi, generator=generator)
        fresh[:, 1].uniform_(-1.0, 1.0, generator=generator)
        return fresh

    def step(self, states: Tensor, actions: Tensor) -> Transition:
        angle, spin = states.unbind(-1)
        torque = actions[:, 0].clamp(-self.MAX_TORQUE, self.MAX_TORQUE)
        from_upright = torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
        costs = from_upright.square() + 0.1 * spin.square() + 0.001 * torque.square()
        pull = 3 * self.g / (2 * self.LENGTH) * angle.sin()
        spin = spin + (pull + 3.0 / (self.MASS * self.LENGTH**2) * torque) * self.STEP
        spin = spin.clamp(-self.MAX_SPIN, self.MAX_SPIN)
        states = torch.stack((angle + spin * self.STEP, spin), dim=-1)
        return states, -costs, torch.zeros_like(spin, dtype=torch.bool)

    def observe(self, states: Tensor) -> Tensor:
        angle, spin = states.unbind(-1)
        return torch.stack((angle.cos(), angle.sin(), spin), dim=-1).to(torch.float32)


@dataclass(frozen=True)
class Acrobot(Dynamics):
    """State: the two joints' angles and angular velocities (Sutton 1996, with the equations of the book).

    All masses, lengths and moments of inertia are 1, and the centres of mass lie halfway along the links.
    """

    CENTRE, GRAVITY, STEP, MAX_SPIN_1, MAX_SPIN_2 = 0.5, 9.8, 0.2, 4 * math.pi, 9 * math.pi

    state_size = 4
    observation_space = _box([1.0, 1.0, 1.0, 1.0, MAX_SPIN_1, MAX_SPIN_2])
    action_space = spaces.Discrete(3)

    def initial(self, states: Tensor, generator: torch.Generator) -> Tensor:
        return torch.empty_like(states).uniform_(-0.1, 0.1, generator=generator)

    def step(self, states: Tensor, actions: Tensor) -> Transition:
        torque = (actions - 1).to(states.dtype)
        # Fourth-order Runge-Kutta over one step.
        k1 = self._rates(states, torque)
        k2 = self._rates(states + self.STEP / 2 * k1, torque)
        k3 = self._rates(states + self.STEP / 2 * k2, torque)
        k4 = self._rates(states + self.STEP * k3, torque)
        angle_1, angle_2, spin_1, spin_2 = (states + self.STEP / 6 * (k1 + 2 * k2 + 2 * k3 + k4)).unbind(-1)
        angle_1, angle_2 = _wrapped(angle_1), _wrapped(angle_2)
        spin_1 = spin_1.clamp(-self.MAX_SPIN_1, self.MAX_SPIN_1)
        spin_2 = spin_2.clamp(-self.MAX_SPIN_2, self.MAX_SPIN_2)
        high_enough = -angle_1.cos() - (angle_2 + angle_1).cos() > 1.0
        return torch.stack((angle_1, angle_2, spin_1, spin_2), dim=-1), high_enough.to(states.dtype) - 1.0, high_enough

    def _rates(self, states: Tensor, torque: Tensor) -> Tensor:
        angle_1, angle_2, spin_1, spin_2 = states.unbind(-1)
        c, g = self.CENTRE, self.GRAVITY
        cos_2, sin_2 = angle_2.cos(), angle_2.sin()
        d1 = c**2 + (1.0 + c**2 + 2 * c * cos_2) + 1.0 + 1.0
        d2 = (c**2 + c * cos_2) + 1.0
        phi2 = c * g * (angle_1 + angle_2 - math.pi / 2).cos()
        phi1 = (
            -c * spin_2.square() * sin_2
            - 2 * c * spin_2 * spin_1 * sin_2
            + (c + 1.0) * g * (angle_1 - math.pi / 2).cos()
            + phi2
        )
        rate_2 = (torque + d2 / d1 * phi1 - c * spin_1.square() * sin_2 - phi2) / (c**2 + 1.0 - d2.square() / d1)
        rate_1 = -(d2 * rate_2 + phi1) / d1
        return torch.stack((spin_1, spin_2, rate_1, rate_2), dim=-1)

    def observe(self, states: Tensor) -> Tensor:
        angle_1, angle_2, spin_1, spin_2 = states.unbind(-1)
        parts = (angle_1.cos(), angle_1.sin(), angle_2.cos(), angle_2.sin(), spin_1, spin_2)
        return torch.stack(parts, dim=-1).to(torch.float32)


def _wrapped(angle: Tensor) -> Tensor:
    """The angle brought into [-π, π] by whole turns; one that is there already keeps every bit."""
    turns = ((angle.abs() - math.pi) / (2 * math.pi)).ceil().clamp(min=0.0)
    return angle - angle.sign() * turns * (2 * math.pi)


@dataclass(frozen=True)
class MountainCar(Dynamics):
    """State: position, velocity (Moore 1990)."""

    goal_velocity: float = 0.0

    LEFT, RIGHT, MAX_SPEED, GOAL, FORCE, GRAVITY = -1.2, 0.6, 0.07, 0.5, 0.001, 0.0025

    state_size = 2
    observation_space = spaces.Box(np.array([LEFT, -MAX_SPEED], np.float32), np.array([RIGHT, MAX_SPEED], np.float32))
    action_space: ClassVar[spaces.Discrete | spaces.Box] = spaces.Discrete(3)

    def initial(self, states: Tensor, generator: torch.Generator) -> Tensor:
        fresh = torch.zeros_like(states)
        fresh[:, 0].uniform_(-0.6, -0.4, generator=generator)
        return fresh

    def step(self, states: Tensor, actions: Tensor) -> Transition:
        states, arrived = self._moved(states, (actions - 1).to(states.dtype) * self.FORCE)
        return states, torch.full_like(states[:, 0], -1.0), arrived

    def _moved(self, states: Tensor, push: Tensor) -> tuple[Tensor, Tensor]:
        """States (N, 2) after a push (N,), and whether they are at the goal (N,)."""
        position, velocity = states.unbind(-1)
        velocity = velocity + (push - self.GRAVITY * (3 * position).cos())
        velocity = velocity.clamp(-self.MAX_SPEED, self.MAX_SPEED)
        position = (position + velocity).clamp(self.LEFT, self.RIGHT)
        velocity = velocity.masked_fill((position <= self.LEFT) & (velocity < 0), 0.0)
        arrived = (position >= self.GOAL) & (velocity >= self.goal_velocity)
        return torch.stack((position, velocity), dim=-1), arrived


@dataclass(frozen=True)
class MountainCarContinuous(MountainCar):
    """The car with a continuous push; the reward pays for the effort and for arriving."""

    GOAL, FORCE = 0.45, 0.0015

    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def step(self, states: Tensor, actions: Tensor) -> Transition:
        push = actions[:, 0]
        states, arrived = self._moved(states, push.clamp(-1.0, 1.0) * self.FORCE)
        return states, 100.0 * arrived - push.square() * 0.1, arrived


DYNAMICS: dict[str, type[Dynamics]] = {
    "CartPole-v1": CartPole,
    "Pendulum-v1": Pendulum,
    "Acrobot-v1": Acrobot,
    "MountainCar-v0": MountainCar,
    "MountainCarContinuous-v0": MountainCarContinuous,
}
"""The tasks there are, by their Gymnasium ids."""
