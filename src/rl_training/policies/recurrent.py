"""An actor-critic with a memory: recurrent cores between the encoder and the bodies.

Shapes: T steps, B rows (environments or sequences), C cores (actor's and critic's, or one for both), F features, H core size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from rl_training.execution.batches import ObsTensor, mapped
from rl_training.execution.draws import RandomSource
from rl_training.policies.actor_critic import ActorCritic
from rl_training.policies.distributions import Distribution
from rl_training.policies.networks import in_float32
from rl_training.policies.policy import ActingState
from rl_training.policies.spec import PolicySpec
from rl_training.utils.errors import ConfigError

CoreKind = Literal["lstm", "gru"]


class RecurrentActorCritic(ActorCritic):
    """Encoder → core → body → head, for actor and critic. What it remembers is one tensor (N, C, layers, H), or twice as wide for
    an LSTM: its output and its cell. An episode begins with zeros."""

    actor_core: nn.LSTM | nn.GRU
    critic_core: nn.LSTM | nn.GRU | None

    def __init__(self, spec: PolicySpec, *, kind: CoreKind, size: int, layers: int, shared_core: bool) -> None:
        if spec.config.shared and not shared_core:
            raise ConfigError(
                "policy.shared gives actor and critic one body, which reads one core: set hyperparams.shared_core: true too."
            )
        super().__init__(spec, features=size)

        def make_core() -> nn.LSTM | nn.GRU:
            core = (nn.LSTM if kind == "lstm" else nn.GRU)(self.encoder.features, size, layers)
            if spec.config.orthogonal_init:
                for name, weight in core.named_parameters():
                    nn.init.orthogonal_(weight) if "weight" in name else nn.init.zeros_(weight)
            return core

        self.actor_core = make_core()
        self.critic_core = None if shared_core else make_core()

    @property
    def cores(self) -> list[nn.LSTM | nn.GRU]:
        return [self.actor_core] if self.critic_core is None else [self.actor_core, self.critic_core]

    def actor_parts(self) -> list[nn.Module]:
        return [self.actor_core, *super().actor_parts()]

    def critic_parts(self) -> list[nn.Module]:
        return super().critic_parts() if self.critic_core is None else [*super().critic_parts(), self.critic_core]

    def initial_state(self, count: int) -> Tensor:
        core = self.actor_core
        width = core.hidden_size * (2 if isinstance(core, nn.LSTM) else 1)
        return self.value_head.weight.new_zeros(count, len(self.cores), core.num_layers, width)

    def unroll(self, obs: ObsTensor, starts: Tensor, state: ActingState) -> tuple[Distribution, Tensor, Tensor]:
        """Distributions and values (T, B) of sequences of observations (T, B, ...), and what is remembered after each step,
        (T, B, C, layers, ...). Before the steps of `starts` (T, B) it forgets."""
        actor, critic, states = self._remember(obs, starts, state)
        return *self._heads(actor, critic, self.encoder.action_mask(obs)), states

    # With one observation per row, and without a state at the beginning of an episode:

    def forward(self, obs: ObsTensor, state: ActingState = None) -> tuple[Distribution, Tensor]:
        actor, critic, _ = self._remember_one(obs, state)
        return self._heads(actor, critic, self.encoder.action_mask(obs))

    def distribution(self, obs: ObsTensor, state: ActingState = None) -> Distribution:
        return self.forward(obs, state)[0]

    def value(self, obs: ObsTensor, state: ActingState = None) -> Tensor:
        return self.forward(obs, state)[1]

    @torch.no_grad()
    def act(
        self,
        obs: ObsTensor,
        state: ActingState = None,
        *,
        generator: RandomSource = None,
        deterministic: bool = False,
    ) -> tuple[Tensor, ActingState]:
        actor, _, state = self._remember_one(obs, state)
        distribution = self.action_head(self.actor_body(actor), self.encoder.action_mask(obs))
        return distribution.mode() if deterministic else distribution.sample(generator), state

    def _remember_one(self, obs: ObsTensor, state: ActingState) -> tuple[Tensor, Tensor, Tensor]:
        actor, critic, states = self._remember(mapped(lambda rows: rows.unsqueeze(0), obs), None, state)
        return actor[0], critic[0], states[0].contiguous()

    def _remember(self, obs: ObsTensor, starts: Tensor | None, state: ActingState) -> tuple[Tensor, Tensor, Tensor]:
        """What the actor's and the critic's core put out (T, B, H), and what is remembered after each step."""
        steps, rows = (next(iter(obs.values())) if isinstance(obs, dict) else obs).shape[:2]
        encoded = self.encoder(mapped(lambda numbers: numbers.flatten(0, 1), obs)).unflatten(0, (steps, rows))
        state = self.initial_state(rows) if state is None else state
        # In float32: over many steps the error of each is remembered.
        outputs, states = in_float32(unrolled, encoded, starts, state, self.cores)
        return outputs[0], outputs[-1], states


def unrolled(
    inputs_TBF: Tensor, starts_TB: Tensor | None, state_BCLW: Tensor, cores: Sequence[nn.LSTM | nn.GRU]
) -> tuple[Tensor, Tensor]:
    """Runs cores of one form over the same sequences, all at once: outputs (C, T, B, H), and the states after each step, as
    (T, B, C, layers, W).

    Computes what `nn.LSTM` and `nn.GRU` do, but a state becomes zero before the steps of `starts`. Those have no such thing, and
    cutting sequences there would give shapes that depend on the data, which no recording could repeat.
    """
    steps, rows = inputs_TBF.shape[:2]
    kind = cores[0]
    outputs = inputs_TBF.expand(len(cores), -1, -1, -1)
    starts = None if starts_TB is None else starts_TB.unsqueeze(-1).unbind(0)
    states = []
    for layer in range(kind.num_layers):
        weight_ih, weight_hh, bias_ih, bias_hh = (
            _stacked([getattr(core, f"{name}_l{layer}") for core in cores])
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        bias_ih, bias_hh = bias_ih.unsqueeze(1), bias_hh.unsqueeze(1)
        if isinstance(kind, nn.LSTM):
            bias_ih = bias_ih + bias_hh  # nowhere but in this sum
        # What the inputs contribute does not depend on the state: one product for all steps.
        inputs = torch.baddbmm(bias_ih, outputs.flatten(1, 2), weight_ih.mT).unflatten(1, (steps, rows)).unbind(1)
        memory: tuple[Tensor, ...] = state_BCLW[:, :, layer].transpose(0, 1).split(kind.hidden_size, dim=-1)
        history = []
        for t in range(steps):
            if starts is not None:
                memory = tuple(part.masked_fill(starts[t], 0.0) for part in memory)
            if isinstance(kind, nn.LSTM):
                memory = lstm_step(inputs[t], memory, weight_hh)
            else:
                memory = gru_step(inputs[t], memory, weight_hh, bias_hh)
            history.append(memory)
        parts = [torch.stack(part, dim=1) for part in zip(*history)]
        outputs = parts[0]
        states.append(torch.cat(parts, dim=-1))
    return outputs, torch.stack(states, dim=3).permute(1, 2, 0, 3, 4)


def lstm_step(inputs: Tensor, memory: tuple[Tensor, ...], weight: Tensor) -> tuple[Tensor, ...]:
    """(output, cell) of an LSTM (Hochreiter & Schmidhuber 1997) with PyTorch's gates; `inputs` (C, B, 4H) are W x + b, output and
    cell (C, B, H), the weight U (C, 4H, H):

        i, f, g, o = W x + b + U h,   c' = σ(f) c + σ(i) tanh(g),   h' = σ(o) tanh(c')
    """
    hidden, cell = memory
    i, f, g, o = torch.baddbmm(inputs, hidden, weight.mT).chunk(4, dim=-1)
    cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def gru_step(inputs: Tensor, memory: tuple[Tensor, ...], weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    """The output, which is all that is remembered, of a GRU (Cho et al. 2014) with PyTorch's gates; shapes as above, with 3H:

        r = σ(Wr x + Ur h),   z = σ(Wz x + Uz h),   n = tanh(Wn x + r · (Un h)),   h' = (1 − z) n + z h

    each W x and each U h with a bias of its own.
    """
    (hidden,) = memory
    size = hidden.shape[-1]
    recurrent = torch.baddbmm(bias, hidden, weight.mT)
    r, z = (inputs[..., : 2 * size] + recurrent[..., : 2 * size]).sigmoid().chunk(2, dim=-1)
    n = (inputs[..., 2 * size :] + r * recurrent[..., 2 * size :]).tanh()
    return (n + z * (hidden - n),)


def _stacked(weights: Sequence[Tensor]) -> Tensor:
    return weights[0].unsqueeze(0) if len(weights) == 1 else torch.stack([*weights])
