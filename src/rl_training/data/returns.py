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

    advantages_TN = torch.empty_like(deltas_TN)
    advantages_TN[-1] = deltas_TN[-1]
    for t in range(len(deltas_TN) - 2, -1, -1):
        torch.addcmul(deltas_TN[t], carry_TN[t], advantages_TN[t + 1], out=advantages_TN[t])
    return advantages_TN


def discounted_running_returns(
    rewards_TN: Tensor, ended_TN: Tensor, valid_TN: Tensor, start_N: Tensor, gamma: float
) -> tuple[Tensor, Tensor]:
    """R_t = γ R_{t−1} + r_t, started anew after an episode's end; what reward scaling takes its variance from.

    Invalid steps repeat the value before them. Returns ((T, N), the value to start the next rollout with (N,)).
    """
    returns_TN = torch.empty_like(rewards_TN)
    running_N = start_N
    for t in range(len(rewards_TN)):
        running_N = torch.where(valid_TN[t], gamma * running_N + rewards_TN[t], running_N)
        returns_TN[t] = running_N
        running_N = running_N.masked_fill(ended_TN[t], 0.0)
    return returns_TN, running_N
