"""Return and advantage estimators as pure functions. Shapes: T steps, N environments."""

from __future__ import annotations

import math

import torch
from torch import Tensor

LARGE = 2**15
"""Numbers from which on fewer operations on each cost less than fewer operations."""


def gae(
    rewards_TN: Tensor,
    values_TN: Tensor,
    next_values_TN: Tensor,
    terminated_TN: Tensor,
    ended_TN: Tensor,
    valid_TN: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16), right at every kind of episode end.

        δ_t = r_t + γ (1 − terminated_t) V(s'_t) − V(s_t)
        A_t = δ_t + γ λ (1 − ended_t) A_{t+1}

    V(s'_t) is the value of the true successor, so a truncated episode bootstraps from its final observation and a terminated one
    from nothing; neither lets the next episode's advantages flow back. A step that is not valid has advantage 0 and
    passes nothing on. Flags are bool, the rest float; returns (T, N).
    """
    assert rewards_TN.shape == values_TN.shape == next_values_TN.shape == valid_TN.shape, "all inputs are (T, N)"
    assert terminated_TN.dtype == ended_TN.dtype == valid_TN.dtype == torch.bool, "flags are bool"
    # Masks and not products with 0: a terminal observation may be NaN, and then so is its value.
    deltas_TN = rewards_TN + gamma * torch.where(terminated_TN, 0.0, next_values_TN) - values_TN
    deltas_TN = torch.where(valid_TN, deltas_TN, 0.0)
    # What step t+1 may pass back to step t: nothing across an episode's end or to an invalid step, and an invalid step
    # at t+1 has nothing to pass on.
    # By way of numbers, because torch turns truth values into floats one at a time on a CPU.
    carry_TN = (valid_TN > ended_TN).view(torch.uint8).to(deltas_TN.dtype).mul_(gamma * gae_lambda)

    return _recurrence(deltas_TN, carry_TN, bound=gamma * gae_lambda)


def discounted_running_returns(
    rewards_TN: Tensor, ended_TN: Tensor, valid_TN: Tensor, start_N: Tensor, gamma: float
) -> tuple[Tensor, Tensor]:
    """R_t = γ R_{t−1} + r_t, started anew after an episode's end; what reward scaling takes its variance from.

    Invalid steps repeat the value before them. Returns ((T, N), the value to start the next rollout with (N,)).
    """
    before_TN = torch.cat([torch.zeros_like(ended_TN[:1]), ended_TN[:-1]])  # whether the step before was an end
    factor_TN = torch.where(valid_TN, gamma, 1.0).masked_fill(before_TN, 0.0)
    gain_TN = rewards_TN.masked_fill(~valid_TN, 0.0)
    gain_TN[0] += factor_TN[0] * start_N
    returns_TN = _recurrence(gain_TN.flip(0), factor_TN.flip(0)).flip(0)
    return returns_TN, returns_TN[-1].masked_fill(ended_TN[-1], 0.0)


def _recurrence(gains_TN: Tensor, factors_TN: Tensor, bound: float = 1.0) -> Tensor:
    """x_t = g_t + f_t x_{t+1}, with x_T = 0, without T small steps. With |f| ≤ bound < 1 far terms vanish in float32."""
    in_blocks = gains_TN.device.type == "cpu" and gains_TN.numel() >= LARGE
    return (_in_blocks if in_blocks else _by_doubling)(gains_TN, factors_TN, bound)


def _in_blocks(gains_TN: Tensor, factors_TN: Tensor, bound: float) -> Tensor:
    """√T blocks side by side, in √T steps, and then their values at the blocks' beginnings: each number is touched twice."""
    steps, envs = gains_TN.shape
    length = math.isqrt(steps)
    missing = -steps % length
    x_BLN, reach_BLN = (
        torch.cat([part, part.new_zeros(missing, envs)]).view(-1, length, envs) for part in (gains_TN, factors_TN)
    )
    # From here on x holds what the rest of its block gives, and reach what the next block's first value is multiplied by.
    x_L, reach_L = x_BLN.unbind(1), reach_BLN.unbind(1)
    for t in range(length - 2, -1, -1):
        x_L[t].addcmul_(reach_L[t], x_L[t + 1])
        reach_L[t].mul_(reach_L[t + 1])
    first_BN = _by_doubling(x_L[0], reach_L[0], bound**length)
    x_BLN[:-1].addcmul_(reach_BLN[:-1], first_BN[1:, None])
    return x_BLN.view(-1, envs)[:steps]


def _by_doubling(gains_TN: Tensor, factors_TN: Tensor, bound: float) -> Tensor:
    """In log₂ T rounds over whole arrays: after the round with stride s, x_t holds the terms up to t + 2s."""
    x_TN, reach_TN = gains_TN, factors_TN
    stride = 1
    while stride < len(x_TN) and bound**stride > 1e-10:
        near, far = reach_TN[:-stride], x_TN[stride:]
        x_TN = torch.cat([torch.addcmul(x_TN[:-stride], near, far), x_TN[-stride:]])
        # Beyond the last step there is nothing: only what reaches a step inside counts from here on.
        reach_TN = torch.cat([near * reach_TN[stride:], torch.zeros_like(reach_TN[-stride:])])
        stride *= 2
    return x_TN
