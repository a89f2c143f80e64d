"""Truncated quantile critics (Kuznetsov et al. 2020, arXiv 2005.04269): SAC whose critics predict quantiles of the return, and
whose target leaves the most optimistic of them out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from rl_training.algorithms.off_policy_actor_critic import CriticLoss, with_actions
from rl_training.algorithms.sac import SACBase, SACConfig, SamplingAlgorithm
from rl_training.algorithms.value_losses import quantile_huber_loss
from rl_training.data.replay_buffer import TransitionBatch
from rl_training.execution.draws import RandomSource
from rl_training.policies.q_network import midpoints
from rl_training.utils.errors import ConfigError
from rl_training.utils.fields import Range, Unused


@dataclass
class TQCConfig(SACConfig):
    """Hyperparameters of TQC."""

    num_critics: Annotated[int, Range(ge=1)] = 5
    actor_value: Annotated[
        Literal["min", "mean"], Unused("the actor climbs the mean of all quantiles of all critics")
    ] = "mean"
    num_quantiles: Annotated[int, Range(ge=1)] = 25
    """Quantiles that each critic predicts."""
    drop_quantiles: Annotated[int, Range(ge=0)] = 2
    """Largest quantiles left out of the target, per critic."""

    @property
    def critic_outputs(self) -> int:
        return self.num_quantiles


def truncated(quantiles: Tensor, drop: int) -> Tensor:
    """All but the `drop` · N largest of the pooled atoms, sorted: (N, B, K) → (B, N · (K − drop))."""
    assert quantiles.dim() == 3, quantiles.shape
    members, batch, atoms = quantiles.shape
    pooled = quantiles.transpose(0, 1).reshape(batch, members * atoms)
    return pooled.sort(dim=1).values[:, : members * (atoms - drop)]


class TQCAlgorithm(SamplingAlgorithm, SACBase[TQCConfig]):
    """SAC with quantile critics, of which the target leaves the largest out (Kuznetsov et al. 2020, arXiv 2005.04269)."""

    config_class = TQCConfig
    differences = ("Smaller critics than the paper's, which have three layers of 512 units.",)

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._taus = midpoints(self.config.num_quantiles).to(self.device)

    @classmethod
    def check_config(cls, config: TQCConfig, num_envs: int) -> None:
        super().check_config(config, num_envs)
        if config.drop_quantiles >= config.num_quantiles:
            raise ConfigError(
                f"hyperparams.drop_quantiles is {config.drop_quantiles}, so nothing is left of {config.num_quantiles} "
                "quantiles per critic: lower it, e.g. to 2."
            )

    def _critic_loss(self, batch: TransitionBatch, features: Tensor, random: RandomSource) -> CriticLoss:
        with torch.no_grad():
            next_quantiles, next_log_probs = self._next_values(batch, random)
            kept = truncated(next_quantiles, self.config.drop_quantiles)
            soft = kept - (self.temperature.alpha * next_log_probs).unsqueeze(-1)
            targets = batch.rewards.unsqueeze(-1) + batch.discounts.unsqueeze(-1) * soft
        quantiles = self.policy.critics(with_actions(features, batch.actions))
        errors = quantile_huber_loss(quantiles.flatten(0, 1), targets.repeat(len(quantiles), 1), self._taus)
        loss = (batch.weights * errors.view(quantiles.shape[:2])).mean(dim=1).sum() / self.config.num_quantiles
        q = quantiles.mean(dim=-1)
        return CriticLoss(loss, q, (q.detach() - targets.mean(dim=-1)).abs().mean(dim=0))

    def _actor_value(self, features: Tensor, actions: Tensor) -> Tensor:
        return self.policy.critics(with_actions(features, actions)).mean(dim=(0, 2))
