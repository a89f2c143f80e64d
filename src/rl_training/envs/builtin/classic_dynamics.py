"""The equations of Gymnasium's classic control tasks on batches of states, in Gymnasium's order of operations.

Shapes: N environments, S numbers of state. Written once for NumPy arrays and torch tensors: `xp` is the module the states belong
to, and only what both call by the same name is used. Nothing is asked of a device (no `.item()`, no `if tensor`), so that a step
on tensors can be recorded as a CUDA graph. The fields of a class are the arguments that Gymnasium's own takes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from rl_training.utils.coerce import check_fields

Numbers = Any
"""An array or a tensor of floats; which of them depends on `xp`."""
Transition = tuple[Numbers, Numbers, Numbers]
"""States (N, S), rewards (N,) and terminated (N,) bool after a step."""


@dataclass(frozen=True)
class Dynamics(ABC):
    """One task as functions of a batch of states."""

    initial: ClassVar[tuple[tuple[float, float], ...]]
    """(lowest, highest) of each of the S numbers of a first state, drawn uniformly."""
    observation_space: ClassVar[spaces.Box]
    """Space of one observation, float32."""
    action_space: ClassVar[spaces.Discrete | spaces.Box]
    """Space of one action."""

    def __post_init__(self) -> None:
        check_fields(self)

    @abstractmethod
    def step(self, xp: Any, states: Numbers, actions: Numbers) -> Transition:
        """What follows from actions in the task's own form: (N,) int64, or (N, d) float for Box."""

    def observe(self, xp: Any, states: Numbers) -> Numbers:
        """Observations (N, ...); the states themselves where the task hides nothing."""
        return states


def _box(high: list[float]) -> spaces.Box:
    bounds = np.array(high, dtype=np.float32)
    return spaces.Box(-bounds, bounds, dtype=np.float32)


def _like(xp: Any, numbers: Numbers, values: Numbers) -> Numbers:
    """Integers or truth values (N,) as floats of the precision of `numbers` (N,)."""
    return xp.zeros_like(numbers) + values


def _columns(xp: Any, *columns: Numbers) -> Numbers:
    """(N, S) from S times (N,)."""
    if xp is not np:
        return xp.stack(columns, -1)
    table = np.empty((len(columns[0]), len(columns)), columns[0].dtype)  # three times as fast as NumPy's stack
    for index, column in enumerate(columns):
        table[:, index] = column
    return table


@dataclass(frozen=True)
class CartPole(Dynamics):
    """State: position, velocity, angle, angular velocity (Barto, Sutton and Anderson 1983)."""

    sutton_barto_reward: bool = False

    GRAVITY, POLE_MASS, TOTAL_MASS, HALF_LENGTH, FORCE, TAU = 9.8, 0.1, 1.1, 0.5, 10.0, 0.02
    POSITION_LIMIT, ANGLE_LIMIT = 2.4, 12 * 2 * math.pi / 360

    initial = ((-0.05, 0.05),) * 4
    observation_space = _box([POSITION_LIMIT * 2, np.inf, ANGLE_LIMIT * 2, np.inf])
    action_space = spaces.Discrete(2)

    def step(self, xp: Any, states: Numbers, actions: Numbers) -> Transition:
        _, velocity, angle, spin = states.T
        cos, sin = xp.cos(angle), xp.sin(angle)
        force = actions * (2 * self.FORCE) - self.FORCE
        pole = self.POLE_MASS * self.HALF_LENGTH
        push = (force + pole * xp.square(spin) * sin) / self.TOTAL_MASS
        spin_rate = (self.GRAVITY * sin - cos * push) / (
            self.HALF_LENGTH * (4.0 / 3.0 - self.POLE_MASS * xp.square(cos) / self.TOTAL_MASS)
        )
        acceleration = push - pole * spin_rate * cos / self.TOTAL_MASS
        # Explicit Euler: every number moves by its old rate.
        states = states + self.TAU * _columns(xp, velocity, acceleration, spin, spin_rate)
        fallen = (xp.abs(states[:, 0]) > self.POSITION_LIMIT) | (xp.abs(states[:, 2]) > self.ANGLE_LIMIT)
        if self.sutton_barto_reward:
            return states, -_like(xp, cos, fallen), fallen
        return states, xp.ones_like(cos), fallen


@dataclass(frozen=True)
class Pendulum(Dynamics):
    """State: angle from upright, angular velocity. Never terminates."""

    g: float = 10.0

    MASS, LENGTH, STEP, MAX_SPIN, MAX_TORQUE = 1.0, 1.0, 0.05, 8.0, 2.0

    initial = ((-math.pi, math.pi), (-1.0, 1.0))
    observation_space = _box([1.0, 1.0, MAX_SPIN])
    action_space = spaces.Box(-MAX_TORQUE, MAX_TORQUE, (1,), np.float32)

    def step(self, xp: Any, states: Numbers, actions: Numbers) -> Transition:
        angle, spin = states.T
        torque = xp.clip(actions[:, 0], -self.MAX_TORQUE, self.MAX_TORQUE)
        from_upright = xp.remainder(angle + math.pi, 2 * math.pi) - math.pi
        costs = xp.square(from_upright) + 0.1 * xp.square(spin) + 0.001 * xp.square(torque)
        pull = 3 * self.g / (2 * self.LENGTH) * xp.sin(angle)
        spin = spin + (pull + 3.0 / (self.MASS * self.LENGTH**2) * torque) * self.STEP
        spin = xp.clip(spin, -self.MAX_SPIN, self.MAX_SPIN)
        states = _columns(xp, angle + spin * self.STEP, spin)
        return states, -costs, xp.zeros_like(spin, dtype=xp.bool)

    def observe(self, xp: Any, states: Numbers) -> Numbers:
        angle, spin = states.T
        return _columns(xp, xp.cos(angle), xp.sin(angle), spin)


@dataclass(frozen=True)
class Acrobot(Dynamics):
    """State: the two joints' angles and angular velocities (Sutton 1996, with the equations of the book).

    All masses, lengths and moments of inertia are 1, and the centres of mass lie halfway along the links.
    """

    CENTRE, GRAVITY, STEP, MAX_SPIN_1, MAX_SPIN_2 = 0.5, 9.8, 0.2, 4 * math.pi, 9 * math.pi

    initial = ((-0.1, 0.1),) * 4
    observation_space = _box([1.0, 1.0, 1.0, 1.0, MAX_SPIN_1, MAX_SPIN_2])
    action_space = spaces.Discrete(3)

    def step(self, xp: Any, states: Numbers, actions: Numbers) -> Transition:
        torque = actions - 1
        # Fourth-order Runge-Kutta over one step.
        k1 = self._rates(xp, states, torque)
        k2 = self._rates(xp, states + self.STEP / 2 * k1, torque)
        k3 = self._rates(xp, states + self.STEP / 2 * k2, torque)
        k4 = self._rates(xp, states + self.STEP * k3, torque)
        angle_1, angle_2, spin_1, spin_2 = (states + self.STEP / 6 * (k1 + 2 * k2 + 2 * k3 + k4)).T
        angle_1, angle_2 = _wrapped(xp, angle_1), _wrapped(xp, angle_2)
        spin_1 = xp.clip(spin_1, -self.MAX_SPIN_1, self.MAX_SPIN_1)
        spin_2 = xp.clip(spin_2, -self.MAX_SPIN_2, self.MAX_SPIN_2)
        high_enough = -xp.cos(angle_1) - xp.cos(angle_2 + angle_1) > 1.0
        return _columns(xp, angle_1, angle_2, spin_1, spin_2), _like(xp, spin_1, high_enough) - 1.0, high_enough

    def _rates(self, xp: Any, states: Numbers, torque: Numbers) -> Numbers:
        angle_1, angle_2, spin_1, spin_2 = states.T
        c, g = self.CENTRE, self.GRAVITY
        cos_2, sin_2 = xp.cos(angle_2), xp.sin(angle_2)
        d1 = c**2 + (1.0 + c**2 + 2 * c * cos_2) + 1.0 + 1.0
        d2 = (c**2 + c * cos_2) + 1.0
        phi2 = c * g * xp.cos(angle_1 + angle_2 - math.pi / 2)
        phi1 = (
            -c * xp.square(spin_2) * sin_2
            - 2 * c * spin_2 * spin_1 * sin_2
            + (c + 1.0) * g * xp.cos(angle_1 - math.pi / 2)
            + phi2
        )
        rate_2 = (torque + d2 / d1 * phi1 - c * xp.square(spin_1) * sin_2 - phi2) / (c**2 + 1.0 - xp.square(d2) / d1)
        rate_1 = -(d2 * rate_2 + phi1) / d1
        return _columns(xp, spin_1, spin_2, rate_1, rate_2)

    def observe(self, xp: Any, states: Numbers) -> Numbers:
        angle_1, angle_2, spin_1, spin_2 = states.T
        parts = (xp.cos(angle_1), xp.sin(angle_1), xp.cos(angle_2), xp.sin(angle_2), spin_1, spin_2)
        return _columns(xp, *parts)


def _wrapped(xp: Any, angle: Numbers) -> Numbers:
    """The angle brought into [-π, π] by whole turns; one that is there already keeps every bit."""
    turns = xp.clip(xp.ceil((xp.abs(angle) - math.pi) / (2 * math.pi)), 0.0, None)
    return angle - xp.sign(angle) * turns * (2 * math.pi)


@dataclass(frozen=True)
class MountainCar(Dynamics):
    """State: position, velocity (Moore 1990)."""

    goal_velocity: float = 0.0

    LEFT, RIGHT, MAX_SPEED, GOAL, FORCE, GRAVITY = -1.2, 0.6, 0.07, 0.5, 0.001, 0.0025

    initial = ((-0.6, -0.4), (0.0, 0.0))
    observation_space = spaces.Box(np.array([LEFT, -MAX_SPEED], np.float32), np.array([RIGHT, MAX_SPEED], np.float32))
    action_space: ClassVar[spaces.Discrete | spaces.Box] = spaces.Discrete(3)

    def step(self, xp: Any, states: Numbers, actions: Numbers) -> Transition:
        states, arrived = self._moved(xp, states, _like(xp, states[:, 0], actions - 1) * self.FORCE)
        return states, -xp.ones_like(states[:, 0]), arrived

    def _moved(self, xp: Any, states: Numbers, push: Numbers) -> tuple[Numbers, Numbers]:
        """States (N, 2) after a push (N,), and whether they are at the goal (N,)."""
        position, velocity = states.T
        velocity = velocity + (push - self.GRAVITY * xp.cos(3 * position))
        velocity = xp.clip(velocity, -self.MAX_SPEED, self.MAX_SPEED)
        position = xp.clip(position + velocity, self.LEFT, self.RIGHT)
        velocity = velocity * ~((position <= self.LEFT) & (velocity < 0))  # the wall on the left stops the car
        arrived = (position >= self.GOAL) & (velocity >= self.goal_velocity)
        return _columns(xp, position, velocity), arrived


@dataclass(frozen=True)
class MountainCarContinuous(MountainCar):
    """The car with a continuous push; the reward pays for the effort and for arriving."""

    GOAL, FORCE = 0.45, 0.0015

    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def step(self, xp: Any, states: Numbers, actions: Numbers) -> Transition:
        push = actions[:, 0]
        states, arrived = self._moved(xp, states, xp.clip(push, -1.0, 1.0) * self.FORCE)
        return states, 100.0 * arrived - xp.square(push) * 0.1, arrived


DYNAMICS: dict[str, type[Dynamics]] = {
    "CartPole-v1": CartPole,
    "Pendulum-v1": Pendulum,
    "Acrobot-v1": Acrobot,
    "MountainCar-v0": MountainCar,
    "MountainCarContinuous-v0": MountainCarContinuous,
}
"""The tasks there are, by their Gymnasium ids."""
