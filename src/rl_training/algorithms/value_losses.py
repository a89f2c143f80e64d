"""Targets and losses of value-based learning, as pure functions of tensors.

Shapes: B transitions, A actions, N predicted and M target atoms or quantiles. Discounts (B,) are γⁿ, or 0 after a terminal
step, so no formula knows γ, n or `done`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def take_actions(outputs: Tensor, actions: Tensor) -> Tensor:
    """outputs[b, actions[b]]: (B, A, …) and (B,) → (B, …)."""
    assert actions.dim() == 1 and outputs.shape[0] == actions.shape[0], (outputs.shape, actions.shape)
    index = actions.long().view(-1, *[1] * (outputs.dim() - 1)).expand(-1, 1, *outputs.shape[2:])
    return outputs.gather(1, index).squeeze(1)


def bellman_target(rewards: Tensor, discounts: Tensor, next_values: Tensor) -> Tensor:
    """R + γⁿ V', where V' is a value (B,) or N samples or quantiles of the return (B, N)."""
    assert rewards.dim() == 1 and rewards.shape == discounts.shape == next_values.shape[:1], next_values.shape
    if next_values.dim() == 1:
        return rewards + discounts * next_values
    return rewards.unsqueeze(-1) + discounts.unsqueeze(-1) * next_values


def greedy_outputs(next_outputs: Tensor, next_q: Tensor) -> Tensor:
    """What a network says of the greedy action, Q'(s', argmax_a Q(s', a)): (B, A, …) and (B, A) → (B, …).

    DQN takes both from the target network; Double DQN (arXiv 1509.06461, eq. 4) lets the online network's next_q choose and
    the target network's next_outputs value the choice.
    """
    assert next_q.shape == next_outputs.shape[:2], (next_q.shape, next_outputs.shape)
    return take_actions(next_outputs, next_q.argmax(dim=-1))


def munchausen_bonus(q: Tensor, actions: Tensor, *, tau: float, alpha: float, clip: float) -> Tensor:
    """α · clip(τ log π(a|s), l₀, 0) with π = softmax(Q'/τ), q (B, A) of the target network at s → (B,).

    τ log π(a|s) = Q'(s, a) − τ log Σ_b exp(Q'(s, b)/τ), which is stable however small τ is.
    """
    log_policy = take_actions(q, actions) - log_sum_exp_value(q, tau)
    return alpha * log_policy.clamp(clip, 0.0)


def log_sum_exp_value(q: Tensor, tau: float) -> Tensor:
    """Σ_a π(a|s) (Q'(s, a) − τ log π(a|s)) = τ log Σ_a exp(Q'(s, a)/τ) for π = softmax(Q'/τ): (B, A) → (B,)."""
    assert q.dim() == 2, q.shape
    return tau * torch.logsumexp(q / tau, dim=-1)


def munchausen_target(
    rewards: Tensor,
    discounts: Tensor,
    q: Tensor,
    actions: Tensor,
    next_q: Tensor,
    *,
    tau: float,
    alpha: float,
    clip: float,
) -> Tensor:
    """Munchausen DQN (arXiv 2007.14430, eq. 2): y = R + α clip(τ log π(a|s), l₀, 0) + γⁿ Σ_a' π(a'|s') (Q' − τ log π)(s', a').

    q and next_q (B, A) are the target network's at s and s'. With n > 1 steps the bonus is that of the first action → (B,).
    """
    bonus = munchausen_bonus(q, actions, tau=tau, alpha=alpha, clip=clip)
    return bellman_target(rewards + bonus, discounts, log_sum_exp_value(next_q, tau))


def huber_loss(errors: Tensor, kappa: float = 1.0) -> Tensor:
    """L_κ(δ) = ½ δ² where |δ| ≤ κ, else κ (|δ| − ½ κ); elementwise."""
    return F.huber_loss(errors, torch.zeros_like(errors), reduction="none", delta=kappa)


def categorical_projection(next_probs: Tensor, rewards: Tensor, discounts: Tensor, support: Tensor) -> Tensor:
    """C51 (arXiv 1707.06887, eq. 7): the distribution of R + γⁿ Z' put back on the evenly spaced support z.

        (ΦT Z')_i = Σ_j [1 − |b_j − i|]₊ p_j,   b_j = (clip(R + γⁿ z_j, z_0, z_{N−1}) − z_0) / Δz

    next_probs (B, N), support (N,) → (B, N). Where b_j is an integer the whole mass goes to that atom.
    """
    assert next_probs.dim() == 2 and next_probs.shape[1:] == support.shape, (next_probs.shape, support.shape)
    spacing = (support[-1] - support[0]) / (len(support) - 1)
    positions = (bellman_target(rewards, discounts, support.expand_as(next_probs)) - support[0]) / spacing
    positions = positions.clamp(0.0, len(support) - 1.0)
    # A scatter is 30 times faster on the CPU, but on other devices it adds in an order that changes from run to run.
    spread = spread_by_scatter if positions.device.type == "cpu" else spread_by_triangle
    return spread(next_probs, positions)


def spread_by_scatter(probs: Tensor, positions: Tensor) -> Tensor:
    """Σ_j [1 − |b_j − i|]₊ p_j, each p_j shared between the two atoms around b_j: (B, N) and (B, N) → (B, N)."""
    # At most the last but one, so that there always is an atom above. NaN is no index; the share carries it on to the loss.
    lower = positions.nan_to_num(nan=0.0).floor_().clamp_(max=probs.shape[1] - 2)
    share = positions - lower
    index = lower.long()
    return torch.zeros_like(probs).scatter_add_(1, index, probs * (1 - share)).scatter_add_(1, index + 1, probs * share)


def spread_by_triangle(probs: Tensor, positions: Tensor) -> Tensor:
    """Σ_j [1 − |b_j − i|]₊ p_j as a matrix product, whose order of summation is fixed: (B, N) and (B, N) → (B, N)."""
    atoms = torch.arange(probs.shape[1], dtype=positions.dtype, device=positions.device)
    shares = (1.0 - (positions.unsqueeze(1) - atoms.unsqueeze(1)).abs()).clamp_min(0.0)  # (B, atom i, atom j)
    return torch.bmm(shares, probs.unsqueeze(-1)).squeeze(-1)


def categorical_cross_entropy(target_probs: Tensor, log_probs: Tensor) -> Tensor:
    """−Σ_i m_i log p_i: (B, N) and (B, N) → (B,)."""
    assert target_probs.shape == log_probs.shape and log_probs.dim() == 2, (target_probs.shape, log_probs.shape)
    return -(target_probs * log_probs).sum(dim=-1)


def quantile_huber_loss(predictions: Tensor, targets: Tensor, taus: Tensor, kappa: float = 1.0) -> Tensor:
    """Quantile regression of all pairs (arXiv 1710.10044, eq. 10, divided by κ as in arXiv 1806.06923, eq. 3):

        Σ_i 1/M Σ_j |τ_i − 1{u_ij < 0}| L_κ(u_ij) / κ,   u_ij = target_j − prediction_i

    predictions (B, N) at the fractions taus (N,) or (B, N), targets (B, M) without gradient → (B,).
    """
    assert predictions.dim() == targets.dim() == 2 and len(predictions) == len(targets), targets.shape
    assert taus.shape in (predictions.shape, predictions.shape[1:]), (taus.shape, predictions.shape)
    predicted, target = torch.broadcast_tensors(predictions.unsqueeze(2), targets.unsqueeze(1))  # (B, N, M)
    loss = F.huber_loss(predicted, target, reduction="none", delta=kappa)
    above = taus.unsqueeze(-1)
    weights = torch.where(target < predicted, 1.0 - above, above)
    return (weights * loss).mean(dim=2).sum(dim=1) / kappa
