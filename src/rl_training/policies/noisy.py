"""Linear layers with learned noise for exploration (Fortunato et al. 2018, arXiv 1706.10295)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_training.execution.draws import RandomSource, normal


class NoisyLinear(nn.Module):
    """y = (μ_w + σ_w ⊙ ε_w) x + μ_b + σ_b ⊙ ε_b with factorised Gaussian noise (section 3, option b).

    ε_w = f(p) f(q)ᵀ and ε_b = f(p), where f(x) = sign(x) √|x| and p (out_features,), q (in_features,) are standard normals.
    The noise changes in `sample_noise` only and is 0 before the first call. It is drawn anew before every use, so it is
    no part of the state dict.
    """

    noise_in: Tensor
    """f(q), (in_features,)."""
    noise_out: Tensor
    """f(p), (out_features,)."""

    def __init__(self, in_features: int, out_features: int, sigma: float) -> None:
        """Start from μ uniform in ±1/√in (global generator) and σ = sigma/√in."""
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        bound = 1.0 / math.sqrt(in_features)
        self.weight_mean = nn.Parameter(torch.empty(out_features, in_features).uniform_(-bound, bound))
        self.bias_mean = nn.Parameter(torch.empty(out_features).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((out_features, in_features), sigma * bound))
        self.bias_sigma = nn.Parameter(torch.full((out_features,), sigma * bound))
        self.register_buffer("noise_in", torch.zeros(in_features), persistent=False)
        self.register_buffer("noise_out", torch.zeros(out_features), persistent=False)

    @torch.no_grad()
    def sample_noise(self, generator: RandomSource = None) -> None:
        """Draw the noise that later forward passes use; one draw for a whole batch."""
        for noise in (self.noise_in, self.noise_out):
            drawn = normal(noise.shape, generator, noise.device)
            noise.copy_(drawn.sign() * drawn.abs().sqrt())

    def forward(self, x: Tensor, noisy: bool = True) -> Tensor:
        """Map (..., in_features) to (..., out_features); the mean weights alone without `noisy` or outside training mode."""
        if not (noisy and self.training):
            return F.linear(x, self.weight_mean, self.bias_mean)
        weight = self.weight_mean + self.weight_sigma * torch.outer(self.noise_out, self.noise_in)
        return F.linear(x, weight, self.bias_mean + self.bias_sigma * self.noise_out)
