"""Return and advantage estimators as pure functions. Shapes: T steps, N environments."""

from __future__ import annotations

import torch
from torch import Tensor


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
    deltas_TN = rewards_TN + gamma * next_values_TN.masked_fill(terminated_TN, 0.0) - values_TN
    deltas_TN = deltas_TN.masked_fill(~valid_TN, 0.0)
    # What step t+1 may pass back to step t: nothing across an episode's end or to an invalid step, and an invalid step
    # at t+1 has nothing to pass on.
    carry_TN = gamma * gae_lambda * (~ended_TN & valid_TN).to(deltas_TN.dtype)

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
    """x_t = g_t + f_t x_{t+1}, with x_T = 0, in log₂ T rounds over whole arrays instead of T small steps.

    After the round with stride s, x_t holds the terms up to t + 2s. With |f| ≤ bound < 1 far terms vanish in float32.
    """
    x_TN, reach_TN = gains_TN, factors_TN
    stride = 1
    while stride < len(x_TN) and bound**stride > 1e-10:
        near, far = reach_TN[:-stride], x_TN[stride:]
        x_TN = torch.cat([torch.addcmul(x_TN[:-stride], near, far), x_TN[-stride:]])
        # Beyond the last step there is nothing: only what reaches a step inside counts from here on.
        reach_TN = torch.cat([near * reach_TN[stride:], torch.zeros_like(reach_TN[-stride:])])
        stride *= 2
    return x_TN
